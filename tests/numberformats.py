"""Models of the tests in another format of floating-point numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

DOUBLE, FLOAT, HALF = TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16


def retype(model: ModelProto, old: int, new: int, keep: Collection[str] = ()) -> None:
    """Turn every float of one type into another, inside of control flow too; constants named in `keep` stay."""
    dtype = helper.tensor_dtype_to_np_dtype(new)
    for graph in _graphs(model.graph):
        for name, tensor in _tensors(graph):
            if tensor.data_type == old and name not in keep:
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
        for value in [*graph.input, *graph.output, *graph.value_info]:
            if value.type.tensor_type.elem_type == old and value.name not in keep:
                value.type.tensor_type.elem_type = new
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Cast" and attribute.name == "to" and attribute.i == old:
                    attribute.i = new


def to_half(model: ModelProto, image: str, keep_ends: bool) -> None:
    """Turn a model of single precision into one of half precision; with `keep_ends` image and classes stay single.

    The scales of a Resize are single in any case.
    """
    scales = {node.input[2] for node in model.graph.node if node.op_type == "Resize" and len(node.input) > 2}
    retype(model, FLOAT, HALF, scales)
    if keep_ends:
        _cast_ends(model.graph, image)


def _cast_ends(graph: GraphProto, image: str) -> None:
    def inner(name: str) -> str:
        return f"{name}/half" if name in ends else name

    ends = {image, *(value.name for value in graph.output)}
    for inside in _graphs(graph):
        for node in inside.node:
            node.input[:] = [inner(name) for name in node.input]
            node.output[:] = [inner(name) for name in node.output]
    nodes = [helper.make_node("Cast", [image], [inner(image)], to=HALF), *graph.node]
    nodes += [helper.make_node("Cast", [inner(value.name)], [value.name], to=FLOAT) for value in graph.output]
    del graph.node[:]
    graph.node.extend(nodes)
    for value in [*graph.output, *(entry for entry in graph.input if entry.name == image)]:
        value.type.tensor_type.elem_type = FLOAT


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and those inside its nodes."""
    yield graph
    for node in graph.node:
        for inside in subgraphs(node):
            yield from _graphs(inside)


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """Return the bodies of control flow."""
    return [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]


def _tensors(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    yield from ((tensor.name, tensor) for tensor in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield node.output[0], attribute.t
