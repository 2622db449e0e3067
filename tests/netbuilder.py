"""A random graph under construction: nodes in any opset, constants in any form, shapes known at every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

#: An entry of a computed shape: a literal, or (axis, divisor): that dimension of the tensor it is computed from.
Entry = int | tuple[int, int]


@dataclass(frozen=True)
class Map:
    """A feature map [N, channels, height, width]."""

    name: str
    channels: int
    height: int
    width: int


@dataclass(frozen=True)
class Row:
    """Features [N, features]."""

    name: str
    features: int


class Net:
    """Collects nodes and weights.

    Args:
        rng: source of all choices.
        opset: version of the operators.
        batch: number of samples, None where the file leaves it open.
        open_size: height and width are open too, so that no literal may speak of them.
        zero_keeping: a silent channel stays silent up to whoever mixes it: no shifts, no sigmoid outside of gates.
        half: the net will be turned into half precision.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        opset: int,
        batch: int | None,
        open_size: bool,
        zero_keeping: bool,
        half: bool = False,
    ) -> None:
        self.rng = rng
        self.opset = opset
        self.batch = batch
        self.open_size = open_size
        self.zero_keeping = zero_keeping
        self.half = half
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.maps: list[Map] = []
        self.declared: list[onnx.ValueInfoProto] = []
        self._names = 0
        self._odd_names = self.chance(0.2)
        self._known: dict[tuple[str, tuple[int, ...]], list[str]] = {}

    # --- chance -------------------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """Return an integer from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[self.integer(0, len(choices) - 1)]

    def width(self) -> int:
        """Return a number of channels."""
        return int(self.pick([2, 3, 4, 4, 5, 6, 6, 8, 8, 9, 12]))

    @property
    def convolutions(self) -> int:
        """Number of convolutions so far."""
        return sum(node.op_type in ("Conv", "ConvTranspose") for node in self.nodes)

    # --- nodes --------------------------------------------------------------------------------------------------------

    def name(self, hint: str) -> str:
        self._names += 1
        return f"/{hint}.{self._names}/out:0" if self._odd_names else f"{hint}_{self._names}"

    def several(self, op_type: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        names = [self.name(op_type.lower()) for _ in range(outputs)]
        node_name = self.name(op_type) if self.chance(0.8) else ""
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name=node_name, **attributes))
        return names

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        return self.several(op_type, inputs, 1, **attributes)[0]

    def put(self, x: Map, op_type: str, *others: str, channels: int | None = None, **attributes: Any) -> Map:
        """Add a node that keeps the size of its first input."""
        name = self.op(op_type, x.name, *others, **attributes)
        return Map(name, x.channels if channels is None else channels, x.height, x.width)

    def described(self, name: str, x: Map, line: bool = False) -> onnx.ValueInfoProto:
        """Return the declaration of a tensor inside of control flow, as large as a map or as one of its lines."""
        shape = ["N" if self.batch is None else self.batch, x.channels, *([] if line else [x.height]), x.width]
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    # --- constants ----------------------------------------------------------------------------------------------------

    def initializer(self, array: Any, hint: str = "w") -> str:
        name = self.name(hint)
        self.initializers.append(numpy_helper.from_array(np.asarray(array).copy(), name))
        return name

    def constant(self, array: Any) -> str:
        """Return a constant: an initializer or the output of a Constant node."""
        if self.chance(0.75):
            return self.initializer(array, "c")
        return self.op("Constant", value=numpy_helper.from_array(np.asarray(array).copy()))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def floats(self, *values: float) -> str:
        return self.constant(np.array(values, np.float32))

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def weight(self, shape: Sequence[int], fan_in: int | None = None) -> str:
        """Return a random weight, shared, stored or computed in one of the ways that exporters use."""
        shape = tuple(shape)
        return self._shared("weight", shape) or self._remember("weight", shape, self._new_weight(shape, fan_in))

    def _new_weight(self, shape: tuple[int, ...], fan_in: int | None) -> str:
        fan = fan_in or max(math.prod(shape[1:]), 1)
        array = (self.rng.standard_normal(shape) * math.sqrt(2 / fan)).astype(np.float32)
        form = self.integer(0, 26)
        if form == 0:
            return self.op("Identity", self.initializer(array))
        if form == 1:
            return self.op("Mul", self.initializer(array * 2), self.number(0.5))
        if form == 2:
            return self.op("Reshape", self.initializer(array.reshape(-1)), self.ints(*shape))
        if form == 3 and len(shape) > 1:
            order = [int(axis) for axis in self.rng.permutation(len(shape))]
            back = [int(axis) for axis in np.argsort(order)]
            return self.op("Transpose", self.initializer(array.transpose(order)), perm=back)
        if form == 4 and shape[0] > 1:
            return self.op("Concat", self.initializer(array[:1]), self.initializer(array[1:]), axis=0)
        if form in (5, 6):
            return self.op("Constant", value=numpy_helper.from_array(array))
        if form == 7:
            return self.op("Cast", self.initializer(array.astype(np.float16)), to=onnx.TensorProto.FLOAT)
        if form == 8 and (not self.half or self.opset >= 19):
            return self._in_bytes(array)
        return self.initializer(array)

    def _in_bytes(self, array: np.ndarray) -> str:
        """Return weights that are stored as 8-bit integers, with one scale or one along an axis."""
        axis = self.integer(0, array.ndim - 1) if self.opset >= 13 and self.chance(0.7) else None
        others = None if axis is None else tuple(a for a in range(array.ndim) if a != axis)
        scale = np.maximum(np.abs(array).max(axis=others, keepdims=True), 1e-3) / 127
        stored = self.initializer(np.rint(array / scale).astype(np.int8))
        inputs = [stored, self.initializer(scale.reshape(() if axis is None else -1))]
        if self.chance(0.5):
            inputs.append(self.initializer(np.zeros(scale.size, np.int8).reshape(() if axis is None else -1)))
        return self.op("DequantizeLinear", *inputs, **({} if axis is None else {"axis": axis}))

    def vector(self, length: int, mean: float = 0.0, spread: float = 0.3) -> str:
        """Return one number per channel, for biases, scales and slopes."""
        kind = f"vector {mean} {spread}"
        return self._shared(kind, (length,)) or self._remember(kind, (length,), self._new_vector(length, mean, spread))

    def _new_vector(self, length: int, mean: float, spread: float) -> str:
        form = self.integer(0, 15)
        if form == 0:
            value = helper.make_tensor("fill", onnx.TensorProto.FLOAT, [1], [mean + spread / 2])
            return self.op("ConstantOfShape", self.ints(length), value=value)
        if form == 1:
            like = self.initializer(np.zeros(length, np.float32))
            return self.op("Expand", self.number(mean + spread / 2), self.op("Shape", like))
        array = (mean + spread * self.rng.uniform(-1, 1, length)).astype(np.float32)
        return self.constant(array)

    def shift(self, length: int) -> str:
        """Return what is added per channel; zeros in a net that keeps silence."""
        return self.vector(length, 0.0, 0.0 if self.zero_keeping else 0.3)

    def per_channel(self, channels: int, mean: float, spread: float) -> str:
        """Return a factor or summand that broadcasts over a feature map: [C,1,1] or [1,C,1,1]."""
        shape, axes = self.pick([((channels, 1, 1), [1, 2]), ((1, channels, 1, 1), [0, 2, 3])])
        form = self.integer(0, 3)
        if form == 0:
            return self.op("Reshape", self.vector(channels, mean, spread), self.ints(*shape))
        if form == 1:
            return self.unsqueeze(self.vector(channels, mean, spread), axes)
        return self.constant((mean + spread * self.rng.uniform(-1, 1, shape)).astype(np.float32))

    def _shared(self, kind: str, shape: tuple[int, ...]) -> str | None:
        known = self._known.get((kind, shape))
        return str(self.pick(known)) if known and self.chance(0.2) else None

    def _remember(self, kind: str, shape: tuple[int, ...], name: str) -> str:
        self._known.setdefault((kind, shape), []).append(name)
        return name

    def forget(self, number: int) -> None:
        """Keep only the first nodes, and no vector or weight that a later one computes."""
        lost = {name for node in self.nodes[number:] for name in node.output}
        del self.nodes[number:]
        for names in self._known.values():
            names[:] = [name for name in names if name not in lost]

    # --- operators whose form depends on the opset --------------------------------------------------------------------

    def unsqueeze(self, x: str, axes: Sequence[int]) -> str:
        if self.opset < 13:
            return self.op("Unsqueeze", x, axes=list(axes))
        return self.op("Unsqueeze", x, self.ints(*axes))

    def squeeze(self, x: str, axes: Sequence[int]) -> str:
        if self.opset < 13:
            return self.op("Squeeze", x, axes=list(axes))
        return self.op("Squeeze", x, self.ints(*axes))

    def reduce(self, op_type: str, x: str, axes: Sequence[int], keepdims: int) -> str:
        if self.opset >= (13 if op_type == "ReduceSum" else 18):
            return self.op(op_type, x, self.ints(*axes), keepdims=keepdims)
        return self.op(op_type, x, axes=list(axes), keepdims=keepdims)

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        if len(set(sizes)) == 1 and self.chance(0.3):
            extra = {"num_outputs": len(sizes)} if self.opset >= 18 else {}
            return self.several("Split", [x], len(sizes), axis=axis, **extra)
        if self.opset < 13:
            return self.several("Split", [x], len(sizes), axis=axis, split=list(sizes))
        return self.several("Split", [x, self.ints(*sizes)], len(sizes), axis=axis)

    def slice(
        self,
        x: str,
        starts: Sequence[int],
        ends: Sequence[int],
        axes: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> str:
        inputs = [self.ints(*starts), self.ints(*ends), self.ints(*axes)]
        return self.op("Slice", x, *inputs, *([] if steps is None else [self.ints(*steps)]))

    def pad(self, x: str, pads: Sequence[int], value: float = 0.0, mode: str = "constant") -> str:
        extra = [self.number(value)] if mode == "constant" and (value or self.chance(0.3)) else []
        return self.op("Pad", x, self.ints(*pads), *extra, mode=mode)

    def clip(self, x: str, low: float | None, high: float | None) -> str:
        inputs = ["" if low is None else self.number(low), *([] if high is None else [self.number(high)])]
        return self.op("Clip", x, *inputs)

    def shape_of(self, x: str, entries: Sequence[Entry]) -> str:
        """Return a target shape that is computed from the shape of `x` the way PyTorch's exporters do it."""
        parts: list[str] = []
        shape = self.op("Shape", x)
        for entry in entries:
            if isinstance(entry, int):
                parts.append(self.ints(entry))
                continue
            axis, divisor = entry
            if divisor == 1 and self.chance(0.3):
                parts.append(self.slice(shape, [axis], [axis + 1], [0]))
                continue
            dimension = self.op("Gather", shape, self.constant(np.int64(axis)), axis=0)
            if divisor != 1:
                dimension = self.op("Div", dimension, self.constant(np.int64(divisor)))
                if self.chance(0.3):
                    to = onnx.TensorProto.INT64
                    dimension = self.op("Cast", self.op("Cast", dimension, to=onnx.TensorProto.INT32), to=to)
            parts.append(self.unsqueeze(dimension, [0]))
        return self.op("Concat", *parts, axis=0)

    def reshape(self, x: str, shape: Sequence[int], entries: Sequence[Entry]) -> str:
        """Reshape to a literal shape (its first entry stands for the batch) or to one computed by `entries`."""
        if self.open_size or self.chance(0.35):
            return self.op("Reshape", x, self.shape_of(x, entries))
        first = self.pick([-1, 0, -1 if self.batch is None else self.batch])
        literal = [first, *shape[1:]]
        if first != -1 and self.chance(0.3):
            literal[self.integer(1, len(literal) - 1)] = -1
        return self.op("Reshape", x, self.ints(*literal))

    def resize(self, x: Map, factor: int, mode: str) -> Map:
        """Enlarge by a factor, given as scales or as literal sizes."""
        transform = "asymmetric" if mode == "nearest" else self.pick(["half_pixel", "align_corners", "asymmetric"])
        attributes = {"mode": mode, "coordinate_transformation_mode": transform}
        if mode == "nearest":
            attributes["nearest_mode"] = "floor"
        height, width = x.height * factor, x.width * factor
        roi = self.floats() if self.opset < 13 else ""
        if self.open_size or self.chance(0.5):
            name = self.op("Resize", x.name, roi, self.floats(1, 1, factor, factor), **attributes)
        else:
            if self.batch is not None and self.chance(0.5):
                sizes = self.ints(self.batch, x.channels, height, width)
            elif self.chance(0.5):
                sizes = self.shape_of(x.name, [(0, 1), x.channels, height, width])
            else:
                sizes = self.shape_of(x.name, [(0, 1), (1, 1), height, width])
            name = self.op("Resize", x.name, roi, self.floats() if self.opset < 13 else "", sizes, **attributes)
        return Map(name, x.channels, height, width)
