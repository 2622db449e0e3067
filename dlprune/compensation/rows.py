"""A mixing consumer as a linear regression: one row per sampled output position, one column per channel and tap."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..facts import Facts
from ..nodes import int_attribute, string_attribute
from ..shapes import Shape

Array = NDArray[np.float32]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Taps:
    """Which element of the flattened input space each output position reads at each kernel tap; −1 = padding."""

    table: NDArray[np.int64]

    @property
    def positions(self) -> int:
        """Number of output positions."""
        return len(self.table)

    def rows(self, data: Array, chosen: NDArray[np.int64]) -> Array:
        """Return the patches of some images.

        Args:
            data: float32 [n, C, S], the input with space flattened.
            chosen: int64 [n, r], output positions per image.

        Returns:
            float32 [n·r, C, T].
        """
        table = self.table[chosen]
        number, _, taps = table.shape
        rows = np.empty((*table.shape[:2], data.shape[1], taps), data.dtype)
        for image, read, own in zip(data, table.reshape(number, -1), rows, strict=True):
            picked = image.T[np.maximum(read, 0)]
            picked[read < 0] = 0
            own[...] = picked.reshape(-1, taps, data.shape[1]).transpose(0, 2, 1)
        return rows.reshape(-1, data.shape[1], taps)


def taps_of(node: ir.Node, source: Shape, target: Shape, kernel: Shape) -> Taps:
    """Return the taps of a Conv or ConvTranspose from its spatial input, output and kernel sizes."""
    axes = []
    for axis in range(len(kernel)):
        stride, dilation = _spatial(node, "strides", axis, 1), _spatial(node, "dilations", axis, 1)
        reach = dilation * (kernel[axis] - 1) + 1
        out = np.arange(target[axis])[:, None]
        tap = np.arange(kernel[axis])[None, :] * dilation
        if node.op_type == "Conv":
            total = max((target[axis] - 1) * stride + reach - source[axis], 0)
            index = out * stride + tap - _begin(node, axis, total)
            valid = (index >= 0) & (index < source[axis])
        else:
            total = max(
                (source[axis] - 1) * stride + _spatial(node, "output_padding", axis, 0) + reach - target[axis], 0
            )
            steps = out + _begin(node, axis, total) - tap
            index = steps // stride
            valid = (steps % stride == 0) & (index >= 0) & (index < source[axis])
        axes.append(np.where(valid, index, -1))
    table = axes[0]
    for axis in range(1, len(kernel)):
        left, right = table[:, None, :, None], axes[axis][None, :, None, :]
        joined = np.where((left < 0) | (right < 0), -1, left * source[axis] + right)
        table = joined.reshape(table.shape[0] * axes[axis].shape[0], -1)
    return Taps(table)


def _spatial(node: ir.Node, name: str, axis: int, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else int(attribute.as_ints()[axis])


def _begin(node: ir.Node, axis: int, total: int) -> int:
    """Return the padding before an axis; `total` is what automatic padding has to share out."""
    auto = string_attribute(node, "auto_pad", "NOTSET")
    if auto == "VALID":
        return 0
    if auto == "NOTSET" and "output_shape" not in node.attributes:
        return _spatial(node, "pads", axis, 0)
    before_is_smaller = (auto == "SAME_UPPER") == (node.op_type == "Conv")
    return total // 2 if before_is_smaller or auto == "SAME_UPPER" else total - total // 2


class Regression:
    """How one consumer's weights, inputs and outputs look as matrices.

    Weights are W [G, O, C·T]: groups, outputs per group, input channels per group times taps. Rows are the output
    positions of all images.
    """

    def __init__(self, node: ir.Node, facts: Facts, batch: int) -> None:
        """Describe a consumer; `batch` is the number of images that `facts` were worked out for."""
        self.node = node
        self._batch = batch
        self.is_convolution = node.op_type in ("Conv", "ConvTranspose")
        self.source = _known(facts, node.inputs[0])
        self.target = _known(facts, node.outputs[0])
        self.groups = int_attribute(node, "group", 1) if self.is_convolution else 1
        self.weight_shape = _known(facts, node.inputs[1])
        self._taps: Taps | None = None
        if self.is_convolution:
            self._taps = taps_of(node, self.source[2:], self.target[2:], self.weight_shape[2:])
        self.tap_num = math.prod(self.weight_shape[2:]) if self.is_convolution else 1

    @property
    def positions(self) -> int:
        """Output positions per image."""
        return self._taps.positions if self._taps is not None else math.prod(self.target[:-1]) // self._batch

    def inputs(self, data: Array, batch: int, chosen: NDArray[np.int64]) -> Array:
        """Return rows of the input of a batch, of its first len(chosen) images: float32 [n·r, G, C·T]."""
        if self._taps is not None:
            flat = data[: len(chosen)].reshape(len(chosen), data.shape[1], -1)
            rows = self._taps.rows(flat, chosen)
            return rows.reshape(len(rows), self.groups, -1)
        return self._picked(data, batch, chosen)[:, None]

    def outputs(self, data: Array, batch: int, chosen: NDArray[np.int64]) -> Array:
        """Return the same rows of an output: float32 [n·r, O_all]."""
        if not self.is_convolution:
            return self._picked(data, batch, chosen)
        flat = data[: len(chosen)].reshape(len(chosen), data.shape[1], -1)
        return np.concatenate([image.T[at] for image, at in zip(flat, chosen, strict=True)])

    @staticmethod
    def _picked(data: Array, batch: int, chosen: NDArray[np.int64]) -> Array:
        flat = data.reshape(batch, -1, data.shape[-1])[: len(chosen)]
        return np.take_along_axis(flat, chosen[:, :, None], axis=1).reshape(-1, flat.shape[2])

    def weight(self, array: NDArray[np.floating]) -> Matrix:
        """Return the node's weight array as W [G, O, C·T]."""
        node, groups = self.node, self.groups
        full = array.astype(np.float64)
        if node.op_type == "Conv":
            return full.reshape(groups, full.shape[0] // groups, -1)
        if node.op_type == "ConvTranspose":
            split = full.reshape(groups, full.shape[0] // groups, full.shape[1], -1)
            return split.transpose(0, 2, 1, 3).reshape(groups, full.shape[1], -1)
        if node.op_type == "Gemm":
            scaled = full * _float(node, "alpha", 1.0)
            return (scaled if int_attribute(node, "transB", 0) else scaled.T)[None]
        return full.T[None]

    def weight_array(self, matrix: Matrix, like: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return W [G, O, C·T] as the node's weight array, in the shape and element type of `like`."""
        node, groups = self.node, self.groups
        if node.op_type == "Conv":
            array = matrix.reshape(like.shape)
        elif node.op_type == "ConvTranspose":
            split = matrix.reshape(groups, like.shape[1], like.shape[0] // groups, -1)
            array = split.transpose(0, 2, 1, 3).reshape(like.shape)
        elif node.op_type == "Gemm":
            scaled = matrix[0] / _float(node, "alpha", 1.0)
            array = scaled if int_attribute(node, "transB", 0) else scaled.T
        else:
            array = matrix[0].T
        return np.ascontiguousarray(array.astype(like.dtype))


def _float(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()


def _known(facts: Facts, value: ir.Value | None) -> Shape:
    shape = None if value is None else facts.shape(value)
    assert shape is not None
    return shape
