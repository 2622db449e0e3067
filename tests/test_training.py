"""Training steps: solvers, statistics, and the way weights take between ONNX Runtime and the graph."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import dlprune as ha
from dlprune import errors
from dlprune.classifier import Classifier
from dlprune.model import unwrap_model
from dlprune.training.recipe import Rates, Recipe
from dlprune.training.trainer import trainer_of

NORMALISED = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,3,8,8] x) => (float[N,4] y)
<float[6,3,3,3] w1, float[6] s1, float[6] t1, float[6] m1, float[6] var1, float[4,6] w2, float[4] b2> {
  a = Conv<pads = [1,1,1,1]>(x, w1)
  b = BatchNormalization(a, s1, t1, m1, var1)
  r = Relu(b)
  g = GlobalAveragePool(r)
  f = Flatten(g)
  y = Gemm<transB = 1>(f, w2, b2)
}"""


def handle_of(proto: onnx.ModelProto, folder: Path, **params: Any) -> ha.HHandle:
    handle = ha.read_dl_model(models.saved(proto, folder / "model.onnx"))
    for name, value in {"batch_size": 4, "learning_rate": 0.01, **params}.items():
        ha.set_dl_model_param(handle, name, value)
    return handle


@pytest.fixture
def handle(tmp_path: Path) -> ha.HHandle:
    return handle_of(models.model(NORMALISED), tmp_path)


def samples(number: int = 4, *, channels: int = 3, classes: int = 4, seed: int = 0, label: bool = True) -> list[Any]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(number):
        image = ha.himage_from_numpy_array(rng.standard_normal((8, 8, channels)).astype(np.float32))
        entries = {"image": image, "image_label_id": int(rng.integers(classes))}
        if not label:
            del entries["image_label_id"]
        made.append(ha.from_python_dict(entries))
    return made


def train(handle: ha.HHandle, steps: int = 1, seed: int = 0, number: int = 4) -> list[float]:
    return [
        ha.get_dict_tuple_s(ha.train_dl_model_batch(handle, samples(number, seed=seed + i)), "total_loss")
        for i in range(steps)
    ]


def weights(handle: ha.HHandle) -> dict[str, np.ndarray]:
    graph = unwrap_model(handle, 1).model.graph
    return {name: value.const_value.numpy().copy() for name, value in graph.initializers.items()}


def code_of(call: Any) -> tuple[int, str]:
    with pytest.raises(ha.HOperatorError) as caught:
        call()
    return caught.value.error_code, str(caught.value)


# --- solvers ---------------------------------------------------------------------------------------------------------


def velocity(handle: ha.HHandle) -> dict[str, np.ndarray]:
    return dict(trainer_of(unwrap_model(handle, 1)).snapshot().states["velocity"])


def test_sgd_keeps_a_share_of_the_last_step(handle: ha.HHandle):
    """w ← w + v with v ← momentum·v − learning_rate·gradient, for constant gradients seen twice."""
    ha.set_dl_model_param(handle, "momentum", 0.5)
    before = weights(handle)
    train(handle)
    first, middle = velocity(handle), weights(handle)
    for name, v in first.items():
        np.testing.assert_allclose(middle[name] - before[name], v, atol=1e-7)
    train(handle)
    second, after = velocity(handle), weights(handle)
    for name, v in second.items():
        np.testing.assert_allclose(after[name] - middle[name], v, atol=1e-7)
    ha.set_dl_model_param(handle, "learning_rate", 1e-30)
    train(handle)
    for name, v in velocity(handle).items():
        np.testing.assert_allclose(v, 0.5 * second[name], rtol=1e-6, atol=1e-12)


