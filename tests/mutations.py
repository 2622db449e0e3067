"""Damaged and hostile models: small classifiers with something wrong in them, the same for the same seed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from models import plain
from netgenerator import generate
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Rng = np.random.Generator
Change = Callable[[Rng, ModelProto], None]

#: Integers that tend to break things.
_NASTY = (0, -1, 1, 2, -2, 3, 7, 64, 255, 4096, 1 << 20, 1 << 31, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))
_NASTY_FLOATS = (0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e38, 1e-45, 2.5)
_TYPES = (0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 14, 16, 17, 22, 23, 99, -1)

CHANGES: list[Change] = []


def change(function: Change) -> Change:
    """Register a way to damage a parsed model."""
    CHANGES.append(function)
    return function


@dataclass
class Mutant:
    """A file to read, and what was done to it; `files` are others that lie beside it."""

    seed: int
    data: bytes
    story: str
    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write everything into a folder and return the name of the model file."""
        for name, data in self.files.items():
            (folder / name).write_bytes(data)
        for name, target in self.links.items():
            os.symlink(target, folder / name)
        path = folder / "model.onnx"
        path.write_bytes(self.data)
        return path


def mutant(seed: int) -> Mutant:
    """Return mutant number `seed`."""
    rng = np.random.default_rng((seed, 77))
    proto, story = _base(rng)
    kind = rng.random()
    if kind < 0.08:
        return _external(seed, rng, proto, story)
    if kind < 0.2:
        data, what = _damaged_bytes(rng, proto.SerializeToString())
        return Mutant(seed, data, f"{story}; {what}")
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        function = CHANGES[int(rng.integers(len(CHANGES)))]
        try:
            function(rng, proto)
            story += f"; {function.__name__}"
        except (IndexError, ValueError, TypeError, OverflowError):
            story += f"; ({function.__name__} does not apply)"  # e.g. no such attribute, or too large for protobuf
    return Mutant(seed, proto.SerializeToString(), story)


def _base(rng: Rng) -> tuple[ModelProto, str]:
    if rng.random() < 0.3:
        head, opset = str(rng.choice(["Identity", "Softmax"])), int(rng.choice([7, 11, 13, 17, 21]))
        batch = int(rng.integers(1, 3)) if rng.random() < 0.3 else "N"
        return plain(head=head, opset=opset, batch=batch, ir_version=3 if opset == 7 else 8), f"plain {opset} {head}"
    seed = int(rng.integers(400))
    return generate(seed, blocks=1).proto, f"net {seed}"


# --- bytes ------------------------------------------------------------------------------------------------------------


def _damaged_bytes(rng: Rng, data: bytes) -> tuple[bytes, str]:
    kind, damaged = int(rng.integers(7)), bytearray(data)
    # Most of the bytes are weights; the front of the file is where the graph is.
    reach = len(data) if rng.random() < 0.3 else min(len(data), 3000)
    first = int(rng.integers(reach))
    length = int(rng.integers(1, 30))
    if kind == 0:
        return bytes(damaged[:first]), "truncated"
    if kind == 1:
        del damaged[first : first + length]
        return bytes(damaged), "bytes removed"
    if kind == 2:
        damaged[first:first] = rng.bytes(length)
        return bytes(damaged), "bytes inserted"
    if kind == 3:
        damaged[first:first] = damaged[first : first + length]
        return bytes(damaged), "bytes repeated"
    if kind == 4:
        return rng.bytes(first), "noise"
    for _ in range(int(rng.integers(1, 6))):
        position = int(rng.integers(reach))
        damaged[position] = int(rng.integers(256)) if kind == 5 else damaged[position] ^ (1 << int(rng.integers(8)))
    return bytes(damaged), "bytes changed"


# --- external data ----------------------------------------------------------------------------------------------------


