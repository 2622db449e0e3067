"""Elementwise steps on maps [N, C, H, W] in a form that ONNX Runtime can leave in its blocked channel layout.

On x86 its convolutions work on channels in blocks of 8 or 16. Mul and Add of two maps, pooling, and activations after
a convolution work on blocks as well; scalar operands, comparisons and reductions do not, and cost a reordering of the
whole map before and after. So a scale, a shift and a threshold are written as a depthwise 1×1 convolution, a sum over
space as a pool. Where there is no blocked layout this costs no more than the plain operators. Where weights are not
constant, though, maps leave the blocked layout behind each convolution, and a threshold is best taken in one step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .writer import Writer

#: A step from 0 to 1 is a ramp so steep that no number met in practice lies on it; a power of two keeps products exact.
STEEP = 2.0**80
#: Bounds from here on would become infinite.
_LARGE = 1e9
#: Width of ReLU6, the one clip that is worth a shortcut (and whose bounds the shortcut meets exactly).
_VALLEY = 6.0


def affine(writer: Writer, value: ir.Value, shape: Sequence[int], scale: float, shift: float = 0.0) -> ir.Value:
    """Return scale · value + shift."""
    if len(shape) == 4:
        channels = shape[1]
        weight = np.full((channels, 1, 1, 1), scale, np.float32)
        bias = np.full(channels, shift, np.float32) if shift else None
        return writer.op("Conv", value, weight, bias, group=channels)
    if scale != 1.0:
        value = writer.op("Mul", value, scale)
    return writer.op("Add", value, shift) if shift else value


def above(writer: Writer, value: ir.Value, shape: Sequence[int], bound: float = 0.0) -> ir.Value:
    """Return 1 where value > bound, else 0."""
    if writer.live_weights and abs(bound) < _LARGE:
        return writer.op("HardSigmoid", value, alpha=STEEP, beta=-STEEP * bound)
    if len(shape) == 4 and abs(bound) < _LARGE:
        return writer.op("Clip", affine(writer, value, shape, STEEP, -STEEP * bound), 0.0, 1.0)
    return _number(writer, writer.op("Greater", value, bound))


def below(writer: Writer, value: ir.Value, shape: Sequence[int], bound: float) -> ir.Value:
    """Return 1 where value < bound, else 0."""
    if writer.live_weights and abs(bound) < _LARGE:
        return writer.op("HardSigmoid", value, alpha=-STEEP, beta=STEEP * bound)
    if len(shape) == 4 and abs(bound) < _LARGE:
        return writer.op("Clip", affine(writer, value, shape, -STEEP, STEEP * bound), 0.0, 1.0)
    return _number(writer, writer.op("Less", value, bound))


def between(writer: Writer, value: ir.Value, shape: Sequence[int], low: float, high: float) -> ir.Value:
    """Return 1 where low < value < high, else 0."""
    if len(shape) == 4 and high - low == _VALLEY:
        # Half of (value − high) runs from −3 to 0 between the bounds: only there the hard swish is negative.
        valley = writer.op("HardSwish", affine(writer, value, shape, 0.5, -0.5 * high))
        return writer.op("Clip", affine(writer, valley, shape, -STEEP), 0.0, 1.0)
    if len(shape) == 4:
        to_high = affine(writer, value, shape, -1.0, high)
        from_low = affine(writer, value, shape, 1.0, -low) if low else value
        return above(writer, writer.op("Mul", from_low, to_high), shape)
    inside = writer.op("And", writer.op("Greater", value, low), writer.op("Less", value, high))
    return _number(writer, inside)


def enter(writer: Writer, value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Return a map unchanged, but on blocks: one plain operand makes all that follows it plain."""
    return affine(writer, value, shape, 1.0) if len(shape) == 4 and not writer.live_weights else value


def enlarge(writer: Writer, value: ir.Value, shape: Sequence[int], factors: Sequence[int]) -> ir.Value:
    """Repeat every pixel of a map on blocks: [N, C, H, W] becomes [N, C, f·H, g·W]; `shape` is the new one."""
    scales = np.array([1, 1, *factors], np.float32)
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return writer.op("Resize", value, None, scales, shape=shape, **attributes)


def spread(writer: Writer, value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Repeat [N, C, 1, 1] over space."""
    return enlarge(writer, enter(writer, value, (*shape[:2], 1, 1)), shape, shape[2:])


def spatial_sum(writer: Writer, value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Sum a map [N, C, H, W] over space: [N, C, 1, 1]."""
    return block_sum(writer, value, shape, shape[2:])


def block_sum(writer: Writer, value: ir.Value, shape: Sequence[int], factors: Sequence[int]) -> ir.Value:
    """Sum a map [N, C, f·H, g·W] over blocks of f × g pixels: [N, C, H, W]; what `enlarge` does, backwards."""
    size = math.prod(factors)
    if size == 1:
        return value
    if tuple(factors) == tuple(shape[2:]):
        return writer.op("Mul", writer.op("GlobalAveragePool", value), float(size))
    pooled = writer.op("AveragePool", value, kernel_shape=list(factors), strides=list(factors))
    small = (*shape[:2], shape[2] // factors[0], shape[3] // factors[1])
    return affine(writer, pooled, small, float(size))


def _number(writer: Writer, condition: ir.Value) -> ir.Value:
    """Turn a boolean tensor into float 0 and 1 (multiplying by it is ten times as fast as Where)."""
    return writer.op("Cast", condition, to=int(ir.DataType.FLOAT))
