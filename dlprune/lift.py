"""Lift a copy of a model to the opset that the gradient rules speak."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from .nodes import is_standard, subgraphs

#: The rules need ScatterElements with reduction and the reductions' axes as inputs.
MIN_OPSET = 18
#: GroupNormalization has one scale per channel since opset 21; the older form is deprecated.
GROUP_NORMALIZATION_OPSET = 21
#: Since then a BatchNormalization in inference has one output.
_BATCH_NORMALIZATION_OPSET = 14
#: Before IR version 4 an initializer had to be an input as well.
_IR_VERSION = 8
#: Initializers with more elements than this cannot steer the converter: they need not pass through it.
_SMALL = 4096


class LiftError(Exception):
    """ONNX's version converter cannot bring a model to the opset that is needed."""


def lift(model: ir.Model, input_shapes: Mapping[str, tuple[int, ...]], min_opset: int = MIN_OPSET) -> ir.Model:
    """Return a copy of a model in opset ≥ 18 with concrete input shapes; values keep their names, weights are shared.

    Args:
        model: the original; it is not touched.
        input_shapes: concrete shape of graph inputs, by name.
        min_opset: lowest opset that will do.

    Raises:
        LiftError: the converter refuses the model.
    """
    copy = model.clone()
    if copy.functions:
        common.InlinePass()(copy)
    sizes: dict[str | None, int] = {}
    for value in copy.graph.inputs:
        shape = input_shapes.get(value.name or "")
        if shape is not None:
            named = zip(value.shape or (), shape, strict=False)
            sizes.update({dim.value: size for dim, size in named if isinstance(dim, ir.SymbolicDim)})
            value.shape = ir.Shape(shape)
    _settle_shapes(copy.graph, sizes)
    opset = copy.opset_imports.get("", 1)
    if opset < _BATCH_NORMALIZATION_OPSET:
        _drop_statistics(copy.graph)
    target = max(opset, min_opset)
    if any(node.op_type == "GroupNormalization" for node in copy.graph.all_nodes()):
        target = max(target, GROUP_NORMALIZATION_OPSET)
    return copy if opset == target else at_opset(copy, target)


def _settle_shapes(graph: ir.Graph, sizes: Mapping[str | None, int]) -> None:
    """Forget inner shapes, which may speak of another batch size, but where nothing else tells them."""
    for node in graph.all_nodes():
        keep = not is_standard(node) or any(True for _ in subgraphs(node))
        for output in node.outputs:
            if not keep or output.shape is None:
                output.shape = None
            else:
                output.shape = ir.Shape(
                    [sizes.get(dim.value, dim) if isinstance(dim, ir.SymbolicDim) else dim for dim in output.shape]
                )


def _drop_statistics(graph: ir.Graph) -> None:
    """Leave out the statistics that a BatchNormalization returns to nobody: the converter refuses four of them."""
    for node in graph.all_nodes():
        if node.op_type == "BatchNormalization" and is_standard(node):
            read = [i for i, output in enumerate(node.outputs) if i == 0 or output.uses() or output.is_graph_output()]
            node.resize_outputs(read[-1] + 1)


def at_opset(model: ir.Model, target: int) -> ir.Model:
    """Convert a model, which is used up, to another opset. Raises LiftError.

    Only the graph is converted: large initializers wait outside, replaced by graph inputs.
    """
    graph = model.graph
    model.ir_version = max(model.ir_version, _IR_VERSION)
    weights = {
        name: tensor
        for name, value in graph.initializers.items()
        if (tensor := value.const_value) is not None and math.prod(tensor.shape.numpy()) > _SMALL
    }
    listed = {value.name for value in graph.inputs}
    for name, tensor in weights.items():
        value = graph.initializers.pop(name)
        value.const_value = None
        value.shape, value.dtype = ir.Shape(tensor.shape.numpy()), tensor.dtype
        if name not in listed:
            graph.inputs.append(value)
    for value in graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):  # its file is out of the converter's sight
            value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
    try:
        proto = onnx.shape_inference.infer_shapes(ir.to_proto(model), data_prop=True)
        converted = ir.from_proto(onnx.version_converter.convert_version(proto, target))
    except Exception as error:  # the converter raises bare RuntimeErrors and ConvertErrors
        raise LiftError(
            f"conversion from opset {model.opset_imports.get('', 1)} to {target} failed: {error}"
        ) from error
    inputs = {value.name: value for value in converted.graph.inputs}
    for name, tensor in weights.items():
        value = inputs[name]
        if name not in listed:
            converted.graph.inputs.remove(value)
        value.const_value = tensor
        converted.graph.register_initializer(value)
    return converted
