"""Linear maps along one axis: pad or cut, spread apart, multiply by a matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from .writer import Writer


def pad_axis(
    writer: Writer, value: ir.Value, rank: int, axis: int, before: int, after: int, fill: float = 0.0
) -> ir.Value:
    """Add zeros, or `fill`, at both ends of an axis; a negative amount cuts."""
    if before < 0 or after < 0:
        value = writer.op("Slice", value, [max(0, -before)], [after if after < 0 else 2**31 - 1], [axis])
    if before > 0 or after > 0:
        pads = [0] * (2 * rank)
        pads[axis], pads[axis + rank] = max(0, before), max(0, after)
        value = writer.op("Pad", value, pads, fill or None)
    return value


def dilate_axis(writer: Writer, value: ir.Value, shape: Sequence[int], axis: int, step: int) -> ir.Value:
    """Put step − 1 zeros between neighbours: length n becomes (n − 1)·step + 1."""
    size = shape[axis]
    if step == 1 or size == 1:
        return value
    columns = (*shape[: axis + 1], 1, *shape[axis + 1 :])
    spread = pad_axis(writer, writer.reshape(value, columns), len(columns), axis + 1, 0, step - 1)
    joined = writer.reshape(spread, (*shape[:axis], size * step, *shape[axis + 1 :]))
    return pad_axis(writer, joined, len(shape), axis, 0, 1 - step)


def interleave(
    writer: Writer, phases: Mapping[int, ir.Value], shape: Sequence[int], axis: int, step: int, size: int
) -> ir.Value:
    """Put maps of one shape together so that position p of an axis comes from map p mod step, from none zero.

    Args:
        writer: writes the nodes.
        phases: the maps, by number.
        shape: their shape.
        axis: along which they are put together.
        step: number of maps, with those that are missing.
        size: positions of the result; the last map may give one less than the first.
    """
    length, after = shape[axis], math.prod(shape[axis + 1 :])
    rows = (math.prod(shape[: axis + 1]), after)
    value = next(iter(phases.values()))
    if step > 1:
        zeros = None if len(phases) == step else writer.op("Expand", 0.0, list(rows))
        parts = [writer.reshape(phases[p], rows) if p in phases else zeros for p in range(step)]
        value = writer.op("Concat", *parts, axis=1)
    value = writer.reshape(value, (*shape[:axis], length * step, *shape[axis + 1 :]))
    return pad_axis(writer, value, len(shape), axis, 0, size - length * step)


def apply_matrix(writer: Writer, value: ir.Value, shape: Sequence[int], axis: int, matrix: np.ndarray) -> ir.Value:
    """Multiply a matrix [new, old] onto one axis."""
    new, old = matrix.shape
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if after == 1:
        rows = writer.op("MatMul", writer.reshape(value, (before, old)), np.ascontiguousarray(matrix.T))
    else:
        rows = writer.op("MatMul", matrix, writer.reshape(value, (before, old, after)))
    return writer.reshape(rows, (*shape[:axis], new, *shape[axis + 1 :]))
