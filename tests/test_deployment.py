"""Models converted for inference: precision, accuracy, size, and what refuses them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import model as build
from models import plain, saved

import dlprune as ha
from dlprune.model import unwrap_model


def cpu() -> ha.HHandle:
    return ha.query_available_dl_devices_s("runtime", "cpu")


@pytest.fixture(scope="module")
def demo() -> ha.HHandle:
    handle = ha.read_dl_model(ha.demo_model_file())
    ha.set_dl_model_param(handle, "batch_size", 50)
    return handle


@pytest.fixture(scope="module")
def before(demo: ha.HHandle) -> float:
    return accuracy(demo)


@pytest.fixture(scope="module")
def converted(demo: ha.HHandle) -> dict[str, tuple[ha.HHandle, dict[str, Any]]]:
    """The demo classifier in each precision, with its report; calibrated on 100 images."""
    samples = ha.demo_samples()[:100]
    found = {}
    for precision in ("float32", "float16", "int8"):
        handle, report = ha.optimize_dl_model_for_inference(demo, cpu(), precision, samples, {"latency_runs": 3})
        found[precision] = (handle, ha.as_python_dict_s(report))
    return found


def accuracy(handle: ha.HHandle) -> float:
    samples = ha.demo_samples("test")
    results = ha.apply_dl_model(handle, samples, [])
    return float(
        np.mean(
            [
                ha.get_dict_tuple(result, "classification_class_ids")[0] == ha.get_dict_tuple_s(one, "image_label_id")
                for one, result in zip(samples, results, strict=True)
            ]
        )
    )


PRECISIONS = ("float32", "float16", "int8")
#: What may be lost on the 600 test images.
BOUNDS = {"float32": 0.0, "float16": 0.002, "int8": 0.01}
#: Weights of a float32 model as a share of its own, at most.
SIZES = {"float32": 1.0, "float16": 0.51, "int8": 0.30}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_test_images_are_decided_as_well_as_before_and_the_file_is_smaller(
    precision: str, demo: ha.HHandle, before: float, converted: dict[str, Any], tmp_path: Path
):
    """Also after writing and reading again."""
    handle, _ = converted[precision]
    path = tmp_path / "converted.onnx"
    ha.write_dl_model(handle, path)
    again = ha.read_dl_model(path)
    assert accuracy(handle) >= before - BOUNDS[precision]
    for one in (handle, again):
        assert ha.get_dl_model_param_s(one, "precision") == precision
        assert ha.get_dl_model_param_s(one, "precision_is_converted") == "true"
        assert ha.get_dl_model_param(one, "class_names") == ha.get_dl_model_param(demo, "class_names")
    sample = ha.demo_samples("test")[7]
    first, second = (ha.as_python_dict(ha.apply_dl_model(one, sample, [])[0]) for one in (handle, again))
    assert first == second
    size = Path(ha.demo_model_file()).stat().st_size
    assert path.stat().st_size < {"float32": 1.0, "float16": 0.55, "int8": 0.36}[precision] * size
    onnx.checker.check_model(onnx.load(path), full_check=True)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_report_tells_what_is_gained_and_lost(precision: str, converted: dict[str, Any]):
    _, report = converted[precision]
    assert report["precision"] == precision
    assert report["num_samples"] == 100
    assert report["accuracy_before"] == 1.0
    assert report["accuracy"] >= 0.98
    assert report["agreement"] >= 0.98
    assert report["weight_bytes"] <= SIZES[precision] * report["weight_bytes_before"]
    assert report["latency"] > 0
    assert report["latency_before"] > 0
    assert report["latency_batch"] == 1


def test_the_original_is_not_changed(demo: ha.HHandle, converted: dict[str, Any]):
    assert ha.get_dl_model_param(demo, "precision") == ["float32"]
    assert ha.get_dl_model_param(demo, "precision_is_converted") == ["false"]
    fresh = ha.read_dl_model(ha.demo_model_file())
    ha.set_dl_model_param(fresh, "batch_size", 50)
    assert unwrap_model(demo, 1).to_bytes() == unwrap_model(fresh, 1).to_bytes()


def test_confidences_are_still_a_softmax_where_the_graph_ends_in_one(tmp_path: Path):
    """The layers behind the logits stay as they are, so that no second softmax is put on top."""
    handle = ha.read_dl_model(saved(plain(head="Softmax"), tmp_path / "a.onnx"))
    rng = np.random.default_rng(3)
    samples = [ha.from_python_dict({"image": rng.standard_normal((8, 8, 3)).astype(np.float32)}) for _ in range(40)]
    small, report = ha.optimize_dl_model_for_inference(handle, cpu(), "int8", samples, {"latency_runs": 0})
    for one in samples[:5]:
        before, after = (ha.as_python_dict(ha.apply_dl_model(m, one, [])[0]) for m in (handle, small))
        confidences = [
            dict(zip(r["classification_class_ids"], r["classification_confidences"], strict=True))
            for r in (before, after)
        ]
        assert confidences[1] == pytest.approx(confidences[0], abs=0.03)
    assert set(ha.as_python_dict_s(report)) == {
        "precision",
        "num_samples",
        "weight_bytes",
        "weight_bytes_before",
        "agreement",
    }


@pytest.mark.parametrize("opset", [7, 11])
def test_old_models_with_a_fixed_batch_are_converted(opset: int, tmp_path: Path):
    """The last batch of samples is filled up."""
    handle = ha.read_dl_model(saved(plain(opset=opset, ir_version=4, batch=4), tmp_path / "a.onnx"))
    rng = np.random.default_rng(4)
    samples = [ha.from_python_dict({"image": rng.standard_normal((8, 8, 3)).astype(np.float32)}) for _ in range(6)]
    small, report = ha.optimize_dl_model_for_inference(handle, cpu(), "int8", samples, [])
    assert ha.get_dict_tuple_s(report, "num_samples") == 6
    assert ha.get_dict_tuple_s(report, "latency_batch") == 4
    ha.write_dl_model(small, tmp_path / "b.onnx")
    assert len(ha.apply_dl_model(ha.read_dl_model(tmp_path / "b.onnx"), samples, [])) == 6


ODD = """<ir_version: 8, opset_import: ["" : 17]>
odd (float[N,3,8,8] x) => (float[N,5] y)
<float[4,3,3,3] w1, float[4,4,3,3] w2, float[4] b, float[4,5] v, float[1] c = {0.5},
 int8[4,5] q = {1,-2,3,-4,5,6,-7,8,-9,10,11,-12,13,-14,15,16,-17,18,-19,20}, float s = {0.1}> {
  a1 = Conv<pads = [1,1,1,1]>(x, w1, b)
  r1 = Celu(a1)
  a2 = Conv<pads = [1,1,1,1]>(r1, w2, b)
  r2 = Relu(a2)
  g = GlobalAveragePool(r2)
  f = Flatten(g)
  m = Gemm(f, v, c)
  k = DequantizeLinear(q, s)
  n = MatMul(f, k)
  y = Add(m, n)
}"""


@pytest.mark.parametrize("precision", PRECISIONS)
def test_shared_and_broadcast_biases_and_weights_stored_as_integers_are_converted(precision: str, tmp_path: Path):
    """ONNX Runtime's tools alone fail on each of these: the converted model must give the same logits."""
    handle = ha.read_dl_model(saved(build(ODD), tmp_path / "a.onnx"))
    rng = np.random.default_rng(6)
    samples = [ha.from_python_dict({"image": rng.standard_normal((8, 8, 3)).astype(np.float32)}) for _ in range(30)]
    converted, _ = ha.optimize_dl_model_for_inference(handle, cpu(), precision, samples, {"latency_runs": 0})
    images = np.stack([ha.get_dict_object(one, "image").array for one in samples]).transpose(0, 3, 1, 2)
    before, after = (unwrap_model(one, 1).logits(np.ascontiguousarray(images)) for one in (handle, converted))
    bound = {"float32": 1e-5, "float16": 0.01, "int8": 0.1}[precision]
    assert np.abs(after - before).max() < bound * np.abs(before).max()


