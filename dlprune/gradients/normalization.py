"""Gradients of normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .rule import GradientError, Partials, Site, gradient


@gradient("BatchNormalization")
def batch_normalization(n: Site) -> Partials:
    """Scale dy per channel; in training mode the statistics of the batch depend on x as well."""
    if n.attr_int("training_mode", 0):
        return _of_batch(n)
    partials: dict[int, ir.Value] = {}
    if n.wants(0):
        partials[0] = n.times(_factor(n))
    if n.wants(1):
        partials[1] = _per_channel(n, n.times(_normal_batch(n, n.input(3), n.input(4))))
    if n.wants(2):
        partials[2] = _per_channel(n, n.dy)
    return partials


def _factor(n: Site) -> np.ndarray | ir.Value:
    """Return γ / √(variance + ε) as [1, C, 1, …]."""
    scale, variance = n.array(1), n.array(4)
    epsilon = n.attr_float("epsilon", 1e-5)
    columns = (1, -1, *([1] * (len(n.shape()) - 2)))
    if variance is None:
        deviation = n.op("Sqrt", n.op("Add", n.input(4), epsilon))
        return n.reshape(n.op("Div", n.input(1), deviation), columns)
    inverse = 1.0 / np.sqrt(variance.astype(np.float64) + epsilon)
    if scale is None:
        return n.reshape(n.op("Mul", n.input(1), inverse), columns)
    return np.asarray(scale * inverse).reshape(columns)


def _normal_batch(n: Site, mean: ir.Value, variance: ir.Value) -> ir.Value:
    """Return (x − mean) / √(variance + ε)."""
    ones, zeros = np.ones(n.shape()[1], np.float32), np.zeros(n.shape()[1], np.float32)
    return n.op("BatchNormalization", n.x, ones, zeros, mean, variance, epsilon=n.attr_float("epsilon", 1e-5))


def _per_channel(n: Site, value: ir.Value) -> ir.Value:
    """Sum over all axes but the channels."""
    return n.op("ReduceSum", value, [0, *range(2, len(n.shape()))], keepdims=0)


def _of_batch(n: Site) -> Partials:
    """With z = (x − mean) / √(variance + ε): dx = γ/√(…)·(dy − mean(dy) − z·mean(dy·z)).

    The mean and variance are taken from outputs 1 and 2, which hold those of the batch where 'momentum' is 0.
    """
    if n.attr_float("momentum", 0.9) or len(n.node.outputs) < 3:
        raise GradientError(n.node, "training mode needs momentum 0 and all outputs")
    shape = n.shape()
    mean, variance = n.node.outputs[1:3]
    epsilon = n.attr_float("epsilon", 1e-5)
    inverse = n.op("Reciprocal", n.op("Sqrt", n.op("Add", variance, epsilon)))
    d_shift = _per_channel(n, n.dy)
    # Σ dy·z without a pass over z. Even a thousand deviations from zero this is as exact as the mean is.
    d_scale = n.op("Mul", n.op("Sub", _per_channel(n, n.times(n.x)), n.op("Mul", mean, d_shift)), inverse)
    partials = {1: d_scale, 2: d_shift}
    if n.wants(0):
        factor = n.op("Mul", n.input(1), inverse)
        share = n.op("Mul", factor, -1.0 / (math.prod(shape) // shape[1]))
        # One pass over x: a BatchNormalization with other scale and shift gives −γ/√(…)·(z·mean(dy·z) + mean(dy)).
        along = n.op(
            "BatchNormalization",
            n.x,
            n.op("Mul", share, d_scale),
            n.op("Mul", share, d_shift),
            mean,
            variance,
            epsilon=epsilon,
        )
        partials[0] = n.op("Add", n.times(n.reshape(factor, (1, -1, *([1] * (len(shape) - 2))))), along)
    return partials


@gradient("InstanceNormalization")
def instance_normalization(n: Site) -> Partials:
    """Standardised over space."""
    shape = n.shape()
    columns = (1, shape[1], *([1] * (len(shape) - 2)))
    normal = _normal(n, n.x, list(range(2, len(shape))))
    partials: dict[int, ir.Value] = {}
    if n.wants(0):
        partials[0] = normal.back(n, n.times(n.reshape(n.input(1), columns)))
    if n.wants(1):
        partials[1] = _per_channel(n, n.times(normal.z))
    if n.wants(2):
        partials[2] = _per_channel(n, n.dy)
    return partials


@gradient("LayerNormalization")
def layer_normalization(n: Site) -> Partials:
    """Standardised over the last axes."""
    rank = len(n.shape())
    normal = _normal(n, n.x, list(range(n.attr_int("axis", -1) % rank, rank)))
    partials: dict[int, ir.Value] = {}
    if n.wants(0):
        partials[0] = normal.back(n, n.times(n.input(1)))
    if n.wants(1):
        partials[1] = n.unbroadcast(n.times(normal.z), 1)
    if n.wants(2):
        partials[2] = n.unbroadcast(n.dy, 2)
    return partials


@gradient("GroupNormalization")
def group_normalization(n: Site) -> Partials:
    """Standardised over the channels of a group and over space."""
    shape = n.shape()
    batch, channels = shape[:2]
    groups = n.attr_int("num_groups", 1)
    per_group = n.opset < 21  # one scale per group then, per channel since
    rows = (batch, groups, math.prod(shape[1:]) // groups)
    normal = _normal(n, n.reshape(n.x, rows), [2])
    partials: dict[int, ir.Value] = {}
    if n.wants(0):
        scale = n.input(1)
        if per_group:
            expanded = n.op("Expand", n.reshape(scale, (groups, 1)), [groups, channels // groups])
            scale = n.reshape(expanded, (channels,))
        scaled = n.times(n.reshape(scale, (1, channels, *([1] * (len(shape) - 2)))))
        partials[0] = n.reshape(normal.back(n, n.reshape(scaled, rows)), shape)
    for index in (1, 2):
        if n.wants(index):
            total = _per_channel(n, n.times(n.reshape(normal.z, shape)) if index == 1 else n.dy)
            if per_group:
                total = n.op("ReduceSum", n.reshape(total, (groups, channels // groups)), [1], keepdims=0)
            partials[index] = total
    return partials


@gradient("RMSNormalization")
def rms_normalization(n: Site) -> Partials:
    """Divided by the root mean square over the last axes."""
    rank = len(n.shape())
    axes = list(range(n.attr_int("axis", -1) % rank, rank))
    square = n.op("ReduceMean", n.op("Mul", n.x, n.x), axes)
    root = n.op("Sqrt", n.op("Add", square, n.attr_float("epsilon", 1e-5)))
    normal = n.op("Div", n.x, root)
    partials: dict[int, ir.Value] = {}
    if n.wants(0):
        scaled = n.times(n.input(1))
        along = n.op("Mul", normal, n.op("ReduceMean", n.op("Mul", scaled, normal), axes))
        partials[0] = n.op("Div", n.op("Sub", scaled, along), root)
    if n.wants(1):
        partials[1] = n.unbroadcast(n.times(normal), 1)
    return partials


@dataclass(frozen=True)
class Normal:
    """z = (x − mean) / deviation over some axes, with deviation = √(variance + ε)."""

    z: ir.Value
    deviation: ir.Value
    axes: list[int]

    def back(self, n: Site, dz: ir.Value) -> ir.Value:
        """Return dx: (dz − mean(dz) − z·mean(dz·z)) / deviation."""
        along = n.op("Mul", self.z, n.op("ReduceMean", n.op("Mul", dz, self.z), self.axes))
        rest = n.op("Sub", n.op("Sub", dz, n.op("ReduceMean", dz, self.axes)), along)
        return n.op("Div", rest, self.deviation)


def _normal(n: Site, x: ir.Value, axes: Sequence[int]) -> Normal:
    axes = list(axes)
    centred = n.op("Sub", x, n.op("ReduceMean", x, axes))
    variance = n.op("ReduceMean", n.op("Mul", centred, centred), axes)
    deviation = n.op("Sqrt", n.op("Add", variance, n.attr_float("epsilon", 1e-5)))
    return Normal(n.op("Div", centred, deviation), deviation, axes)


@gradient("LRN")
def local_response_normalization(n: Site) -> Partials:
    """Y = x·D^−β with D = bias + α/size·Σ x² over neighbouring channels."""
    size = n.attr_int("size", 1)
    alpha, beta, bias = n.attr_float("alpha", 1e-4), n.attr_float("beta", 0.75), n.attr_float("bias", 1.0)
    before, after = (size - 1) // 2, size // 2
    squares = _neighbours(n, n.op("Mul", n.x, n.x), size, before, after)
    d = n.op("Add", n.op("Mul", squares, alpha / size), bias)
    direct = n.times(n.op("Pow", d, -beta))
    # A channel is in the windows of those channels that it has in its own window mirrored.
    back = _neighbours(n, n.op("Div", n.times(n.y), d), size, after, before)
    return n.op("Sub", direct, n.op("Mul", n.op("Mul", n.x, 2.0 * alpha * beta / size), back))


def _neighbours(n: Site, value: ir.Value, size: int, before: int, after: int) -> ir.Value:
    """Sum every channel with its neighbours."""
    shape = n.shape()
    plane = n.reshape(value, (shape[0], 1, shape[1], math.prod(shape[2:])))
    pooled = n.op("AveragePool", plane, kernel_shape=[size, 1], pads=[before, 0, after, 0], count_include_pad=1)
    return n.op("Mul", n.reshape(pooled, shape), float(size))
