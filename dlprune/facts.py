"""Concrete shapes and constant values of every tensor, once the input shape is known.

With concrete input shapes all `Shape → Gather → Concat` chains turn into plain numbers, so that whoever reads the
graph later sees one form only. Values are computed on demand: a weight behind a constant expression is evaluated only
when somebody asks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from .nodes import int_attribute, ints_attribute, string_attribute
from .shapes import Shape, Type, output_type
from .skeleton import skeleton

#: Constant expressions with a larger result are left alone: no real weight is larger, and a hostile file must not
#: fill the memory.
MAX_FOLD_ELEMENTS = 1 << 27
#: No feature map has more elements, whatever the image.
MAX_ELEMENTS = 1 << 32
#: Inputs of this many elements at most are shown to shape inference: they can hold shapes, axes, pads or scales.
_MAX_SHAPE_DATA = 64
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
_FLOAT_SHAPE_DATA = frozenset({"Resize", "Upsample", "Range"})
#: Operators that onnx's reference implementation is trusted with. Of others it has its own ideas, e.g. that a
#: BatchNormalization before opset 14 is in training.
_SIMPLE = frozenset({
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "Div", "Equal", "Exp",
    "Expand", "Flatten", "Floor", "Gather", "Greater", "Identity", "Less", "Log", "Max", "Min", "Mul", "Neg", "Not",
    "Or", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape",
    "Shape", "Sign", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where",
})  # fmt: skip
#: Operators that onnx defines by a function and has no shape inference for; their output is like their first input.
_SHAPE_KEEPING = frozenset({"GroupNormalization", "MeanVarianceNormalization"})


class Facts:
    """What is known of each tensor of one graph at one input shape.

    Tensors are named by their `onnx_ir.Value` or its name. Unknown things are answered with None, never guessed.
    """

    def __init__(self, model: ir.Model) -> None:
        self._opsets = dict(model.opset_imports)
        self._opsets.setdefault("", self._opsets.get("ai.onnx", 1))
        self._imports = [onnx.helper.make_opsetid(domain, version) for domain, version in self._opsets.items()]
        self._ir_version = model.ir_version
        self._types: dict[str, Type] = {}
        self._values: dict[str, np.ndarray | None] = {}
        self._folds: dict[str, ir.Node] = {}  # name of a constant that is not evaluated yet → the node that makes it
        self._initializers: dict[str, ir.Value] = {}
        self._branches: dict[str, Type] = {}  # outputs of control flow
        self._sizes: dict[str, int] = {}  # name of a dynamic dimension of an input → its size

    def shape(self, value: ir.Value | str) -> Shape | None:
        """Return the concrete shape of a tensor, or None where it is unknown."""
        known = self._types.get(_name(value))
        return None if known is None else known[1]

    def dtype(self, value: ir.Value | str) -> ir.DataType | None:
        """Return the element type of a tensor, or None where it is unknown."""
        known = self._types.get(_name(value))
        return None if known is None else known[0]

    def is_const(self, value: ir.Value | str | None) -> bool:
        """Tell whether a tensor does not depend on the data that is fed in."""
        if value is None:
            return False
        name = _name(value)
        return name in self._values or name in self._initializers or name in self._folds

    def const(self, value: ir.Value | str | None) -> np.ndarray | None:
        """Return the value of a constant tensor, or None where it depends on the data or is too large to compute."""
        if value is None:
            return None
        name = _name(value)
        if name in self._values:
            return self._values[name]
        if name in self._initializers:
            tensor = self._initializers[name].const_value
            return None if tensor is None else tensor.numpy()
        if name in self._folds:
            self._evaluate(self._folds[name])
            return self._values[name]
        return None

    def ints(self, value: ir.Value | str | None) -> list[int] | None:
        """Return a constant integer tensor as a flat list of Python integers, or None."""
        array = self.const(value)
        return None if array is None else [int(item) for item in array.reshape(-1)]

    def oversized(self) -> str:
        """Name a tensor that no memory would hold, '' if there is none.

        Runtimes compute constants as soon as they load a model; a small file can make them ask for any amount.
        """
        for name, (_, shape) in self._types.items():
            elements = math.prod(shape)
            if elements > MAX_ELEMENTS or (name in self._folds and elements > MAX_FOLD_ELEMENTS):
                what = "constant" if self.is_const(name) else "tensor"
                return f"the {what} '{name}' of shape {list(shape)} has {elements} elements"
        return ""

    def _evaluate(self, node: ir.Node) -> None:
        """Compute a constant node with ONNX's reference implementation; inputs first, without recursion."""
        stack = [node]
        while stack:
            top = stack[-1]
            pending = [
                self._folds[v.name]
                for v in top.inputs
                if v is not None and v.name in self._folds and v.name not in self._values
            ]
            if pending:
                stack.extend(pending)
                continue
            stack.pop()
            for output, array in zip(top.outputs, self._compute(top), strict=True):
                self._values[output.name or ""] = array

    def _compute(self, node: ir.Node) -> list[np.ndarray | None]:
        unknown: list[np.ndarray | None] = [None] * len(node.outputs)
        for output in node.outputs:
            shape = self.shape(output)
            if shape is None or math.prod(shape) > MAX_FOLD_ELEMENTS:
                return unknown
        feeds: dict[str, np.ndarray] = {}
        for value in node.inputs:
            if value is not None:
                array = self.const(value)
                if array is None:
                    return unknown
                feeds[value.name or ""] = array
        model = self._alone(node, feeds)
        # The reference knows every type and starts at once; the runtime knows every version and decides what is right.
        for run in (_by_reference, _by_runtime) if node.op_type in _SIMPLE else (_by_runtime, _by_reference):
            try:
                found = iter(run(model, feeds))
                return [np.asarray(next(found)) if output.name else None for output in node.outputs]
            except Exception:  # a constant that cannot be computed stays unknown, whatever the reason
                continue
        return unknown

    def _alone(self, node: ir.Node, feeds: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        proto = ir.serde.serialize_node(node)
        graph = onnx.helper.make_graph(
            [proto],
            "constant",
            [
                onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a in feeds.items()
            ],
            [onnx.helper.make_empty_tensor_value_info(o) for o in proto.output if o],
        )
        return onnx.helper.make_model(graph, opset_imports=self._imports, ir_version=self._ir_version)

    def add_input(self, value: ir.Value, shape: Shape) -> None:
        """Record the shape of a graph input."""
        if value.dtype is None:
            return
        self._types[_name(value)] = (value.dtype, shape)
        for dim, size in zip(value.shape or (), shape, strict=False):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                self._sizes[dim.value] = size

    def add_initializer(self, value: ir.Value) -> None:
        """Record a weight."""
        tensor = value.const_value
        if tensor is None:
            return
        self._types[_name(value)] = (tensor.dtype, tuple(tensor.shape.numpy()))
        self._initializers[_name(value)] = value

    def add_node(self, node: ir.Node) -> None:
        """Work out the facts of a node's outputs from those of its inputs (nodes come in graph order)."""
        if node.op_type == "Shape" and node.domain in ("", "ai.onnx") and node.inputs and node.inputs[0] is not None:
            shape = self.shape(node.inputs[0])
            if shape is not None:
                start, end = int_attribute(node, "start", 0), int_attribute(node, "end", len(shape))
                self._set_value(node.outputs[0], np.asarray(shape[start:end], dtype=np.int64))
                return
        foldable = (
            node.op_type not in _RANDOM
            and all(v is None or self.is_const(v) for v in node.inputs)
            and not _has_branches(node)
            and node.domain in ("", "ai.onnx")
        )
        inferred = self._infer(node)
        for output in node.outputs:
            name = _name(output)
            known = inferred.get(name) or self._declared(output)
            if known is not None:
                self._types[name] = known
        if foldable:
            for output in node.outputs:
                self._folds[output.name or ""] = node

    def _declared(self, value: ir.Value) -> Type | None:
        """Return what the file says of a tensor that comes from an operator without shape inference."""
        if _name(value) in self._branches:
            return self._branches[_name(value)]
        if value.dtype is None or value.shape is None or not value.name:
            return None
        dims = [dim if isinstance(dim, int) else self._sizes.get(dim.value or "") for dim in value.shape]
        known = tuple(dim for dim in dims if dim is not None)
        return (value.dtype, known) if len(known) == len(dims) else None

    def add_control_flow(self, model: ir.Model) -> None:
        """Let ONNX look into the branches of control flow, which needs the whole graph."""
        proto = skeleton(model)
        for value in proto.graph.input:
            known = self._types.get(value.name)
            if known is not None:
                value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, int(known[0]), known[1]))
        try:
            inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        except Exception:  # as in _infer
            return
        for value in inferred.graph.value_info:
            found = _tensor_type(value.type, self._sizes)
            if found is not None:
                self._branches[value.name] = found

    def begun(self, model: ir.Model) -> Facts:
        """Return the facts of the weights and inputs alone of a copy of the model; nodes are added by the caller."""
        facts = Facts(model)
        facts._sizes = dict(self._sizes)
        for value in (*model.graph.inputs, *model.graph.initializers.values()):
            facts.add_type(value, self)
        known = {name: value for name, value in model.graph.initializers.items() if value.const_value is not None}
        facts._initializers = known
        return facts

    def add_type(self, value: ir.Value, other: Facts) -> None:
        """Take over element type and shape of a tensor that is the same in another graph."""
        known = other._types.get(_name(value))
        if known is not None:
            self._types.setdefault(_name(value), known)

    def _set_value(self, value: ir.Value, array: np.ndarray) -> None:
        self._values[_name(value)] = array
        self._types[_name(value)] = (ir.DataType.from_numpy(array.dtype), array.shape)

    def _infer(self, node: ir.Node) -> dict[str, Type]:
        domain = "" if node.domain == "ai.onnx" else node.domain
        inputs = [None if value is None else self._types.get(_name(value)) for value in node.inputs]
        plain = output_type(node, inputs, self._opsets[""]) if domain == "" else None
        if plain is not None:
            return {_name(node.outputs[0]): plain}
        if domain == "" and node.op_type in _SHAPE_KEEPING and node.inputs and node.inputs[0] is not None:
            kept = self._types.get(_name(node.inputs[0]))
            return {} if kept is None else {_name(node.outputs[0]): kept}
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opsets.get(domain, 1), domain)
        except onnx.defs.SchemaError:
            return {}
        types: dict[str, onnx.TypeProto] = {}
        data: dict[str, onnx.TensorProto] = {}
        for value in node.inputs:
            if value is None:
                continue
            name = _name(value)
            if name not in self._types:
                continue
            dtype, shape = self._types[name]
            types[name] = onnx.helper.make_tensor_type_proto(int(dtype), shape)
            is_shape_data = dtype == ir.DataType.INT64 or node.op_type in _FLOAT_SHAPE_DATA
            if is_shape_data and math.prod(shape) <= _MAX_SHAPE_DATA and self.is_const(value):
                array = self.const(value)
                if array is not None:
                    data[name] = onnx.numpy_helper.from_array(array, name)
        try:
            inferred = onnx.shape_inference.infer_node_outputs(
                schema,
                ir.serde.serialize_node(node),
                types,
                data,
                opset_imports=self._imports,
                ir_version=self._ir_version,
            )
        except Exception:  # onnx raises several unrelated classes here; what cannot be inferred is unknown
            return {}
        known = {name: found for name, proto in inferred.items() if (found := _tensor_type(proto)) is not None}
        source = self._types.get(_name(node.inputs[0])) if node.inputs and node.inputs[0] is not None else None
        if source is not None and node.outputs:
            known.update(_amended(node, source, known))
            if node.op_type in ("Resize", "Upsample") and domain == "":
                known.update(self._scaled(node, source))
        return known

    def _scaled(self, node: ir.Node, source: Type) -> dict[str, Type]:
        """Return the shape of a map resized by scales: runtimes multiply in single precision, onnx does not.

        So 1.4 times 5 is 7 for them and 6 for onnx.
        """
        index = 2 if len(node.inputs) > 2 else 1
        scales = self.const(node.inputs[index]) if len(node.inputs) > index else None
        mode = string_attribute(node, "coordinate_transformation_mode", "half_pixel")
        dtype, shape = source
        axes = ints_attribute(node, "axes", tuple(range(len(shape))))
        if scales is None or scales.size != len(axes) or mode == "tf_crop_and_resize":
            return {}
        sizes = list(shape)
        for axis, scale in zip(axes, scales.reshape(-1).astype(np.float32), strict=True):
            sizes[axis] = math.floor(np.float32(shape[axis]) * scale)
        return {_name(node.outputs[0]): (dtype, tuple(sizes))}


