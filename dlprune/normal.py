"""The one form of a graph that all modules of dlprune expect."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from . import onnxfile
from .interface import known
from .nodes import is_standard
from .sequences import slice_sequences


def normalise(model: ir.Model) -> None:
    """Bring a graph into the common form (see Classifier) without changing what it computes."""
    if model.functions:
        passes.InlinePass()(model)
    passes.RemoveInitializersFromInputsPass()(model)
    try:
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    except Exception:  # a kind of constant that the pass does not know, e.g. a sparse one
        passes.LiftConstantsToInitializersPass(lift_all_constants=False, size_limit=0)(model)
    _unpack_tensors(model)
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:  # what a file says of a weight elsewhere may be wrong
                value.shape = ir.Shape(value.const_value.shape.numpy())
                value.type = ir.TensorType(value.const_value.dtype)
    # Older formats demand that initializers are listed as inputs; in memory they are not (see Classifier.ir_version).
    model.ir_version = max(model.ir_version or 0, 4)
    slice_sequences(model.graph)
    _settle_casts(model.graph)
    _name_nodes(model)
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is not None and any(isinstance(dim, int) and dim <= 0 for dim in value.shape):
            # Not a size of −1 but the way some exporters write "open".
            value.shape = ir.Shape([known(dim) if isinstance(dim, int) else dim for dim in value.shape])


def _unpack_tensors(model: ir.Model) -> None:
    """Hold all tensors as arrays: a protobuf message lives as long as any of them, and copies them when it is asked."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _unpacked(value.const_value)
        for node in graph:
            for name, attribute in node.attributes.items():
                if attribute.type == ir.AttributeType.TENSOR:
                    node.attributes[name] = ir.AttrTensor(name, _unpacked(attribute.value))


def _unpacked(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if not isinstance(tensor, ir.TensorProtoTensor) or tensor.dtype == ir.DataType.STRING:
        return tensor
    return ir.Tensor(tensor.numpy(), tensor.dtype, name=tensor.name, doc_string=tensor.doc_string)


def _settle_casts(graph: ir.Graph) -> None:
    """Turn CastLike into Cast where the file tells the type: its second input then says nothing more."""
    for node in list(graph):
        like = node.inputs[1] if node.op_type == "CastLike" and is_standard(node) else None
        if like is None or like.dtype is None:
            continue
        output = node.outputs[0]
        cast = ir.node("Cast", [node.inputs[0]], {"to": int(like.dtype)}, name=node.name)
        node.prepend(cast)
        new = cast.outputs[0]
        new.name, new.type, new.shape = output.name, output.type, output.shape
        output.replace_all_uses_with(new, replace_graph_outputs=True)
        graph.remove(node, safe=True)


def _name_nodes(model: ir.Model) -> None:
    """Give every node a name of its own; values have theirs already, or the checker would have refused the file."""
    nodes = list(model.graph.all_nodes())
    taken = Counter(node.name for node in nodes)
    used = {name for name in taken if name}
    seen: set[str] = set()
    counter: Counter[str] = Counter()
    for node in nodes:
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        base = node.name or node.op_type
        while True:
            name = f"{base}_{counter[base]}"
            counter[base] += 1
            if name not in used:
                break
        node.name = name
        used.add(name)
        seen.add(name)


def refuse_bytes(model: ir.Model, what: str) -> None:
    """Raise HOperatorError 7801 if a name is no UTF-8 text (protobuf then gives bytes); `what` names the model."""
    for graph in model.graphs():
        values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
        names = [graph.name, *(value.name for value in values), *(node.name for node in graph)]
        broken = next((name for name in names if isinstance(name, bytes)), None)
        if broken is not None:
            raise onnxfile.unreadable(f"{what}: the name {broken!r} is no UTF-8 text; the file is damaged.")


def refuse_nan(model: ir.Model, what: str) -> None:
    """Raise HOperatorError 7801 if a weight holds NaN; `what` names the model."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE):
                continue
            bad = int(np.isnan(tensor.numpy()).sum())
            if bad:
                raise onnxfile.unreadable(f"{what}: weight {value.name!r} holds NaN ({bad} of {tensor.size} values).")