def test_adam_follows_the_published_formula(handle: ha.HHandle, tmp_path: Path):
    """Three steps equal NumPy's with the same gradients."""
    ha.set_dl_model_param(handle, "solver_type", "adam")
    ha.set_dl_model_param(handle, "adam_beta2", 0.99)
    start = weights(handle)
    mean = {name: np.zeros(array.shape) for name, array in start.items()}
    square = {name: np.zeros(array.shape) for name, array in start.items()}
    expected = {name: array.astype(np.float64) for name, array in start.items()}
    for step in range(1, 4):
        twin = handle_of(models.model(NORMALISED), tmp_path, momentum=0.0, learning_rate=1.0)
        graph = unwrap_model(twin, 1).model.graph
        for name, value in unwrap_model(handle, 1).model.graph.initializers.items():
            graph.initializers[name].const_value = value.const_value
        unwrap_model(twin, 1).weights_changed()
        train(twin, seed=step)
        for name, v in velocity(twin).items():
            gradient = -v.astype(np.float64)
            mean[name] = 0.9 * mean[name] + 0.1 * gradient
            square[name] = 0.99 * square[name] + 0.01 * gradient**2
            fixed = np.sqrt(square[name] / (1 - 0.99**step)) + 1e-8
            expected[name] -= 0.01 * mean[name] / (1 - 0.9**step) / fixed
        train(handle, seed=step)
        for name in velocity(twin):
            np.testing.assert_allclose(weights(handle)[name], expected[name], atol=1e-5)


def test_the_first_relative_step_moves_each_tensor_by_a_share_of_its_size(tmp_path: Path):
    """w ← w − λ·g/(|g| + ε)·max(10⁻³, root mean square of w): Adam's first step, times Adafactor's size."""
    proto = models.model(NORMALISED)
    next(tensor for tensor in proto.graph.initializer if tensor.name == "b2").CopyFrom(
        numpy_helper.from_array(np.zeros(4, np.float32), "b2")
    )
    plain, relative = (handle_of(proto, tmp_path) for _ in range(2))
    start = weights(plain)
    images, labels = np.random.default_rng(1).standard_normal((4, 3, 8, 8)).astype(np.float32), np.arange(4)
    for handle, solver in ((plain, "sgd"), (relative, "relative_adam")):
        classifier, rates = unwrap_model(handle, 1), Rates(0.01 if solver != "sgd" else 1.0, momentum=0.0)
        trainer_of(classifier).step(classifier, Recipe(images.shape, solver=solver), rates, images, labels)
    after = weights(relative)
    for name, v in velocity(plain).items():
        size = max(1e-3, np.sqrt(np.mean(start[name].astype(np.float64) ** 2)))
        np.testing.assert_allclose(after[name], start[name] + 0.01 * size * v / (np.abs(v) + 1e-8), atol=1e-6)
    assert np.abs(after["b2"]).max() == pytest.approx(1e-5, rel=1e-2)


def test_weight_prior_acts_on_kernels_alone(handle: ha.HHandle, tmp_path: Path):
    """The loss grows by α/2·Σ w² over kernels, their gradient by α·w; vectors are left out."""
    plain = handle_of(models.model(NORMALISED), tmp_path)
    ha.set_dl_model_param(handle, "weight_prior", 0.1)
    start = weights(handle)
    difference = train(handle)[0] - train(plain)[0]
    kernels = ("w1", "w2")
    assert difference == pytest.approx(0.05 * sum(float((start[name] ** 2).sum()) for name in kernels), rel=1e-5)
    for name, v in velocity(handle).items():
        extra = 0.01 * 0.1 * start[name] if name in kernels else 0.0
        np.testing.assert_allclose(velocity(plain)[name] - v, np.broadcast_to(extra, v.shape), atol=1e-7)