def _external(seed: int, rng: Rng, proto: ModelProto, story: str) -> Mutant:
    """Weights in other files: where they should be, outside the folder, missing, too short."""
    blob = bytearray()
    for tensor in proto.graph.initializer:
        raw = numpy_helper.to_array(tensor).tobytes()
        entries = {"location": "weights.bin", "offset": str(len(blob)), "length": str(len(raw))}
        blob += raw
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
    found = Mutant(seed, b"", f"{story}; external data", {"weights.bin": bytes(blob)})
    tensor = _pick(rng, proto.graph.initializer)
    entry = _pick(rng, tensor.external_data)
    kind = int(rng.integers(12))
    locations = [
        "../weights.bin", "/etc/passwd", "../../../../../../etc/passwd", "", ".", "..", "missing.bin", "a\0b",
        "link.bin", "link_folder/passwd", "weights.bin/../../x", "\\\\server\\share", "C:\\x.bin", "x" * 5000,
        "/dev/zero", "dev_zero.bin",
    ]  # fmt: skip
    if kind < 6:
        entry = next(one for one in tensor.external_data if one.key == "location")
        entry.value = str(rng.choice(np.array(locations, object)))
        found.links = {"link.bin": "/etc/passwd", "link_folder": "/etc", "dev_zero.bin": "/dev/zero"}
    elif kind == 6:
        entry.value = str(_pick(rng, [*_NASTY, "", "x", "1.5", "1e3", "0x10", " 4", "99999999999999999999999"]))
    elif kind == 7:
        found.files["weights.bin"] = bytes(blob[: int(rng.integers(max(len(blob), 1)))])
    elif kind == 8:
        tensor.ClearField("external_data")
    elif kind == 9:
        tensor.dims[:] = [int(_pick(rng, _NASTY)) for _ in tensor.dims]
    elif kind == 10:
        tensor.data_type = int(_pick(rng, _TYPES))
    found.data = proto.SerializeToString()
    found.story += f" {kind} {entry.key}={entry.value[:40]!r}"
    return found


# --- choosing ---------------------------------------------------------------------------------------------------------


def _pick(rng: Rng, things: Sequence[Any]) -> Any:
    if not len(things):
        raise IndexError("nothing to pick from")
    return things[int(rng.integers(len(things)))]


def _other(rng: Rng, old: int) -> int:
    """Another integer: one that may still make sense, or one that cannot."""
    if rng.random() < 0.6:
        return int(np.clip(old + int(_pick(rng, (-2, -1, 1, 2))), -(1 << 63), (1 << 63) - 1))
    return int(_pick(rng, _NASTY))


def _attribute(rng: Rng, proto: ModelProto, kinds: Sequence[int] = ()) -> AttributeProto:
    return _pick(
        rng,
        [a for node in proto.graph.node for a in node.attribute if not kinds or a.type in kinds],
    )


def _values(graph: GraphProto) -> list[str]:
    names = [name for node in graph.node for name in node.output]
    return [*names, *(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)]


def _data_node(rng: Rng, proto: ModelProto) -> NodeProto:
    return _pick(rng, [node for node in proto.graph.node if node.op_type != "Constant" and node.input])


def _ints(rng: Rng, proto: ModelProto) -> TensorProto:
    """An integer constant: a shape, indices, axes, pads …"""
    tensors = [tensor for tensor in proto.graph.initializer if tensor.data_type == TensorProto.INT64]
    tensors += [
        a.t
        for node in proto.graph.node
        for a in node.attribute
        if a.HasField("t") and a.t.data_type == TensorProto.INT64
    ]
    return _pick(rng, tensors)


# --- edges and nodes --------------------------------------------------------------------------------------------------


@change
def rewire_an_input(rng: Rng, proto: ModelProto) -> None:
    node = _data_node(rng, proto)
    node.input[int(rng.integers(len(node.input)))] = _pick(rng, _values(proto.graph))


@change
def read_a_later_value(rng: Rng, proto: ModelProto) -> None:
    first = int(rng.integers(len(proto.graph.node) - 1))
    node = proto.graph.node[first]
    node.input[int(rng.integers(len(node.input)))] = _pick(rng, proto.graph.node[first + 1 :]).output[0]


@change
def read_what_is_not_there(rng: Rng, proto: ModelProto) -> None:
    node = _data_node(rng, proto)
    node.input[int(rng.integers(len(node.input)))] = str(rng.choice(["", "nowhere", "é", "a" * 3000, "x\x01"]))


@change
def read_itself(rng: Rng, proto: ModelProto) -> None:
    node = _data_node(rng, proto)
    node.input[0] = node.output[0]


@change
def drop_an_input(rng: Rng, proto: ModelProto) -> None:
    node = _data_node(rng, proto)
    del node.input[int(rng.integers(len(node.input)))]


@change
def add_an_input(rng: Rng, proto: ModelProto) -> None:
    _data_node(rng, proto).input.append(_pick(rng, _values(proto.graph)))


@change
def remove_a_node(rng: Rng, proto: ModelProto) -> None:
    del proto.graph.node[int(rng.integers(len(proto.graph.node)))]


