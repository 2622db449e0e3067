"""Models of more than two gigabytes, the most that a protobuf message holds: weights lie in a file beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import dlprune as ha
from dlprune import onnxfile
from dlprune.classifier import Classifier

KERNELS, SIZE, CLASSES = 8, 8, 5
#: Hidden features that are not silent; the others have no weights, so that they cost no space on disk.
ALIVE = 24


def large(path: Path, hidden: int) -> dict[str, np.ndarray]:
    """Write a classifier with `hidden` features behind a flattened map, all but a few of them silent."""
    rng = np.random.default_rng(0)
    columns = KERNELS * SIZE * SIZE
    weights = {
        "w1": rng.standard_normal((KERNELS, 3, 3, 3)).astype(np.float32),
        "b1": rng.standard_normal(KERNELS).astype(np.float32),
        "w3": rng.standard_normal((CLASSES, hidden)).astype(np.float32),
    }
    alive = rng.standard_normal((ALIVE, columns)).astype(np.float32)
    with open(path.with_name("weights.bin"), "wb") as stream:
        stream.write(alive.tobytes())
        stream.truncate(4 * hidden * columns)
    big = TensorProto(
        name="w2", data_type=TensorProto.FLOAT, dims=[hidden, columns], data_location=TensorProto.EXTERNAL
    )
    big.external_data.add(key="location", value="weights.bin")
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "w2"], ["h"], name="hidden", transB=1),
        helper.make_node("Relu", ["h"], ["hr"]),
        helper.make_node("Gemm", ["hr", "w3"], ["y"], name="classes", transB=1),
    ]
    entries = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, SIZE, SIZE])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", CLASSES])]
    stored = [big, *(numpy_helper.from_array(array, name) for name, array in weights.items())]
    graph = helper.make_graph(nodes, "large", entries, results, stored)
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    return {**weights, "alive": alive}


def logits(weights: dict[str, np.ndarray], image: np.ndarray, gone: list[int]) -> np.ndarray:
    """The classifier in a few lines of NumPy, without some kernels."""
    padded = np.pad(image[0], [(0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    maps = np.einsum("chwij,kcij->khw", windows, weights["w1"]) + weights["b1"][:, None, None]
    maps = np.maximum(maps, 0)
    maps[gone] = 0
    return weights["w3"][:, :ALIVE] @ np.maximum(weights["alive"] @ maps.reshape(-1), 0)


def check(folder: Path, hidden: int, mode: str, compensation: str) -> Path:
    """Read, score, prune one kernel, write, read again, apply; return the written file."""
    first, last = folder / "large.onnx", folder / "pruned.onnx"
    weights = large(first, hidden)
    model = ha.read_dl_model(str(first))
    settings = {"percentage": 15, "compensation": compensation, "prune_dense": "false"}
    pruning = ha.create_dl_pruning(model, mode, ha.from_python_dict(settings))
    image = np.random.default_rng(1).standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)
    sample = ha.create_dict()
    ha.set_dict_object(np.ascontiguousarray(image[0].transpose(1, 2, 0)), sample, "image")
    if mode != "l2":
        ha.add_dl_pruning_batch(model, pruning, [sample])
    numbers = [ha.get_dl_pruning_param_s(pruning, f"prunable_{what}_num") for what in ("kernel", "conv")]
    assert numbers == [KERNELS - 1, 1]
    pruned = ha.gen_dl_pruned_model(model, pruning)
    assert ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num") == 1
    (gone,) = (ha.get_dict_tuple(info, "pruned_kernel_ids") for info in ha.get_dl_pruning_layer_info(pruning))
    ha.clear_dl_model(model)
    ha.write_dl_model(pruned, str(last))
    ha.clear_dl_model(pruned)
    (result,) = ha.apply_dl_model(ha.read_dl_model(str(last)), [sample], [])
    names = ("classification_class_ids", "classification_confidences")
    found = dict(zip(*(ha.get_dict_tuple(result, name) for name in names), strict=True))
    if compensation == "none":
        expected = logits(weights, image, gone)
        expected = np.exp(expected - expected.max())
        np.testing.assert_allclose([found[i] for i in range(CLASSES)], expected / expected.sum(), atol=1e-4)
    return last


def test_weights_are_read_once_and_no_check_takes_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A protobuf message hands out a copy every time; ONNX's checker parses its own from all that it is given."""
    path, real, sizes = tmp_path / "large.onnx", onnx.checker.check_model, []

    def watched(model: onnx.ModelProto, *arguments: object, **options: object) -> None:
        sizes.append(model.ByteSize())
        real(model, *arguments, **options)

    monkeypatch.setattr(onnx.checker, "check_model", watched)
    large(path, 500)
    classifier = Classifier.read(str(path))
    (big,) = (v.const_value for v in classifier.model.graph.initializers.values() if v.name == "w2")
    assert np.shares_memory(big.numpy(), big.numpy())
    onnxfile.write(classifier.model, str(tmp_path / "again.onnx"))
    assert len(sizes) == 2
    assert max(sizes) < big.nbytes / 10
    again = Classifier.read(str(tmp_path / "again.onnx"))
    np.testing.assert_array_equal(again.model.graph.initializers["w2"].const_value.numpy(), big.numpy())


@pytest.mark.parametrize("wrong", ["dims", "type"])
def test_a_large_weight_that_does_not_fit_its_layer_is_refused(wrong: str, tmp_path: Path) -> None:
    """It goes into the check by its type and shape alone."""
    path = tmp_path / "large.onnx"
    large(path, 500)
    proto = onnx.load(path)
    (big,) = (tensor for tensor in proto.graph.initializer if tensor.name == "w2")
    if wrong == "dims":
        big.dims[0] = 499
    else:
        big.data_type = 99
    onnx.save(proto, path)
    with pytest.raises(ha.HOperatorError) as caught:
        ha.read_dl_model(str(path))
    assert caught.value.error_code == 7801


@pytest.mark.slow
def test_a_model_of_more_than_two_gigabytes_is_pruned_from_file_to_file(tmp_path: Path) -> None:
    """The real thing: 2.6 GB before, 2.2 GB after."""
    last = check(tmp_path, 1_250_000, "l2", "none")
    assert last.with_name("pruned.onnx.data").stat().st_size > 1 << 31
    assert last.stat().st_size < 1 << 20


@pytest.mark.parametrize(("mode", "compensation"), [("l2", "none"), ("oracle", "least_squares")])
def test_what_is_too_large_for_one_message_goes_through_files(
    mode: str, compensation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with a lower limit: reading, scoring, refitting stage by stage, checking, writing."""
    monkeypatch.setattr(onnxfile, "EXTERNAL_DATA_BYTES", 50_000)
    last = check(tmp_path, 500, mode, compensation)
    assert last.with_name("pruned.onnx.data").stat().st_size > 4 * 500 * 7 * SIZE * SIZE
