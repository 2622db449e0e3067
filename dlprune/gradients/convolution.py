"""Gradients of Conv and ConvTranspose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from . import blocked
from .axis import dilate_axis, interleave
from .kernel import correlation, swapped
from .rule import GradientError, Partials, Site, gradient
from .window import Window, place, window_of

#: Strides of so many phases are worked off phase by phase.
_MOST_PHASES = 4
#: Positions of a depthwise kernel from which on it pays to avoid ConvTranspose.
_LARGE_KERNEL = 16


@gradient("Conv")
def conv(n: Site) -> Partials:
    """Slide the transposed kernels back over dy."""
    shape, weight_shape = n.shape(0), n.shape(1)
    window = window_of(n, weight_shape[2:], shape[2:], n.out_shape()[2:])
    partials: dict[int, ir.Value] = {}
    group = n.attr_int("group", 1)
    if n.wants(0):
        partials[0] = input_gradient(n, window, group)
    if n.wants(1):
        partials[1] = correlation(n, n.x, n.dy, (shape[1], weight_shape[0], group), window)
    if n.wants(2):
        partials[2] = n.op("ReduceSum", n.dy, [0, *range(2, len(shape))], keepdims=0)
    return partials


def input_gradient(n: Site, window: Window, group: int) -> ir.Value:
    """Return dx of a Conv.

    With stride 1 this is a Conv with flipped, group-wise transposed kernels: up to four times as fast as ConvTranspose.
    With stride 2 it is one such Conv for each of four phases. Otherwise a ConvTranspose whose output_padding restores
    the positions that the stride left over (with output_shape ONNX Runtime would compute the pads anew), unless it pays
    to put zeros between the positions of dy.
    """
    spread = n.array(1) is None and _worth_spreading(n, window, group)
    if window.unit_stride or spread:
        kernels = _transposed(n, group, [np.arange(k)[::-1] for k in window.kernel])
        before = [e - 1 - b for e, b in zip(window.extent, window.begin, strict=True)]
        after = [s - c + b + e - 1 for s, c, b, e in zip(*_lists(window), strict=True)]
        value = n.dy
        if spread:
            value = _spread(n, window)
        if min(before + after) < 0:
            value = place(n.writer, value, [min(0, v) for v in before], [min(0, v) for v in after])
        pads = [max(0, v) for v in before + after]
        dilations = list(window.dilations)
        return n.op("Conv", value, kernels, shape=n.shape(0), group=group, dilations=dilations, pads=pads)
    if group == 1 and math.prod(window.strides) <= _MOST_PHASES:
        return _by_phases(n, window)
    restored = [s + b - c for s, c, b, _ in zip(*_lists(window), strict=True)]
    end_pads = [max(0, -v) for v in restored]
    plain = n.op(
        "ConvTranspose",
        n.dy,
        n.input(1),
        group=group,
        strides=list(window.strides),
        dilations=list(window.dilations),
        pads=[*window.begin, *end_pads],
        output_padding=[max(0, v) for v in restored],
    )
    return blocked.enter(n.writer, plain, n.shape(0))


def _worth_spreading(n: Site, window: Window, group: int) -> bool:
    """Tell whether a strided depthwise convolution with large kernels is fast enough to run over zeros as well."""
    depthwise = group == n.shape(1)[0] == n.shape(0)[1]
    return n.writer.fast_depthwise and depthwise and window.rank == 2 and math.prod(window.kernel) >= _LARGE_KERNEL


def _spread(n: Site, window: Window) -> ir.Value:
    """Put zeros between the positions of dy that a stride leaves out."""
    value, shape = n.dy, list(n.out_shape())
    for axis, step in enumerate(window.strides, 2):
        value = dilate_axis(n.writer, value, shape, axis, step)
        shape[axis] = (shape[axis] - 1) * step + 1
    return value


def _lists(window: Window) -> tuple[Sequence[int], ...]:
    return window.size, window.covered, window.begin, window.extent


def _by_phases(n: Site, window: Window) -> ir.Value:
    """Return dx, each phase of which (the positions at one offset modulo the stride) some taps of the kernels reach."""
    shape, strides = n.shape(0), window.strides
    lines = [_phases_along(window, axis) for axis in range(window.rank)]
    length = [-(-size // step) for size, step in zip(window.size, strides, strict=True)]
    maps: dict[tuple[int, ...], ir.Value] = {}
    for offset in np.ndindex(*strides):
        phases = [line[at] for line, at in zip(lines, offset, strict=True)]
        if any(len(phase.taps) == 0 for phase in phases):
            continue
        kernels = _transposed(n, 1, [phase.taps for phase in phases])
        before, after = [phase.before for phase in phases], [phase.after for phase in phases]
        value = n.dy
        if min(before + after) < 0:
            value = place(n.writer, value, [min(0, v) for v in before], [min(0, v) for v in after])
        maps[offset] = n.op(
            "Conv",
            value,
            kernels,
            shape=(*shape[:2], *length),
            dilations=[phase.dilation for phase in phases],
            pads=[max(0, v) for v in before + after],
        )
    sizes = [*shape[:2], *length]
    for axis in reversed(range(window.rank)):
        rows: dict[tuple[int, ...], dict[int, ir.Value]] = {}
        for offset, value in maps.items():
            rows.setdefault(offset[:-1], {})[offset[-1]] = value
        maps = {
            offset: interleave(n.writer, phases, sizes, axis + 2, strides[axis], window.size[axis])
            for offset, phases in rows.items()
        }
        sizes[axis + 2] = window.size[axis]
    return blocked.enter(n.writer, maps[()], shape)


@dataclass(frozen=True)
class _Phase:
    """The taps that reach one phase of an axis, backwards; their distance in dy, and what to add to dy at its ends."""

    taps: np.ndarray
    dilation: int
    before: int
    after: int


def _phases_along(window: Window, axis: int) -> list[_Phase]:
    step, dilation, begin = window.strides[axis], window.dilations[axis], window.begin[axis]
    found = []
    for offset in range(step):
        # Position step·q + offset of dx meets tap k in position q + (offset + begin − k·dilation) / step of dy.
        reach = offset + begin - np.arange(window.kernel[axis]) * dilation
        taps = np.flatnonzero(reach % step == 0)[::-1]
        first, last = (int(reach[taps[at]]) // step for at in (0, -1)) if len(taps) else (0, 0)
        after = -(-window.size[axis] // step) - window.out[axis] + last
        found.append(_Phase(taps, dilation // math.gcd(step, dilation), -first, after))
    return found


def _transposed(n: Site, group: int, taps: Sequence[np.ndarray]) -> ir.Value | np.ndarray:
    """Swap the channels of kernels [M, C/g, …] group by group: [C, M/g, …]; of the positions that are given by axis."""
    weight = n.array(1)
    if weight is None:
        return swapped(n, group, taps)
    m, c = weight.shape[:2]
    chosen = weight[np.ix_(np.arange(m), np.arange(c), *taps)]
    kernel = chosen.shape[2:]
    split = chosen.reshape(group, m // group, c, *kernel)
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(group * c, m // group, *kernel)


@gradient("ConvTranspose")
def conv_transpose(n: Site) -> Partials:
    """Slide the same kernels forward over dy."""
    partials: dict[int, ir.Value] = {}
    window = _transpose_window(n)
    group = n.attr_int("group", 1)
    if n.wants(0):
        partials[0] = _forward(n, window, group)
    if n.wants(1):  # the convolution of dy would give x: the roles of image and field are swapped
        partials[1] = correlation(n, n.dy, n.x, (n.out_shape()[1], n.shape(0)[1], group), window)
    if n.wants(2):
        partials[2] = n.op("ReduceSum", n.dy, [0, *range(2, len(n.shape(0)))], keepdims=0)
    return partials


def _transpose_window(n: Site) -> Window:
    """Return the window of the convolution that leads from dy back to the size of x."""
    size, out, kernel = n.shape(0)[2:], n.out_shape()[2:], n.shape(1)[2:]
    rank = len(size)
    return Window(
        size=tuple(out),
        out=tuple(size),
        kernel=tuple(kernel),
        strides=tuple(n.attr_ints("strides", [1] * rank)),
        dilations=tuple(n.attr_ints("dilations", [1] * rank)),
        begin=tuple(_transpose_begin(n, size, out, kernel)),
        end=(0,) * rank,
    )


def _forward(n: Site, window: Window, group: int) -> ir.Value:
    after = [c - b - s for c, b, s in zip(window.covered, window.begin, window.size, strict=True)]
    value = n.dy
    if min([*window.begin, *after], default=0) < 0:
        value = place(n.writer, value, [min(0, v) for v in window.begin], [min(0, v) for v in after])
    return n.op(
        "Conv",
        value,
        n.input(1),
        group=group,
        strides=list(window.strides),
        dilations=list(window.dilations),
        pads=[max(0, v) for v in [*window.begin, *after]],
    )


def _transpose_begin(n: Site, size: Sequence[int], out: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """Return the begin pads of a ConvTranspose, which `output_shape` and `auto_pad` leave to be computed."""
    rank = len(size)
    auto = n.attr_str("auto_pad", "NOTSET")
    if auto == "NOTSET" and "output_shape" not in n.node.attributes:
        return n.attr_ints("pads", [0] * (2 * rank))[:rank]
    if auto == "VALID":
        return [0] * rank
    if auto == "NOTSET" and any(n.attr_ints("pads", [])):
        raise GradientError(n.node, "pads together with output_shape are ambiguous")
    strides = n.attr_ints("strides", [1] * rank)
    dilations = n.attr_ints("dilations", [1] * rank)
    extra = n.attr_ints("output_padding", [0] * rank)
    begin = []
    for axis in range(rank):
        covered = strides[axis] * (size[axis] - 1) + extra[axis] + dilations[axis] * (kernel[axis] - 1) + 1
        total = max(0, covered - out[axis])
        begin.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
    return begin
