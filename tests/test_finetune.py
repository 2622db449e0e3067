"""Training over epochs: schedule, augmentation, validation, distillation, checkpoints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dlprune as ha
from dlprune import errors
from dlprune.model import unwrap_model
from dlprune.training.augmentation import Augmentation
from dlprune.training.finetune import Progress
from dlprune.training.schedule import Schedule

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[{batch},1,8,8] x) => (float[{batch},3] y)
<float[6,1,3,3] w1, float[6] s1, float[6] t1, float[6] m1, float[6] var1, float[3,6] w2, float[3] b2> {{
  a = Conv<pads = [1,1,1,1]>(x, w1)
  b = BatchNormalization(a, s1, t1, m1, var1)
  r = Relu(b)
  g = GlobalMaxPool(r)
  f = Flatten(g)
  y = Gemm<transB = 1>(f, w2, b2)
}}"""


def model_of(folder: Path, *, batch: int | str = "N", seed: int = 0, **params: Any) -> ha.HHandle:
    handle = ha.read_dl_model(models.saved(models.model(NET.format(batch=batch), seed), folder / "model.onnx"))
    for name, value in {"solver_type": "adam", "learning_rate": 0.02, **params}.items():
        ha.set_dl_model_param(handle, name, value)
    return handle


def samples(number: int, seed: int = 0) -> list[ha.HHandle]:
    """Three classes: a horizontal, a vertical, a diagonal line in noise."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(number):
        label = int(rng.integers(3))
        image = rng.normal(0.0, 0.3, (8, 8)).astype(np.float32)
        at = int(rng.integers(1, 7))
        if label == 0:
            image[at] += 2
        elif label == 1:
            image[:, at] += 2
        else:
            image += 2 * np.eye(8, dtype=np.float32)
        made.append(ha.from_python_dict({"image": ha.himage_from_numpy_array(image), "image_label_id": label}))
    return made


def weights(handle: ha.HHandle) -> dict[str, np.ndarray]:
    graph = unwrap_model(handle, 1).model.graph
    return {name: value.const_value.numpy().copy() for name, value in graph.initializers.items()}


def equal(first: ha.HHandle, second: ha.HHandle) -> bool:
    mine, theirs = weights(first), weights(second)
    return mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)


def tune(handle: ha.HHandle, train: list[Any], validation: list[Any] = [], **options: Any) -> dict[str, Any]:  # noqa: B006
    result = ha.as_python_dict(
        ha.finetune_dl_model(handle, train, validation, **{"epochs": 3, "batch_size": 8, **options})
    )
    single = ("epochs", "best_epoch", "stopped_early")
    return {key: value[0] if key in single else value for key, value in result.items()}


def code_of(call: Any) -> tuple[int, str]:
    with pytest.raises(ha.HOperatorError) as caught:
        call()
    return caught.value.error_code, str(caught.value)


# --- the run ---------------------------------------------------------------------------------------------------------


def test_it_learns(tmp_path: Path):
    """A net with random weights tells lines apart after a few epochs; the report agrees with apply_dl_model."""
    handle = model_of(tmp_path)
    validation = samples(60, 1)
    result = tune(handle, samples(240), validation, epochs=8)
    assert result["epochs"] == 8
    assert len(result["train_loss"]) == len(result["learning_rate"]) == 8
    assert len(result["validation_accuracy"]) == 9
    assert result["train_loss"][-1] < 0.5 * result["train_loss"][0]
    best = result["validation_accuracy"][result["best_epoch"]]
    assert best == max(result["validation_accuracy"]) > 0.85
    right = [
        ha.get_dict_tuple(r, "classification_class_ids")[0] == ha.get_dict_tuple_s(s, "image_label_id")
        for r, s in zip(ha.apply_dl_model(handle, validation, []), validation, strict=True)
    ]
    assert sum(right) / len(right) == pytest.approx(best)


def test_the_best_epoch_is_kept(tmp_path: Path):
    """Where training only does harm the model stays as it was; without validation images the last epoch counts."""
    handle = model_of(tmp_path)
    tune(handle, samples(240), epochs=6)
    good = weights(handle)
    ha.set_dl_model_param(handle, "solver_type", "sgd")
    result = tune(handle, samples(64, 5), samples(60, 1), learning_rate=3.0, warmup_epochs=0, epochs=2)
    assert result["best_epoch"] == 0
    for name, array in weights(handle).items():
        np.testing.assert_array_equal(array, good[name])
    result = tune(handle, samples(64, 5), epochs=2)
    assert "validation_loss" not in result
    assert result["best_epoch"] == 2


def test_it_stops_early(tmp_path: Path):
    """Epochs without improvement end the run after `patience` of them."""
    handle = model_of(tmp_path)
    tune(handle, samples(240), epochs=6)
    ha.set_dl_model_param(handle, "solver_type", "sgd")
    result = tune(handle, samples(64, 5), samples(60, 1), learning_rate=3.0, warmup_epochs=0, epochs=9, patience=2)
    assert result["epochs"] == 2
    assert result["stopped_early"] == 1


def test_a_run_follows_from_its_seed(tmp_path: Path):
    """The same seed gives the same weights bit for bit, another seed other ones; so do order and augmentation."""
    train = samples(50)
    options = {"flip": True, "shift": 0.2, "crop": 0.2, "brightness": 0.1}
    runs = [model_of(tmp_path) for _ in range(4)]
    for handle, seed, changes in zip(runs, (3, 3, 4, 3), (options, options, options, {}), strict=True):
        tune(handle, train, seed=seed, **changes)
    assert equal(runs[0], runs[1])
    assert not equal(runs[0], runs[2])
    assert not equal(runs[0], runs[3])


def test_zero_epochs_change_nothing(tmp_path: Path):
    handle = model_of(tmp_path)
    before = weights(handle)
    result = tune(handle, samples(16), samples(8), epochs=0)
    assert result["epochs"] == result["best_epoch"] == 0
    assert all(np.array_equal(before[name], array) for name, array in weights(handle).items())


def test_progress_is_told_after_every_step(tmp_path: Path):
    seen: list[Progress] = []
    tune(model_of(tmp_path), samples(50), samples(9, 1), epochs=2, progress=seen.append)
    assert [(one.epoch, one.step) for one in seen] == [(e, s) for e in (1, 2) for s in range(1, 7)]
    assert all(one.epochs == 2 and one.steps == 6 and one.validation is not None for one in seen)
    assert all(0 <= one.accuracy <= 1 and one.loss > 0 for one in seen)


def test_a_fixed_batch_size_is_used_in_parts(tmp_path: Path):
    """A file that fixes the batch size trains with multiples of it, and is validated with any number of images."""
    handle = model_of(tmp_path, batch=4)
    result = tune(handle, samples(41), samples(7, 1), batch_size=8, epochs=1)
    assert len(result["train_loss"]) == 1
    code, text = code_of(lambda: tune(handle, samples(41), batch_size=6))
    assert code == errors.H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE
    assert "multiple of 4" in text


def test_an_interrupt_leaves_the_last_step(tmp_path: Path):
    """What a callback raises ends the run; the model has the weights of the step before."""

    def stop(progress: Progress) -> None:
        if (progress.epoch, progress.step) == (2, 3):
            raise KeyboardInterrupt

    handle, same = model_of(tmp_path), model_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        tune(handle, samples(50), progress=stop)
    kept: list[dict[str, np.ndarray]] = []

    def look(progress: Progress) -> None:
        if (progress.epoch, progress.step) == (2, 3):
            kept.append(weights(same))

    tune(same, samples(50), progress=look)
    for name, array in weights(handle).items():
        np.testing.assert_array_equal(array, kept[0][name])


# --- distillation ----------------------------------------------------------------------------------------------------


def test_a_student_follows_its_teacher(tmp_path: Path):
    """With the whole loss from the teacher, wrong labels do not matter."""
    teacher = model_of(tmp_path)
    tune(teacher, samples(240), epochs=10)
    wrong = samples(240, 7)
    for sample in wrong:
        ha.set_dict_tuple(sample, "image_label_id", (ha.get_dict_tuple_s(sample, "image_label_id") + 1) % 3)
    student = model_of(tmp_path, seed=1)
    tune(student, wrong, epochs=8, teacher=teacher, distillation=1.0, temperature=2.0)
    test = samples(60, 2)
    decisions = [
        [ha.get_dict_tuple(r, "classification_class_ids")[0] for r in ha.apply_dl_model(model, test, [])]
        for model in (teacher, student)
    ]
    assert np.mean(np.array(decisions[0]) == np.array(decisions[1])) > 0.85


def test_loss_with_a_teacher_is_the_published_one(tmp_path: Path):
    """(1 − share)·CE + share·T²·KL(teacher ‖ student) at temperature T, computed in NumPy."""
    student, teacher = model_of(tmp_path), model_of(tmp_path, seed=1)
    ha.set_dl_model_param(student, "batchnorm_frozen", "true")
    batch = samples(8)
    images = np.stack([ha.himage_as_numpy_array(ha.get_dict_object(s, "image"))[None] for s in batch])
    labels = np.array([ha.get_dict_tuple_s(s, "image_label_id") for s in batch])
    z, t = (unwrap_model(one, 1).logits(images).astype(np.float64) for one in (student, teacher))

    def log_softmax(x: np.ndarray) -> np.ndarray:
        x = x - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    hard = -log_softmax(z)[np.arange(8), labels].mean()
    goal, own = log_softmax(t / 3), log_softmax(z / 3)
    soft = 9 * (np.exp(goal) * (goal - own)).sum(axis=1).mean()
    result = tune(student, batch, epochs=1, teacher=teacher, distillation=0.3, temperature=3.0)
    assert result["train_loss"][0] == pytest.approx(0.7 * hard + 0.3 * soft, rel=1e-4)


def test_a_teacher_of_other_classes_is_refused(tmp_path: Path):
    teacher = ha.read_dl_model(ha.demo_model_file())
    code, text = code_of(lambda: tune(model_of(tmp_path), samples(16), teacher=teacher))
    assert code == errors.H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE
    assert "10 classes" in text


# --- checkpoints -----------------------------------------------------------------------------------------------------

_SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import test_finetune as t
import dlprune as ha
handle = ha.read_dl_model("start.onnx")
ha.finetune_dl_model(
    handle, t.samples(80), t.samples(20, 1), epochs=6, batch_size=8, flip=True,
    checkpoint="run.ckpt", resume=True, progress=lambda p: print(p.epoch, p.step, flush=True))
ha.write_dl_model(handle, "out.onnx")
"""