@change
def repeat_a_node(rng: Rng, proto: ModelProto) -> None:
    copy = NodeProto()
    copy.CopyFrom(_pick(rng, proto.graph.node))
    if rng.random() < 0.5:
        copy.output[0] += "_copy"
    proto.graph.node.append(copy)


@change
def shuffle_the_nodes(rng: Rng, proto: ModelProto) -> None:
    nodes = [proto.graph.node[i] for i in rng.permutation(len(proto.graph.node))]
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)


@change
def another_operator(rng: Rng, proto: ModelProto) -> None:
    others = ["Relu", "Add", "Concat", "Reshape", "Softmax", "Conv", "Gemm", "Nonsense", "", "ReduceMean", "Transpose"]
    others += [
        "MaxPool",
        "Flatten",
        "Identity",
        "Split",
        "NonMaxSuppression",
        "NonZero",
        "Unique",
        "Compress",
        "Einsum",
    ]
    others += ["TopK", "GatherND", "ScatterND", "LSTM", "StringNormalizer", "SequenceConstruct", "DFT", "RoiAlign"]
    _pick(rng, proto.graph.node).op_type = str(rng.choice(others))


@change
def another_domain(rng: Rng, proto: ModelProto) -> None:
    domains = ["com.microsoft", "ai.onnx.ml", "my.domain", "ai.onnx", "ai.onnx.training", "\x00"]
    domain = str(rng.choice(np.array(domains, object)))
    _pick(rng, proto.graph.node).domain = domain
    if rng.random() < 0.6:
        proto.opset_import.append(helper.make_opsetid(domain, 1))


@change
def same_names(rng: Rng, proto: ModelProto) -> None:
    node = _pick(rng, proto.graph.node)
    node.output[0] = _pick(rng, _values(proto.graph))


@change
def names_of_nodes(rng: Rng, proto: ModelProto) -> None:
    for node in proto.graph.node:
        node.name = str(rng.choice(["", "same", "n\n", "ü" * 50]))


@change
def other_names_everywhere(rng: Rng, proto: ModelProto) -> None:
    old = _pick(rng, _values(proto.graph))
    new = str(_pick(rng, ["a b", "x.kept", "/", "::", "ü", "score/images", old + "_2", "x" * 1000]))
    for node in proto.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
    for value in [*proto.graph.input, *proto.graph.output, *proto.graph.initializer]:
        value.name = new if value.name == old else value.name


@change
def empty_output_name(rng: Rng, proto: ModelProto) -> None:
    _pick(rng, proto.graph.node).output[0] = ""


@change
def more_outputs_of_a_node(rng: Rng, proto: ModelProto) -> None:
    _pick(rng, proto.graph.node).output.append(str(rng.choice(["", "more"])))


# --- inputs and outputs of the graph ----------------------------------------------------------------------------------


@change
def change_the_image(rng: Rng, proto: ModelProto) -> None:
    shape = proto.graph.input[0].type.tensor_type.shape
    kind = int(rng.integers(6))
    if kind == 0:
        _pick(rng, shape.dim).dim_value = int(_pick(rng, _NASTY))
    elif kind == 1:
        _pick(rng, shape.dim).dim_param = str(rng.choice(["N", "H", ""]))
    elif kind == 2:
        del shape.dim[int(rng.integers(len(shape.dim)))]
    elif kind == 3:
        shape.dim.add(dim_value=3)
    elif kind == 4:
        _pick(rng, shape.dim).Clear()
    else:
        proto.graph.input[0].type.tensor_type.ClearField("shape")


@change
def change_the_type_of_the_image(rng: Rng, proto: ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.elem_type = int(_pick(rng, _TYPES))


@change
def no_tensor_as_input(rng: Rng, proto: ModelProto) -> None:
    value = proto.graph.input[0]
    kind = int(rng.integers(3))
    if kind == 0:
        value.type.Clear()
    elif kind == 1:
        value.CopyFrom(helper.make_tensor_sequence_value_info(value.name, TensorProto.FLOAT, None))
    else:
        value.type.optional_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT


@change
def more_or_fewer_inputs(rng: Rng, proto: ModelProto) -> None:
    if rng.random() < 0.3:
        del proto.graph.input[:]
        return
    name = str(rng.choice(np.array(["more", proto.graph.input[0].name, *_values(proto.graph)], object)))
    proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]))


