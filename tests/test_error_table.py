"""Every mistake that a caller of the operators can make has its code and a message that helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import model, plain, saved

import dlprune as ha
from dlprune.model import unwrap_model

LINEAR = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,3,8,8] x) => (float[N,5] y) <float[192,5] w> { f = Flatten(x)  y = MatMul(f, w) }"""


@dataclass
class Bench:
    """What the mistakes are made with: files, a model with its pruning handle, samples."""

    folder: Path

    def file(self, proto: onnx.ModelProto | bytes, name: str = "model.onnx") -> str:
        if isinstance(proto, bytes):
            (self.folder / name).write_bytes(proto)
            return str(self.folder / name)
        return saved(proto, self.folder / name)

    def model(self, **keywords: Any) -> ha.HHandle:
        return ha.read_dl_model(self.file(plain(**keywords)))

    def pruning(self) -> tuple[ha.HHandle, ha.HHandle]:
        handle = self.model()
        return handle, ha.create_dl_pruning(handle, "oracle", [])

    def sample(self, *, size: int = 8, channels: int = 3, dtype: type = np.float32, label: object = 1) -> ha.HHandle:
        image = np.ones((size, size, channels), dtype)
        found: dict[str, object] = {"image": ha.himage_from_numpy_array(image)}
        if label is not None:
            found["image_label_id"] = label
        return ha.from_python_dict(found)

    def add(self, *samples: ha.HHandle) -> None:
        handle, pruning = self.pruning()
        ha.set_dl_model_param(handle, "batch_size", max(len(samples), 1))
        ha.add_dl_pruning_batch(handle, pruning, list(samples))


def _set(bench: Bench, name: str, value: object) -> None:
    ha.set_dl_pruning_param(bench.pruning()[1], name, value)  # type: ignore[arg-type]


def _cleared(bench: Bench) -> None:
    handle, pruning = bench.pruning()
    ha.clear_handle(pruning)
    ha.gen_dl_pruned_model(handle, pruning)


def _other_architecture(bench: Bench) -> None:
    _, pruning = bench.pruning()
    ha.add_dl_pruning_batch(bench.model(classes=7), pruning, [bench.sample()])


def _nan_image(bench: Bench) -> None:
    image = np.ones((8, 8, 3), np.float32)
    image[2, 3, 1] = np.nan
    bench.add(ha.from_python_dict({"image": ha.himage_from_numpy_array(image), "image_label_id": 0}))


def _nan_weight(bench: Bench) -> None:
    proto = plain()
    proto.graph.initializer[0].raw_data = np.full(6 * 27, np.nan, np.float32).tobytes()
    ha.read_dl_model(bench.file(proto))


def _generic(bench: Bench) -> None:
    handle = bench.model()
    ha.set_dl_model_param(handle, "type", "generic")
    ha.create_dl_pruning(handle, "oracle", [])


def _unsupported_parameter(bench: Bench) -> None:
    handle = bench.model()
    ha.create_dl_pruning(handle, "oracle", ha.from_python_dict({"percentage": 20, "colour": "red"}))