def _by_reference(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> Sequence[Any]:
    return list(ReferenceEvaluator(model).run(None, dict(feeds)))


def _by_runtime(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> Sequence[Any]:
    import onnxruntime as ort  # takes long, and few constants need it

    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def gather_facts(model: ir.Model, input_shapes: Mapping[str, Shape]) -> Facts:
    """Find the shape, element type and (on demand) constant value of every tensor of a model.

    Args:
        model: graph whose nodes stand in topological order and whose values all have names.
        input_shapes: concrete shape of each graph input, by name; inputs that are not named keep their declared shape
            where it is static, else they stay unknown.
    """
    facts = Facts(model)
    for value in model.graph.initializers.values():
        facts.add_initializer(value)
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        shape = input_shapes.get(value.name or "")
        if shape is None and value.shape is not None:
            dims = tuple(d for d in value.shape if isinstance(d, int))
            shape = dims if len(dims) == len(value.shape) else None
        if shape is not None:
            facts.add_input(value, shape)
    if any(_has_branches(node) for node in model.graph):
        facts.add_control_flow(model)
    for node in model.graph:
        facts.add_node(node)
    return facts


def _amended(node: ir.Node, source: Type, inferred: Mapping[str, Type]) -> dict[str, Type]:
    """Say what onnx's inference does not know, or knows wrongly, of the outputs of a node that reads `source`."""
    if node.op_type == "GroupNormalization":  # a function in onnx's eyes, which it does not look into
        return {_name(node.outputs[0]): source}
    if node.op_type not in ("MaxPool", "AveragePool", "LpPool"):
        return {}
    rank = len(source[1]) - 2
    kernel = ints_attribute(node, "kernel_shape", ())
    strides, dilations = (ints_attribute(node, name, (1,) * rank) for name in ("strides", "dilations"))
    pads = ints_attribute(node, "pads", (0,) * 2 * rank)
    auto, ceil = string_attribute(node, "auto_pad", "NOTSET"), bool(int_attribute(node, "ceil_mode", 0))
    if not ceil and (auto == "NOTSET" or all(one == 1 for one in dilations)):
        return {}
    places = []
    for axis, size in enumerate(source[1][2:]):
        begin, total = (pads[axis], pads[axis] + pads[axis + rank]) if auto == "NOTSET" else (0, 0)
        if auto.startswith("SAME"):  # the runtime forgets the dilation here
            total = (-(-size // strides[axis]) - 1) * strides[axis] + kernel[axis] - size
            begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
        span = size + total - dilations[axis] * (kernel[axis] - 1) - 1
        count = (-(-span // strides[axis]) if ceil else span // strides[axis]) + 1
        # A window that would start behind the data and its pad in front is dropped; onnx's inference forgets this.
        places.append(count - 1 if ceil and (count - 1) * strides[axis] >= size + begin else count)
    amended = {}
    for output in node.outputs:
        if _name(output) in inferred:
            dtype, shape = inferred[_name(output)]
            amended[_name(output)] = (dtype, shape[:2] + tuple(places))
    return amended


def _tensor_type(proto: onnx.TypeProto, sizes: Mapping[str, int] | None = None) -> Type | None:
    if not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
        return None
    dims = []
    for dim in proto.tensor_type.shape.dim:
        size = int(dim.dim_value) if dim.HasField("dim_value") else (sizes or {}).get(dim.dim_param, -1)
        if size < 0:
            return None
        dims.append(size)
    return ir.DataType(proto.tensor_type.elem_type), tuple(dims)


def _has_branches(node: ir.Node) -> bool:
    return any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.data.values())


def _name(value: ir.Value | str) -> str:
    return value if isinstance(value, str) else (value.name or "")