@change
def change_the_outputs(rng: Rng, proto: ModelProto) -> None:
    kind, output = int(rng.integers(7)), proto.graph.output
    if kind == 0:
        del output[:]
    elif kind == 1:
        output.append(output[0])
    elif kind == 2:
        output[0].name = _pick(rng, _values(proto.graph))
    elif kind == 3:
        output.append(helper.make_tensor_value_info(_pick(rng, _values(proto.graph)), TensorProto.FLOAT, None))
    elif kind == 4:
        output[0].type.tensor_type.elem_type = int(_pick(rng, _TYPES))
    elif kind == 5:
        output[0].type.tensor_type.shape.dim.add(dim_value=int(_pick(rng, _NASTY)))
    else:
        _pick(rng, output[0].type.tensor_type.shape.dim).dim_value = int(_pick(rng, _NASTY))


@change
def initializers_as_inputs(rng: Rng, proto: ModelProto) -> None:
    for tensor in proto.graph.initializer:
        dims = list(tensor.dims) if rng.random() < 0.8 else [int(_pick(rng, _NASTY)) for _ in tensor.dims]
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, dims))


@change
def wrong_value_info(rng: Rng, proto: ModelProto) -> None:
    for name in _values(proto.graph)[: int(rng.integers(1, 10))]:
        dims = [int(_pick(rng, _NASTY[:12])) for _ in range(int(rng.integers(6)))]
        proto.graph.value_info.append(helper.make_tensor_value_info(name, int(rng.choice([1, 1, 7, 10])), dims))


# --- attributes -------------------------------------------------------------------------------------------------------


@change
def change_an_integer(rng: Rng, proto: ModelProto) -> None:
    attribute = _attribute(rng, proto, [AttributeProto.INT])
    attribute.i = _other(rng, attribute.i)


@change
def change_some_integers(rng: Rng, proto: ModelProto) -> None:
    ints = _attribute(rng, proto, [AttributeProto.INTS]).ints
    kind = int(rng.integers(4))
    if kind == 0:
        position = int(rng.integers(len(ints)))
        ints[position] = _other(rng, ints[position])
    elif kind == 1:
        del ints[int(rng.integers(len(ints))) :]
    elif kind == 2:
        ints.append(_other(rng, 1))
    else:
        ints[:] = [_other(rng, old) for old in ints]


@change
def change_a_float(rng: Rng, proto: ModelProto) -> None:
    _attribute(rng, proto, [AttributeProto.FLOAT]).f = float(_pick(rng, _NASTY_FLOATS))


@change
def change_a_string(rng: Rng, proto: ModelProto) -> None:
    text = _pick(rng, [b"", b"nonsense", b"\xff\xfe", b"SAME_UPPER", b"VALID", b"linear", b"CRD", b"a" * 9999])
    _attribute(rng, proto, [AttributeProto.STRING]).s = text


@change
def change_the_type_of_an_attribute(rng: Rng, proto: ModelProto) -> None:
    attribute = _attribute(rng, proto)
    name = attribute.name
    others: list[Any] = [1, 0.5, "text", [1, 2], [0.5], ["a"], numpy_helper.from_array(np.zeros(3, np.float32))]
    attribute.CopyFrom(helper.make_attribute(name, _pick(rng, others)))


@change
def drop_an_attribute(rng: Rng, proto: ModelProto) -> None:
    node = _pick(rng, [node for node in proto.graph.node if node.attribute])
    del node.attribute[int(rng.integers(len(node.attribute)))]


@change
def repeat_an_attribute(rng: Rng, proto: ModelProto) -> None:
    node = _pick(rng, [node for node in proto.graph.node if node.attribute])
    node.attribute.append(_pick(rng, node.attribute))


@change
def unknown_attribute(rng: Rng, proto: ModelProto) -> None:
    name = str(rng.choice(["nonsense", "axis", "axes", "group", "perm", "to", "shape", "value", ""]))
    _pick(rng, proto.graph.node).attribute.append(helper.make_attribute(name, int(_pick(rng, _NASTY))))


@change
def change_the_groups(rng: Rng, proto: ModelProto) -> None:
    node = _pick(rng, [node for node in proto.graph.node if node.op_type in ("Conv", "ConvTranspose")])
    for attribute in list(node.attribute):
        if attribute.name == "group":
            node.attribute.remove(attribute)
    node.attribute.append(helper.make_attribute("group", _other(rng, 2)))


