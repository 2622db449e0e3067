"""`dlprune sparsify`: from images to a sparse file."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import commandline
import pytest
from commandline import bright_images, stopped

import dlprune as ha
from dlprune.model import unwrap_model

run = partial(commandline.run, "sparsify")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, Path]:
    return bright_images(tmp_path)


OPTIONS = ["--range", 0, 1, "--train-batch", 8, "--learning-rate", 0.02]


def zeros(path: Path) -> list[float]:
    graph = unwrap_model(ha.read_dl_model(str(path)), 1).model.graph
    arrays = [value.const_value.numpy() for value in graph.initializers.values()]
    return [float((array == 0).mean()) for array in arrays if array.ndim > 1]


def test_it_writes_a_sparse_model(files: tuple[str, Path], tmp_path: Path):
    """Zeros in the file, a smaller gzip, accuracies, a picture of three panels, JSON with the history."""
    model, images = files
    out, plot = tmp_path / "sparse.onnx", tmp_path / "plot.svg"
    text = run(
        *(model, "--images", images, "--out", out, "--target-sparsity", 0.75, "--epochs", 8, "--plot", plot, "--json"),
        *OPTIONS,
    ).stdout
    result = json.loads(text)
    assert result["steps"] == 72
    assert result["sparsity"] == pytest.approx(0.75, abs=0.02)
    assert all(share == pytest.approx(0.75, abs=0.06) for share in zeros(out))
    assert result["bytes"]["after"]["gzip"] < result["bytes"]["before"]["gzip"]
    assert result["accuracy"]["after"] > max(result["accuracy"]["before"], 0.6)
    sparse = tmp_path / "stored.onnx"
    options = ["--target-sparsity", 0.9, "--epochs", 1, "--end", 8, "--frequency", 4, "--sparse-storage"]
    run(model, "--images", images, "--out", sparse, *options, *OPTIONS)
    assert sparse.stat().st_size < out.stat().st_size
    wanted = [point["wanted"] for point in result["history"]]
    assert wanted == sorted(wanted)
    assert wanted[-1] == 0.75
    assert len(ElementTree.parse(plot).getroot().findall("{*}polyline")) == 2 + len(result["weights"]) + 1


def test_empty_kernels_can_leave(files: tuple[str, Path], tmp_path: Path):
    """Blocks that are whole kernels, whose removal shows in the file."""
    model, images = files
    out = tmp_path / "small.onnx"
    options = ["--block", "-1x1", "--end", 6, "--frequency", 3, "--epochs", 1, "--remove-empty-kernels"]
    text = run(model, "--images", images, "--out", out, *options, *OPTIONS).stdout
    removed = int(text.split("kernels removed: ")[1].split()[0])
    assert removed > 0
    assert Path(out).stat().st_size < Path(model).stat().st_size


def test_m_by_n_makes_so_many_zeros_in_every_group_of_input_channels(files: tuple[str, Path], tmp_path: Path):
    """Of four neighbouring input channels two are zero; training also imitates the model as it was."""
    model, images = files
    out = tmp_path / "sparse.onnx"
    run(model, "--images", images, "--out", out, "--m-by-n", "2:4", "--distill", "--epochs", 2, *OPTIONS)
    graph = unwrap_model(ha.read_dl_model(str(out)), 1).model.graph
    (weight,) = (value.const_value.numpy() for name, value in graph.initializers.items() if name == "w2")
    kernels, channels = weight.shape[:2]
    whole = weight[:, : channels // 4 * 4].reshape(kernels, -1, 4, *weight.shape[2:])
    assert ((whole == 0).sum(axis=2) == 2).all()


@pytest.mark.parametrize("sparsity", [["--target-sparsity", 0.8], ["--m-by-n", "1:2"]])
def test_interrupted_and_resumed(files: tuple[str, Path], tmp_path: Path, sparsity: list[Any]):
    """Ctrl-C leaves a checkpoint; with --resume the file is that of an uninterrupted run, byte for byte."""
    model, images = files
    options = ["--images", images, "--epochs", 4, "--frequency", 7, "--seed", 3, *sparsity, *OPTIONS]
    whole = json.loads(run(model, *options, "--out", tmp_path / "whole.onnx", "--json").stdout)
    out, checkpoint = tmp_path / "parts.onnx", tmp_path / "parts.onnx.ckpt"
    step = "dlprune.training.finetune:train_step"
    code, text = stopped("sparsify", model, *options, "-o", out, function=step, calls=22)
    assert code == 130, text
    assert "Interrupted in epoch 3" in text
    assert not out.exists()
    other = run(model, *options, "--begin", 3, "--out", out, "--resume", checkpoint, code=1)
    assert "the options of sparsity" in other.output
    parts = json.loads(run(model, *options, "--out", out, "--resume", checkpoint, "--json").stdout)
    assert out.read_bytes() == (tmp_path / "whole.onnx").read_bytes()
    assert parts["history"] == whole["history"]
    assert not checkpoint.exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--end", 100000], 2, "--end"),
        (["--end", 8, "--frequency", 7, "--epochs", 1], 2, "--frequency"),
        (["--block", "4"], 1, "4x4"),
        (["--target-sparsity", 1], 1, "target_sparsity"),
        (["--weight-map", "nowhere:0.5"], 1, "weight_sparsity_map"),
        (["--patience", 2], 2, "--patience"),
        (["--m-by-n", "4:2"], 2, "--m-by-n"),
        (["--m-by-n", "2:4", "--target-sparsity", 0.9], 2, "--target-sparsity"),
        (["--resume", "nowhere"], 2, "nowhere"),
    ],
)
def test_wrong_options_are_refused(files: tuple[str, Path], tmp_path: Path, options: list, code: int, message: str):
    model, images = files
    result = run(model, "--images", images, "--out", tmp_path / "a.onnx", *options, *OPTIONS, code=code)
    assert message in result.output
    assert not (tmp_path / "a.onnx").exists()
