"""Where the class scores of a static graph are: before a final softmax or sigmoid that reshapes may hide."""

from __future__ import annotations

import math

import onnx_ir as ir

from .gradients.writer import shape_of

#: Operators between the class scores and the graph's output that only change the shape.
_SHAPERS = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout", "Cast"})
_SOFTMAXES = frozenset({"Softmax", "LogSoftmax"})


def keep_output(graph: ir.Graph, output_name: str) -> None:
    """Make the class output the graph's only one."""
    output = next(value for value in graph.outputs if value.name == output_name)
    graph.outputs.clear()
    graph.outputs.append(output)


def before_softmax(output: ir.Value, batch: int) -> ir.Value:
    """Return the logits: the input of a final softmax over the classes, or the output itself."""
    classes = math.prod(shape_of(output)) // batch
    value: ir.Value | None = output
    while value is not None:
        node = value.producer()
        if node is None or node.domain != "":
            break
        if node.op_type in _SOFTMAXES:
            axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
            source = node.inputs[0]
            if source is not None and shape_of(source)[axis] == classes and shape_of(source)[0] == batch:
                return source
            break
        if node.op_type not in _SHAPERS:
            break
        value = node.inputs[0]
    return output


def before_sigmoid(output: ir.Value) -> ir.Value:
    """Return the input of a final sigmoid, or the output itself."""
    value: ir.Value | None = output
    while value is not None and (node := value.producer()) is not None and node.domain == "":
        if node.op_type == "Sigmoid" and node.inputs[0] is not None:
            return node.inputs[0]
        if node.op_type not in _SHAPERS:
            break
        value = node.inputs[0]
    return output