@change
def change_the_window(rng: Rng, proto: ModelProto) -> None:
    windows = [n for n in proto.graph.node if n.op_type in ("Conv", "ConvTranspose", "MaxPool", "AveragePool")]
    node, name = (
        _pick(rng, windows),
        str(rng.choice(["kernel_shape", "strides", "pads", "dilations", "output_padding"])),
    )
    for attribute in list(node.attribute):
        if attribute.name == name:
            node.attribute.remove(attribute)
    count = 4 if name == "pads" else 2
    node.attribute.append(helper.make_attribute(name, [_other(rng, 2) for _ in range(count)]))


@change
def reference_an_attribute(rng: Rng, proto: ModelProto) -> None:
    _attribute(rng, proto).ref_attr_name = "outer"


# --- weights and constants --------------------------------------------------------------------------------------------


@change
def change_the_dims_of_a_weight(rng: Rng, proto: ModelProto) -> None:
    tensor = _pick(rng, proto.graph.initializer)
    kind = int(rng.integers(5))
    if kind == 0:
        tensor.dims[int(rng.integers(len(tensor.dims)))] = int(_pick(rng, _NASTY))
    elif kind == 1:
        tensor.dims[:] = [tensor.dims[i] for i in rng.permutation(len(tensor.dims))]
    elif kind == 2:
        tensor.dims.append(1)
    elif kind == 3:
        del tensor.dims[:]
    else:
        tensor.dims.insert(0, 1)


@change
def another_weight(rng: Rng, proto: ModelProto) -> None:
    """A whole weight of other dims, with numbers that fit."""
    tensor = _pick(rng, proto.graph.initializer)
    dims = [int(d) for d in tensor.dims]
    kind = int(rng.integers(4))
    if kind == 0 and dims:
        dims[int(rng.integers(len(dims)))] = int(rng.integers(0, 9))
    elif kind == 1 and dims:
        dims = dims[:-1]
    elif kind == 2:
        dims = [*dims, 1]
    else:
        dims = [dims[i] for i in rng.permutation(len(dims))]
    array = rng.standard_normal(dims).astype(numpy_helper.to_array(tensor).dtype)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


@change
def change_the_type_of_a_weight(rng: Rng, proto: ModelProto) -> None:
    _pick(rng, proto.graph.initializer).data_type = int(_pick(rng, _TYPES))


@change
def cast_a_weight(rng: Rng, proto: ModelProto) -> None:
    tensor = _pick(rng, proto.graph.initializer)
    dtype = _pick(rng, [np.float64, np.float16, np.int64, np.int32, np.uint8, np.bool_, np.complex64])
    with np.errstate(all="ignore"):
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))


@change
def shorten_a_weight(rng: Rng, proto: ModelProto) -> None:
    tensor = _pick(rng, proto.graph.initializer)
    tensor.raw_data = tensor.raw_data[: int(rng.integers(len(tensor.raw_data)))]


@change
def twice_the_data(rng: Rng, proto: ModelProto) -> None:
    tensor = _pick(rng, proto.graph.initializer)
    tensor.float_data.extend([1.0, 2.0])


@change
def strange_numbers(rng: Rng, proto: ModelProto) -> None:
    floats = [t for t in proto.graph.initializer if t.data_type == TensorProto.FLOAT and t.raw_data]
    tensor = _pick(rng, floats)
    array = numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[int(rng.integers(array.size)) :: int(rng.integers(1, 4))] = _pick(rng, _NASTY_FLOATS)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


@change
def drop_a_weight(rng: Rng, proto: ModelProto) -> None:
    del proto.graph.initializer[int(rng.integers(len(proto.graph.initializer)))]


@change
def repeat_a_weight(rng: Rng, proto: ModelProto) -> None:
    proto.graph.initializer.append(_pick(rng, proto.graph.initializer))


@change
def nameless_weight(rng: Rng, proto: ModelProto) -> None:
    _pick(rng, proto.graph.initializer).name = ""


@change
def change_a_constant(rng: Rng, proto: ModelProto) -> None:
    tensor = _ints(rng, proto)
    array = numpy_helper.to_array(tensor).copy()
    if array.size and rng.random() < 0.8:
        position = int(rng.integers(array.size))
        array.reshape(-1)[position] = _other(rng, int(array.reshape(-1)[position]))
    else:
        array = np.append(array.reshape(-1), int(_pick(rng, _NASTY)))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


@change
def change_another_constant(rng: Rng, proto: ModelProto) -> None:
    tensor = _ints(rng, proto)
    array = numpy_helper.to_array(tensor)
    arrays = [array[..., np.newaxis], array.reshape(-1)[:0], array.astype(np.int32), array.astype(np.float32), -array]
    tensor.CopyFrom(numpy_helper.from_array(_pick(rng, arrays), tensor.name))


