"""A model's graph without its large weights, for ONNX's own tools: they copy every byte that they are given."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
import onnx_ir as ir

#: Smaller initializers stay: they may hold shapes, axes or scales, which those tools want to see.
SMALL_ELEMENTS = 4096


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """Return a model as protobuf in which each large initializer is a graph input of its type and shape."""
    graph = model.graph
    large: dict[str, onnx.ValueInfoProto] = {}
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and math.prod(shape := tensor.shape.numpy()) > SMALL_ELEMENTS:
            large[name] = _described(name, tensor.dtype, shape)
    view = ir.GraphView(
        [value for value in graph.inputs if value.name not in large],
        graph.outputs,
        nodes=graph,
        initializers=[value for name, value in graph.initializers.items() if name not in large],
        opset_imports=graph.opset_imports,
        name=graph.name,
    )
    bare = ir.Model(view, ir_version=model.ir_version, functions=tuple(model.functions.values()))  # type: ignore[arg-type]
    proto = ir.serde.serialize_model(bare)
    proto.graph.input.extend(large.values())
    return proto


def _described(name: str, dtype: ir.DataType, shape: Sequence[int]) -> onnx.ValueInfoProto:
    """Return what a graph says of an input."""
    info = onnx.ValueInfoProto(name=name)
    info.type.tensor_type.elem_type = int(dtype)
    for size in shape:
        info.type.tensor_type.shape.dim.add().dim_value = size
    return info
