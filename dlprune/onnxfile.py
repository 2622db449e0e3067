"""ONNX files: reading with every check, writing in one step.

Whatever is wrong with a file ends as HOperatorError 5200 or 7801, whatever prevents writing as 7803.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnx.checker
import onnx_ir as ir

from . import files, soundness
from .errors import H_ERR_DL_READ_ONNX, H_ERR_DL_WRITE_ONNX, H_ERR_FNF, HOperatorError
from .skeleton import skeleton, skeleton_of_proto
from .sparsestorage import SparseStorageError, make_dense, make_sparse

# A protobuf message ends at 2 GiB; beyond this many bytes of weights they go into a file of their own.
EXTERNAL_DATA_BYTES: Final = 1_900_000_000
MIN_OPSET: Final = 7
_GROUP_NORMALIZATION_WITHDRAWN: Final = range(18, 21)

_HDL_READ = (
    "{path!r}: .hdl is HALCON's own closed format. Export the model to ONNX (in HALCON: write_dl_model with a file "
    "name ending in .onnx) and read that file."
)


def unreadable(text: str) -> HOperatorError:
    """Return the error for a model that cannot be read."""
    return HOperatorError(H_ERR_DL_READ_ONNX, text)


def unwritable(text: str) -> HOperatorError:
    """Return the error for a model that cannot be written."""
    return HOperatorError(H_ERR_DL_WRITE_ONNX, text)


def read(path: str) -> onnx.ModelProto:
    """Return the checked model in a file, all weights in memory.

    Raises HOperatorError 5200 (no such file) or 7801 (folder, other format, empty, truncated, invalid, data file that
    is missing, too short or outside the folder).
    """
    if not path or "\0" in path or not os.path.exists(path):
        raise HOperatorError(H_ERR_FNF, f"There is no file {path!r} (current folder: {os.getcwd()!r}).")
    if os.path.isdir(path):
        raise unreadable(f"{path!r} is a folder; give the name of an .onnx file.")
    suffix = Path(path).suffix.lower()
    if suffix == ".hdl":
        raise unreadable(_HDL_READ.format(path=path))
    if suffix != ".onnx":
        raise unreadable(f"{path!r} does not end in .onnx, the only format that is read.")
    return parse(_content(path), repr(path), Path(path))


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise unreadable(f"{path!r} cannot be opened: {error.strerror}.") from None


def parse(data: bytes, what: str, path: Path | None = None) -> onnx.ModelProto:
    """Return the checked model in `data`; `path` is the file it came from, beside which external data may lie."""
    if not data:
        raise unreadable(f"{what} is empty.")
    try:
        proto = onnx.ModelProto()
        proto.ParseFromString(data)
    except Exception as error:
        raise unreadable(
            f"{what} is no ONNX model or was truncated ({len(data)} bytes; {_first_line(error)})."
        ) from None
    del data  # the message holds all of it
    if not proto.HasField("graph") or not proto.graph.node:
        raise unreadable(f"{what} holds no network (valid protobuf, but without any node); it is no ONNX model.")
    opset = next((one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")), 0)
    if 0 < opset < MIN_OPSET:
        raise unreadable(
            f"{what} uses opset {opset}; {MIN_OPSET} and up can be read. Convert it with onnx.version_converter."
        )
    if opset in _GROUP_NORMALIZATION_WITHDRAWN and any(
        node.op_type == "GroupNormalization" and node.domain in ("", "ai.onnx") for node in proto.graph.node
    ):
        raise unreadable(
            f"{what} uses GroupNormalization of opset {opset}, which ONNX has withdrawn: its one scale per group was a "
            "mistake. Export the model with opset 21 or later, where the operator has one scale per channel, or with "
            "opset 17, where exporters spell it out."
        )
    fault = soundness.fault_of(proto)
    if fault:
        raise unreadable(f"{what} is damaged or hostile: {fault}.")
    try:
        for tensor in soundness.tensors(proto):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                _load_external(tensor, path, what)
        onnx.checker.check_model(skeleton_of_proto(proto))
        make_dense(proto, EXTERNAL_DATA_BYTES)
    except HOperatorError:
        raise
    except SparseStorageError as error:
        raise unreadable(f"{what} is damaged or hostile: {error}.") from None
    except Exception as error:
        raise unreadable(f"{what} is no valid ONNX model: {_first_line(error)}") from None
    return proto


def files_of(path: str | os.PathLike[str]) -> list[Path]:
    """Return an .onnx file and the files beside it that its weights lie in.

    Raises OSError or google.protobuf's DecodeError if it cannot be read.
    """
    source = Path(path)
    proto = onnx.load(source, load_external_data=False)
    locations = {
        entry.value
        for tensor in soundness.tensors(proto)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return sorted({source, *(source.parent / location for location in locations)})


def _first_line(error: BaseException) -> str:
    """Return the telling part of a message; checker and runtime append whole stack traces."""
    text = " ".join(str(error).split())
    return (text[:300] + " …") if len(text) > 300 else text or type(error).__name__


def _load_external(tensor: onnx.TensorProto, path: Path | None, what: str) -> None:
    """Move the content of an external tensor into the message; only files within the model's folder are opened."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if path is None:
        raise unreadable(
            f"{what} keeps weight {tensor.name!r} in another file ({location!r}), which is not possible here."
        )
    folder = os.path.realpath(path.parent)
    target = os.path.realpath(os.path.join(folder, location))
    inside = os.path.commonpath([folder, target]) == folder and target != folder
    if not location or os.path.isabs(location) or not inside:
        raise unreadable(f"{what} keeps weight {tensor.name!r} in {location!r}, outside its folder; this is refused.")
    if not os.path.isfile(target):
        raise unreadable(f"{what} needs the data file {location!r} in the same folder, which is missing.")
    offset, size = int(entries.get("offset", 0)), os.path.getsize(target)
    length = int(entries["length"]) if "length" in entries else size - offset
    if offset < 0 or length < 0 or offset + length > size:
        raise unreadable(f"{what}: data file {location!r} has {size} bytes, too few for weight {tensor.name!r}.")
    expected = ir.DataType(tensor.data_type).bitwidth * int(np.prod(list(tensor.dims), dtype=np.int64))
    if length * 8 < expected:
        raise unreadable(
            f"{what}: weight {tensor.name!r} needs {-(-expected // 8)} bytes but {location!r} gives {length}."
        )
    with open(target, "rb") as stream:
        stream.seek(offset)
        content = stream.read(length)
    tensor.ClearField("external_data")
    tensor.data_location = onnx.TensorProto.DEFAULT
    tensor.raw_data = content


