"""Gradients of operators that only move data."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .axis import apply_matrix, dilate_axis, pad_axis
from .rule import GradientError, Partials, Site, gradient


@gradient("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(n: Site) -> Partials:
    """Reshape back."""
    return n.reshape(n.dy, n.shape())


@gradient("Transpose")
def transpose(n: Site) -> Partials:
    """Transpose back."""
    perm = n.attr_ints("perm", list(range(len(n.shape())))[::-1])
    return n.op("Transpose", n.dy, perm=[int(p) for p in np.argsort(perm)])


@gradient("Expand")
def expand(n: Site) -> Partials:
    """Sum over the repeats."""
    return n.unbroadcast(n.dy, 0)


@gradient("Tile")
def tile(n: Site) -> Partials:
    """Sum over the repeats."""
    repeats = n.ints_input(1) or []
    split = [v for pair in zip(repeats, n.shape(), strict=True) for v in pair]
    return n.op("ReduceSum", n.reshape(n.dy, split), list(range(0, len(split), 2)), keepdims=0)


@gradient("Concat")
def concat(n: Site) -> Partials:
    """Cut dy apart."""
    axis = n.attr_int("axis", 0) % len(n.out_shape())
    partials: dict[int, ir.Value] = {}
    start = 0
    for i in range(len(n.node.inputs)):
        end = start + n.shape(i)[axis]
        if n.wants(i):
            partials[i] = n.op("Slice", n.dy, [start], [end], [axis])
        start = end
    return partials


@gradient("Split")
def split(n: Site) -> Partials:
    """Put the parts together; zeros for those that nobody reads."""
    parts = [n.zeros(n.out_shape(i)) if dy is None else dy for i, dy in enumerate(n.dys)]
    return n.op("Concat", *parts, axis=n.attr_int("axis", 0))


@gradient("Slice")
def slice_(n: Site) -> Partials:
    """Put dy back to where it came from, with zeros around."""
    shape, out = n.shape(), n.out_shape()
    starts, steps = n.ints_input(1) or [], n.ints_input(4)
    axes = n.ints_input(3)
    axes = list(range(len(starts))) if axes is None else [a % len(shape) for a in axes]
    value = n.dy
    for axis, start, step in zip(axes, starts, steps or [1] * len(starts), strict=True):
        if 0 in out:
            return n.zeros(shape)
        start = start + shape[axis] if start < 0 else start
        first = min(max(start, 0), shape[axis] - (step < 0))
        if step < 0:
            value = n.op("Slice", value, [-1], [-(2**31)], [axis], [-1])
            first, step = first + (out[axis] - 1) * step, -step
        value = dilate_axis(n.writer, value, out, axis, step)
        length = (out[axis] - 1) * step + 1
        value = pad_axis(n.writer, value, len(shape), axis, first, shape[axis] - first - length)
        out = (*out[:axis], shape[axis], *out[axis + 1 :])
    return value


@gradient("Pad")
def pad(n: Site) -> Partials:
    """Cut the padding off; where it repeats the data, add it up."""
    shape = n.shape()
    amounts = n.ints_input(1) or []
    axes = n.ints_input(3)
    axes = list(range(len(shape))) if axes is None else [a % len(shape) for a in axes]
    mode = n.attr_str("mode", "constant")
    out = n.out_shape()
    value = n.dy
    for i, axis in enumerate(axes):
        before, after = amounts[i], amounts[i + len(axes)]
        if before == after == 0:
            continue
        if mode == "constant":
            value = pad_axis(n.writer, value, len(shape), axis, -before, -after)
        else:
            value = apply_matrix(n.writer, value, out, axis, _padding_matrix(n, mode, shape[axis], before, after))
        out = (*out[:axis], shape[axis], *out[axis + 1 :])
    return value


def _padding_matrix(n: Site, mode: str, size: int, before: int, after: int) -> np.ndarray:
    """Return [size, padded]: 1 where a padded position copies an original one."""
    position = np.arange(-before, size + after)
    if mode == "edge":
        source = position.clip(0, size - 1)
    elif mode == "wrap":
        source = position % size
    elif mode == "reflect":
        period = max(1, 2 * (size - 1))
        source = np.abs((position + size - 1) % period - (size - 1)) if size > 1 else position * 0
    else:
        raise GradientError(n.node, f"mode '{mode}' is not supported")
    matrix: np.ndarray = (np.arange(size)[:, None] == source[None, :]).astype(np.float32)
    return matrix


@gradient("Gather")
def gather(n: Site) -> Partials:
    """Send every slice back to its index; slices taken twice add up."""
    indices = n.literal(1)
    if indices is None:
        raise GradientError(n.node, "input 1 is missing")
    shape = n.shape()
    axis = n.attr_int("axis", 0) % len(shape)
    flat = np.where(indices < 0, indices + shape[axis], indices).reshape(-1)
    out = (*shape[:axis], flat.size, *shape[axis + 1 :])
    value = n.dy if n.out_shape() == out else n.reshape(n.dy, out)
    if flat.size == shape[axis] and np.array_equal(np.sort(flat), np.arange(flat.size)):
        return n.op("Gather", value, np.argsort(flat), axis=axis)
    if flat.size and np.array_equal(flat, np.arange(flat[0], flat[0] + flat.size)):
        after = shape[axis] - int(flat[0]) - flat.size
        return pad_axis(n.writer, value, len(shape), axis, int(flat[0]), after)
    matrix = (np.arange(shape[axis])[:, None] == flat[None, :]).astype(np.float32)
    return apply_matrix(n.writer, value, out, axis, matrix)


@gradient("DepthToSpace")
def depth_to_space(n: Site) -> Partials:
    """Move the pixels of every block back to its channels."""
    block = n.attr_int("blocksize", 1)
    if n.attr_str("mode", "DCR") == "DCR":
        return n.op("SpaceToDepth", n.dy, blocksize=block)
    batch, channels, height, width = n.shape()
    parts = n.reshape(n.dy, (batch, channels // block**2, height, block, width, block))
    return n.reshape(n.op("Transpose", parts, perm=[0, 1, 3, 5, 2, 4]), n.shape())


@gradient("SpaceToDepth")
def space_to_depth(n: Site) -> Partials:
    """Move the channels of every block back to its pixels."""
    return n.op("DepthToSpace", n.dy, blocksize=n.attr_int("blocksize", 1))
