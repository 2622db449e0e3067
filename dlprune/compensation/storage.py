"""Give a node a weight of its own, without touching whoever else reads the old one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..facts import Facts
from ..nodes import input_at


def value_of(facts: Facts, value: ir.Value | None) -> NDArray[np.floating[Any]]:
    """Return the present content of a constant that must be there."""
    tensor = None if value is None else value.const_value
    array = facts.const(value) if tensor is None else tensor.numpy()
    assert array is not None
    return array


def store(model: ir.Model, facts: Facts, node: ir.Node, index: int, array: NDArray[np.floating[Any]]) -> None:
    """Set a constant input of a node; others that share the old constant keep it.

    Args:
        model: graph of the node, changed in place.
        facts: its facts, brought up to date.
        node: whose input is set.
        index: which input; it may have been left out so far.
        array: the new content.
    """
    old = input_at(node, index)
    if old is not None and old.is_initializer() and len(list(old.uses())) == 1 and not old.is_graph_output():
        old.const_value = ir.tensor(array, name=old.name)
        old.shape, old.type = ir.Shape(array.shape), ir.TensorType(old.const_value.dtype)
        facts.add_initializer(old)
        return
    taken = {value.name for value in model.graph.initializers.values()}
    wish = (old.name if old is not None else None) or f"{node.outputs[0].name}.bias"
    name, count = wish, 1
    while name in taken or facts.shape(name) is not None:
        count += 1
        name = f"{wish}_{count}"
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    model.graph.register_initializer(value)
    facts.add_initializer(value)
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)
