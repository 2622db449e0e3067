"""Gradients of convolution kernels: an image correlated with a map of gradients, under the convolution's window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .rule import Site
from .window import Window, place

_SWAPPED = "dlprune.swapped"
_CHANNELS_LAST = "dlprune.channels_last"
#: Fewer positions of a dense kernel are cut out one by one, more by one convolution.
_FEW_POSITIONS = 9
#: Below so many channels a product per position is too small to be fast.
_FEW_CHANNELS = 8
#: Up to so many channels, or so many positions of the field per channel, cutting out costs more than multiplying.
_NARROW_CHANNELS, _MANY_POSITIONS = 64, 6
#: Maps up to this size are shifted along both axes.
_SMALL_BYTES = 1 << 22
#: Depthwise: widest map whose columns are all multiplied with each other, by number of positions.
_NARROW, _NARROW_FOR_LARGE = 48, 64
_LARGE_KERNEL = 16


def correlation(n: Site, image: ir.Value, field: ir.Value, channels: tuple[int, int, int], window: Window) -> ir.Value:
    """Return w[m, c, k] = Σ over samples and positions o of field[m, o] · image[c, o·stride + k·dilation − begin].

    Which way is fastest was measured on one core (NumPy-like notation; L = positions of the field):

    - 1×1: one product [M, L]·[L, C] per sample, summed.
    - up to 3×3 with stride 1: the same for each position, of which the image is cut out, channels last; with few
      channels the image is shifted to all columns at once, and the field to one row at a time, or, where it is small,
      to all rows at once.
    - depthwise: where that is fast (see Writer.fast_depthwise), or for large kernels on wide maps, see
      `_one_group_per_sample`; else, on narrow maps, see `_by_columns`.
    - everything else: the image shifted to all positions by a convolution with one-hot kernels; where they are many,
      by one for each axis.

    Args:
        n: the node whose rule asks.
        image: [N, C, …] of the window's `size`.
        field: [N, M, …] of the window's `out`.
        channels: C, M and the number of groups g.
        window: geometry of the convolution that made `field` out of `image`.

    Returns:
        [M, C/g, …] of the window's `kernel`.
    """
    return _Correlation(n, image, field, channels, window).result()


class _Correlation:
    def __init__(
        self, n: Site, image: ir.Value, field: ir.Value, channels: tuple[int, int, int], window: Window
    ) -> None:
        self._n, self._image, self._field, self._window = n, image, field, window
        self._channels, self._fields, self._group = channels
        self._batch = n.shape(0)[0]
        after = [c - b - s for c, b, s in zip(window.covered, window.begin, window.size, strict=True)]
        self._before, self._after = list(window.begin), after
        if min([*self._before, *after], default=0) < 0:  # what the window does not reach is cut off
            self._image = place(n.writer, image, [min(0, v) for v in self._before], [min(0, v) for v in after])
            self._before, self._after = [max(0, v) for v in self._before], [max(0, v) for v in after]
        #: Sizes of the image, without pads.
        self._sizes = [c - b - a for c, b, a in zip(window.covered, self._before, self._after, strict=True)]
        self._positions = math.prod(window.kernel)
        self._length = math.prod(window.out)

    def result(self) -> ir.Value:
        window = self._window
        depthwise = self._group == self._channels
        large = self._positions >= _LARGE_KERNEL
        if self._positions == 1:
            product = self._product(self._columns_of_one(), self._channels)
        elif depthwise and self._n.writer.fast_depthwise and window.rank == 2:
            product = self._one_group_per_sample()
        elif depthwise and self._fields == self._channels and window.rank == 2 and self._narrow(large):
            product = self._by_columns()
        elif depthwise and large:
            product = self._one_group_per_sample()
        elif (
            self._group == 1
            and window.unit_stride
            and self._positions <= _FEW_POSITIONS
            and min(self._channels, self._fields) >= _FEW_CHANNELS
        ):
            product = self._row_by_row() if self._has_few_channels() else self._position_by_position()
        elif self._positions <= _FEW_POSITIONS:
            with self._late():
                columns = self._shifted(self._image, self._channels, range(window.rank))
            product = self._product(columns, self._channels * self._positions)
        else:
            product = self._axis_by_axis()
        shape = (self._fields, self._channels // self._group, *window.kernel)
        return product if channels_last(product) is not None else self._n.reshape(product, shape)

    def _narrow(self, large: bool) -> bool:
        return self._window.out[1] <= (_NARROW_FOR_LARGE if large else _NARROW)

    def _has_few_channels(self) -> bool:
        most = max(_NARROW_CHANNELS, self._length // _MANY_POSITIONS)
        return self._window.rank == 2 and max(self._channels, self._fields) <= most

    def _late(self) -> AbstractContextManager[None]:
        """What depends on the input alone is computed when the field is there: not to be kept for long."""
        return self._n.writer.before(self._n.node) if self._image is self._n.x else nullcontext()

    def _padded(self) -> ir.Value:
        return place(self._n.writer, self._image, self._before, self._after)

    # --- dense kernels ------------------------------------------------------------------------------------------------

    def _columns_of_one(self) -> ir.Value:
        """Return the pixels that a 1×1 kernel reads."""
        window = self._window
        image = self._padded()
        if window.unit_stride:
            return image
        ends = [(o - 1) * s + 1 for o, s in zip(window.out, window.strides, strict=True)]
        axes = list(range(2, 2 + window.rank))
        return self._n.op("Slice", image, [0] * window.rank, ends, axes, list(window.strides))

    def _axis_by_axis(self) -> ir.Value:
        """The image is shifted along one axis after the other, the last one first: far fewer products than at once."""
        n, kernel = self._n, self._window.kernel
        columns, channels, axes = self._image, self._channels, range(self._window.rank)
        with self._late():
            for axis in reversed(axes):
                columns = self._shifted(columns, channels, [axis])
                channels *= kernel[axis]
        product = n.reshape(self._product(columns, channels), (self._fields, -1, *kernel[::-1]))
        return n.op("Transpose", product, perm=[0, 1, *(2 + axis for axis in reversed(axes))])

    def _shifted(self, value: ir.Value, channels: int, axes: Sequence[int]) -> ir.Value:
        """Return [N, channels·positions, …]: a map shifted to every position of the kernel along some axes."""
        window = self._window

        def along(numbers: Sequence[int], other: int) -> list[int]:
            return [number if axis in axes else other for axis, number in enumerate(numbers)]

        kernel = along(window.kernel, 1)
        one_hot = np.tile(np.eye(math.prod(kernel), dtype=np.float32), (channels, 1))
        return self._n.op(
            "Conv",
            value,
            one_hot.reshape(-1, 1, *kernel),
            group=channels,
            strides=along(window.strides, 1),
            dilations=along(window.dilations, 1),
            pads=[*along(self._before, 0), *along(self._after, 0)],
        )

    def _product(self, columns: ir.Value, width: int) -> ir.Value:
        """Return Σ over samples of field · columnsᵀ, per group: as one product, or one per sample and then the sum."""
        n, batch, group = self._n, self._batch, self._group
        rows, width = self._fields // group, width // group
        if group == 1 and rows * width > (rows + width) * self._length:  # bringing together is cheaper than adding up
            right = self._together(columns, width)
            return n.op("Gemm", self._together(self._field, rows), right, transB=1)
        right = n.reshape(columns, (batch, group, width, self._length))
        left = n.reshape(self._field, (batch, group, rows, self._length))
        if rows > width:
            return n.op("ReduceSum", self._times_transposed(left, right), [0], keepdims=0)
        total = n.op("ReduceSum", self._times_transposed(right, left), [0], keepdims=0)
        return n.op("Transpose", total, perm=[0, 2, 1])

    def _times_transposed(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """Return left · rightᵀ; it pays to have the smaller one on the right, which is rearranged before."""
        return self._n.op("MatMul", left, self._n.op("Transpose", right, perm=[0, 1, 3, 2]))

    def _together(self, value: ir.Value, channels: int) -> ir.Value:
        """Return [N, channels, L] as [channels, N·L]."""
        flat = self._n.reshape(value, (self._batch, channels, self._length))
        return self._n.reshape(self._n.op("Transpose", flat, perm=[1, 0, 2]), (channels, self._batch * self._length))

    def _position_by_position(self) -> ir.Value:
        """For each position the image is cut out and multiplied with the field."""
        n, window = self._n, self._window
        batch, fields, channels, length = self._batch, self._fields, self._channels, self._length
        flat = n.reshape(self._image, (batch, channels, math.prod(self._sizes)))
        image = n.reshape(n.op("Transpose", flat, perm=[0, 2, 1]), (batch, *self._sizes, channels))
        pads = [0, *self._before, 0, 0, *self._after, 0]
        image = n.op("Pad", image, pads) if any(pads) else image
        together = self._positions * fields * channels > (fields + channels) * length
        field = self._together(self._field, fields) if together else n.reshape(self._field, (batch, fields, length))
        products = []
        for position in np.ndindex(*window.kernel):
            starts = [k * d for k, d in zip(position, window.dilations, strict=True)]
            ends = [start + size for start, size in zip(starts, window.out, strict=True)]
            part = n.op("Slice", image, starts, ends, list(range(1, 1 + window.rank)))
            if together:
                product = n.op("Gemm", field, n.reshape(part, (batch * length, channels)))
            else:
                product = n.op("MatMul", field, n.reshape(part, (batch, length, channels)))
                product = n.op("ReduceSum", product, [0], keepdims=0)
            products.append(n.reshape(product, (fields, 1, channels)))
        return self._from_channels_last(n.op("Concat", *products, axis=1))

    def _row_by_row(self) -> ir.Value:
        """The image is shifted to all columns of the kernel, the field to one row at a time, or to all."""
        n, window = self._n, self._window
        batch, fields, channels = self._batch, self._fields, self._channels
        rows, columns = window.kernel
        height, length, step = self._sizes[0], self._sizes[0] * window.out[1], window.dilations[0]
        shifted = n.reshape(self._shifted(self._image, channels, [1]), (batch, channels * columns, length))
        pads = [(rows - 1) * step - self._before[0], 0, (rows - 1) * step - self._after[0], 0]
        if min(pads) >= 0 and 4 * batch * max(channels, fields) * length <= _SMALL_BYTES:
            one_hot = np.tile(np.eye(rows, dtype=np.float32)[::-1], (fields, 1)).reshape(-1, 1, rows, 1)
            placed = n.op("Conv", self._field, one_hot, group=fields, dilations=[step, 1], pads=pads)
            product = self._summed(shifted, n.reshape(placed, (batch, fields * rows, length)))
            shape, perm = (channels, columns, fields, rows), [2, 3, 1, 0]
        else:
            products = []
            for row in range(rows):
                start = row * step - self._before[0]
                shift = [0, 0, start, 0, 0, 0, height - window.out[0] - start, 0]  # a negative amount cuts
                placed = n.op("Pad", self._field, shift) if any(shift) else self._field
                products.append(self._summed(shifted, n.reshape(placed, (batch, fields, length))))
            product = n.op("Concat", *products, axis=0)
            shape, perm = (rows, channels, columns, fields), [3, 0, 2, 1]
        last = n.op("Transpose", n.reshape(product, shape), perm=perm)
        return self._from_channels_last(n.reshape(last, (fields, rows * columns, channels)))

    def _summed(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """Return Σ over samples of left · rightᵀ: [1, rows of left, rows of right]."""
        product = self._n.op("MatMul", left, self._n.op("Transpose", right, perm=[0, 2, 1]))
        return self._n.op("ReduceSum", product, [0], keepdims=1)

    def _from_channels_last(self, last: ir.Value) -> ir.Value:
        """Turn [M, positions, C] into [M, C, …]."""
        n = self._n
        plain = n.op("Transpose", last, perm=[0, 2, 1])
        value = n.reshape(plain, (self._fields, self._channels, *self._window.kernel))
        mark_channels_last(value, last)
        return value

    # --- depthwise kernels --------------------------------------------------------------------------------------------

    def _by_columns(self) -> ir.Value:
        """Return [C, kh, kw] of a depthwise convolution in two dimensions.

        For each row of the kernel, all columns of the image are multiplied with all columns of the field, summed over
        rows: [width, out]. A column of the kernel is the sum along a diagonal of that, taken by a constant matrix.
        """
        n, window = self._n, self._window
        batch, channels = self._batch, self._channels
        (rows, columns), (out_rows, out_columns) = window.covered, window.out
        diagonals = np.zeros((columns, out_columns, window.kernel[1]), np.float32)
        for k in range(window.kernel[1]):
            at = np.arange(out_columns)
            diagonals[at * window.strides[1] + k * window.dilations[1], at, k] = 1.0
        image = n.reshape(self._padded(), (batch * channels, rows, columns))
        field = n.reshape(self._field, (batch * channels, out_rows, out_columns))
        sums = []
        for k in range(window.kernel[0]):
            start = k * window.dilations[0]
            end = start + (out_rows - 1) * window.strides[0] + 1
            part = n.op("Slice", image, [start], [end], [1], [window.strides[0]])
            pairs = n.op("MatMul", n.op("Transpose", part, perm=[0, 2, 1]), field)
            flat = n.reshape(pairs, (batch, channels, columns * out_columns))
            total = n.op("ReduceSum", flat, [0], keepdims=0)
            sums.append(n.op("MatMul", total, diagonals.reshape(-1, window.kernel[1])))
        return n.op("Concat", *sums, axis=1)

    def _one_group_per_sample(self) -> ir.Value:
        """Return depthwise kernels: a sample's field slides over its image as a kernel; stride and dilation swap."""
        n, window, batch = self._n, self._window, self._batch
        each = n.op(
            "Conv",
            n.reshape(self._image, (1, batch * self._channels, *self._sizes)),
            n.reshape(self._field, (batch * self._fields, 1, *window.out)),
            group=batch * self._channels,
            strides=list(window.dilations),
            dilations=list(window.strides),
            pads=[*self._before, *self._after],
        )
        return n.op("ReduceSum", n.reshape(each, (batch, self._fields, *window.kernel)), [0], keepdims=0)


