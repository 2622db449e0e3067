"""prune_dl_model: the whole job in one call."""

from __future__ import annotations

import numpy as np
import pytest
from models import model as onnx_model
from models import plain

import dlprune as ha
from dlprune.classifier import Classifier
from dlprune.handle import new_handle, unwrap
from dlprune.pruningdata import PruningData


def net(batch: int | str = "N", classes: int = 5) -> ha.HHandle:
    return new_handle("dl_model", Classifier.from_proto(plain(batch=batch, classes=classes)))


def samples(number: int, labels: bool = True) -> list[ha.HHandle]:
    images = np.random.default_rng(3).standard_normal((number, 8, 8, 3)).astype(np.float32)
    entries = [{"image": ha.himage_from_numpy_array(image)} for image in images]
    return [
        ha.from_python_dict({**entry, "image_label_id": i % 5} if labels else entry) for i, entry in enumerate(entries)
    ]


def scores(pruning: ha.HHandle) -> np.ndarray:
    return unwrap(pruning, "dl_pruning", PruningData, 1).scores()


def test_one_call_does_what_the_operators_do() -> None:
    data = samples(24)
    model = net()
    ha.set_dl_model_param(model, "batch_size", 8)
    pruning = ha.create_dl_pruning(model, "oracle", [])
    for start in range(0, 24, 8):
        ha.add_dl_pruning_batch(model, pruning, data[start : start + 8])
    ha.set_dl_pruning_param(pruning, "percentage", 50)
    expected = ha.gen_dl_pruned_model(model, pruning)

    pruned, found, history = ha.prune_dl_model(net(), data, 50)
    np.testing.assert_allclose(scores(found), scores(pruning), rtol=1e-5)
    for name in ("pruned_kernel_num", "pruned_percentage", "percentage", "scored_image_num"):
        assert ha.get_dl_pruning_param_s(found, name) == ha.get_dl_pruning_param_s(pruning, name)
    results = [ha.apply_dl_model(one, data[:8], []) for one in (expected, pruned)]
    confidences = [[ha.get_dict_tuple(result, "classification_confidences") for result in row] for row in results]
    np.testing.assert_allclose(confidences[0], confidences[1], atol=1e-4)
    assert [step["kernel_num"] for step in history] == sorted(step["kernel_num"] for step in history)
    assert history[-1]["kernel_num"] == ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num")
    assert 5 < len(history) <= 7  # of ten percent each of what is left, where that is a kernel at least
    assert all(step["seconds"] > 0 and step["kept"] for step in history)
    assert history[-1]["least_squares"] + history[-1]["bias"] == 2


@pytest.mark.parametrize("batch", ["N", 7])
def test_the_last_batch_may_be_incomplete(batch: int | str) -> None:
    """23 samples are 16 + 7 of an open batch, and 3 × 7 + 2 of a fixed one; each counts once."""
    _, pruning, _ = ha.prune_dl_model(net(batch), samples(23), 30, compensation="none")
    _, one_by_one, _ = ha.prune_dl_model(net(1), samples(23), 30, compensation="none")
    assert ha.get_dl_pruning_param_s(pruning, "scored_image_num") == 23
    np.testing.assert_allclose(scores(pruning), scores(one_by_one), rtol=1e-5)
    assert len(unwrap(pruning, "dl_pruning", PruningData, 1).calibration) == 23


def test_progress_runs_from_0_to_1_in_both_parts() -> None:
    seen: list[tuple[str, float]] = []
    ha.prune_dl_model(net(), samples(40), 40, progress=lambda name, share: seen.append((name, share)))
    for part in ("score", "prune"):
        shares = [share for name, share in seen if name == part]
        assert shares == sorted(shares)
        assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert [name for name, _ in seen] == sorted((name for name, _ in seen), reverse=True)


