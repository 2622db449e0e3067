"""Which input of a graph is the image, which output the classes, and how the classes are computed at the end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, TypeAlias

import onnx_ir as ir

Layout: TypeAlias = Literal["NCHW", "NHWC"]
Activation: TypeAlias = Literal["none", "softmax", "log_softmax", "sigmoid"]

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
# Operators that leave the order of the axes alone, passed on the way from the image to the first convolution.
_PIXELWISE = frozenset(("Identity", "Cast", "Add", "Sub", "Mul", "Div", "Clip", "Pad", "BatchNormalization", "Resize"))
# Operators that may stand between the last activation and the output without changing the numbers.
_PASSING = frozenset(("Identity", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Cast", "Dropout"))
_ACTIVATIONS: dict[str, Activation] = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid"}


@dataclass(frozen=True)
class ImageInput:
    """The image input: its name and shape; `batch`, `height`, `width` are None where the file leaves them open."""

    name: str
    layout: Layout
    batch: int | None
    channels: int
    height: int | None
    width: int | None
    dtype: ir.DataType


@dataclass(frozen=True)
class ClassHead:
    """The end of the graph: the activation behind the class output and the value that goes into it."""

    activation: Activation
    logits_name: str


def known(dim: int | ir.SymbolicDim | None) -> int | None:
    """Return a dimension as a number, or None if it is open; some exporters write −1 or 0 for that."""
    return dim if isinstance(dim, int) and dim > 0 else None


def find_image_input(model: ir.Model) -> ImageInput | str:
    """Return the image input, or the reason why there is none."""
    inputs = list(model.graph.inputs)
    if len(inputs) != 1:
        names = ", ".join(repr(one.name) for one in inputs) or "none"
        return f"one image input is needed, the model has {len(inputs)} inputs ({names})"
    value = inputs[0]
    if value.dtype not in _FLOATS:
        return f"the input {value.name!r} has the type {value.dtype}; a float type is needed"
    if value.shape is None or len(value.shape) != 4:
        return f"the input {value.name!r} has the shape {value.shape}; an image input has four axes"
    dims = [known(dim) for dim in value.shape]
    walked = _layout_from_graph(value)
    layout = walked[0] if walked else _layout_from_shape(dims)
    batch, *rest = dims
    channels, height, width = rest if layout == "NCHW" else (rest[2], rest[0], rest[1])
    if channels is None and walked:
        channels = walked[1]
    if channels is None:
        return f"the input {value.name!r} leaves the number of channels open ({value.shape})"
    assert value.name is not None
    assert value.dtype is not None
    return ImageInput(value.name, layout, batch, channels, height, width, value.dtype)


def _layout_from_graph(image: ir.Value) -> tuple[Layout, int | None] | None:
    """Follow the image to its first convolution: the layout, and the channels if its weight tells them."""
    pending, seen = deque([image]), {image}
    while pending:
        value = pending.popleft()
        for node in value.consumers():
            if node.op_type == "Conv" and node.inputs[0] is value:
                return "NCHW", _conv_channels(node)
            if node.op_type == "Transpose":
                perm = node.attributes.get("perm")
                if perm is not None and list(perm.as_ints()) == [0, 3, 1, 2]:
                    inner = _layout_from_graph(node.outputs[0])
                    return "NHWC", inner[1] if inner else None
            if node.op_type in _PIXELWISE and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                pending.append(node.outputs[0])
    return None


def _conv_channels(node: ir.Node) -> int | None:
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if weight is None or weight.shape is None or len(weight.shape) < 2:
        return None
    per_group = known(weight.shape[1])
    group = node.attributes.get("group")
    return None if per_group is None else per_group * (group.as_int() if group is not None else 1)


def _layout_from_shape(dims: list[int | None]) -> Layout:
    usual = (1, 3, 4)
    return "NHWC" if dims[3] in usual and dims[1] not in usual else "NCHW"


#: A file that declares more classes is damaged; each class has a name.
MAX_CLASSES = 1 << 20


def class_count(shape: ir.Shape | tuple[int, ...] | None) -> int | None:
    """Return K for an output [N,K] (also [N,K,1,1] and the like), 0 if K is open, None if it is no such output."""
    if shape is None:
        return 0
    if len(shape) < 2:
        return None
    dims = [known(dim) for dim in shape][1:]
    wide = [dim for dim in dims if dim != 1]
    if None in wide:
        return 0
    return wide[0] if len(wide) == 1 and wide[0] is not None and 2 <= wide[0] <= MAX_CLASSES else None


def class_candidates(model: ir.Model) -> list[ir.Value]:
    """Return the outputs that may hold class values: floats of shape [N,K]; K may still be open."""
    found: list[ir.Value] = []
    for value in model.graph.outputs:
        if isinstance(value.type, ir.TensorType) and value.dtype in _FLOATS and class_count(value.shape) is not None:
            found.append(value)
    return found


def find_head(model: ir.Model, output: ir.Value) -> ClassHead:
    """Return how the class output comes about: through softmax (maybe hidden behind a Reshape) or as plain logits."""
    assert output.name is not None
    value = output
    while True:
        node = value.producer()
        if node is None or node.op_type not in _PASSING or not node.inputs or node.inputs[0] is None:
            break
        value = node.inputs[0]
    if node is None or node.domain not in ("", "ai.onnx") or node.op_type not in _ACTIVATIONS:
        return ClassHead("none", output.name)
    logits = node.inputs[0]
    if logits is None or logits.name is None:
        return ClassHead("none", output.name)
    if node.op_type != "Sigmoid" and not _over_classes(node, logits, model.opset_imports.get("", 1)):
        return ClassHead("none", output.name)
    return ClassHead(_ACTIVATIONS[node.op_type], logits.name)


def _over_classes(node: ir.Node, logits: ir.Value, opset: int) -> bool:
    """Tell whether a (Log)Softmax runs over the classes; assumed where the shape is not known."""
    attribute = node.attributes.get("axis")
    axis = attribute.as_int() if attribute is not None else (-1 if opset >= 13 else 1)
    if logits.shape is None:
        return axis != 0
    rank = len(logits.shape)
    axis %= rank
    wide = [i for i, dim in enumerate(logits.shape) if i > 0 and known(dim) != 1]
    return axis > 0 and all(i == axis if opset >= 13 else i >= axis for i in wide)