def test_excluded_layers_keep_their_numbers(demo: ha.HHandle):
    sizes = []
    for excluded in ([], ["classes"]):
        gen_param = ha.from_python_dict({"exclude_layers": excluded, "latency_runs": 0})
        small, _ = ha.optimize_dl_model_for_inference(demo, cpu(), "int8", ha.demo_samples()[:20], gen_param)
        weights = unwrap_model(small, 1).model.graph.initializers.values()
        sizes.append(sum(one.const_value.size for one in weights if str(one.const_value.dtype) == "FLOAT"))
    assert sizes[1] - sizes[0] == 10 * 56 - 10  # its weights, in place of a scale per class


@pytest.mark.parametrize("method", ["percentile", "entropy"])
def test_the_tools_leave_output_and_logging_alone(method: str, demo: ha.HHandle, capsys: pytest.CaptureFixture[str]):
    """Samples that do not fill the last batch are fine."""
    before = list(logging.getLogger().handlers)
    gen_param = ha.from_python_dict({"calibration_method": method, "latency_runs": 0})
    ha.optimize_dl_model_for_inference(demo, cpu(), "int8", ha.demo_samples()[:18], gen_param)
    assert capsys.readouterr() == ("", "")
    assert logging.getLogger().handlers == before


def _pruning(demo: ha.HHandle, small: ha.HHandle) -> object:
    return ha.create_dl_pruning(small, "oracle", [])


def _scoring(demo: ha.HHandle, small: ha.HHandle) -> object:
    return ha.add_dl_pruning_batch(small, ha.create_dl_pruning(demo, "oracle", []), ha.demo_samples()[:50])