def test_resumed_after_an_interrupt_in_every_epoch(tmp_path: Path):
    """A run that is broken off in each epoch and resumed with a fresh model ends bit for bit like a quiet one."""
    train, validation = samples(50), samples(20, 1)
    quiet = model_of(tmp_path, batch_size_multiplier=2, batch_size=4, weight_prior=1e-3)
    expected = tune(quiet, train, validation, epochs=4, batch_size=None, flip=True)
    for broken in range(1, 5):

        def stop(progress: Progress, broken: int = broken) -> None:
            if (progress.epoch, progress.step) == (broken, 4):
                raise KeyboardInterrupt

        handle = model_of(tmp_path, batch_size_multiplier=2, batch_size=4, weight_prior=1e-3)
        with pytest.raises(KeyboardInterrupt):
            tune(
                handle, train, validation, epochs=4, batch_size=None, flip=True,
                checkpoint=tmp_path / "run.ckpt", resume=broken > 1, progress=stop,
            )  # fmt: skip
    result = tune(
        handle, train, validation, epochs=4, batch_size=None, flip=True, checkpoint=tmp_path / "run.ckpt", resume=True
    )
    assert result == expected
    assert equal(handle, quiet)


@pytest.mark.slow
def test_killed_and_resumed_in_new_processes(tmp_path: Path):
    """A process that is killed ten times at random moments and started again writes the same file in the end."""
    ha.write_dl_model(model_of(tmp_path), str(tmp_path / "start.onnx"))
    reference = ha.read_dl_model(str(tmp_path / "start.onnx"))
    ha.finetune_dl_model(reference, samples(80), samples(20, 1), epochs=6, batch_size=8, flip=True)
    script = tmp_path / "run.py"
    script.write_text(_SCRIPT.format(tests=str(Path(__file__).parent)))
    command = [sys.executable, str(script)]
    rng = np.random.default_rng(0)
    for _ in range(10):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        assert process.stdout is not None
        for _ in range(int(rng.integers(1, 12))):
            process.stdout.readline()
        time.sleep(float(rng.uniform(0, 0.02)))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    assert equal(ha.read_dl_model(str(tmp_path / "out.onnx")), reference)