def test_parts_make_the_same_step_as_one_batch(tmp_path: Path):
    """With batch_size 2 and multiplier 2 a net without BatchNormalization goes where batch_size 4 goes."""
    whole = handle_of(models.plain(), tmp_path)
    parts = handle_of(models.plain(), tmp_path, batch_size=2, batch_size_multiplier=2)
    losses = [train(whole, 3), train(parts, 3)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    for name, array in weights(whole).items():
        np.testing.assert_allclose(weights(parts)[name], array, atol=1e-6)


def test_loss_goes_down_on_the_same_batch(handle: ha.HHandle):
    ha.set_dl_model_param(handle, "solver_type", "adam")
    ha.set_dl_model_param(handle, "learning_rate", 0.1)
    losses = [train(handle)[0] for _ in range(30)]
    assert losses[-1] < 0.1 * losses[0]


# --- BatchNormalization ----------------------------------------------------------------------------------------------


def test_running_statistics_follow_the_batch(handle: ha.HHandle):
    """running ← momentum·running + (1 − momentum)·(mean, unbiased variance) of the batch."""
    ha.set_dl_model_param(handle, "batchnorm_momentum", 0.75)
    classifier = unwrap_model(handle, 1)
    before = weights(handle)
    batch = np.stack([ha.himage_as_numpy_array(ha.get_dict_object(s, "image")) for s in samples()])
    (a,) = classifier.run(np.ascontiguousarray(batch.transpose(0, 3, 1, 2)), ["a"])
    train(handle)
    after = weights(handle)
    np.testing.assert_allclose(after["m1"], 0.75 * before["m1"] + 0.25 * a.mean(axis=(0, 2, 3)), rtol=1e-4, atol=1e-6)
    variance = a.transpose(1, 0, 2, 3).reshape(6, -1).var(axis=1, ddof=1)
    np.testing.assert_allclose(after["var1"], 0.75 * before["var1"] + 0.25 * variance, rtol=1e-4)


def test_frozen_statistics_stay(handle: ha.HHandle):
    """'batchnorm_frozen' leaves mean and variance alone; scale and shift are trained all the same."""
    ha.set_dl_model_param(handle, "batchnorm_frozen", "true")
    before = weights(handle)
    train(handle, 2)
    after = weights(handle)
    for name in ("m1", "var1"):
        np.testing.assert_array_equal(after[name], before[name])
    assert np.abs(after["s1"] - before["s1"]).max() > 0


def test_statistics_of_a_single_value_are_refused(tmp_path: Path):
    proto = models.model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[N,3,8,8] x) => (float[N,4] y) <float[4,3,8,8] w, float[4] s, float[4] t, float[4] m, float[4] var> {
          a = Conv(x, w)
          b = BatchNormalization(a, s, t, m, var)
          y = Flatten(b)
        }"""
    )
    handle = handle_of(proto, tmp_path, batch_size=1)
    code, text = code_of(lambda: train(handle, number=1))
    assert code == errors.H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED
    assert "batchnorm_frozen" in text
    ha.set_dl_model_param(handle, "batchnorm_frozen", "true")
    train(handle, number=1)


# --- which weights ---------------------------------------------------------------------------------------------------


def test_frozen_weights_stay(handle: ha.HHandle):
    everything = ha.get_dl_model_param_s(handle, "num_trainable_params")
    ha.set_dl_model_param(handle, "frozen_weights", ["w1", "?2"])
    assert ha.get_dl_model_param(handle, "frozen_weights") == ["w1", "?2"]
    assert ha.get_dl_model_param_s(handle, "num_trainable_params") == everything - 6 * 27 - 4 * 6 - 4
    before = weights(handle)
    train(handle, 2)
    after = weights(handle)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"s1", "t1", "m1", "var1"}
    ha.set_dl_model_param(handle, "frozen_weights", [])
    train(handle)
    assert not np.array_equal(weights(handle)["w1"], before["w1"])


def test_a_pattern_that_fits_nothing_is_refused(handle: ha.HHandle):
    ha.set_dl_model_param(handle, "frozen_weights", ["stage9.*"])
    code, text = code_of(lambda: train(handle))
    assert code == errors.H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE
    assert "stage9" in text
    assert "w1" in text


def test_merged_vectors_are_trained_apart(tmp_path: Path):
    """Two layers whose biases an exporter stored once get different biases; a layer applied twice keeps one."""
    proto = models.model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[N,3,8,8] x) => (float[N,4] y)
        <float[3,3,3,3] w1, float[3,3,3,3] w2, float[3,3,3,3] w3, float[3] b, float[4,3,1,1] w4, float[4] c> {
          a = Conv<pads = [1,1,1,1]>(x, w1, b)
          ar = Sigmoid(a)
          bias2 = Identity(b)
          d = Conv<pads = [1,1,1,1]>(ar, w2, bias2)
          dr = Sigmoid(d)
          e = Conv<pads = [1,1,1,1]>(dr, w3, b)
          er = Sigmoid(e)
          h = Conv<pads = [1,1,1,1]>(er, w3, b)
          k = Conv(h, w4, c)
          g = GlobalAveragePool(k)
          y = Flatten(g)
        }"""
    )
    handle = handle_of(proto, tmp_path)
    before = unwrap_model(handle, 1).confidences(np.ones((4, 3, 8, 8), np.float32))
    trainer_of(unwrap_model(handle, 1))
    np.testing.assert_array_equal(unwrap_model(handle, 1).confidences(np.ones((4, 3, 8, 8), np.float32)), before)
    train(handle, 2)
    after = weights(handle)
    biases = [name for name, array in after.items() if array.shape == (3,)]
    assert len(biases) == 3
    assert "bias2" in biases
    assert len({after[name].tobytes() for name in biases}) == 3
    ha.write_dl_model(handle, str(tmp_path / "out.onnx"))
    again = ha.read_dl_model(str(tmp_path / "out.onnx"))
    assert weights(again).keys() == after.keys()


