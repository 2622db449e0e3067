"""Reading nodes: attributes with defaults, and integers that moved from attributes to inputs in newer opsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from .facts import Facts


def label(node: ir.Node) -> str:
    """Name a node for people: operator and name."""
    return f"{node.op_type} '{node.name or (node.outputs[0].name if node.outputs else '')}'"


def opset(model: ir.Model) -> int:
    """Version of the default operator set of a model."""
    return int(model.opset_imports.get("") or model.opset_imports.get("ai.onnx") or 1)


def is_standard(node: ir.Node) -> bool:
    """Tell whether a node's operator is one of ONNX's default domain."""
    return node.domain in ("", "ai.onnx")


def int_attribute(node: ir.Node, name: str, default: int) -> int:
    """Return an integer attribute or its default."""
    attribute = node.attributes.data.get(name)
    return default if attribute is None else attribute.as_int()


def ints_attribute(node: ir.Node, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return an attribute of several integers or its default."""
    attribute = node.attributes.data.get(name)
    return default if attribute is None else tuple(attribute.as_ints())


def string_attribute(node: ir.Node, name: str, default: str) -> str:
    """Return a string attribute or its default."""
    attribute = node.attributes.data.get(name)
    return default if attribute is None else attribute.as_string()


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input, or None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def ints(facts: Facts, node: ir.Node, attribute: str, index: int) -> list[int] | None:
    """Return integers that older opsets keep in an attribute, newer ones in an input; None if absent or unknown."""
    if attribute in node.attributes:
        return [int(i) for i in node.attributes[attribute].as_ints()]
    return facts.ints(input_at(node, index))


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the sub-graphs of a control-flow node."""
    for attribute in node.attributes.data.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def captured(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the tensors of the graph around a node that its sub-graphs read."""
    for graph in subgraphs(node):
        nodes = list(graph.all_nodes())
        own = {output for inner in nodes for output in inner.outputs}
        for inner in (graph, *(inner for one in nodes for inner in subgraphs(one))):
            own.update(inner.inputs, inner.initializers.values())
        read = [value for inner in nodes for value in inner.inputs] + list(graph.outputs)
        yield from (value for value in read if value is not None and value not in own)


def read_by(node: ir.Node) -> Iterator[ir.Value]:
    """Yield all tensors that a node reads, its sub-graphs included; some perhaps twice."""
    yield from (value for value in node.inputs if value is not None)
    yield from captured(node)


def slice_bounds(facts: Facts, node: ir.Node, rank: int) -> list[slice] | None:
    """Return a Slice node as one Python slice per axis, or None where a bound is not constant."""
    starts, ends = ints(facts, node, "starts", 1), ints(facts, node, "ends", 2)
    if starts is None or ends is None:
        return None
    axes, steps = ints(facts, node, "axes", 3), facts.ints(input_at(node, 4))
    if (axes is None and input_at(node, 3) is not None) or (steps is None and input_at(node, 4) is not None):
        return None
    result = [slice(None)] * rank
    for axis, start, end, step in zip(
        axes or range(len(starts)), starts, ends, steps or [1] * len(starts), strict=True
    ):
        # ONNX spells "down to and with element 0" by a bound far below −dim; Python wants None there.
        result[axis % rank] = slice(start, None if step < 0 and end < -(1 << 30) else end, step)
    return result


def pad_amounts(facts: Facts, node: ir.Node, rank: int) -> list[tuple[int, int]] | None:
    """Return the amounts of a Pad node before and after each axis, or None where they are not constant."""
    amounts, axes = ints(facts, node, "pads", 1), facts.ints(input_at(node, 3))
    if amounts is None or (axes is None and input_at(node, 3) is not None):
        return None
    axes = list(range(rank)) if axes is None else axes
    result = [(0, 0)] * rank
    for position, axis in enumerate(axes):
        result[axis % rank] = (amounts[position], amounts[position + len(axes)])
    return result


def reduced_axes(facts: Facts, node: ir.Node, rank: int) -> set[int] | None:
    """Return the axes that a Reduce or Arg node works along, or None where they are not constant."""
    if node.op_type in ("ArgMax", "ArgMin"):
        return {int_attribute(node, "axis", 0) % rank}
    axes = ints(facts, node, "axes", 1)
    if axes is None and input_at(node, 1) is not None:
        return None
    if not axes:
        return set() if int_attribute(node, "noop_with_empty_axes", 0) else set(range(rank))
    return {axis % rank for axis in axes}


#: Operators that take some of the numbers that a Shape gives, and leave them as they are.
_PICKING = frozenset({"Cast", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"})
#: No exporter writes more of them in a row.
_MOST_PICKS = 16


def shape_numbers(facts: Facts, value: ir.Value) -> tuple[ir.Value, list[int]] | None:
    """Return the tensor and the axes whose sizes a constant holds, element by element; None if it holds other things.

    It comes from a Shape, perhaps through operators that pick some of the sizes.
    """
    chain: list[ir.Node] = []
    node = value.producer()
    while node is not None and is_standard(node) and node.op_type in _PICKING and len(chain) < _MOST_PICKS:
        chain.append(node)
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    source = node.inputs[0] if node is not None and is_standard(node) and node.op_type == "Shape" else None
    if node is None or source is None:
        return None
    axes = list(range(len(facts.shape(source) or ())))
    axes = axes[int_attribute(node, "start", 0) : int_attribute(node, "end", len(axes))]
    for link in reversed(chain):
        positions = _picked(facts, link, len(axes))
        if positions is None:
            return None
        axes = [axes[position] for position in positions]
    return source, axes


def _picked(facts: Facts, node: ir.Node, count: int) -> list[int] | None:
    """Return which of `count` numbers in a row a node takes, or None where it cannot be told."""
    if node.op_type == "Gather":
        indices = facts.ints(node.inputs[1])
        return indices if indices is not None and all(-count <= index < count for index in indices) else None
    if node.op_type == "Slice":
        bounds = slice_bounds(facts, node, 1)
        return None if bounds is None or bounds[0].step == 0 else list(range(count))[bounds[0]]
    return list(range(count))