@dataclass(frozen=True)
class Swapped:
    """Where kernels that `swapped` returned come from, and which of the places there they take."""

    source: ir.Value
    shape: tuple[int, ...]
    group: int
    places: tuple[int, ...]


def swapped(n: Site, group: int, taps: Sequence[np.ndarray]) -> ir.Value:
    """Swap the channels of kernels [M, C/g, …] that are not constant by group: [C, M/g, …], of some positions.

    Args:
        n: the convolution.
        group: number of groups g.
        taps: the positions that are taken, in their order, per axis.
    """
    shape = n.shape(1)
    m, c, *kernel = shape
    positions, fields = math.prod(kernel), m // group
    places = np.arange(positions).reshape(kernel)[np.ix_(*taps)]
    order = [int(place) for place in places.reshape(-1)]
    value = n.input(1)
    last = channels_last(value)
    if group == 1 and len(order) == 1 and last is not None:
        value = n.op("Transpose", n.reshape(n.op("Gather", last, order, axis=1), (m, c)), perm=[1, 0])
    elif fields > 1 and c > 1:
        # Transposing the last two axes and moving whole rows is several times as fast as any other permutation.
        value = n.op("Transpose", n.reshape(value, (group, fields, c * positions)), perm=[0, 2, 1])
        if positions > 1:
            value = n.op("Gather", n.reshape(value, (group * c, positions, fields)), order, axis=1)
            value = n.op("Transpose", value, perm=[0, 2, 1])
    elif positions > 1:
        value = n.op("Gather", n.reshape(value, (m * c, positions)), order, axis=1)
    value = n.reshape(value, (group * c, fields, *places.shape))
    value.meta[_SWAPPED] = Swapped(n.input(1), shape, group, tuple(order))
    return value


def mark_channels_last(kernels: ir.Value, last: ir.Value) -> None:
    """Note that kernels [M, C, …] are there as [M, positions, C] as well."""
    kernels.meta[_CHANNELS_LAST] = last


def channels_last(kernels: ir.Value) -> ir.Value | None:
    """Return kernels [M, C, …] as [M, positions, C] if that was noted."""
    found: ir.Value | None = kernels.meta.get(_CHANNELS_LAST)
    return found


def origin_of(kernels: ir.Value) -> Swapped | None:
    """Tell where kernels come from if `swapped` made them."""
    found: Swapped | None = kernels.meta.get(_SWAPPED)
    return found