@change
def sparse_weight(rng: Rng, proto: ModelProto) -> None:
    tensor = _pick(rng, [t for t in proto.graph.initializer if t.data_type == TensorProto.FLOAT])
    values = numpy_helper.from_array(np.ones(2, np.float32), tensor.name)
    indices = numpy_helper.from_array(np.array([0, int(_pick(rng, [1, 5, -1, 1 << 40]))], np.int64), tensor.name)
    dims = list(tensor.dims) if rng.random() < 0.6 else [1 << 31, 1 << 31]
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, dims))
    proto.graph.initializer.remove(tensor)


# --- the frame --------------------------------------------------------------------------------------------------------


@change
def change_the_opset(rng: Rng, proto: ModelProto) -> None:
    kind = int(rng.integers(4))
    if kind == 0:
        proto.opset_import[0].version = int(_pick(rng, _NASTY))
    elif kind == 1:
        proto.opset_import[0].version = int(rng.integers(1, 27))
    elif kind == 2:
        del proto.opset_import[:]
    else:
        proto.opset_import.append(helper.make_opsetid("", int(rng.integers(7, 22))))


@change
def change_the_ir_version(rng: Rng, proto: ModelProto) -> None:
    proto.ir_version = int(_pick(rng, [0, -1, 1, 2, 3, 4, 9, 10, 11, 13, 99, 1 << 40]))


@change
def damaged_metadata(rng: Rng, proto: ModelProto) -> None:
    texts = [
        "", "{", "[]", "null", '{"parameters": 3}', '{"parameters": {"batch_size": -1}}', "[" * 20000,
        '{"version": 99}', '{"parameters": {"class_names": [1, 2]}}', '{"parameters": {"meta_data": [1]}}',
        '{"parameters": {"batch_size": 99999999999}}', '{"parameters": {"image_height": 100000000}}',
        '{"parameters": {"type": "generic", "nonsense": {}}}', '{"parameters": {"class_ids": [0,0,0,0,0]}}',
        '{"parameters": {"learning_rate": NaN}}', '{"parameters": {"class_output": "nowhere"}}', "1" * 10000,
        '{"parameters": {"batch_size": 1' + "0" * 5000 + "}}",
    ]  # fmt: skip
    entry = proto.metadata_props.add()
    entry.key, entry.value = "dlprune", str(_pick(rng, texts))


@change
def functions(rng: Rng, proto: ModelProto) -> None:
    """A function of the model's own: harmless, one that calls itself, two that call each other, a bomb."""
    kind = int(rng.integers(5))
    proto.ir_version = max(proto.ir_version, 8)
    opsets = [proto.opset_import[0], helper.make_opsetid("local", 1)]

    def function(name: str, nodes: list[NodeProto]) -> None:
        proto.functions.append(helper.make_function("local", name, ["a"], ["b"], nodes, opsets))

    def call(name: str, source: str, target: str) -> NodeProto:
        return helper.make_node(name, [source], [target], domain="local")

    if kind == 0:
        function("F0", [helper.make_node("Relu", ["a"], ["b"])])
    elif kind == 1:
        function("F0", [call("F0", "a", "b")])
    elif kind == 2:
        function("F0", [call("F1", "a", "b")])
        function("F1", [call("F0", "a", "b")])
    elif kind == 3:
        levels = 40
        for level in range(levels):
            function(f"F{level}", [call(f"F{level + 1}", "a", "c"), call(f"F{level + 1}", "c", "b")])
        function(f"F{levels}", [helper.make_node("Identity", ["a"], ["b"])])
    else:
        function("F0", [helper.make_node("Nonsense", ["nowhere"], ["b"])])
    proto.opset_import.append(helper.make_opsetid("local", 1))
    _insert_before_output(proto, [call("F0", "{in}", "{out}")])


def _insert_before_output(proto: ModelProto, nodes: list[NodeProto]) -> None:
    """Put a chain in front of the last node; '{in}' and '{out}' stand for the values that it joins."""
    last = proto.graph.node[-1]
    source = last.input[0]
    for node in nodes:
        node.input[:] = [source if name == "{in}" else name for name in node.input]
        node.output[:] = ["bomb" if name == "{out}" else name for name in node.output]
    last.input[0] = "bomb"
    end = NodeProto.FromString(last.SerializeToString())
    del proto.graph.node[-1]
    proto.graph.node.extend([*nodes, end])


