"""Float64 truths for operators that ONNX's reference evaluator computes in float32, in part, or not as specified."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from onnx.reference.op_run import OpRun

_VECTOR_ERF = np.vectorize(math.erf, otypes=[np.float64])


class Erf(OpRun):
    op_domain = ""

    def _run(self, x):
        return (_VECTOR_ERF(x),)


class Gelu(OpRun):
    op_domain = ""

    def _run(self, x, approximate="none"):
        if approximate == "tanh":
            return (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),)
        return (0.5 * x * (1 + _VECTOR_ERF(x / math.sqrt(2))),)


def _geometry(
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str | None,
    ceil_mode: int = 0,
) -> list[tuple[int, int, int, int, int]]:
    """Return (begin pad, end pad, stride, dilation, out) of every spatial axis."""
    rank = len(size)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    pads = pads or [0] * (2 * rank)
    found = []
    for a in range(rank):
        extent, begin, end = dilations[a] * (kernel[a] - 1) + 1, pads[a], pads[a + rank]
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            out = math.ceil(size[a] / strides[a])
            total = max(0, (out - 1) * strides[a] + extent - size[a])
            begin = total // 2 if auto_pad == "SAME_UPPER" else math.ceil(total / 2)
            end = total - begin
        elif auto_pad == "VALID":
            begin = end = 0
        steps = (size[a] + begin + end - extent) / strides[a]
        out = (math.ceil(steps) if ceil_mode else math.floor(steps)) + 1
        if ceil_mode and (out - 1) * strides[a] >= size[a] + begin:
            out -= 1
        found.append((begin, end, strides[a], dilations[a], out))
    return found


def _taps(
    x: np.ndarray, kernel: Sequence[int], geometry: Sequence[tuple[int, int, int, int, int]], fill: float
) -> Iterator:
    """Yield, for every kernel position, its index and what it meets at all window positions."""
    width = [(0, 0), (0, 0)]
    for k, (begin, end, stride, dilation, out) in zip(kernel, geometry, strict=True):
        reach = (out - 1) * stride + dilation * (k - 1) + 1
        width.append((begin, max(end, reach)))
    padded = np.pad(x, width, constant_values=fill)
    for tap in itertools.product(*(range(k) for k in kernel)):
        where = [
            slice(t * dilation, t * dilation + (out - 1) * stride + 1, stride)
            for t, (_, _, stride, dilation, out) in zip(tap, geometry, strict=True)
        ]
        yield tap, padded[(slice(None), slice(None), *where)]


class Conv(OpRun):
    op_domain = ""

    def _run(self, x, w, b=None, auto_pad=None, dilations=None, group=1, kernel_shape=None, pads=None, strides=None):
        kernel = w.shape[2:]
        geometry = _geometry(x.shape[2:], kernel, strides, dilations, pads, auto_pad)
        weight = w.reshape(group, -1, *w.shape[1:])
        y = 0.0
        for tap, met in _taps(x, kernel, geometry, 0.0):
            parts = met.reshape(met.shape[0], group, -1, *met.shape[2:])
            y = y + np.einsum("ngc...,gmc->ngm...", parts, weight[(..., *tap)])
        y = y.reshape(x.shape[0], w.shape[0], *y.shape[3:])
        return (y if b is None else y + b.reshape(-1, *[1] * len(kernel)),)


class ConvTranspose(OpRun):
    op_domain = ""

    def _run(
        self, x, w, b=None, auto_pad=None, dilations=None, group=1, kernel_shape=None,
        output_padding=None, output_shape=None, pads=None, strides=None,
    ):  # fmt: skip
        rank = x.ndim - 2
        kernel = w.shape[2:]
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        extra, pads = output_padding or [0] * rank, pads or [0] * (2 * rank)
        full = [
            (i - 1) * s + d * (k - 1) + 1 + e
            for i, s, d, k, e in zip(x.shape[2:], strides, dilations, kernel, extra, strict=True)
        ]
        y = np.zeros((x.shape[0], group, w.shape[1], *full))
        parts = x.reshape(x.shape[0], group, -1, *x.shape[2:])
        weight = w.reshape(group, -1, *w.shape[1:])
        for tap in itertools.product(*(range(k) for k in kernel)):
            where = [
                slice(t * d, t * d + (i - 1) * s + 1, s)
                for t, d, i, s in zip(tap, dilations, x.shape[2:], strides, strict=True)
            ]
            y[(slice(None), slice(None), slice(None), *where)] += np.einsum(
                "ngc...,gcm->ngm...", parts, weight[(..., *tap)]
            )
        y = y.reshape(x.shape[0], -1, *full)
        cut = [slice(pads[a], full[a] - pads[a + rank]) for a in range(rank)]
        y = y[(slice(None), slice(None), *cut)]
        return (y if b is None else y + b.reshape(-1, *[1] * rank),)


class MaxPool(OpRun):
    op_domain = ""

    def _run(
        self, x, auto_pad=None, ceil_mode=0, dilations=None, kernel_shape=None, pads=None, storage_order=0, strides=None
    ):
        geometry = _geometry(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
        return (np.max([met for _, met in _taps(x, kernel_shape, geometry, -np.inf)], axis=0),)


class AveragePool(OpRun):
    op_domain = ""

    def _run(
        self,
        x,
        auto_pad=None,
        ceil_mode=0,
        count_include_pad=0,
        dilations=None,
        kernel_shape=None,
        pads=None,
        strides=None,
    ):
        geometry = _geometry(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
        inside = np.ones_like(x)
        if count_include_pad:
            inside = np.pad(inside, [(0, 0), (0, 0), *(g[:2] for g in geometry)], constant_values=1.0)
            geometry_inside = [(0, 0, *g[2:]) for g in geometry]
        else:
            geometry_inside = geometry
        total = sum(met for _, met in _taps(x, kernel_shape, geometry, 0.0))
        return (total / sum(met for _, met in _taps(inside, kernel_shape, geometry_inside, 0.0)),)


class GlobalMaxPool(OpRun):
    op_domain = ""

    def _run(self, x):
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class Cast(OpRun):
    op_domain = ""

    def _run(self, x, to=None, saturate=None, round_mode=None):
        return (x,)


class LRN(OpRun):
    op_domain = ""

    def _run(self, x, alpha=None, beta=None, bias=None, size=None):
        before, after = math.floor((size - 1) / 2), math.ceil((size - 1) / 2)
        squares = [(x[:, max(0, c - before) : c + after + 1] ** 2).sum(axis=1) for c in range(x.shape[1])]
        return (x / (bias + alpha / size * np.stack(squares, axis=1)) ** beta,)


class GroupNormalization(OpRun):
    op_domain = ""

    def _run(self, x, scale, bias, epsilon=None, num_groups=None, stash_type=None):
        rows = x.reshape(x.shape[0], num_groups, -1)
        rows = (rows - rows.mean(axis=2, keepdims=True)) / np.sqrt(rows.var(axis=2, keepdims=True) + epsilon)
        column = (-1, *[1] * (x.ndim - 2))
        return (rows.reshape(x.shape) * scale.reshape(column) + bias.reshape(column),)


class BatchNormalization(OpRun):
    op_domain = ""

    def _run(self, x, scale, bias, mean, variance, epsilon=None, momentum=None, training_mode=None, spatial=None):
        column = (-1, *[1] * (x.ndim - 2))
        factor = scale / np.sqrt(variance + epsilon)
        return (x * factor.reshape(column) + (bias - mean * factor).reshape(column),)


def _along(vector: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """A number, or one per position of an axis."""
    return vector.reshape([-1 if a == axis % rank else 1 for a in range(rank)]) if np.ndim(vector) else vector


class QuantizeLinear(OpRun):
    op_domain = ""

    def _run(self, x, scale, zero, axis=1, **_):
        limits, parts = np.iinfo(zero.dtype), [_along(part, axis, x.ndim) for part in (scale, zero)]
        return (np.clip(np.rint(x / parts[0]) + parts[1], limits.min, limits.max).astype(zero.dtype),)


class DequantizeLinear(OpRun):
    op_domain = ""

    def _run(self, x, scale, zero=None, axis=1, **_):
        shift = 0.0 if zero is None else _along(zero.astype(np.float64), axis, x.ndim)
        return ((x - shift) * _along(scale, axis, x.ndim),)


OPERATORS = [
    AveragePool,
    BatchNormalization,
    Cast,
    Conv,
    ConvTranspose,
    DequantizeLinear,
    Erf,
    Gelu,
    GlobalMaxPool,
    GroupNormalization,
    LRN,
    MaxPool,
    QuantizeLinear,
]