def test_a_checkpoint_of_other_work_is_refused(tmp_path: Path):
    """Another model, other settings, other images, a damaged file: refused, with what differs; nothing is changed."""
    train = samples(32)
    path = tmp_path / "run.ckpt"
    tune(model_of(tmp_path), train, epochs=1, checkpoint=path)
    other = model_of(tmp_path, seed=1)
    before = weights(other)
    cases = [
        (lambda: tune(other, train, epochs=1, checkpoint=path, resume=True), "weights"),
        (lambda: tune(model_of(tmp_path), train, epochs=2, checkpoint=path, resume=True), "settings"),
        (lambda: tune(model_of(tmp_path), samples(40), epochs=1, checkpoint=path, resume=True), "training images"),
    ]
    for call, reason in cases:
        code, text = code_of(call)
        assert code == errors.H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE
        assert reason in text
    path.write_bytes(path.read_bytes()[:1000])
    assert "damaged" in code_of(lambda: tune(model_of(tmp_path), train, epochs=1, checkpoint=path, resume=True))[1]
    assert all(np.array_equal(before[name], array) for name, array in weights(other).items())


def test_a_checkpoint_that_cannot_be_written_is_an_error(tmp_path: Path):
    code, text = code_of(lambda: tune(model_of(tmp_path), samples(32), checkpoint=tmp_path / "no" / "run.ckpt"))
    assert code == errors.H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE
    assert "run.ckpt" in text


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"epochs": -1}, 7914),
        ({"learning_rate": 0}, 7914),
        ({"learning_rate": float("nan")}, 7914),
        ({"learning_rate": "fast"}, 1203),
        ({"schedule": "linear"}, 7914),
        ({"warmup_epochs": -1}, 7914),
        ({"seed": -1}, 7914),
        ({"shift": 1.5}, 7914),
        ({"crop": 1}, 7914),
        ({"brightness": -0.1}, 7914),
        ({"patience": 0}, 7914),
        ({"temperature": 0}, 7914),
        ({"distillation": 2}, 7914),
        ({"batch_size": 0}, 7914),
        ({"batch_size": 33}, 7800),
        ({"resume": True}, 7914),
    ],
)
def test_impossible_options_are_refused(tmp_path: Path, options: dict[str, Any], code: int):
    handle = model_of(tmp_path)
    before = weights(handle)
    assert code_of(lambda: tune(handle, samples(32), **options))[0] == code
    assert all(np.array_equal(before[name], array) for name, array in weights(handle).items())


