"""A weight seen as a matrix: what blocks, and runs of input channels, are counted in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class View:
    """How a weight becomes a matrix with one column per output channel, and back.

    Rows are kernel rows, then kernel columns, then input channels, the last ones running fastest. This is how
    TensorFlow flattens its kernels [height, width, inputs, outputs], so blocks mean the same there and here. In ONNX
    the weight of a Conv is [outputs, inputs / group, height, width], that of a ConvTranspose [inputs, outputs / group,
    height, width], that of a MatMul or Gemm [inputs, outputs], or the other way round with transB.

    Attributes:
        shape: of the weight as it is stored.
        steps: what is done one after the other: ('transpose', order of axes) or ('reshape', new shape).
        inputs: number of input channels.

    Example:
        >>> view = View((8, 3, 5, 5), (("transpose", (2, 3, 1, 0)), ("reshape", (75, 8))), 3)
        >>> view.matrix(np.zeros((8, 3, 5, 5))).shape
        (75, 8)
    """

    shape: tuple[int, ...]
    steps: tuple[tuple[str, tuple[int, ...]], ...]
    inputs: int

    @classmethod
    def of(cls, shape: tuple[int, ...], moves: tuple[tuple[str, tuple[int, ...]], ...], order: tuple[int, ...]) -> View:
        """Return the view of a weight.

        Args:
            shape: of the weight as it is stored.
            moves: steps of the graph between the stored weight and its reader.
            order: axes of what the reader reads in the order positions …, inputs, outputs.
        """
        read = shape
        for kind, numbers in moves:
            read = numbers if kind == "reshape" else tuple(read[axis] for axis in numbers)
        ordered = tuple(read[axis] for axis in order)
        matrix = (math.prod(ordered[:-1]), ordered[-1])
        return cls(shape, (*moves, ("transpose", order), ("reshape", matrix)), ordered[-2])

    def matrix(self, weight: NDArray[Any]) -> NDArray[Any]:
        """Return a weight, or a mask of its shape, as a matrix [rows, outputs]."""
        for kind, numbers in self.steps:
            weight = weight.transpose(numbers) if kind == "transpose" else weight.reshape(numbers)
        return weight

    def restore(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Return what `matrix` made, in the shape of the weight."""
        shapes, shape = [], self.shape
        for kind, numbers in self.steps:
            shapes.append(shape)
            shape = numbers if kind == "reshape" else tuple(shape[axis] for axis in numbers)
        for (kind, numbers), before in zip(reversed(self.steps), reversed(shapes), strict=True):
            matrix = matrix.transpose(np.argsort(numbers)) if kind == "transpose" else matrix.reshape(before)
        return np.ascontiguousarray(matrix)
