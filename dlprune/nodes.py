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