def test_divergence_names_epoch_and_step(tmp_path: Path):
    handle = model_of(tmp_path, solver_type="sgd", batchnorm_frozen="true")
    code, text = code_of(lambda: tune(handle, samples(32), learning_rate=1e30, warmup_epochs=0))
    assert code == errors.H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED
    assert "Epoch 1, step" in text


# --- schedule --------------------------------------------------------------------------------------------------------


@given(
    rate=st.floats(1e-6, 10),
    steps=st.integers(1, 300),
    warmup=st.integers(0, 50),
    kind=st.sampled_from(["cosine", "step", "constant"]),
)
@settings(max_examples=60, deadline=None)
def test_learning_rates_rise_then_fall(rate: float, steps: int, warmup: int, kind: Any):
    """Rates are positive, never above the highest one, rise during the warm-up and never rise after it."""
    schedule = Schedule(rate, steps, min(warmup, steps), kind)
    rates = [schedule.at(step) for step in range(steps)]
    assert all(0 < one <= rate * (1 + 1e-9) for one in rates)
    up, down = rates[: min(warmup, steps)], rates[min(warmup, steps) :]
    if kind != "step":
        assert up == sorted(up)
    assert down == sorted(down, reverse=True)


def test_steps_drop_at_milestones():
    schedule = Schedule(1.0, 10, 0, "step", (3, 6))
    assert [round(schedule.at(step), 3) for step in range(10)] == [1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01]


