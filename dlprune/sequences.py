"""Parts of a tensor that pass through a sequence, as PyTorch's exporter writes `chunk` when it does not optimise."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .nodes import input_at, int_attribute, is_standard


def slice_sequences(graph: ir.Graph) -> None:
    """Turn every constant pick out of a split (SplitToSequence, SequenceAt) into a Slice, which all the rest knows."""
    for node in list(graph):
        splitting = node.inputs[0].producer() if node.op_type == "SequenceAt" and node.inputs[0] is not None else None
        if splitting is None or splitting.op_type != "SplitToSequence" or splitting.graph is not graph:
            continue
        bounds = _bounds(splitting, node)
        if bounds is None or not (is_standard(node) and is_standard(splitting)):
            continue
        output = node.outputs[0]
        axis = int_attribute(splitting, "axis", 0)
        numbers = [
            _constant(graph, f"{output.name}/{name}", number)
            for name, number in zip(("starts", "ends", "axes"), (*bounds, axis), strict=True)
        ]
        part = ir.node("Slice", [splitting.inputs[0], *numbers], name=node.name)
        node.prepend(part)
        new = part.outputs[0]
        new.name, new.type, new.shape = output.name, output.type, output.shape
        output.replace_all_uses_with(new, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        if not splitting.outputs[0].uses() and not splitting.outputs[0].is_graph_output():
            graph.remove(splitting, safe=True)


def _bounds(splitting: ir.Node, picking: ir.Node) -> tuple[int, int] | None:
    """Return first and last-but-one position of the part that is picked, None where they are not constant."""
    sizes, index = _numbers(input_at(splitting, 1)), _numbers(input_at(picking, 1))
    if sizes is None or index is None or index.size != 1:
        return None
    number = int(index.reshape(()))
    if sizes.ndim == 0 and number >= 0 and sizes > 0:
        return number * int(sizes), (number + 1) * int(sizes)
    if sizes.ndim == 1 and -len(sizes) <= number < len(sizes):
        number %= len(sizes)
        return int(sizes[:number].sum()), int(sizes[: number + 1].sum())
    return None


def _numbers(value: ir.Value | None) -> np.ndarray | None:
    tensor = None if value is None else value.const_value
    return None if tensor is None else tensor.numpy()


def _constant(graph: ir.Graph, name: str, number: int) -> ir.Value:
    while name in graph.initializers:
        name += "_"
    tensor = ir.tensor(np.array([number], np.int64), name=name)
    value = ir.Value(name=name, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64), const_value=tensor)
    graph.register_initializer(value)
    return value