def interrupt_at(share: float, part: str):
    def progress(name: str, done: float) -> None:
        if name == part and done >= share:
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_call_goes_on_from_the_same_handle() -> None:
    data, model = samples(48), net()
    pruning = ha.create_dl_pruning(model, "oracle", [])
    with pytest.raises(KeyboardInterrupt) as caught:
        ha.prune_dl_model(model, data, 40, progress=interrupt_at(0.5, "score"), dlpruning_handle=pruning)
    assert caught.value.dlpruning_handle == pruning
    assert ha.get_dl_pruning_param_s(pruning, "scored_image_num") == 32
    with pytest.raises(KeyboardInterrupt):
        ha.prune_dl_model(model, data, 40, progress=interrupt_at(0.1, "prune"), dlpruning_handle=pruning)
    assert ha.get_dl_pruning_param_s(pruning, "scored_image_num") == 48
    assert ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num") == 0
    _, again, _ = ha.prune_dl_model(model, data, 40, dlpruning_handle=pruning)
    _, fresh, _ = ha.prune_dl_model(model, data, 40)
    assert again == pruning
    np.testing.assert_allclose(scores(again), scores(fresh), rtol=1e-6)


def test_the_handle_that_an_interrupted_call_has_made_is_in_the_exception() -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        ha.prune_dl_model(net(), samples(48), 40, progress=interrupt_at(0.5, "score"), seed=3)
    handle = caught.value.dlpruning_handle
    assert ha.get_dl_pruning_param_s(handle, "scored_image_num") == 32
    assert ha.get_dl_pruning_param_s(handle, "seed") == 3


def test_another_percentage_needs_no_scoring() -> None:
    data, model = samples(20), net()
    _, pruning, _ = ha.prune_dl_model(model, data, 20)
    before = scores(pruning)
    seen: list[str] = []
    _, _, history = ha.prune_dl_model(
        model, data, 60, dlpruning_handle=pruning, progress=lambda name, share: seen.append(f"{name} {share}")
    )
    assert seen[0] == "score 1.0"
    assert np.array_equal(scores(pruning), before)
    assert history[-1]["kernel_num"] == 7  # of 12 that can leave


def test_a_search_tells_which_steps_it_took_back() -> None:
    settings = {"held_out_image_num": 16, "calibration_image_num": 16, "step_percentage": 50}
    _, pruning, history = ha.prune_dl_model(net(), samples(32, labels=False), 0, target="accuracy_drop", **settings)
    kept = [step for step in history if step["kept"]]
    assert all(step["target_reached"] <= 0 for step in kept)
    assert all(step["target_reached"] > 0 for step in history if not step["kept"])
    last = kept[-1]["kernel_num"] if kept else 0
    assert last == ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num")


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: ha.prune_dl_model(net(), samples(4), 101), 7914),
        (lambda: ha.prune_dl_model(net(), samples(4), 10, colour="red"), 7911),
        (lambda: ha.prune_dl_model(net(), samples(4), 10, mode="guess"), 1302),
        (lambda: ha.prune_dl_model(net(), [], 10), 7980),
        (lambda: ha.prune_dl_model(net(), [net()], 10), 2404),
        (lambda: ha.prune_dl_model(net(), [*samples(2), *samples(2, labels=False)], 10), 7783),
        (lambda: ha.prune_dl_model(net(), samples(4), 10, dlpruning_handle=net()), 2404),
        (lambda: ha.prune_dl_model(net(), samples(4), 10, dlpruning_handle=_other_pruning()), 7980),
    ],
)
def test_what_is_wrong_raises_what_the_operators_raise(call, code: int) -> None:
    with pytest.raises(ha.HOperatorError) as caught:
        call()
    assert caught.value.error_code == code


def _other_pruning() -> ha.HHandle:
    return ha.create_dl_pruning(net(classes=7), "oracle", [])


def test_a_wrong_sample_is_named_by_its_number_in_the_whole_list() -> None:
    data = samples(20)
    ha.set_dict_object(ha.himage_from_numpy_array(np.zeros((4, 4, 3), np.float32)), data[18], "image")
    with pytest.raises(ha.HOperatorError, match="Sample 18"):
        ha.prune_dl_model(net(), data, 10)


def test_a_network_without_prunable_convolution_is_pruned_in_its_dense_layers() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[N,3,8,8] x) => (float[N,5] y) <float[192,20] w1, float[20] b1, float[20,5] w2> {
      f = Flatten(x)
      h = Gemm(f, w1, b1)
      r = Relu(h)
      y = Gemm(r, w2)
    }"""
    model = new_handle("dl_model", Classifier.from_proto(onnx_model(text)))
    _, pruning, history = ha.prune_dl_model(model, samples(30), 50, prune_dense="true")
    assert ha.get_dl_pruning_param_s(pruning, "pruned_feature_num") == history[-1]["feature_num"] == 9
    assert history[-1]["kernel_num"] == 0
