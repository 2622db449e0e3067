"""The greatest elements of windows along one axis, and whom their gradients belong to.

Where windows overlap this takes half as long as scattering: a pool that tells the positions of its maxima is twenty
times as slow in ONNX Runtime as one that does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .axis import interleave, pad_axis
from .window import Window
from .writer import Writer

_LOWEST = float(np.finfo(np.float32).min)


class Line:
    """Windows along one spatial axis of a map.

    The positions at one offset modulo the stride make a phase; a tap is a phase shifted so that every window finds the
    element at one of its places there.

    Args:
        writer: writes the nodes.
        value: the map.
        shape: its shape.
        window: geometry of the whole pool.
        axis: number of the spatial axis.
    """

    def __init__(self, writer: Writer, value: ir.Value, shape: Sequence[int], window: Window, axis: int) -> None:
        self._writer = writer
        self._shape = tuple(shape)
        self._before, self._after = math.prod(shape[: axis + 2]), math.prod(shape[axis + 3 :])
        self._size, self._out, self._stride = window.size[axis], window.out[axis], window.strides[axis]
        self._length = -(-self._size // self._stride)
        places = np.arange(window.kernel[axis]) * window.dilations[axis] - window.begin[axis]
        split = [divmod(int(place), self._stride) for place in places]
        #: Shift and phase of each tap that some window finds inside of the map.
        self._taps = [(shift, phase) for shift, phase in split if -self._out < shift < self._length]
        phases = self._split(value)
        self._values = [self._shifted(phases[phase], shift) for shift, phase in self._taps]

    def maximum(self) -> ir.Value:
        """Return the greatest element of each window."""
        greatest = self._values[0]
        for value in self._values[1:]:
            greatest = self._writer.op("Max", greatest, value)
        return greatest

    def back(self, dy: ir.Value, greatest: ir.Value) -> ir.Value:
        """Hand the gradient of the maxima to the first element of each window that equals its maximum."""
        w = self._writer
        rest, greatest = (w.reshape(value, (self._before, self._out, self._after)) for value in (dy, greatest))
        phases: dict[int, ir.Value] = {}
        for number, ((shift, phase), value) in enumerate(zip(self._taps, self._values, strict=True)):
            part = rest
            if number < len(self._taps) - 1:
                part = w.op("Mul", rest, w.op("Cast", w.op("Equal", value, greatest), to=int(ir.DataType.FLOAT)))
                rest = w.op("Sub", rest, part)
            placed = pad_axis(w, part, 3, 1, shift, self._length - self._out - shift)
            phases[phase] = w.op("Add", phases[phase], placed) if phase in phases else placed
        shape = (self._before, self._length, self._after)
        return w.reshape(interleave(w, phases, shape, 1, self._stride, self._size), self._shape)

    def _split(self, value: ir.Value) -> dict[int, ir.Value]:
        """Return the phases that taps read, each [before, length, after]."""
        w, shape = self._writer, (self._before, self._length, self._after)
        flat = w.reshape(value, (self._before, self._size, self._after))
        if self._stride == 1:
            return {0: flat}
        flat = pad_axis(w, flat, 3, 1, 0, self._length * self._stride - self._size, _LOWEST)
        flat = w.reshape(flat, (self._before * self._length, self._stride, self._after))
        phases = sorted({phase for _, phase in self._taps})
        return {phase: w.reshape(w.op("Slice", flat, [phase], [phase + 1], [1]), shape) for phase in phases}

    def _shifted(self, phase: ir.Value, shift: int) -> ir.Value:
        return pad_axis(self._writer, phase, 3, 1, -shift, shift + self._out - self._length, _LOWEST)