def test_half_precision_is_trained_in_single_precision(tmp_path: Path):
    """Small steps add up although a single one is lost in float16; the file keeps its type."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    proto = convert_float_to_float16(models.plain())
    handle = handle_of(proto, tmp_path, learning_rate=1e-6, momentum=0.0)
    before = weights(handle)
    train(handle, 3)
    after = weights(handle)
    assert {array.dtype for array in after.values()} == {array.dtype for array in before.values()}
    assert np.dtype(np.float16) in {array.dtype for array in after.values()}
    trained = trainer_of(unwrap_model(handle, 1)).snapshot().weights
    assert any(not np.array_equal(trained[name], before[name].astype(np.float32)) for name in trained)


# --- any order of operators ------------------------------------------------------------------------------------------


def confidences(handle: ha.HHandle) -> list[Any]:
    return [ha.get_dict_tuple(r, "classification_confidences") for r in ha.apply_dl_model(handle, samples(seed=99), [])]


def test_apply_and_write_see_the_trained_weights(handle: ha.HHandle, tmp_path: Path):
    """After every step apply_dl_model gives what the written file gives."""
    seen = [confidences(handle)]
    for step in range(3):
        train(handle, seed=step)
        seen.append(confidences(handle))
        ha.write_dl_model(handle, str(tmp_path / "now.onnx"))
        assert confidences(ha.read_dl_model(str(tmp_path / "now.onnx"))) == seen[-1]
    assert len({str(one) for one in seen}) == 4


def test_looking_does_not_disturb_training(tmp_path: Path):
    """Losses and final weights are the same whether or not other operators come between the steps."""
    quiet = handle_of(models.model(NORMALISED), tmp_path)
    watched = handle_of(models.model(NORMALISED), tmp_path)
    pruning = ha.create_dl_pruning(watched, "oracle", [])
    expected = train(quiet, 4)
    seen = []
    for step in range(4):
        confidences(watched)
        with warnings.catch_warnings(action="ignore"):  # that scores are stale
            ha.add_dl_pruning_batch(watched, pruning, samples(seed=50 + step))
        seen += train(watched, seed=step)
        ha.get_dl_model_param(watched, "num_trainable_params")
        with pytest.warns(UserWarning, match="other weights"):
            ha.gen_dl_pruned_model(watched, pruning)
        ha.write_dl_model(watched, str(tmp_path / "now.onnx"))
        ha.serialize_dl_model(watched)
    assert seen == expected
    for name, array in weights(quiet).items():
        np.testing.assert_array_equal(weights(watched)[name], array)


def test_scores_are_those_of_the_trained_weights(handle: ha.HHandle, tmp_path: Path):
    """Scoring after training equals scoring the written file; data made before the training still fit."""
    pruning = ha.create_dl_pruning(handle, "oracle", [])
    ha.add_dl_pruning_batch(handle, ha.create_dl_pruning(handle, "oracle", []), samples())
    train(handle, 2)
    ha.add_dl_pruning_batch(handle, pruning, samples())
    ha.write_dl_model(handle, str(tmp_path / "now.onnx"))
    again = ha.read_dl_model(str(tmp_path / "now.onnx"))
    ha.set_dl_model_param(again, "batch_size", 4)
    other = ha.create_dl_pruning(again, "oracle", [])
    ha.add_dl_pruning_batch(again, other, samples())
    scores = [
        [ha.get_dict_tuple(layer, "kernel_scores") for layer in ha.get_dl_pruning_layer_info(one)]
        for one in (pruning, other)
    ]
    assert scores[0] == scores[1]


def test_pruning_data_fit_after_merged_vectors_were_separated():
    """The demo file stores two pairs of equal biases once; training separates them, scores made before stay valid."""
    model = ha.read_dl_model(ha.demo_model_file())
    ha.set_dl_model_param(model, "batch_size", 4)
    ha.set_dl_model_param(model, "learning_rate", 1e-5)
    batch = ha.demo_samples()[:4]
    pruning = ha.create_dl_pruning(model, "oracle", [])
    ha.add_dl_pruning_batch(model, pruning, batch)
    ha.train_dl_model_batch(model, batch)
    with pytest.warns(UserWarning, match="other weights"):
        ha.add_dl_pruning_batch(model, pruning, batch)
    for name in ("percentage", "step_percentage"):
        ha.set_dl_pruning_param(pruning, name, 30)
    pruned = ha.gen_dl_pruned_model(model, pruning)
    loss = ha.get_dict_tuple_s(ha.train_dl_model_batch(pruned, batch), "total_loss")
    assert np.isfinite(loss)


def test_copies_do_not_see_later_steps(handle: ha.HHandle):
    """A copy made between steps keeps its weights, whatever either of them is trained with afterwards."""
    train(handle)
    copy = ha.deserialize_dl_model(ha.serialize_dl_model(handle))
    clone = unwrap_model(handle, 1).clone()
    before = {name: v.const_value.numpy().copy() for name, v in clone.model.graph.initializers.items()}
    train(handle, 3)
    for name, array in before.items():
        np.testing.assert_array_equal(clone.model.graph.initializers[name].const_value.numpy(), array)
        np.testing.assert_array_equal(weights(copy)[name], array)


def test_parameters_may_change_between_steps(tmp_path: Path):
    """Batch size and multiplier may change at any time; the velocity goes on."""
    handle = handle_of(models.plain(), tmp_path)
    same = handle_of(models.plain(), tmp_path)
    for step, (size, parts) in enumerate([(4, 1), (2, 2), (1, 4), (4, 1)]):
        ha.set_dl_model_param(handle, "batch_size", size)
        ha.set_dl_model_param(handle, "batch_size_multiplier", parts)
        train(handle, seed=step)
        train(same, seed=step)
    for name, array in weights(same).items():
        np.testing.assert_allclose(weights(handle)[name], array, atol=1e-6)


def test_changing_the_solver_starts_it_afresh(handle: ha.HHandle):
    train(handle, 2)
    ha.set_dl_model_param(handle, "solver_type", "adam")
    train(handle)
    trainer = trainer_of(unwrap_model(handle, 1))
    assert trainer.snapshot().steps == 1
    assert trainer.step_count == 3


def test_training_repeats_exactly(tmp_path: Path):
    first = handle_of(models.model(NORMALISED), tmp_path)
    second = handle_of(models.model(NORMALISED), tmp_path)
    assert train(first, 5) == train(second, 5)
    for name, array in weights(first).items():
        np.testing.assert_array_equal(weights(second)[name], array)


def test_snapshot_goes_on_where_it_was_taken(handle: ha.HHandle):
    """Weights, velocity, statistics and the count of steps come back."""
    train(handle, 2)
    trainer = trainer_of(unwrap_model(handle, 1))
    snapshot = trainer.snapshot()
    expected = train(handle, 3, seed=5)
    final = weights(handle)
    trainer.restore(snapshot, 2)
    assert trainer.step_count == 2
    assert train(handle, 3, seed=5) == expected
    for name, array in weights(handle).items():
        np.testing.assert_array_equal(final[name], array)


def test_threads_take_turns(handle: ha.HHandle):
    """Steps and applications from several threads do not mix; every step counts."""
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            for step in range(5):
                if index % 2:
                    train(handle, seed=10 * index + step)
                else:
                    confidences(handle)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert trainer_of(unwrap_model(handle, 1)).step_count == 10


# --- masks -----------------------------------------------------------------------------------------------------------


def test_masked_weights_stay_zero(handle: ha.HHandle):
    """A mask zeroes at once and after every step; other elements go on; masks can be replaced and removed."""
    train(handle)
    trainer = trainer_of(unwrap_model(handle, 1))
    mask = (np.random.default_rng(0).random((6, 3, 3, 3)) < 0.5).astype(np.float32)
    trainer.set_masks({"w1": mask})
    assert np.array_equal(weights(handle)["w1"] != 0, mask != 0)
    before = weights(handle)["w1"]
    train(handle, 2)
    after = weights(handle)["w1"]
    assert np.array_equal(after != 0, mask != 0)
    assert not np.array_equal(after, before)
    tighter = mask.copy()
    tighter[0] = 0
    trainer.set_masks({"w1": tighter})
    train(handle)
    assert np.array_equal(weights(handle)["w1"] != 0, tighter != 0)
    trainer.set_masks({})
    train(handle)
    assert (weights(handle)["w1"] != 0).all()


def test_masks_of_another_shape_are_refused(handle: ha.HHandle):
    trainer = trainer_of(unwrap_model(handle, 1))
    with pytest.raises(ValueError, match="shape"):
        trainer.set_masks({"w1": np.ones((6, 3, 3, 2), np.float32)})
    with pytest.raises(KeyError):
        trainer.set_masks({"w9": np.ones(3, np.float32)})


# --- bad input -------------------------------------------------------------------------------------------------------


def test_wrong_batch_length_is_error_7800(handle: ha.HHandle):
    ha.set_dl_model_param(handle, "batch_size_multiplier", 2)
    code, text = code_of(lambda: ha.train_dl_model_batch(handle, samples(4)))
    assert code == errors.H_ERR_DL_INPUT_WRONG_BS_WITH_MULTIPLIER
    assert "8" in text


def test_a_label_is_needed(handle: ha.HHandle):
    assert code_of(lambda: ha.train_dl_model_batch(handle, samples(label=False)))[0] == 7783
    some = [*samples(3), *samples(1, label=False)]
    assert code_of(lambda: ha.train_dl_model_batch(handle, some))[0] == 7783


def test_an_unknown_class_is_error_7793(handle: ha.HHandle):
    assert code_of(lambda: ha.train_dl_model_batch(handle, samples(classes=1000)))[0] == 7793


def test_generic_models_are_refused(handle: ha.HHandle):
    ha.set_dl_model_param(handle, "type", "generic")
    assert code_of(lambda: train(handle))[0] == errors.H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED


def test_an_operator_without_gradient_is_named(tmp_path: Path):
    proto = models.model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[N,3,8,8] x) => (float[N,4] y) <float[4,3,3,3] w> {
          a = Conv(x, w)
          d = Det(a)
          y = Identity(d)
        }"""
    )
    handle = handle_of(proto, tmp_path)
    code, text = code_of(lambda: train(handle))
    assert code == errors.H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED
    assert "Det" in text