@change
def harmless(rng: Rng, proto: ModelProto) -> None:
    """Nothing wrong at all, only unusual: these must come through."""
    kind = int(rng.integers(6))
    if kind == 0:
        proto.doc_string, proto.producer_name = "x" * 10000, "ü"
    elif kind == 1:
        _insert_before_output(proto, [helper.make_node("Identity", ["{in}"], ["{out}"])])
    elif kind == 2:
        proto.graph.initializer.append(numpy_helper.from_array(np.zeros((0, 3), np.float32), "nobody_reads_this"))
    elif kind == 3:
        names = [node.output[0] for node in proto.graph.node if node.op_type in ("Relu", "Conv")]
        proto.graph.node.append(helper.make_node("Neg", [_pick(rng, names)], ["nobody_reads_this"]))
    elif kind == 4:
        value = helper.make_tensor_value_info(_pick(rng, _pick(rng, proto.graph.node).output), TensorProto.FLOAT, None)
        proto.graph.value_info.append(value)
    else:
        for tensor in proto.graph.initializer:
            if tensor.data_type == TensorProto.FLOAT and tensor.raw_data:
                numbers = numpy_helper.to_array(tensor).reshape(-1).tolist()
                tensor.ClearField("raw_data")
                tensor.float_data.extend(numbers)


# --- bombs ------------------------------------------------------------------------------------------------------------


def _constant(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


@change
def huge_constant(rng: Rng, proto: ModelProto) -> None:
    """A constant expression whose result would fill the memory, added to the data."""
    graph, kind = proto.graph, int(rng.integers(8))
    size = int(rng.choice(np.array([1 << 28, 1 << 33, 1 << 40, 1 << 62], object), p=[0.04, 0.32, 0.32, 0.32]))
    small = numpy_helper.from_array(np.ones((1, 1), np.float32), "bomb_small")
    graph.initializer.extend([_constant("bomb_shape", 1, size), _constant("bomb_flat", size), small])
    big = "bomb_big"
    if kind == 0:
        nodes = [helper.make_node("ConstantOfShape", ["bomb_shape"], [big])]
    elif kind == 1:
        nodes = [helper.make_node("Expand", ["bomb_small", "bomb_shape"], [big])]
    elif kind == 2:
        nodes = [helper.make_node("Tile", ["bomb_small", "bomb_shape"], [big])]
    elif kind == 3:
        parts = [_constant("bomb_zero"), _constant("bomb_one")]
        parts[0].CopyFrom(numpy_helper.from_array(np.int64(0), "bomb_zero"))
        parts[1].CopyFrom(numpy_helper.from_array(np.int64(1), "bomb_one"))
        end = numpy_helper.from_array(np.int64(size), "bomb_end")
        graph.initializer.extend([*parts, end])
        nodes = [
            helper.make_node("Range", ["bomb_zero", "bomb_end", "bomb_one"], ["bomb_range"]),
            helper.make_node("Cast", ["bomb_range"], [big], to=TensorProto.FLOAT),
        ]
    elif kind == 4:
        graph.initializer.append(_constant("bomb_pads", 0, 0, 0, size))
        nodes = [helper.make_node("Pad", ["bomb_small", "bomb_pads"], [big])]
    elif kind == 5:
        nodes, previous = [], "bomb_small"
        for level in range(34):
            nodes.append(helper.make_node("Concat", [previous, previous], [f"bomb_{level}"], axis=1))
            previous = f"bomb_{level}"
        big = previous
    elif kind == 6:
        square = numpy_helper.from_array(np.ones((40000, 1), np.float32), "bomb_column")
        row = numpy_helper.from_array(np.ones((1, 40000), np.float32), "bomb_row")
        graph.initializer.extend([square, row])
        nodes = [helper.make_node("MatMul", ["bomb_column", "bomb_row"], [big])]
    else:
        values = numpy_helper.from_array(np.array([0.0, 1.0], np.float32), "bomb_values")
        depth = numpy_helper.from_array(np.int64(size), "bomb_depth")
        graph.initializer.extend([values, depth])
        nodes = [helper.make_node("OneHot", ["bomb_flat", "bomb_depth", "bomb_values"], [big])]
    mean = {"op_type": "ReduceMean", "inputs": [big], "outputs": ["bomb_mean"], "keepdims": 1}
    nodes.append(helper.make_node(**mean))
    if rng.random() < 0.7:
        nodes.append(helper.make_node("Reshape", ["bomb_mean", "bomb_ones"], ["bomb_scalar"]))
        graph.initializer.append(_constant("bomb_ones", 1))
        nodes.append(helper.make_node("Add", ["{in}", "bomb_scalar"], ["{out}"]))
    else:
        nodes.append(helper.make_node("Add", ["{in}", big], ["{out}"]))
    _insert_before_output(proto, nodes)


@change
def huge_activation(rng: Rng, proto: ModelProto) -> None:
    """Data that is blown up on the way."""
    graph, kind = proto.graph, int(rng.integers(3))
    size = int(_pick(rng, [1 << 16, 1 << 24, 1 << 31, 1 << 40]))
    if kind == 0:
        graph.initializer.append(_constant("bomb_shape", size, 1, 1, 1))
        nodes = [helper.make_node("Expand", ["{in}", "bomb_shape"], ["{out}"])]
    elif kind == 1:
        graph.initializer.append(_constant("bomb_repeats", 1, size))
        nodes = [helper.make_node("Tile", ["{in}", "bomb_repeats"], ["{out}"])]
    else:
        graph.initializer.append(_constant("bomb_pads", 0, size, 0, 0))
        nodes = [helper.make_node("Pad", ["{in}", "bomb_pads"], ["{out}"])]
    _insert_before_output(proto, nodes)


@change
def long_chain(rng: Rng, proto: ModelProto) -> None:
    """Thousands of nodes in a row, of data or of constants."""
    count = int(_pick(rng, [50, 50, 200, 1000]))
    if rng.random() < 0.5:
        names = ["{in}", *[f"chain_{i}" for i in range(count - 1)], "{out}"]
        nodes = [helper.make_node("Identity", [a], [b]) for a, b in itertools.pairwise(names)]
    else:
        proto.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "chain_0"))
        nodes = [helper.make_node("Neg", [f"chain_{i}"], [f"chain_{i + 1}"]) for i in range(count)]
        nodes.append(helper.make_node("Add", ["{in}", f"chain_{count}"], ["{out}"]))
    _insert_before_output(proto, nodes)


