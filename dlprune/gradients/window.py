"""The sliding window that convolution and pooling share: kernel, stride, dilation and pads per spatial axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from .rule import Site
from .writer import Writer


@dataclass(frozen=True)
class Window:
    """Geometry of a window that slides over `size` positions and yields `out` positions, per spatial axis.

    The end pad is not kept: what the last window covers follows from the rest, also in ceil mode.
    """

    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.size)

    @property
    def extent(self) -> tuple[int, ...]:
        """Input positions that one window spans."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def unit_stride(self) -> bool:
        """Whether the window moves by one position along every axis."""
        return all(s == 1 for s in self.strides)

    @property
    def is_tiling(self) -> bool:
        """Whether every position lies in just one window."""
        return self.strides == self.kernel == self.extent and self.covered == self.size and not any(self.begin)

    @property
    def covered(self) -> tuple[int, ...]:
        """Positions from the first one of the first window to the last one of the last window."""
        return tuple((o - 1) * s + e for o, s, e in zip(self.out, self.strides, self.extent, strict=True))


def window_of(n: Site, kernel: Sequence[int], size: Sequence[int], out: Sequence[int]) -> Window:
    """Read a node's window; `auto_pad` is resolved here."""
    rank = len(size)
    strides = n.attr_ints("strides", [1] * rank)
    dilations = n.attr_ints("dilations", [1] * rank)
    pads = n.attr_ints("pads", [0] * (2 * rank))
    begin, end = pads[:rank], pads[rank:]
    auto = n.attr_str("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        for axis in range(rank):
            extent = dilations[axis] * (kernel[axis] - 1) + 1
            total = max(0, (-(-size[axis] // strides[axis]) - 1) * strides[axis] + extent - size[axis])
            begin[axis] = total // 2 if auto == "SAME_UPPER" else total - total // 2
            end[axis] = total - begin[axis]
    elif auto == "VALID":
        begin, end = [0] * rank, [0] * rank
    return Window(tuple(size), tuple(out), tuple(kernel), tuple(strides), tuple(dilations), tuple(begin), tuple(end))


def place(writer: Writer, value: ir.Value, before: Sequence[int], after: Sequence[int]) -> ir.Value:
    """Pad the spatial axes with zeros; a negative amount cuts."""
    rank = len(before)
    cut_before, cut_after = [max(0, -v) for v in before], [max(0, -v) for v in after]
    if any(cut_before) or any(cut_after):
        starts, ends = cut_before, [-v if v else 2**31 - 1 for v in cut_after]
        value = writer.op("Slice", value, starts, ends, list(range(2, 2 + rank)))
    if any(v > 0 for v in [*before, *after]):
        value = writer.op("Pad", value, [0, 0, *(max(0, v) for v in before), 0, 0, *(max(0, v) for v in after)])
    return value
