"""`dlprune finetune`: training from files, interruption and going on, wrong input."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import commandline
import numpy as np
import pytest
from commandline import as_json, bright_images, stopped

import dlprune as ha
from dlprune.model import unwrap_model

#: What a training calls once per step.
TRAINING_STEP = "dlprune.training.finetune:train_step"


run = partial(commandline.run, "finetune")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, Path]:
    return bright_images(tmp_path)


def weights(path: Path) -> dict[str, np.ndarray]:
    graph = unwrap_model(ha.read_dl_model(str(path)), 1).model.graph
    return {name: value.const_value.numpy() for name, value in graph.initializers.items()}


def test_it_trains_and_writes(files: tuple[str, Path], tmp_path: Path):
    """Prints a row per epoch and the accuracies; the written model is the trained one, with its parameters."""
    model, images = files
    out = tmp_path / "tuned.onnx"
    options = ["--range", 0, 1, "--epochs", 12, "--train-batch", 8, "--learning-rate", 0.02, "--seed", 1]
    text = run(model, "--images", images, "--out", out, *options).stdout
    assert "accuracy held out" in text
    assert "72 images trained with" in text
    before, after = (float(line.split(": ")[1]) for line in text.splitlines()[-2:])
    assert after > max(before, 0.8)
    handle = ha.read_dl_model(str(out))
    assert ha.get_dl_model_param_s(handle, "image_range_max") == 1.0
    assert ha.get_dl_model_param_s(handle, "solver_type") == "adam"
    assert not (tmp_path / "tuned.onnx.ckpt").exists()
    again = json.loads(run(model, "--images", images, "--out", tmp_path / "b.onnx", *options, "--json").stdout)
    assert again["validation_accuracy"][again["best_epoch"]] == pytest.approx(after, abs=1e-4)
    assert all(np.array_equal(array, weights(out)[name]) for name, array in weights(tmp_path / "b.onnx").items())


def test_every_option_is_passed_on(files: tuple[str, Path], tmp_path: Path):
    model, images = files
    out = tmp_path / "tuned.onnx"
    run(
        model, "--images", images, "--test-images", images, "--out", out, "--epochs", 2, "--solver", "sgd",
        "--learning-rate", 1e-5, "--schedule", "step", "--warmup", 0.5, "--weight-prior", 1e-4, "--patience", 1,
        "--flip", "--shift", 10, "--crop", 10, "--brightness", 5, "--freeze", "w1,b*", "--freeze-statistics",
        "--teacher", model, "--temperature", 2, "--distillation", 0.3, "--train-batch", 30, "--quiet",
    )  # fmt: skip
    start, end = weights(Path(model)), weights(out)
    assert np.array_equal(start["w1"], end["w1"])
    assert np.array_equal(start["b1"], end["b1"])
    assert ha.get_dl_model_param(ha.read_dl_model(str(out)), "frozen_weights") == ["w1", "b*"]


def test_interrupted_and_resumed(files: tuple[str, Path], tmp_path: Path):
    """Ctrl-C leaves a checkpoint; with --resume the result is that of an uninterrupted run, bit for bit."""
    model, images = files
    options = ["--images", images, "--epochs", 3, "--train-batch", 8, "--range", 0, 1]
    run(model, *options, "--out", tmp_path / "quiet.onnx", "--quiet")
    out, checkpoint = tmp_path / "out.onnx", tmp_path / "out.onnx.ckpt"
    code, text = stopped("finetune", model, *options, "-o", out, function=TRAINING_STEP, calls=13)
    assert code == 130, text
    assert "Interrupted in epoch 2" in text
    assert f"--resume {checkpoint}" in text
    run(model, *options, "--out", out, "--resume", checkpoint)
    assert not checkpoint.exists()
    quiet = weights(tmp_path / "quiet.onnx")
    assert all(np.array_equal(array, quiet[name]) for name, array in weights(tmp_path / "out.onnx").items())


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--freeze", "stage9.*"], 1, "stage9"),
        (["--learning-rate", "0"], 1, "learning_rate"),
        (["--resume", "nothing.ckpt"], 2, "nothing.ckpt"),
        (["--out", "no/folder/out.onnx"], 2, "no/folder"),
        (["--holdout", "100"], 1, "holdout"),
        (["--solver", "lbfgs"], 2, "lbfgs"),
    ],
)
def test_wrong_input(files: tuple[str, Path], tmp_path: Path, options: list[Any], code: int, text: str):
    model, images = files
    out = [] if "--out" in options else ["--out", tmp_path / "out.onnx"]
    assert text in run(model, "--images", images, *out, *options, code=code).output


def test_images_without_classes_are_refused(files: tuple[str, Path], tmp_path: Path):
    model, _ = files
    np.savez(tmp_path / "bare.npz", images=np.zeros((40, 8, 8), np.uint8))
    assert "class" in run(model, "--images", tmp_path / "bare.npz", "--out", tmp_path / "out.onnx", code=1).output


# --- prune with training ---------------------------------------------------------------------------------------------


prune = partial(commandline.run, "prune")


ROUNDS = [
    "--percentage", 50, "--steps", 2, "--finetune-epochs", 4, "--distill", "--train-batch", 8, "--learning-rate", 0.02,
    "--range", 0, 1, "--runs", 0,
]  # fmt: skip


def test_prune_in_rounds_with_training(files: tuple[str, Path], tmp_path: Path):
    """Each round removes its share and trains; the table of rounds and the usual figures are printed."""
    model, images = files
    out = tmp_path / "small.onnx"
    text = prune(model, "--images", images, "--out", out, *ROUNDS).stdout
    assert "judging" in text
    assert text.splitlines()[-5:-3] == ["pruned_kernel_num: 6", "pruned_percentage: 50.00"]
    assert not (tmp_path / "small.onnx.rounds").exists()
    result = json.loads(prune(model, "--images", images, "--out", out, *ROUNDS, "--json").stdout)
    assert [one["pruned_kernel_num"] for one in result["rounds"]] == [3, 6]
    assert [len(one["train_loss"]) for one in result["rounds"]] == [4, 4]


def test_rounds_interrupted_and_resumed(files: tuple[str, Path], tmp_path: Path):
    """Ctrl-C leaves a folder; with --resume the result is that of an uninterrupted run, bit for bit."""
    model, images = files
    options = ["--images", images, *ROUNDS, "--finetune-epochs", 3]
    prune(model, *options, "--out", tmp_path / "quiet.onnx", "--quiet")
    out, folder = tmp_path / "out.onnx", tmp_path / "out.onnx.rounds"
    steps = 8  # of an epoch: 65 images, 8 each
    code, text = stopped("prune", model, *options, "-o", out, function=TRAINING_STEP, calls=(3 + 1) * steps + 4)
    assert code == 130, text
    assert "Interrupted in round 2" in text
    assert f"--resume {folder}" in text
    assert (folder / "round2.ckpt").exists()
    prune(model, *options, "--out", out, "--resume", folder)
    assert not folder.exists()
    quiet = weights(tmp_path / "quiet.onnx")
    assert all(np.array_equal(array, quiet[name]) for name, array in weights(tmp_path / "out.onnx").items())


def test_a_report_on_rounds_tells_what_each_removed_and_how_good_it_was(files: tuple[str, Path], tmp_path: Path):
    model, images = files
    places = ["--out", tmp_path / "a.onnx", "--report", tmp_path / "a.html", "--plots", tmp_path / "plots"]
    result = json.loads(prune(model, "--images", images, *places, *ROUNDS, "--json").stdout)
    found = json.loads((tmp_path / "a.json").read_text())
    assert [one["kernel_num"] for one in found["history"]] == [3, 6]
    assert sum(layer["removed"] for layer in found["layers"]) == 6 == found["results"]["pruned_kernel_num"]
    assert [layer["kernels"]["after"] for layer in found["layers"]] == [
        layer["kernels"]["after"] for layer in result["layers"][:2]
    ]
    assert [point["percentage"] for point in found["curve"]] == [0, 25, 50]
    assert [found["curve"][i]["accuracy"] for i in (0, 2)] == [result["accuracy"][one] for one in ("before", "after")]
    page = (tmp_path / "a.html").read_text()
    assert "<h2>Rounds</h2>" in page
    assert 'id="curve"' in page
    assert (tmp_path / "plots/accuracy.png").exists()


def test_the_demo_is_as_good_as_before_after_training(tmp_path: Path):
    """Half of the kernels leave, then it trains: the embedded classifier is within half a point of the original."""
    found = as_json("demo", "--out", tmp_path / "a.onnx", "--runs", 0)
    assert 49 < found["pruned_percentage"] <= 50
    before, after = found["accuracy"]["before"], found["accuracy"]["after"]
    assert after >= before - 0.005
    assert found["rounds"][0]["epochs"] == 4
    assert found["rounds"][0]["accuracy"] == after
