"""The registry of gradient rules and the view of one node that a rule gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from . import blocked
from .writer import Attribute, Operand, Writer, array_of, shape_of

#: What a rule returns: the gradient of input 0, or of several inputs by index. A gradient may be smaller than its
#: tensor where it broadcasts to it, provided that its `shape` is set.
Partials = ir.Value | Mapping[int, ir.Value]
Rule = Callable[["Site"], Partials]

_RULES: dict[str, Rule] = {}
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


class GradientError(Exception):
    """A node between a wanted tensor and the loss cannot be differentiated.

    Attributes:
        op_type: the node's operator, with its domain if that is not the standard one.
        node: the node's name, or the name of its first output where it has none.
        reason: what is missing.
    """

    def __init__(self, node: ir.Node, reason: str) -> None:
        self.op_type = operator_name(node)
        self.node = node.name or (node.outputs[0].name if node.outputs else "") or ""
        self.reason = reason
        super().__init__(f"operator {self.op_type} (node '{self.node}'): {reason}")


def operator_name(node: ir.Node) -> str:
    """Return the operator's type, with the domain in front unless it is the standard one."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def gradient(*op_types: str) -> Callable[[Rule], Rule]:
    """Register the gradient rule of one operator, or of several that share it."""

    def register(rule: Rule) -> Rule:
        for op_type in op_types:
            if op_type in _RULES:
                raise ValueError(f"operator {op_type} has a gradient rule already")
            _RULES[op_type] = rule
        return rule

    return register


def has_rule(op_type: str) -> bool:
    """Tell whether an operator can be differentiated."""
    return op_type in _RULES


def find_rule(node: ir.Node) -> Rule:
    """Return the rule of a node's operator.

    Raises:
        GradientError: the operator has none. A missing rule is never taken for a zero gradient.
    """
    rule = _RULES.get(operator_name(node))
    if rule is None:
        raise GradientError(node, "this operator has no gradient rule")
    return rule


def is_float(value: ir.Value) -> bool:
    """Tell whether a tensor can carry a gradient: integers and booleans cannot."""
    return value.dtype is None or value.dtype in _FLOATS


class Site:
    """One node seen by its gradient rule: its tensors, attributes, incoming gradients, and the means to emit nodes."""

    def __init__(
        self, node: ir.Node, writer: Writer, dys: Sequence[ir.Value | None], wanted: frozenset[int], opset: int
    ) -> None:
        self.node = node
        self.writer = writer
        #: Gradient of every output, None where nothing comes back.
        self.dys = tuple(dys)
        #: Opset of the graph.
        self.opset = opset
        self._wanted = wanted

    # tensors

    @property
    def x(self) -> ir.Value:
        """First input."""
        return self.input(0)

    @property
    def y(self) -> ir.Value:
        """First output."""
        return self.node.outputs[0]

    @property
    def dy(self) -> ir.Value:
        """Gradient of the first output, in its full shape."""
        if self.dys[0] is None:
            raise GradientError(self.node, "only another output than the first reaches the loss")
        return self.dys[0]

    def input(self, index: int) -> ir.Value:
        """Return an input that must be there."""
        value = self.optional(index)
        if value is None:
            raise GradientError(self.node, f"input {index} is missing")
        return value

    def optional(self, index: int) -> ir.Value | None:
        """Return an input, or None where it is left out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the static shape of an input."""
        return shape_of(self.input(index))

    def out_shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the static shape of an output."""
        return shape_of(self.node.outputs[index])

    def wants(self, index: int) -> bool:
        """Tell whether somebody asks for the gradient of this input."""
        return index in self._wanted

    def array(self, index: int) -> np.ndarray | None:
        """Return the content of a constant input; None if it is left out or depends on data."""
        return array_of(self.optional(index))

    def literal(self, index: int) -> np.ndarray | None:
        """Return the content of an input that must be constant where it is given."""
        value = self.optional(index)
        if value is None:
            return None
        array = array_of(value)
        if array is None:
            raise GradientError(self.node, f"input {index} ('{value.name}') is not constant")
        return array

    def ints_input(self, index: int) -> list[int] | None:
        """Return a constant integer input as a flat list; None if it is left out."""
        array = self.literal(index)
        return None if array is None else [int(v) for v in array.reshape(-1)]

    def scalar(self, index: int) -> float | None:
        """Return a constant input of one element; None if it is left out."""
        array = self.literal(index)
        return None if array is None else float(array.reshape(()))

    # attributes

    def attr_int(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_int()

    def attr_float(self, name: str, default: float) -> float:
        """Return a float attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_float()

    def attr_str(self, name: str, default: str) -> str:
        """Return a string attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_string()

    def attr_ints(self, name: str, default: Sequence[int]) -> list[int]:
        """Return an attribute that is a list of integers."""
        attribute = self.node.attributes.get(name)
        return list(default) if attribute is None else [int(v) for v in attribute.as_ints()]

    # emitting

    def op(
        self, op_type: str, *operands: Operand, shape: Sequence[int] | None = None, **attributes: Attribute
    ) -> ir.Value:
        """Append a node; see `Writer.op`."""
        return self.writer.op(op_type, *operands, shape=shape, **attributes)

    def reshape(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Reshape to a static shape."""
        return self.writer.reshape(value, shape)

    def number(self, condition: ir.Value) -> ir.Value:
        """Turn a boolean tensor into float 0 and 1 (multiplying by it is ten times as fast as Where)."""
        return self.op("Cast", condition, to=int(ir.DataType.FLOAT))

    def affine(self, value: ir.Value, scale: float, shift: float = 0.0) -> ir.Value:
        """Return scale · value + shift, for a value of the first output's shape."""
        return blocked.affine(self.writer, value, self.out_shape(), scale, shift)

    def above(self, value: ir.Value, bound: float = 0.0) -> ir.Value:
        """Return 1 where a value of the first output's shape is greater than the bound, else 0."""
        return blocked.above(self.writer, value, self.out_shape(), bound)

    def times(self, factor: Operand) -> ir.Value:
        """Return dy · factor."""
        return self.op("Mul", self.dy, factor)

    def unbroadcast(self, value: ir.Value, index: int, source: Sequence[int] | None = None) -> ir.Value:
        """Sum a gradient over the axes along which an input was broadcast.

        Args:
            value: the gradient in the shape of the first output (or `source`).
            index: the input that was broadcast.
            source: shape of `value` if it is not that of the first output.
        """
        return unbroadcast(self.writer, value, self.out_shape() if source is None else tuple(source), self.shape(index))

    def zeros(self, shape: Sequence[int]) -> ir.Value:
        """Return a tensor of zeros."""
        return self.op("Expand", 0.0, list(shape), shape=shape)


def unbroadcast(writer: Writer, value: ir.Value, source: tuple[int, ...], target: tuple[int, ...]) -> ir.Value:
    """Sum `value`, of shape `source`, down to the shape `target` that was broadcast to it."""
    if source == target:
        return value
    padded = (1,) * (len(source) - len(target)) + target
    axes = [axis for axis, (s, t) in enumerate(zip(source, padded, strict=True)) if t == 1 and s != 1]
    if axes == [2, 3] and len(source) == 4:
        value = blocked.spatial_sum(writer, value, source)
    elif axes:
        value = writer.op("ReduceSum", value, axes, keepdims=1)
    return value if len(source) == len(target) else writer.reshape(value, target)
