"""Gradients of normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from dlprune.gradients.rule import GradientError, Partials, Site, gradient


@gradient("BatchNormalization")
def batch_normalization(n: Site) -> Partials:
    """Scale dy per channel; at inference the statistics are constant."""
    if n.attr_int("training_mode", 0):
        raise GradientError(n.node, "training mode is not supported")
    scale, variance = n.array(1), n.array(4)
    epsilon = n.attr_float("epsilon", 1e-5)
    columns = (1, -1, *([1] * (len(n.shape()) - 2)))
    if scale is not None and variance is not None:
        factor: np.ndarray | ir.Value = (scale / np.sqrt(variance.astype(np.float64) + epsilon)).reshape(columns)
    else:
        deviation = n.op("Sqrt", n.op("Add", n.input(4), epsilon))
        factor = n.reshape(n.op("Div", n.input(1), deviation), columns)
    return {0: n.times(factor)}


@gradient("InstanceNormalization")
def instance_normalization(n: Site) -> Partials:
    """Standardised over space."""
    shape = n.shape()
    columns = (1, shape[1], *([1] * (len(shape) - 2)))
    scaled = n.times(n.reshape(n.input(1), columns))
    return {0: _standardized(n, n.x, scaled, list(range(2, len(shape))), n.attr_float("epsilon", 1e-5))}


@gradient("LayerNormalization")
def layer_normalization(n: Site) -> Partials:
    """Standardised over the last axes."""
    rank = len(n.shape())
    axes = list(range(n.attr_int("axis", -1) % rank, rank))
    return {0: _standardized(n, n.x, n.times(n.input(1)), axes, n.attr_float("epsilon", 1e-5))}


@gradient("GroupNormalization")
def group_normalization(n: Site) -> Partials:
    """Standardised over the channels of a group and over space."""
    shape = n.shape()
    batch, channels = shape[:2]
    groups = n.attr_int("num_groups", 1)
    scale = n.input(1)
    if n.opset < 21:  # one scale per group then, per channel since
        scale = n.reshape(n.op("Expand", n.reshape(scale, (groups, 1)), [groups, channels // groups]), (channels,))
    scaled = n.times(n.reshape(scale, (1, channels, *([1] * (len(shape) - 2)))))
    rows = (batch, groups, math.prod(shape[1:]) // groups)
    dx = _standardized(n, n.reshape(n.x, rows), n.reshape(scaled, rows), [2], n.attr_float("epsilon", 1e-5))
    return {0: n.reshape(dx, shape)}


@gradient("RMSNormalization")
def rms_normalization(n: Site) -> Partials:
    """Divided by the root mean square over the last axes."""
    rank = len(n.shape())
    axes = list(range(n.attr_int("axis", -1) % rank, rank))
    square = n.op("ReduceMean", n.op("Mul", n.x, n.x), axes)
    root = n.op("Sqrt", n.op("Add", square, n.attr_float("epsilon", 1e-5)))
    normal = n.op("Div", n.x, root)
    scaled = n.times(n.input(1))
    along = n.op("Mul", normal, n.op("ReduceMean", n.op("Mul", scaled, normal), axes))
    return {0: n.op("Div", n.op("Sub", scaled, along), root)}


def _standardized(n: Site, x: ir.Value, dy: ir.Value, axes: Sequence[int], epsilon: float) -> ir.Value:
    """Return dx of z = (x − mean) / √(variance + ε) over some axes: (dy − mean(dy) − z·mean(dy·z)) / √(…)."""
    axes = list(axes)
    centred = n.op("Sub", x, n.op("ReduceMean", x, axes))
    variance = n.op("ReduceMean", n.op("Mul", centred, centred), axes)
    deviation = n.op("Sqrt", n.op("Add", variance, epsilon))
    z = n.op("Div", centred, deviation)
    along = n.op("Mul", z, n.op("ReduceMean", n.op("Mul", dy, z), axes))
    rest = n.op("Sub", n.op("Sub", dy, n.op("ReduceMean", dy, axes)), along)
    return n.op("Div", rest, deviation)


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