# --- augmentation ----------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((6, 2, 10, 12)).astype(np.float32)


def test_nothing_changes_by_default(pictures: np.ndarray):
    assert Augmentation().apply(pictures, "NCHW", 0, 1, range(6)) is pictures


def test_each_image_changes_by_its_own_number(pictures: np.ndarray):
    """The same seed, epoch and number give the same image in any batch and layout; another epoch another one."""
    change = Augmentation(flip=True, shift=0.3, crop=0.3, brightness=0.2)
    whole = change.apply(pictures, "NCHW", 5, 2, range(6))
    np.testing.assert_array_equal(change.apply(pictures[3:5], "NCHW", 5, 2, [3, 4]), whole[3:5])
    other = change.apply(np.ascontiguousarray(pictures.transpose(0, 2, 3, 1)), "NHWC", 5, 2, range(6))
    np.testing.assert_array_equal(other.transpose(0, 3, 1, 2), whole)
    assert not np.array_equal(change.apply(pictures, "NCHW", 5, 3, range(6)), whole)


def test_flip_mirrors_about_half_of_the_images(pictures: np.ndarray):
    many = np.repeat(pictures[:1], 200, axis=0)
    changed = Augmentation(flip=True).apply(many, "NCHW", 0, 1, range(200))
    mirrored = [np.array_equal(image, many[0][:, :, ::-1]) for image in changed]
    same = [np.array_equal(image, many[0]) for image in changed]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 70 < sum(mirrored) < 130


def test_shift_moves_by_whole_pixels_and_repeats_the_border(pictures: np.ndarray):
    image = np.zeros((1, 1, 10, 10), np.float32)
    image[0, 0, 5, 5] = 1
    image[0, 0, 0, :] = 3
    places = set()
    for number in range(60):
        (changed,) = Augmentation(shift=0.2).apply(image, "NCHW", 0, 1, [number])
        (found,) = np.argwhere(changed[0] == 1)
        places.add(tuple(found - 5))
        assert (changed[0, 0] == 3).all() or found[0] < 5
    assert {abs(v) for place in places for v in place} == {0, 1, 2}


def test_crop_enlarges_a_part(pictures: np.ndarray):
    """A ramp stays a ramp, of a smaller slope, within the range of the original."""
    ramp = np.tile(np.arange(16, dtype=np.float32), (1, 1, 16, 1))
    for number in range(20):
        (changed,) = Augmentation(crop=0.5).apply(ramp, "NCHW", 0, 1, [number])
        slopes = np.diff(changed[0, 3, 2:-2])
        np.testing.assert_allclose(slopes, slopes[0], atol=1e-5)
        assert 0.5 - 1e-5 <= slopes[0] <= 1 + 1e-5
        assert changed.min() >= 0
        assert changed.max() <= 15


def test_brightness_adds_one_number_per_image(pictures: np.ndarray):
    changed = Augmentation(brightness=0.1, value_range=50.0).apply(pictures, "NCHW", 0, 1, range(6))
    added = changed - pictures
    assert np.ptp(added, axis=(1, 2, 3)).max() < 1e-5
    assert 0 < np.abs(added).max() <= 5