def check(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model after the full check of ONNX; wrong intermediate shapes are dropped, other faults raise."""
    try:
        onnx.checker.check_model(proto, full_check=True)
        return proto
    except Exception as error:
        if not proto.graph.value_info:
            raise unwritable(f"The model is not valid: {_first_line(error)}") from None
    # Exporters leave stale shapes of inner tensors behind; they carry no meaning, so try again without.
    slim = onnx.ModelProto()
    slim.CopyFrom(proto)
    slim.graph.ClearField("value_info")
    return check(slim)


def weight_bytes(model: ir.Model) -> int:
    """Return the size of all initializers in bytes."""
    return sum(
        value.const_value.nbytes
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    )


def to_bytes(model: ir.Model, *, sparse: bool = False) -> bytes:
    """Return the checked model as bytes; `sparse` as in `write`. Raises HOperatorError 7803."""
    try:
        known = check(skeleton(model)).graph.value_info
        proto = ir.to_proto(model)
        if not known:
            proto.graph.ClearField("value_info")
        if sparse:
            make_sparse(proto)
            onnx.checker.check_model(proto)
        return bytes(proto.SerializeToString())
    except HOperatorError:
        raise
    except Exception as error:
        raise unwritable(f"The model cannot be turned into bytes: {_first_line(error)}") from error


def write(model: ir.Model, path: str, *, sparse: bool = False) -> None:
    """Check a model and write it to an .onnx file in one step; huge weights go to a data file beside it.

    With `sparse`, weights are stored as their non-zero numbers where that is smaller (never in a data file).

    Raises HOperatorError 7803; then nothing has changed on disk.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix == ".hdl":
        raise unwritable(f"{path!r}: .hdl is HALCON's own closed format; give a file name ending in .onnx.")
    if not path or "\0" in path or suffix != ".onnx":
        raise unwritable(f"{path!r} does not end in .onnx, the only format that is written.")
    if os.path.isdir(path):  # unlike Path.is_dir, never raises
        raise unwritable(f"{path!r} is a folder; give the name of an .onnx file.")
    if not os.path.isdir(target.parent):
        raise unwritable(f"The folder {os.fspath(target.parent)!r} does not exist.")
    try:
        if weight_bytes(model) > EXTERNAL_DATA_BYTES:
            _write_with_data_file(model, target)
        else:
            files.replace(target, to_bytes(model, sparse=sparse))
    except HOperatorError:
        raise
    except OSError as error:
        raise unwritable(f"{path!r} cannot be written: {error.strerror or error}.") from None
    except Exception as error:
        raise unwritable(f"{path!r} cannot be written: {_first_line(error)}") from error


def _write_with_data_file(model: ir.Model, target: Path) -> None:
    target = Path(os.path.realpath(target))
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    data_name = f"{target.name}.data"
    try:
        ir.save(model, folder / target.name, external_data=data_name)
        onnx.checker.check_model(os.fspath(folder / target.name), full_check=True)
        os.replace(folder / data_name, target.with_name(data_name))
        os.replace(folder / target.name, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def runnable(model: ir.Model) -> Iterator[bytes | str]:
    """Yield what an ONNX Runtime session takes: the model as bytes, or a temporary file if it is too big for that."""
    if weight_bytes(model) <= EXTERNAL_DATA_BYTES:
        yield ir.to_proto(model).SerializeToString()
        return
    with tempfile.TemporaryDirectory(prefix="dlprune-") as folder:
        path = os.path.join(folder, "model.onnx")
        ir.save(model, path, external_data="model.onnx.data")
        yield path
