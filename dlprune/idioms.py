"""Idioms of several operators in a score graph, brought into a form that is differentiated and run faster."""

from __future__ import annotations

import onnx_ir as ir

from .gradients import Writer, blocked
from .gradients.writer import array_of

_FACTOR = "dlprune.factor"


def join(writer: Writer) -> None:
    """Join x · sigmoid(x) to a Swish, and spread factors [N, C, 1, 1] over their maps in a way that stays on blocks."""
    graph = writer.graph
    for node in list(graph):
        if node.op_type == "Mul" and node.domain == "":
            sigmoid = _own_sigmoid(node)
            if sigmoid is None:
                _spread_factors(writer, node)
            else:
                _replace(graph, node, ir.node("Swish", [sigmoid.inputs[0]]))
                graph.remove(sigmoid, safe=True)


def part(graph: ir.Graph) -> None:
    """Write every Swish as x · sigmoid(x) again; ONNX Runtime computes the sigmoid that its gradient needs but once."""
    for node in list(graph):
        if node.op_type == "Swish" and node.domain == "" and "alpha" not in node.attributes:
            x = node.inputs[0]
            sigmoid = ir.node("Sigmoid", [x], outputs=[ir.Value(name=f"{node.outputs[0].name}/sigmoid")])
            graph.insert_before(node, sigmoid)
            _replace(graph, node, ir.node("Mul", [x, sigmoid.outputs[0]]))


def factored(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Return the map and the factor [N, C, 1, 1] whose product a value is, None where it is no such product."""
    maker = value.producer()
    for index, operand in enumerate(() if maker is None or maker.op_type != "Mul" else maker.inputs):
        if operand is not None and _FACTOR in operand.meta and maker is not None:
            other = maker.inputs[1 - index]
            return None if other is None else (other, operand.meta[_FACTOR])
    return None


def _replace(graph: ir.Graph, node: ir.Node, new: ir.Node) -> None:
    """Put a node in the place of another one; its output takes over name, shape and type."""
    graph.insert_before(node, new)
    old, value = node.outputs[0], new.outputs[0]
    name = old.name
    value.shape, value.type = old.shape, old.type
    old.replace_all_uses_with(value, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    value.name = name


def _own_sigmoid(node: ir.Node) -> ir.Node | None:
    """Return the Sigmoid of a Mul that is x · sigmoid(x), where nobody else reads it."""
    for x, s in (tuple(node.inputs), tuple(node.inputs[::-1])):
        maker = None if s is None else s.producer()
        if s is None or maker is None or maker.op_type != "Sigmoid" or maker.domain != "":
            continue
        if maker.inputs[0] is x and len(s.uses()) == 1 and not s.is_graph_output():
            return maker
    return None


def _spread_factors(writer: Writer, node: ir.Node) -> None:
    shape = node.outputs[0].shape
    if shape is None or len(shape) != 4 or tuple(shape[2:]) == (1, 1) or not shape.is_static():
        return
    sizes = tuple(shape.numpy())
    for index, value in enumerate(node.inputs):
        small = value is not None and value.shape is not None and tuple(value.shape) == (*sizes[:2], 1, 1)
        if small and value is not None and array_of(value) is None:
            with writer.before(node):
                spread = blocked.spread(writer, value, sizes)
            maker = spread.producer()
            for made, like in ((spread, node.outputs[0]), (maker.inputs[0] if maker else None, value)):
                assert made is not None
                made.shape, made.type = like.shape, value.type
            spread.meta[_FACTOR] = value
            node.replace_input_with(index, spread)
