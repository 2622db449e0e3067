"""Gradients of pooling."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from . import blocked
from .axis import dilate_axis
from .line import Line
from .rule import GradientError, Partials, Site, gradient
from .window import Window, place, window_of


@gradient("GlobalAveragePool")
def global_average_pool(n: Site) -> Partials:
    """Spread dy evenly; left small, it broadcasts."""
    shape = n.shape()
    return n.op("Mul", n.dy, 1.0 / math.prod(shape[2:]), shape=n.out_shape())


@gradient("GlobalMaxPool")
def global_max_pool(n: Site) -> Partials:
    """Hand dy to the greatest element, in equal shares where several are."""
    axes = list(range(2, len(n.shape())))
    return shared(n, n.dy, n.y, axes)


def shared(n: Site, dy: ir.Value, y: ir.Value, axes: list[int]) -> ir.Value:
    """Hand dy in equal shares to the elements of x that equal y along some axes."""
    chosen = n.number(n.op("Equal", n.x, y))
    return n.op("Mul", chosen, n.op("Div", dy, n.op("ReduceSum", chosen, axes, keepdims=1)))


@gradient("MaxPool")
def max_pool(n: Site) -> Partials:
    """Hand dy to the first greatest element of each window: of the first row that holds the maximum, and so on."""
    shape, out = n.shape(), n.out_shape()
    window = _window(n)
    if all(s >= e for s, e in zip(window.strides, window.extent, strict=True)):
        return _unpooled(n, window)
    lines: list[tuple[Line, ir.Value]] = []
    greatest = n.x
    for axis in reversed(range(window.rank)):
        line = Line(n.writer, greatest, (*shape[: axis + 3], *out[axis + 3 :]), window, axis)
        greatest = line.maximum() if axis else n.y
        lines.append((line, greatest))
    dy = n.dy
    for line, greatest in reversed(lines):
        dy = line.back(dy, greatest)
    return dy


def _window(n: Site) -> Window:
    window = window_of(n, n.attr_ints("kernel_shape", []), n.shape()[2:], n.out_shape()[2:])
    if n.attr_str("auto_pad", "NOTSET").startswith("SAME") and any(step != 1 for step in window.dilations):
        raise GradientError(n.node, "ONNX Runtime does not pad dilated windows by 'auto_pad' as ONNX says")
    return window


def _unpooled(n: Site, window: Window) -> ir.Value:
    """Hand dy to the positions that the pool names in its second output, which no two windows share."""
    if n.attr_int("storage_order", 0) != 0:
        raise GradientError(n.node, "column-major indices are not supported")
    if len(n.node.outputs) < 2:
        n.node.resize_outputs(2)
    indices = n.node.outputs[1]
    if not indices.name:
        indices.name = f"{n.y.name}/indices"
        indices.type = ir.TensorType(ir.DataType.INT64)
        indices.shape = ir.Shape(n.out_shape())
    return n.op("MaxUnpool", n.dy, indices, list(n.shape()), kernel_shape=list(window.kernel))


@gradient("AveragePool")
def average_pool(n: Site) -> Partials:
    """Divide dy by the number of elements of each window, then add up the windows that cover a position."""
    shape, out = n.shape(), n.out_shape()
    window = _window(n)
    if window.is_tiling and len(shape) == 4:
        share = n.affine(n.dy, 1.0 / math.prod(window.kernel))
        return blocked.enlarge(n.writer, share, shape, window.kernel)
    counts = _counts(window, bool(n.attr_int("count_include_pad", 0)))
    weights = (1.0 / counts).astype(np.float32)
    value = n.times(float(weights.flat[0]) if np.ptp(weights) == 0 else weights)
    for axis, stride in enumerate(window.strides):
        value = dilate_axis(n.writer, value, out, axis + 2, stride)
        out = (*out[: axis + 2], (out[axis + 2] - 1) * stride + 1, *out[axis + 3 :])
    before = [e - 1 - b for e, b in zip(window.extent, window.begin, strict=True)]
    after = [s + e - 1 - o - v for s, e, o, v in zip(window.size, window.extent, out[2:], before, strict=True)]
    value = place(n.writer, value, before, after)
    if all(k == 1 for k in window.kernel):
        return value
    dilated = {"dilations": list(window.dilations)} if any(d != 1 for d in window.dilations) else {}
    total = n.op("AveragePool", value, kernel_shape=list(window.kernel), **dilated)
    return n.op("Mul", total, float(math.prod(window.kernel)))


def _counts(window: Window, include_pad: bool) -> np.ndarray:
    """Return how many elements each window averages, [1, 1, *out]."""
    counts = np.ones((1, 1, *([1] * window.rank)))
    for axis in range(window.rank):
        first = np.arange(window.out[axis]) * window.strides[axis] - window.begin[axis]
        taps = first[:, None] + np.arange(window.kernel[axis])[None, :] * window.dilations[axis]
        low, high = 0, window.size[axis]
        if include_pad:
            low, high = -window.begin[axis], high + window.end[axis]
        count = ((taps >= low) & (taps < high)).sum(axis=1)
        counts = counts * count.reshape([-1 if a == axis + 2 else 1 for a in range(window.rank + 2)])
    return np.maximum(counts, 1)
