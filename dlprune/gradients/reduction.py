"""Gradients of reductions."""

from __future__ import annotations

import math

import onnx_ir as ir

from .pooling import shared
from .rule import Partials, Site, gradient


def reduced_axes(n: Site) -> list[int]:
    """Return the axes that a reduction sums over."""
    rank = len(n.shape())
    axes = n.ints_input(1) or n.attr_ints("axes", [])
    if not axes:
        return [] if n.attr_int("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axis % rank for axis in axes)


def kept(n: Site, value: ir.Value) -> tuple[ir.Value, tuple[int, ...], list[int]]:
    """Give a reduced tensor back the axes that it lost: the tensor, its shape, the reduced axes."""
    axes = reduced_axes(n)
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(n.shape()))
    return (value if n.out_shape() == shape else n.reshape(value, shape)), shape, axes


@gradient("ReduceSum")
def reduce_sum(n: Site) -> Partials:
    """Hand dy to every element; left small, it broadcasts."""
    value, shape, _ = kept(n, n.dy)
    return value if shape == n.shape() else n.op("Identity", value, shape=shape)


@gradient("ReduceMean")
def reduce_mean(n: Site) -> Partials:
    """Spread dy evenly; left small, it broadcasts."""
    value, shape, axes = kept(n, n.dy)
    return n.op("Mul", value, 1.0 / max(1, math.prod(n.shape()[a] for a in axes)), shape=shape)


@gradient("ReduceMax", "ReduceMin")
def reduce_extremum(n: Site) -> Partials:
    """Hand dy to the chosen element, in equal shares where several are equal."""
    dy, _, axes = kept(n, n.dy)
    y, _, _ = kept(n, n.y)
    return shared(n, dy, y, axes) if axes else n.dy


@gradient("ReduceSumSquare")
def reduce_sum_square(n: Site) -> Partials:
    """Slope 2·x."""
    dy, _, _ = kept(n, n.dy)
    return n.op("Mul", n.op("Mul", dy, 2.0), n.x)


@gradient("ReduceL2")
def reduce_l2(n: Site) -> Partials:
    """Slope x / y."""
    dy, _, _ = kept(n, n.dy)
    y, _, _ = kept(n, n.y)
    return n.op("Mul", n.op("Div", dy, y), n.x)
