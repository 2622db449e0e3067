"""A model's graph without its large weights, for ONNX's own tools: they copy every byte that they are given."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
import onnx_ir as ir

#: Smaller initializers stay: they may hold shapes, axes or indices, which those tools want to see.
_SMALL_ELEMENTS = 4096
#: The same for floats: they may hold scales.
_SMALL_FLOATS = 64


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """Return a model as protobuf in which each large initializer is a graph input of its type and shape."""
    graph = model.graph
    large: dict[str, onnx.ValueInfoProto] = {}
    for name, value in graph.initializers.items():
        if (tensor := value.const_value) is None:
            continue
        shape, dtype = tensor.shape.numpy(), tensor.dtype
        if math.prod(shape) > (_SMALL_FLOATS if dtype.is_floating_point() else _SMALL_ELEMENTS):
            large[name] = _described(name, dtype, shape)
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
