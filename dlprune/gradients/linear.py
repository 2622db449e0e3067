"""Gradients of matrix products."""

from __future__ import annotations

import onnx_ir as ir

from .rule import GradientError, Partials, Site, gradient


@gradient("Gemm")
def gemm(n: Site) -> Partials:
    """Y = α·A·B + β·C gives dA = α·dY·Bᵀ, dB = α·Aᵀ·dY, dC = β·dY; transposed operands swap their parts."""
    a_t, b_t = n.attr_int("transA", 0), n.attr_int("transB", 0)
    alpha, beta = n.attr_float("alpha", 1.0), n.attr_float("beta", 1.0)
    a, b, dy = n.input(0), n.input(1), n.dy
    partials: dict[int, ir.Value] = {}
    if n.wants(0):
        partials[0] = (
            n.op("Gemm", b, dy, alpha=alpha, transA=b_t, transB=1)
            if a_t
            else n.op("Gemm", dy, b, alpha=alpha, transB=1 - b_t)
        )
    if n.wants(1):
        partials[1] = (
            n.op("Gemm", dy, a, alpha=alpha, transA=1, transB=a_t)
            if b_t
            else n.op("Gemm", a, dy, alpha=alpha, transA=1 - a_t)
        )
    if n.wants(2):
        partials[2] = n.unbroadcast(n.times(beta) if beta != 1.0 else dy, 2)
    return partials


@gradient("MatMul")
def matmul(n: Site) -> Partials:
    """Y = A·B gives dA = dY·Bᵀ and dB = Aᵀ·dY, summed over broadcast batch axes."""
    a_shape, b_shape = n.shape(0), n.shape(1)
    if min(len(a_shape), len(b_shape)) < 2:
        raise GradientError(n.node, "a product with a vector is not supported")
    batch = n.out_shape()[:-2]
    partials: dict[int, ir.Value] = {}
    if n.wants(0):
        product = n.op("MatMul", n.dy, _swapped(n, 1))
        partials[0] = n.unbroadcast(product, 0, batch + a_shape[-2:])
    if n.wants(1) and len(b_shape) == 2:
        rows = n.reshape(n.input(0), (-1, a_shape[-1]))
        partials[1] = n.op("Gemm", rows, n.reshape(n.dy, (-1, b_shape[-1])), transA=1)
    elif n.wants(1):
        product = n.op("MatMul", _swapped(n, 0), n.dy)
        partials[1] = n.unbroadcast(product, 1, batch + b_shape[-2:])
    return partials


def _swapped(n: Site, index: int) -> ir.Value:
    """Return an operand with its last two axes swapped: at once where it is constant."""
    array = n.array(index)
    if array is not None:
        return n.writer.constant(array.swapaxes(-1, -2))
    rank = len(n.shape(index))
    return n.op("Transpose", n.input(index), perm=[*range(rank - 2), rank - 1, rank - 2])
