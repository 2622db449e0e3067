"""A model's graph without its large weights, for ONNX's own tools: they copy every byte that they are given."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

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


def skeleton_of_proto(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the same of a model that is protobuf already, and perhaps not valid."""
    bare = onnx.ModelProto()
    _copy_fields(proto, bare, {"graph"})
    _copy_fields(proto.graph, bare.graph, {"initializer"})
    listed = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if math.prod(tensor.dims) <= _SMALL_ELEMENTS:
            bare.graph.initializer.append(tensor)
        elif tensor.name not in listed:
            bare.graph.input.append(_described(tensor.name, tensor.data_type, tensor.dims))
    return bare


def _copy_fields(
    source: onnx.ModelProto | onnx.GraphProto, target: onnx.ModelProto | onnx.GraphProto, without: Collection[str]
) -> None:
    for field, value in source.ListFields():
        if field.name in without:
            continue
        if hasattr(value, "CopyFrom"):
            getattr(target, field.name).CopyFrom(value)
        elif hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        else:  # text that is no UTF-8 comes as bytes
            setattr(target, field.name, value.decode(errors="replace") if isinstance(value, bytes) else value)


def _described(name: str, dtype: int, shape: Sequence[int]) -> onnx.ValueInfoProto:
    """Return what a graph says of an input."""
    info = onnx.ValueInfoProto(name=name)
    info.type.tensor_type.elem_type = dtype
    for size in shape:
        info.type.tensor_type.shape.dim.add().dim_value = size
    return info