def test_a_step_into_infinity_is_not_applied(handle: ha.HHandle):
    """The error names the step; weights, velocity and statistics are as before."""
    train(handle)
    trainer = trainer_of(unwrap_model(handle, 1))
    before = trainer.snapshot()
    huge = ha.himage_from_numpy_array(np.full((8, 8, 3), 3e38, np.float32))
    batch = samples()
    ha.set_dict_object(huge, batch[2], "image")
    code, text = code_of(lambda: ha.train_dl_model_batch(handle, batch))
    assert code == errors.H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED
    assert "Step 2" in text
    after = trainer.snapshot()
    assert after.steps == before.steps == trainer.step_count
    for mine, theirs in (
        (before.weights, after.weights),
        (before.states["velocity"], after.states["velocity"]),
        (before.statistics, after.statistics),
    ):
        for name, array in mine.items():
            np.testing.assert_array_equal(theirs[name], array)
    assert np.isfinite(train(handle)[0])


def test_an_interrupt_leaves_the_last_step(handle: ha.HHandle, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C after the session has run, before the step is taken over: the model is as after the previous step."""
    from dlprune.training import runner

    train(handle, 2)
    before = weights(handle)
    original = runner.Runner.run

    def interrupted(self: Any, *args: Any) -> Any:
        original(self, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.Runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(handle)
    monkeypatch.undo()
    for name, array in weights(handle).items():
        np.testing.assert_array_equal(before[name], array)


def test_values_of_initializers_reach_the_file(handle: ha.HHandle, tmp_path: Path):
    """The written file passes ONNX's full check and holds the trained numbers."""
    train(handle, 2)
    ha.write_dl_model(handle, str(tmp_path / "out.onnx"))
    proto = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(proto, full_check=True)
    written = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    for name, array in trainer_of(unwrap_model(handle, 1)).snapshot().weights.items():
        np.testing.assert_array_equal(written[name], array)


def test_a_classifier_without_trainer_has_nothing_to_settle():
    """Reading a model does not import the training modules' state."""
    assert Classifier.from_proto(models.plain()).trainer is None