@change
def sub_graph(rng: Rng, proto: ModelProto) -> None:
    """If, Loop and Scan: harmless, damaged, nested, endless."""
    kind = int(rng.integers(7))
    source = proto.graph.node[-1].input[0]
    yes = numpy_helper.from_array(np.array(True), "yes")
    proto.graph.initializer.append(yes)

    def branch(name: str, nodes: list[NodeProto], output: str) -> GraphProto:
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])

    if kind == 0:
        then = branch("then", [helper.make_node("Identity", [source], ["t"])], "t")
        other = branch("else", [helper.make_node("Neg", [source], ["e"])], "e")
        nodes = [helper.make_node("If", ["yes"], ["{out}"], then_branch=then, else_branch=other)]
    elif kind == 1:
        then = branch("then", [helper.make_node("Identity", ["nowhere"], ["t"])], "t")
        nodes = [helper.make_node("If", ["yes"], ["{out}"], then_branch=then, else_branch=then)]
    elif kind == 2:
        inner = branch("deepest", [helper.make_node("Identity", [source], ["t"])], "t")
        for level in range(int(_pick(rng, [5, 15, 25]))):
            end = branch("end", [helper.make_node("Identity", [source], [f"e{level}"])], f"e{level}")
            node = helper.make_node("If", ["yes"], [f"t{level}"], then_branch=inner, else_branch=end)
            inner = branch(f"level{level}", [node], f"t{level}")
        nodes = [NodeProto.FromString(inner.node[0].SerializeToString())]
        nodes[0].output[0] = "{out}"
    else:
        count = int(_pick(rng, [3, 1 << 40, (1 << 63) - 1]))
        trips = numpy_helper.from_array(np.array(count, np.int64), "trips")
        proto.graph.initializer.append(trips)
        body = helper.make_graph(
            [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Relu", ["state"], ["next"])],
            "body",
            [
                helper.make_tensor_value_info("i", TensorProto.INT64, []),
                helper.make_tensor_value_info("go", TensorProto.BOOL, []),
                helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
            ],
            [
                helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
                helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
            ],
        )
        inputs = ["trips", "yes", "{in}"] if kind < 6 else ["", "yes", "{in}"]
        nodes = [helper.make_node("Loop", inputs, ["{out}"], body=body)]
    _insert_before_output(proto, nodes)
