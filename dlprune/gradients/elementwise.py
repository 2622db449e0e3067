"""Gradients of operators that work element by element."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from . import blocked
from .rule import GradientError, Partials, Site, gradient

# Two operands


@gradient("Add", "Sum")
def add(n: Site) -> Partials:
    """Hand dy to every operand."""
    return {i: n.unbroadcast(n.dy, i) for i in range(len(n.node.inputs)) if n.wants(i)}


@gradient("Mean")
def mean(n: Site) -> Partials:
    """Hand dy / count to every operand."""
    count = len(n.node.inputs)
    share = n.dy if count == 1 else n.times(1.0 / count)
    return {i: n.unbroadcast(share, i) for i in range(count) if n.wants(i)}


@gradient("Sub")
def sub(n: Site) -> Partials:
    """Y = A − B."""
    partials: dict[int, ir.Value] = {}
    if n.wants(0):
        partials[0] = n.unbroadcast(n.dy, 0)
    if n.wants(1):
        partials[1] = n.op("Neg", n.unbroadcast(n.dy, 1))
    return partials


@gradient("Mul")
def mul(n: Site) -> Partials:
    """Y = A·B."""
    return {i: n.unbroadcast(n.times(n.input(1 - i)), i) for i in range(2) if n.wants(i)}


@gradient("Div")
def div(n: Site) -> Partials:
    """Y = A / B."""
    partials: dict[int, ir.Value] = {}
    divisor = n.array(1)
    if n.wants(0):
        quotient = n.times(1.0 / divisor) if divisor is not None else n.op("Div", n.dy, n.input(1))
        partials[0] = n.unbroadcast(quotient, 0)
    if n.wants(1):
        quotient = n.op("Div", n.times(n.y), n.op("Neg", n.input(1)))
        partials[1] = n.unbroadcast(quotient, 1)
    return partials


@gradient("Max", "Min")
def extremum(n: Site) -> Partials:
    """Hand dy to the operand that was chosen: the first one where several are equal."""
    partials: dict[int, ir.Value] = {}
    taken: ir.Value | None = None
    for i in range(len(n.node.inputs)):
        chosen = n.op("Equal", n.input(i), n.y)
        if taken is not None:
            chosen = n.op("And", chosen, n.op("Not", taken))
        if n.wants(i):
            partials[i] = n.unbroadcast(n.times(n.number(chosen)), i)
        taken = chosen if taken is None else n.op("Or", taken, chosen)
    return partials


@gradient("Pow")
def power(n: Site) -> Partials:
    """Y = A^B."""
    partials: dict[int, ir.Value] = {}
    if n.wants(0):
        exponent = n.array(1)
        if exponent is None:
            slope = n.op("Mul", n.input(1), n.op("Pow", n.x, n.op("Sub", n.input(1), 1.0)))
        elif exponent.size == 1 and float(exponent.reshape(())) == 2.0:
            slope = n.op("Mul", n.x, 2.0)
        else:
            exponent = exponent.astype(np.float32)
            slope = n.op("Mul", n.op("Pow", n.x, exponent - 1.0), exponent)
        partials[0] = n.unbroadcast(n.times(slope), 0)
    if n.wants(1):
        partials[1] = n.unbroadcast(n.times(n.op("Mul", n.y, n.op("Log", n.x))), 1)
    return partials


@gradient("Where")
def where(n: Site) -> Partials:
    """Hand dy to the operand that was chosen."""
    partials: dict[int, ir.Value] = {}
    if n.wants(1):
        partials[1] = n.unbroadcast(n.times(n.number(n.input(0))), 1)
    if n.wants(2):
        partials[2] = n.unbroadcast(n.times(n.number(n.op("Not", n.input(0)))), 2)
    return partials


# Piecewise linear


@gradient("Relu")
def relu(n: Site) -> Partials:
    """Pass where y > 0."""
    return n.times(n.above(n.y))


@gradient("ThresholdedRelu")
def thresholded_relu(n: Site) -> Partials:
    """Pass where x > α."""
    return n.times(n.above(n.x, n.attr_float("alpha", 1.0)))


@gradient("Clip")
def clip(n: Site) -> Partials:
    """Pass strictly between the bounds."""
    low, high = n.scalar(1), n.scalar(2)
    low = None if low is None or low <= np.finfo(np.float32).min else low
    high = None if high is None or high >= np.finfo(np.float32).max else high
    shape = n.out_shape()
    if low is None:
        return n.dy if high is None else n.times(blocked.below(n.writer, n.y, shape, high))
    if high is None:
        return n.times(n.above(n.y, low))
    return n.times(blocked.between(n.writer, n.y, shape, low, high))


@gradient("LeakyRelu")
def leaky_relu(n: Site) -> Partials:
    """Slope 1 where x > 0, else α."""
    alpha = n.attr_float("alpha", 0.01)
    return n.times(_either(n, n.above(n.x), alpha))


@gradient("PRelu")
def prelu(n: Site) -> Partials:
    """Slope 1 where x > 0, else the given one."""
    partials: dict[int, ir.Value] = {}
    positive = n.above(n.x)
    negative = n.affine(positive, -1.0, 1.0)
    if n.wants(0):
        partials[0] = n.times(n.op("Add", positive, n.op("Mul", negative, n.input(1))))
    if n.wants(1):
        partials[1] = n.unbroadcast(n.times(n.op("Mul", negative, n.x)), 1)
    return partials


@gradient("HardSigmoid")
def hard_sigmoid(n: Site) -> Partials:
    """Slope α strictly between 0 and 1."""
    inside = blocked.between(n.writer, n.y, n.out_shape(), 0.0, 1.0)
    return n.times(n.affine(inside, n.attr_float("alpha", 0.2)))


@gradient("HardSwish")
def hard_swish(n: Site) -> Partials:
    """Slope (2·x + 3) / 6 between −3 and 3, 0 below, 1 above: a clipped line and a step at each end."""
    line = n.op("Clip", n.affine(n.x, 1.0 / 3.0, 0.5), -0.5, 1.5)
    steep = blocked.STEEP
    end = n.op("Clip", n.affine(n.x, -steep, 3.0 * steep), -0.5, 0.0)
    begin = n.op("Clip", n.affine(n.x, -steep, -3.0 * steep), 0.0, 0.5)
    return n.times(n.op("Add", line, n.op("Add", end, begin)))


@gradient("Abs")
def absolute(n: Site) -> Partials:
    """Slope sign(x)."""
    return n.times(n.op("Sign", n.x))


# Smooth


@gradient("Sigmoid")
def sigmoid(n: Site) -> Partials:
    """Slope y·(1 − y)."""
    return n.op("Mul", n.times(n.y), n.affine(n.y, -1.0, 1.0))


@gradient("Tanh")
def tanh(n: Site) -> Partials:
    """Slope 1 − y²."""
    return n.times(n.affine(n.op("Mul", n.y, n.y), -1.0, 1.0))


@gradient("Elu")
def elu(n: Site) -> Partials:
    """Slope 1 where x > 0, else y + α."""
    alpha = n.attr_float("alpha", 1.0)
    return n.times(_either(n, n.above(n.x), n.affine(n.y, 1.0, alpha)))


@gradient("Celu")
def celu(n: Site) -> Partials:
    """Slope 1 where x > 0, else y/α + 1."""
    alpha = n.attr_float("alpha", 1.0)
    slope = n.affine(n.y, 1.0 / alpha, 1.0)
    return n.times(_either(n, n.above(n.x), slope))


@gradient("Selu")
def selu(n: Site) -> Partials:
    """Slope γ where x > 0, else y + γ·α."""
    alpha = n.attr_float("alpha", 1.67326319217681884765625)
    gamma = n.attr_float("gamma", 1.05070102214813232421875)
    slope = n.affine(n.y, 1.0 / gamma, alpha)
    return n.times(n.affine(_either(n, n.above(n.x), slope), gamma))


@gradient("Softplus")
def softplus(n: Site) -> Partials:
    """Slope sigmoid(x)."""
    return n.times(n.op("Sigmoid", n.x))


@gradient("Softsign")
def softsign(n: Site) -> Partials:
    """Slope 1 / (1 + |x|)²."""
    scale = n.op("Add", n.op("Abs", n.x), 1.0)
    return n.op("Div", n.dy, n.op("Mul", scale, scale))


@gradient("Erf")
def erf(n: Site) -> Partials:
    """Slope 2/√π·exp(−x²)."""
    bell = n.op("Exp", n.op("Neg", n.op("Mul", n.x, n.x)))
    return n.times(n.op("Mul", bell, 2.0 / math.sqrt(math.pi)))


@gradient("Gelu")
def gelu(n: Site) -> Partials:
    """Y = x·Φ(x): slope Φ + x·φ; the tanh form likewise."""
    x = n.x
    if n.attr_str("approximate", "none") == "tanh":
        root = math.sqrt(2.0 / math.pi)
        square = n.op("Mul", x, x)
        inner = n.op("Mul", n.op("Mul", x, root), n.op("Add", n.op("Mul", square, 0.044715), 1.0))
        t = n.op("Tanh", inner)
        inner_slope = n.op("Mul", n.op("Add", n.op("Mul", square, 3.0 * 0.044715), 1.0), root)
        bell = n.op("Mul", n.op("Sub", 1.0, n.op("Mul", t, t)), inner_slope)
        slope = n.op("Add", n.op("Add", t, 1.0), n.op("Mul", x, bell))
        return n.op("Mul", n.times(slope), 0.5)
    phi = n.op("Mul", n.op("Add", n.op("Erf", n.op("Mul", x, math.sqrt(0.5))), 1.0), 0.5)
    bell = n.op("Exp", n.op("Mul", n.op("Mul", x, x), -0.5))
    return n.times(n.op("Add", phi, n.op("Mul", n.op("Mul", x, bell), 1.0 / math.sqrt(2.0 * math.pi))))


@gradient("Swish")
def swish(n: Site) -> Partials:
    """Y = x·σ(αx): slope σ·(1 + αx − αy)."""
    alpha = n.attr_float("alpha", 1.0)
    scaled = n.x if alpha == 1.0 else n.affine(n.x, alpha)
    return n.times(n.op("Mul", n.op("Sigmoid", scaled), n.op("Add", n.affine(n.y, -alpha, 1.0), scaled)))


@gradient("Mish")
def mish(n: Site) -> Partials:
    """Y = x·t with t = tanh(softplus(x)): slope t + x·σ(x)·(1 − t²)."""
    t = n.op("Tanh", n.op("Softplus", n.x))
    rest = n.op("Mul", n.op("Mul", n.x, n.op("Sigmoid", n.x)), n.op("Sub", 1.0, n.op("Mul", t, t)))
    return n.times(n.op("Add", t, rest))


@gradient("Sqrt")
def sqrt(n: Site) -> Partials:
    """Slope 1 / (2·y)."""
    return n.op("Div", n.times(0.5), n.y)


@gradient("Exp")
def exp(n: Site) -> Partials:
    """Slope y."""
    return n.times(n.y)


@gradient("Log")
def log(n: Site) -> Partials:
    """Slope 1/x."""
    return n.op("Div", n.dy, n.x)


@gradient("Neg")
def neg(n: Site) -> Partials:
    """Slope −1."""
    return n.op("Neg", n.dy)


@gradient("Reciprocal")
def reciprocal(n: Site) -> Partials:
    """Slope −y²."""
    return n.op("Neg", n.times(n.op("Mul", n.y, n.y)))


@gradient("Softmax")
def softmax(n: Site) -> Partials:
    """dx = y·(dy − Σ dy·y)."""
    total = n.op("ReduceSum", n.times(n.y), [n.attr_int("axis", -1)], keepdims=1)
    return n.op("Mul", n.y, n.op("Sub", n.dy, total))


@gradient("LogSoftmax")
def log_softmax(n: Site) -> Partials:
    """dx = dy − exp(y)·Σ dy."""
    total = n.op("ReduceSum", n.dy, [n.attr_int("axis", -1)], keepdims=1)
    return n.op("Sub", n.dy, n.op("Mul", n.op("Exp", n.y), total))


# No change of value


@gradient("Identity")
def identity(n: Site) -> Partials:
    """Hand dy on."""
    return n.dy


@gradient("Cast")
def cast(n: Site) -> Partials:
    """Hand dy on: gradients are float32 whatever the float type (integers carry none)."""
    return n.dy


@gradient("Dropout")
def dropout(n: Site) -> Partials:
    """Hand dy on: at inference nothing is dropped."""
    if n.scalar(2):
        raise GradientError(n.node, "training mode is not supported")
    return n.dy


def _either(n: Site, mask: ir.Value, otherwise: ir.Value | float) -> ir.Value:
    """Return 1 where the mask is 1, `otherwise` where it is 0."""
    if isinstance(otherwise, float):
        return n.affine(mask, 1.0 - otherwise, otherwise)
    return n.op("Add", mask, n.op("Mul", n.affine(mask, -1.0, 1.0), otherwise))
