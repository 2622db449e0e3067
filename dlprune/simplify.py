"""Bring a lifted graph into the plain form that differentiation likes; its outputs stay the same up to rounding.

Every constant is an initializer, every shape is static, every float is float32, nothing stands there that does nothing,
and the affine steps that follow a convolution are part of it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from .facts import Facts
from .gradients.writer import array_of, shape_of

_OTHER_FLOATS = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})


def simplify(model: ir.Model, facts: Facts, *, absorb: bool = True) -> None:
    """Simplify a model in place, without touching the tensors that it shares with others.

    Args:
        model: a lifted model that nobody else reads.
        facts: its shapes and constants at the concrete input shape.
        absorb: whether affine steps become part of the convolution that they follow.
    """
    graph = model.graph
    _note_types(graph, facts)
    _fold_constants(graph, facts)
    common.RemoveUnusedNodesPass()(model)
    _make_float32(graph)
    _drop_no_ops(graph)
    for node in graph:
        if node.op_type in ("MaxPool", "AveragePool") and node.domain == "":
            _round_down(node)
    for node in list(graph) if absorb else ():
        if node.op_type in ("Conv", "ConvTranspose") and node.domain == "":
            while _absorb_affine(graph, node):
                pass
    common.RemoveUnusedNodesPass()(model)


def _note_types(graph: ir.Graph, facts: Facts) -> None:
    for value in [*graph.inputs, *(output for node in graph for output in node.outputs)]:
        shape, dtype = facts.shape(value), facts.dtype(value)
        if shape is not None:
            value.shape = ir.Shape(shape)
        if dtype is not None:
            value.type = ir.TensorType(dtype)


def _fold_constants(graph: ir.Graph, facts: Facts) -> None:
    """Turn constants that the graph computes into initializers, where something that depends on data reads them."""
    for node in list(graph):
        for output in node.outputs:
            if not facts.is_const(output):
                continue
            read = any(not all(facts.is_const(o) for o in user.outputs) for user in output.consumers())
            array = facts.const(output) if read or output.is_graph_output() else None
            if array is not None:
                _replace(output, _initializer(graph, f"{output.name}/constant", array))


def _initializer(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    while name in graph.initializers:
        name += "_"
    tensor = ir.tensor(np.asarray(array, order="C"), name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def _replace(old: ir.Value, new: ir.Value) -> None:
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def _make_float32(graph: ir.Graph) -> None:
    """Turn every float of a graph, and of the bodies of its control flow, into float32."""
    for value in graph.initializers.values():
        if value.dtype in _OTHER_FLOATS and value.const_value is not None:
            value.const_value = _float32(value.const_value)
            value.type = ir.TensorType(ir.DataType.FLOAT)
    for value in [*graph.inputs, *(output for node in graph for output in node.outputs)]:
        if value.dtype in _OTHER_FLOATS:
            value.type = ir.TensorType(ir.DataType.FLOAT)
    for node in graph:
        for name in ("to", "dtype", "stash_type"):
            attribute = node.attributes.get(name)
            if attribute is not None and ir.DataType(attribute.as_int()) in _OTHER_FLOATS:
                node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.GRAPH:
                _make_float32(attribute.as_graph())
            elif attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in _OTHER_FLOATS:
                node.attributes[name] = ir.AttrTensor(name, _float32(attribute.as_tensor()))


def _float32(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def _drop_no_ops(graph: ir.Graph) -> None:
    for node in list(graph):
        if _does_nothing(node):
            source = node.inputs[0]
            if source is not None:
                _replace(node.outputs[0], source)
                graph.remove(node, safe=True)


def _does_nothing(node: ir.Node) -> bool:
    if node.domain != "" or not node.inputs or node.inputs[0] is None:
        return False
    if node.op_type == "Identity":
        return True
    if node.op_type == "Dropout":
        training = node.inputs[2] if len(node.inputs) > 2 else None
        switch = array_of(training)
        off = training is None or (switch is not None and not bool(switch))
        return off and not any(output.uses() for output in node.outputs[1:])
    if node.op_type == "Cast":
        return node.inputs[0].dtype is not None and node.inputs[0].dtype == node.outputs[0].dtype
    return False


def _round_down(node: ir.Node) -> None:
    """Replace `ceil_mode` by end pads that reach as far.

    ONNX Runtime's graph checks count a window more than its own pooling where the last one would hold nothing but pad.
    """
    attributes = node.attributes
    auto = attributes.get("auto_pad")
    ceil = "ceil_mode" in attributes and attributes["ceil_mode"].as_int() == 1
    counts = "count_include_pad" in attributes and attributes["count_include_pad"].as_int() == 1
    source = node.inputs[0]
    if not ceil or counts or source is None or (auto is not None and auto.as_string() != "NOTSET"):
        return
    size, out = shape_of(source)[2:], shape_of(node.outputs[0])[2:]
    rank = len(size)

    def ints(name: str, default: int, count: int) -> list[int]:
        return list(attributes[name].as_ints()) if name in attributes else [default] * count

    kernel, pads = ints("kernel_shape", 1, rank), ints("pads", 0, 2 * rank)
    strides, dilations = ints("strides", 1, rank), ints("dilations", 1, rank)
    for axis in range(rank):
        covered = (out[axis] - 1) * strides[axis] + dilations[axis] * (kernel[axis] - 1) + 1
        pads[axis + rank] = max(0, covered - size[axis] - pads[axis])
    attributes["pads"] = ir.AttrInt64s("pads", pads)
    attributes["ceil_mode"] = ir.AttrInt64("ceil_mode", 0)


def _absorb_affine(graph: ir.Graph, node: ir.Node) -> bool:
    """Fold the scale and shift per channel that alone reads a convolution into its kernels and biases."""
    output = node.outputs[0]
    readers = list(output.uses())
    if len(readers) != 1 or output.is_graph_output():
        return False
    weight = array_of(node.inputs[1])
    bias_value = node.inputs[2] if len(node.inputs) > 2 else None
    bias = array_of(bias_value)
    if weight is None or (bias_value is not None and bias is None):
        return False
    group = node.attributes["group"].as_int() if "group" in node.attributes else 1
    if node.op_type == "ConvTranspose" and group != 1:
        return False
    channels = shape_of(output)[1]
    reader = readers[0].node
    found = _affine(reader, readers[0].idx, channels, len(shape_of(output)))
    if found is None or reader.outputs[0].shape != output.shape:
        return False
    scale, shift = found
    axis = 0 if node.op_type == "Conv" else 1
    columns = [-1 if a == axis else 1 for a in range(weight.ndim)]
    scaled = (weight.astype(np.float64) * scale.reshape(columns)).astype(np.float32)
    moved = (shift + (0.0 if bias is None else bias.astype(np.float64)) * scale).astype(np.float32)
    name = output.name or "conv"
    node.resize_inputs(3)
    node.replace_input_with(1, _initializer(graph, f"{name}/weight", scaled))
    node.replace_input_with(2, _initializer(graph, f"{name}/bias", moved))
    _replace(reader.outputs[0], output)
    graph.remove(reader, safe=True)
    return True


def _affine(node: ir.Node, index: int, channels: int, rank: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return scale and shift [channels] if a node does nothing else to its input `index`."""
    if node.domain != "":
        return None
    if node.op_type == "BatchNormalization":
        parts = [array_of(value) for value in node.inputs[1:5]]
        training = node.attributes["training_mode"].as_int() if "training_mode" in node.attributes else 0
        if index != 0 or training or any(output.uses() for output in node.outputs[1:]):
            return None
        gamma, beta, mean, variance = (None if p is None else p.astype(np.float64) for p in parts)
        if gamma is None or beta is None or mean is None or variance is None:
            return None
        epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
        scale = gamma / np.sqrt(variance + epsilon)
        return scale, beta - mean * scale
    if node.op_type not in ("Add", "Sub", "Mul", "Div") or len(node.inputs) != 2:
        return None
    constant = _per_channel(array_of(node.inputs[1 - index]), channels, rank)
    if constant is None:
        return None
    one, zero = np.ones(channels), np.zeros(channels)
    if node.op_type == "Add":
        return one, constant
    if node.op_type == "Mul":
        return constant, zero
    if node.op_type == "Sub":
        return (one, -constant) if index == 0 else (-one, constant)
    return (1.0 / constant, zero) if index == 0 and np.all(constant) else None


def _per_channel(array: np.ndarray | None, channels: int, rank: int) -> np.ndarray | None:
    """Return a constant as [channels] if it is the same all over batch and space."""
    if array is None or array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1) or shape[1] not in (1, channels):
        return None
    return np.broadcast_to(array.astype(np.float64).reshape(-1), (channels,)).copy()
