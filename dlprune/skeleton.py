"""A model's graph without its large weights, for ONNX's own tools: they copy every byte that they are given."""

from __future__ import annotations

import math

import onnx
import onnx_ir as ir

#: Smaller initializers stay: they may hold shapes, axes or scales, which those tools want to see.
SMALL_ELEMENTS = 4096


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """Return a model as protobuf in which each large initializer is a graph input of its type and shape."""
    bare = model.clone()
    listed = {value.name for value in bare.graph.inputs}
    for name, value in list(bare.graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or math.prod(tensor.shape.numpy()) <= SMALL_ELEMENTS:
            continue
        del bare.graph.initializers[name]
        value.const_value = None
        value.shape, value.dtype = ir.Shape(tensor.shape.numpy()), tensor.dtype
        if name not in listed:
            bare.graph.inputs.append(value)
    return ir.to_proto(bare)
