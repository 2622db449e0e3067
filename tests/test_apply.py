"""Applying models."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from models import plain, saved
from test_model_files import nhwc, softmax, truth, with_head

import dlprune as ha
from dlprune.model import unwrap_model

RNG = np.random.default_rng(3)
IMAGES = RNG.standard_normal((7, 8, 8, 3)).astype(np.float32)
NCHW = np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2))


def samples(images: np.ndarray = IMAGES) -> list[ha.HHandle]:
    return [ha.from_python_dict({"image": image}) for image in images]


def confidences(results: list[ha.HHandle], classes: int = 5) -> np.ndarray:
    """Undo the ranking."""
    rows = np.zeros((len(results), classes))
    for row, result in zip(rows, results, strict=True):
        row[ha.get_dict_tuple(result, "classification_class_ids")] = ha.get_dict_tuple(
            result, "classification_confidences"
        )
    return rows


def read(proto: onnx.ModelProto, tmp_path: Path) -> ha.HHandle:
    return ha.read_dl_model(saved(proto, tmp_path / "a.onnx"))


@pytest.mark.parametrize("head", ["Identity", "Softmax"])
@pytest.mark.parametrize("batch_size", [1, 3, 7, 16])
def test_results_equal_the_reference_whatever_the_batch_size(head: str, batch_size: int, tmp_path: Path):
    handle = read(plain(head=head), tmp_path)
    ha.set_dl_model_param(handle, "batch_size", batch_size)
    results = ha.apply_dl_model(dlmodel_handle=handle, dlsample_batch=samples(), outputs=[])
    np.testing.assert_allclose(confidences(results), softmax(truth(plain(), NCHW)), rtol=1e-5, atol=1e-7)


def test_fixed_batch_is_padded(tmp_path: Path):
    results = ha.apply_dl_model(read(plain(batch=4), tmp_path), samples(), [])
    np.testing.assert_allclose(confidences(results), softmax(truth(plain(), NCHW)), rtol=1e-5, atol=1e-7)


def test_channels_last_models_are_served(tmp_path: Path):
    images = RNG.standard_normal((3, 12, 10, 3)).astype(np.float32)
    results = ha.apply_dl_model(read(nhwc(), tmp_path), samples(images), [])
    np.testing.assert_allclose(confidences(results, 4), softmax(truth(nhwc(), images)), rtol=1e-5, atol=1e-7)


def test_classes_are_ranked_best_first_with_the_users_ids_and_names(tmp_path: Path):
    handle = read(plain(), tmp_path)
    ha.set_dl_model_param(handle, "class_ids", [10, 11, 12, 13, 14])
    ha.set_dl_model_param(handle, "class_names", ["a", "b", "c", "d", "e"])
    (result,) = ha.apply_dl_model(handle, samples()[0], [])
    expected = np.argsort(-truth(plain(), NCHW[:1])[0])
    assert ha.get_dict_tuple(result, "classification_class_ids") == [10 + i for i in expected]
    assert ha.get_dict_tuple(result, "classification_class_names") == ["abcde"[i] for i in expected]
    values = ha.get_dict_tuple(result, "classification_confidences")
    assert values == sorted(values, reverse=True)
    assert sum(values) == pytest.approx(1)


def test_no_samples_give_no_results(tmp_path: Path):
    assert ha.apply_dl_model(read(plain(), tmp_path), [], []) == []


def test_layers_and_outputs_can_be_named(tmp_path: Path):
    handle = read(plain(), tmp_path)
    ha.set_dl_model_param(handle, "batch_size", 4)
    results = [ha.as_python_dict(one) for one in ha.apply_dl_model(handle, samples(), ["Conv_0", "f", "y"])]
    inner = onnx.ModelProto()
    inner.CopyFrom(plain())
    inner.graph.output.insert(0, onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, None))
    expected = truth(inner, NCHW)
    for i, result in enumerate(results):
        assert set(result) == {"Conv_0", "f"} | {
            f"classification_{n}" for n in ("class_ids", "class_names", "confidences")
        }
        np.testing.assert_allclose(result["Conv_0"].array, expected[i].transpose(1, 2, 0), rtol=1e-4, atol=1e-5)
        assert len(result["f"]) == 8


def test_generic_model_returns_its_outputs_by_name(tmp_path: Path):
    handle = read(
        with_head(
            "y = Flatten(g) best = ArgMax<axis=1, keepdims=0>(y) c2 = Relu(c)",
            "float[N,5] y, int64[N] best, float[N,5,6,6] c2",
        ),
        tmp_path,
    )
    ha.set_dl_model_param(handle, "type", "generic")
    for result in map(ha.as_python_dict_s, ha.apply_dl_model(handle, samples(), [])):
        assert np.argmax(result["y"]) == result["best"]
        assert result["c2"].array.shape == (6, 6, 5)


def test_mistakes_have_their_code_and_a_helpful_text(tmp_path: Path):
    handle = read(plain(), tmp_path)
    text_model = read(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> t (float[N,10] a) => (float[N,10] y) { y = Relu(a) }'
        ),
        tmp_path,
    )
    foreign = read(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
            t (float[N,3,8,8] a) => (float[N,10] y) { y = my.Foo(a) }"""
        ),
        tmp_path,
    )
    calls = [
        (lambda: ha.apply_dl_model(handle, samples(), "missing"), 7787),
        (lambda: ha.apply_dl_model(handle, samples(), "x"), 7787),
        (lambda: ha.apply_dl_model(handle, samples(), "w1"), 7787),
        (lambda: ha.apply_dl_model(handle, samples(), 1), 1203),
        (lambda: ha.apply_dl_model(handle, 1, []), 1202),
        (lambda: ha.apply_dl_model(ha.create_dict(), samples(), []), 2404),
        (lambda: ha.apply_dl_model(handle, ha.create_dict(), []), 7783),
        (lambda: ha.apply_dl_model(handle, samples(IMAGES[:, 1:]), []), 7791),
        (lambda: ha.apply_dl_model(text_model, samples(), []), 7912),
        (lambda: ha.apply_dl_model(foreign, samples(), []), 7912),
    ]
    for call, code in calls:
        with pytest.raises(ha.HOperatorError) as caught:
            call()
        assert caught.value.error_code == code
        assert len(caught.value.extended_error_message) > 15


def test_error_in_a_later_batch_names_the_sample(tmp_path: Path):
    batch = samples()
    ha.remove_dict_key(batch[5], "image")
    with pytest.raises(ha.HOperatorError, match="Sample 5"):
        ha.apply_dl_model(read(plain(), tmp_path), batch, [])


def test_threads_may_apply_and_change_one_model(tmp_path: Path):
    handle, batch = read(plain(), tmp_path), samples()
    expected = softmax(truth(plain(), NCHW))

    def work(i: int) -> np.ndarray:
        ha.set_dl_model_param(handle, "batch_size", i % 4 + 1)
        return confidences(ha.apply_dl_model(handle, batch, [] if i % 2 else ["y", "f"]))

    with ThreadPoolExecutor(4) as pool:
        for rows in pool.map(work, range(24)):
            np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-7)


def test_changed_weights_are_seen_by_the_next_run(tmp_path: Path):
    classifier = unwrap_model(read(plain(), tmp_path), 1)
    before = classifier.confidences(NCHW)
    bias = classifier.model.graph.initializers["b3"]
    bias.const_value = ir.tensor(np.array([9, 0, 0, 0, 0], np.float32), name="b3")
    assert (classifier.confidences(NCHW) == before).all()
    classifier.weights_changed()
    assert (classifier.confidences(NCHW).argmax(axis=1) == 0).all()
