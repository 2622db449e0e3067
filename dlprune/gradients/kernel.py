"""Gradients of convolution kernels: an image correlated with a map of gradients, under the convolution's window."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from dlprune.gradients.rule import Site
from dlprune.gradients.window import Window, place
from dlprune.gradients.writer import Writer

#: From this many positions on, depthwise kernels are computed by one Conv with a group per sample and channel.
_LARGE_KERNEL = 16


def correlation(n: Site, image: ir.Value, field: ir.Value, channels: tuple[int, int, int], window: Window) -> ir.Value:
    """Return w[m, c, k] = Σ over samples and positions o of field[m, o] · image[c, o·stride + k·dilation − begin].

    Args:
        n: the node whose rule asks.
        image: [N, C, …] of the window's `size`.
        field: [N, M, …] of the window's `out`.
        channels: C, M and the number of groups g.
        window: geometry of the convolution that made `field` out of `image`.

    Returns:
        [M, C/g, …] of the window's `kernel`.
    """
    image_channels, field_channels, group = channels
    batch = n.shape(0)[0]
    after = [c - b - s for c, b, s in zip(window.covered, window.begin, window.size, strict=True)]
    before = list(window.begin)
    if min([*before, *after], default=0) < 0:
        image = place(n.writer, image, [min(0, v) for v in before], [min(0, v) for v in after])
        before, after = [max(0, v) for v in before], [max(0, v) for v in after]
    positions = math.prod(window.kernel)
    shape = (field_channels, image_channels // group, *window.kernel)
    if group == image_channels and positions >= _LARGE_KERNEL:
        return _one_group_per_sample(n, image, field, (batch, image_channels, field_channels), window, before, after)
    if positions == 1 and not any([*before, *after]):
        columns = image if window.unit_stride else _strided(n, image, window)
    else:
        columns = _columns(n.writer, image, image_channels, window, before, after)
    product = _product(n, field, columns, (batch, group, field_channels, image_channels * positions), window)
    return n.reshape(product, shape)


def _strided(n: Site, image: ir.Value, window: Window) -> ir.Value:
    axes = list(range(2, 2 + window.rank))
    ends = [(o - 1) * s + 1 for o, s in zip(window.out, window.strides, strict=True)]
    return n.op("Slice", image, [0] * window.rank, ends, axes, list(window.strides))


def _columns(
    writer: Writer, image: ir.Value, channels: int, window: Window, before: list[int], after: list[int]
) -> ir.Value:
    """Return [N, C·positions, …]: the image shifted to every position of the kernel, by a Conv with one-hot kernels."""
    positions = math.prod(window.kernel)
    one_hot = np.tile(np.eye(positions, dtype=np.float32), (channels, 1))
    return writer.op(
        "Conv",
        image,
        one_hot.reshape(channels * positions, 1, *window.kernel),
        group=channels,
        strides=list(window.strides),
        dilations=list(window.dilations),
        pads=[*before, *after],
    )


def _product(n: Site, field: ir.Value, columns: ir.Value, sizes: tuple[int, int, int, int], window: Window) -> ir.Value:
    """Return Σ over samples of field · columnsᵀ, per group: as one product, or one per sample and then the sum."""
    batch, group, rows, width = sizes
    length = math.prod(window.out)
    rows, width = rows // group, width // group
    if group == 1 and rows * width > (rows + width) * length:  # cheaper to bring the samples together than to add up
        left = n.reshape(n.op("Transpose", n.reshape(field, (batch, rows, length)), perm=[1, 0, 2]), (rows, -1))
        right = n.reshape(n.op("Transpose", n.reshape(columns, (batch, width, length)), perm=[1, 0, 2]), (width, -1))
        return n.op("Gemm", left, right, transB=1)
    left = n.reshape(field, (batch, group, rows, length))
    right = n.op("Transpose", n.reshape(columns, (batch, group, width, length)), perm=[0, 1, 3, 2])
    return n.op("ReduceSum", n.op("MatMul", left, right), [0], keepdims=0)


def _one_group_per_sample(
    n: Site,
    image: ir.Value,
    field: ir.Value,
    sizes: tuple[int, int, int],
    window: Window,
    before: list[int],
    after: list[int],
) -> ir.Value:
    """Return depthwise kernels: a sample's field slides over its image as a kernel; stride and dilation swap."""
    batch, image_channels, field_channels = sizes
    padded = [
        s + min(0, b) + min(0, c - b - s) for s, b, c in zip(window.size, window.begin, window.covered, strict=True)
    ]
    each = n.op(
        "Conv",
        n.reshape(image, (1, batch * image_channels, *padded)),
        n.reshape(field, (batch * field_channels, 1, *window.out)),
        group=batch * image_channels,
        strides=list(window.dilations),
        dilations=list(window.strides),
        pads=[*before, *after],
    )
    split = n.reshape(each, (batch, field_channels, 1, *window.kernel))
    return n.op("ReduceSum", split, [0], keepdims=0)


def swapped(n: Site, shape: tuple[int, ...], group: int) -> ir.Value:
    """Flip kernels [M, C/g, …] that are not constant in space and swap their channels by group: [C, M/g, …]."""
    m, c, *kernel = shape
    positions = math.prod(kernel)
    value = n.reshape(n.input(1), (group, m // group, c, positions))
    if m // group > 1 and c > 1:
        value = n.op("Transpose", value, perm=[0, 2, 1, 3])
    if positions > 1:
        value = n.op("Gather", value, list(range(positions))[::-1], axis=3)
    return n.reshape(value, (group * c, m // group, *kernel))