MISTAKES: dict[str, tuple[Callable[[Bench], object], int, str]] = {
    "no such file": (lambda b: ha.read_dl_model("no/such.onnx"), 5200, "no/such.onnx"),
    "a folder": (lambda b: ha.read_dl_model(str(b.folder)), 7801, "folder"),
    "an empty file": (lambda b: ha.read_dl_model(b.file(b"")), 7801, "empty"),
    "a truncated file": (
        lambda b: ha.read_dl_model(b.file(plain().SerializeToString()[:900])),
        7801,
        "truncated",
    ),
    "a protobuf that is no network": (lambda b: ha.read_dl_model(b.file(onnx.ModelProto(ir_version=8))), 7801, ""),
    "HALCON's own format": (lambda b: ha.read_dl_model(b.file(b"x", "a.hdl")), 7801, ".onnx"),
    "NaN in a weight": (_nan_weight, 7801, "NaN"),
    "another file type for writing": (lambda b: ha.write_dl_model(b.model(), str(b.folder / "a.hdl")), 7803, ".onnx"),
    "a folder that is not there": (lambda b: ha.write_dl_model(b.model(), str(b.folder / "x/a.onnx")), 7803, "folder"),
    "an unknown mode": (lambda b: ha.create_dl_pruning(b.model(), "magic", []), 1302, "oracle"),
    "a mode that is no string": (lambda b: ha.create_dl_pruning(b.model(), 1, []), 1202, "string"),
    "no handle": (lambda b: ha.create_dl_pruning(1, "oracle", []), 1201, "handle"),
    "an unknown parameter in gen_param": (_unsupported_parameter, 7911, "colour"),
    "a model without convolution": (
        lambda b: ha.create_dl_pruning(ha.read_dl_model(b.file(model(LINEAR))), "oracle", []),
        7981,
        "no convolution",
    ),
    "a model of type generic": (_generic, 7912, "classification"),
    "percentage 101": (lambda b: _set(b, "percentage", 101), 7914, "101"),
    "percentage -1": (lambda b: _set(b, "percentage", -1), 7914, "-1"),
    "percentage x": (lambda b: _set(b, "percentage", "x"), 1203, "x"),
    "percentage NaN": (lambda b: _set(b, "percentage", float("nan")), 7914, "nan"),
    "two percentages": (lambda b: _set(b, "percentage", [1, 2]), 1403, "2"),
    "an unknown parameter": (lambda b: _set(b, "speed", 1), 7911, "speed"),
    "a result that is set": (lambda b: _set(b, "pruned_percentage", 1), 7911, "only be read"),
    "an unknown result": (lambda b: ha.get_dl_pruning_param(b.pruning()[1], "speed"), 7911, "speed"),
    "a cleared handle": (_cleared, 2454, "cleared"),
    "a handle of another type": (
        lambda b: ha.gen_dl_pruned_model(b.pruning()[0], ha.create_dict()),
        2404,
        "dl_pruning",
    ),
    "a model of another architecture": (_other_architecture, 7980, "architecture"),
    "no batch added": (lambda b: ha.gen_dl_pruned_model(*b.pruning()), 7980, "add_dl_pruning_batch"),
    "an empty batch": (lambda b: b.add(), 7784, "batch_size"),
    "a batch of the wrong length": (
        lambda b: ha.add_dl_pruning_batch(*b.pruning(), [b.sample(), b.sample()]),
        7784,
        "2 samples",
    ),
    "a sample without image": (lambda b: b.add(ha.from_python_dict({"image_label_id": 1})), 7783, "image"),
    "an image that is a number": (lambda b: b.add(ha.from_python_dict({"image": 1})), 7790, "image"),
    "an image of the wrong size": (lambda b: b.add(b.sample(size=9)), 7791, "9"),
    "an image of the wrong number of channels": (lambda b: b.add(b.sample(channels=1)), 7791, "channels"),
    "an image of the wrong type": (lambda b: b.add(b.sample(dtype=np.uint8)), 7791, "uint8"),
    "NaN in an image": (_nan_image, 7791, "row 2"),
    "a label outside the classes": (lambda b: b.add(b.sample(label=5)), 7793, "5"),
    "a label that is no integer": (lambda b: b.add(b.sample(label="cat")), 7790, "cat"),
    "labels in a part of the batch": (lambda b: b.add(b.sample(), b.sample(label=None)), 7783, "label"),
    "a sample that is no dictionary": (lambda b: b.add(b.model()), 2404, "dict"),
    "a key that is not there": (lambda b: ha.get_dict_tuple(ha.create_dict(), "a"), 2894, "a"),
    "bytes that are no item": (
        lambda b: ha.deserialize_handle(ha.serialized_item_from_bytes(b"hello")),
        9580,
        "dlprune",
    ),
    "a truncated item": (
        lambda b: ha.deserialize_handle(
            ha.serialized_item_from_bytes(ha.serialized_item_as_bytes(ha.serialize_handle(b.pruning()[1]))[:60])
        ),
        9581,
        "60 bytes",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_its_code_and_a_helpful_message(mistake, tmp_path):
    make, code, hint = MISTAKES[mistake]
    with pytest.raises(ha.HOperatorError) as caught:
        make(Bench(tmp_path))
    error = caught.value
    assert error.error_code == code
    assert error.message == ha.get_error_text(code)
    assert hint in error.extended_error_message
    assert str(error) == f"{error.message}: {error.extended_error_message}"
    assert not [path for path in tmp_path.rglob("*") if path.suffix not in (".onnx", ".hdl")]


@pytest.mark.parametrize("value", [True, None, [[1]]])
def test_values_that_halcon_does_not_know_are_refused(value, tmp_path):
    with pytest.raises(ha.HTupleConversionError):
        _set(Bench(tmp_path), "percentage", value)


def test_a_failed_operator_changes_nothing(tmp_path):
    bench = Bench(tmp_path)
    handle, pruning = bench.pruning()
    ha.add_dl_pruning_batch(handle, pruning, [bench.sample()])
    before = ha.serialized_item_as_bytes(ha.serialize_handle(pruning))
    graph = unwrap_model(handle, 1).to_bytes()
    for wrong in ([bench.sample(size=9)], [bench.sample(), bench.sample()], []):
        with pytest.raises(ha.HOperatorError):
            ha.add_dl_pruning_batch(handle, pruning, wrong)
    with pytest.raises(ha.HOperatorError):
        ha.set_dl_pruning_param(pruning, "percentage", 200)
    with pytest.raises(ha.HOperatorError):
        ha.gen_dl_pruned_model(bench.model(classes=7), pruning)
    assert ha.serialized_item_as_bytes(ha.serialize_handle(pruning)) == before
    assert unwrap_model(handle, 1).to_bytes() == graph