def _training(demo: ha.HHandle, small: ha.HHandle) -> object:
    return ha.train_dl_model_batch(small, ha.demo_samples()[:50])


def _again(demo: ha.HHandle, small: ha.HHandle) -> object:
    return ha.optimize_dl_model_for_inference(small, cpu(), "float16", [], [])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("use", [_pruning, _scoring, _training, _again])
def test_converted_models_are_neither_pruned_nor_trained(
    use: Callable[..., object], precision: str, demo: ha.HHandle, converted: dict[str, Any]
):
    small = converted[precision][0]
    with pytest.raises(ha.HOperatorError, match="optimize_dl_model_for_inference") as caught:
        use(demo, small)
    assert caught.value.error_code == 7912


def test_a_weight_that_half_precision_cannot_hold_is_an_error():
    """The converter itself would cut it off at 65504."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    big (float[N,1,4,4] x) => (float[N,2] y) <float[1] f = {100000}, float[2,1,1,1] w, float[2,2] v> {
      c = Conv(x, w)  s = Mul(c, f)  r = Relu(s)  g = GlobalAveragePool(r)  l = Flatten(g)  y = MatMul(l, v)
    }"""
    handle = ha.deserialize_dl_model(_item(build(text)))
    with pytest.raises(ha.HOperatorError, match="65504") as caught:
        ha.optimize_dl_model_for_inference(handle, cpu(), "float16", [], [])
    assert caught.value.error_code == 7912


def _item(proto: onnx.ModelProto) -> ha.HHandle:
    from dlprune.classifier import Classifier
    from dlprune.handle import new_handle

    return ha.serialize_dl_model(new_handle("dl_model", Classifier.from_proto(proto)))


def _call(precision: Any = "int8", samples: Any = (), gen_param: Any = (), device: Any = None) -> None:
    handle = ha.read_dl_model(ha.demo_model_file())
    chosen = cpu() if device is None else device
    ha.optimize_dl_model_for_inference(handle, chosen, precision, list(samples), gen_param)


def _generic() -> None:
    handle = ha.read_dl_model(ha.demo_model_file())
    ha.set_dl_model_param(handle, "type", "generic")
    ha.optimize_dl_model_for_inference(handle, cpu(), "int8", ha.demo_samples()[:2], [])


SAMPLES = ha.demo_samples()[:4]
SAMPLE = {"image": np.zeros((16, 16), np.float32)}
MISTAKES: dict[str, tuple[Callable[[], object], int, str]] = {
    "an unknown precision": (lambda: _call("int4", SAMPLES), 1303, "'float16'"),
    "a precision that is no string": (lambda: _call(8, SAMPLES), 1203, "8"),
    "int8 without samples": (lambda: _call("int8"), 1404, "10 to 20"),
    "labels in a part of the samples": (lambda: _call(samples=[*SAMPLES, SAMPLE]), 7783, "Sample 4"),
    "a sample without image": (lambda: _call(samples=[{"a": 1}]), 7783, "image"),
    "a sample of the wrong size": (lambda: _call(samples=[{"image": np.zeros((9, 9), np.float32)}]), 7791, "9"),
    "a model as device": (lambda: _call(device=ha.read_dl_model(ha.demo_model_file())), 2404, "dl_device"),
    "no device": (lambda: _call(device=3), 1202, "dl_device"),
    "a dictionary as model": (
        lambda: ha.optimize_dl_model_for_inference(ha.create_dict(), cpu(), "int8", SAMPLES, []),
        2404,
        "dl_model",
    ),
    "a model of type generic": (_generic, 7912, "classification"),
    "an unknown generic parameter": (lambda: _call(samples=SAMPLES, gen_param={"speed": 1}), 7911, "speed"),
    "an unknown calibration": (lambda: _call(samples=SAMPLES, gen_param={"calibration_method": "x"}), 7914, "entropy"),
    "an unknown layer": (lambda: _call(samples=SAMPLES, gen_param={"exclude_layers": "x"}), 7914, "layer_names"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_its_code_and_a_helpful_message(mistake: str):
    make, code, hint = MISTAKES[mistake]
    with pytest.raises(ha.HOperatorError) as caught:
        make()
    assert caught.value.error_code == code
    assert hint in caught.value.extended_error_message


def test_samples_without_labels_give_a_report_without_accuracy():
    handle = ha.read_dl_model(ha.demo_model_file())
    samples = [{"image": ha.get_dict_object(one, "image")} for one in SAMPLES]
    _, report = ha.optimize_dl_model_for_inference(handle, cpu(), "int8", samples, {"latency_runs": 0})
    entries = ha.as_python_dict_s(report)
    assert "agreement" in entries
    assert not {"accuracy", "accuracy_before"} & entries.keys()
