"""Where strangers stumbled over the command line: each finds out what is wrong, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commandline import as_json, run, small_model
from models import model as onnx_model
from models import plain, saved
from onnx import helper, numpy_helper

import dlprune as ha
from dlprune.cli.advice import advise_on_speed
from dlprune.cli.figures import Figures
from dlprune.cli.options import OutputOptions
from dlprune.cli.output import Output
from dlprune.cost import Cost, Latency, LayerCost


@pytest.fixture
def model_file(tmp_path: Path) -> str:
    return small_model(tmp_path)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Sixty images of noise, of which a model cannot know the class."""
    images = np.random.default_rng(0).integers(0, 255, (60, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "noise.npz", images=images, labels=np.arange(60) % 3)
    return tmp_path / "noise.npz"


def test_models_of_other_classes_or_inputs_are_not_compared(model_file: str, tmp_path: Path) -> None:
    five = saved(plain(channels=1, size=8, classes=5), tmp_path / "five.onnx")
    colour = saved(plain(channels=3, size=8, classes=3), tmp_path / "colour.onnx")
    large = saved(plain(channels=1, size=12, classes=3), tmp_path / "large.onnx")
    for other, words in ((five, "A tells 3 classes apart and B 5"), (colour, "8x8x1"), (large, "B of 12x12x1")):
        assert words in run("compare", model_file, other, code=1).stderr


def test_white_must_be_above_zero(model_file: str, archive: Path) -> None:
    for value in ("0", "-1"):
        assert "--white" in run("evaluate", model_file, "--images", archive, "--white", value, code=2).stderr


@pytest.mark.parametrize("command", ["evaluate", "prune", "compare", "finetune", "sparsify", "sweep"])
def test_guessing_is_told(model_file: str, archive: Path, tmp_path: Path, command: str) -> None:
    """A model that decides no better than chance was most likely given wrongly prepared images."""
    more: dict[str, list[object]] = {
        "evaluate": [],
        "compare": [model_file, "--runs", 0],
        "prune": ["--holdout", 50, "-o", tmp_path / "a.onnx", "--runs", 0, "--compensation", "none"],
        "sweep": ["--holdout", 50, "-o", tmp_path / "out", "--runs", 0, "--compensation", "none", "--percentages", 10],
        "finetune": ["--holdout", 50, "-o", tmp_path / "a.onnx", "--epochs", 1, "--train-batch", 8],
        "sparsify": ["--holdout", 50, "-o", tmp_path / "a.onnx", "--epochs", 4, "--train-batch", 2],
    }
    notes = as_json(command, model_file, *more[command], "--images", archive)["notes"]
    assert any("no better than guessing among 3 classes" in note and "--range" in note for note in notes)


def test_inspect_says_what_size_it_assumes(tmp_path: Path) -> None:
    file = saved(plain(size="S"), tmp_path / "open.onnx")
    found = as_json("inspect", file)
    assert found["size_assumed"]
    assert "224x224 is assumed" in found["notes"][0]
    assert "--size" in run("inspect", file).stderr
    given = as_json("inspect", file, "--size", "12x10")
    assert not given["size_assumed"]
    assert given["macs"] < found["macs"]
    assert given["notes"] == []


def test_an_empty_folder_of_a_class_is_named(model_file: str, tmp_path: Path) -> None:
    from PIL import Image

    for name in ("a", "b", "c"):
        (tmp_path / "photos" / name).mkdir(parents=True)
    for name in ("a", "b"):
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / f"photos/{name}/0.png")
    text = run("evaluate", model_file, "--images", tmp_path / "photos", code=1).stderr
    assert "no images in 'c'" in text
    assert "does not know" not in text


def test_a_model_with_two_outputs_names_the_option(tmp_path: Path) -> None:
    file = saved(
        onnx_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[N,3,8,8] x) => (float[N,4] y, float[N,2] z) <float[6,3,3,3] w, float[6,4] u, float[6,2] v>
        {
          a = Conv(x, w)
          b = GlobalAveragePool(a)
          c = Flatten(b)
          y = MatMul(c, u)
          z = MatMul(c, v)
        }"""),
        tmp_path / "two.onnx",
    )
    assert "--class-output" in run("inspect", file, code=1).stderr
    assert as_json("inspect", file, "--class-output", "z")["classes"] == 2


def test_inspect_says_that_a_model_is_quantised(tmp_path: Path) -> None:
    proto = plain()
    graph = proto.graph
    for name, value in (("scale", np.float32(0.1)), ("zero", np.uint8(0))):
        graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    pair = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="round"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
    ]
    graph.node[0].input[0] = "d"
    nodes = [*pair, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(proto)
    found = as_json("inspect", saved(proto, tmp_path / "q.onnx"))
    assert found["quantised"]
    assert "is quantised" in found["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "code", "halcon"),
    [
        (["inspect", "none.onnx"], 1, 5200),
        (["demo", "--mode", "magic"], 1, 1302),
        (["demo", "--percentage", "101"], 2, None),
        (["evaluate", "none.onnx"], 2, None),
        (["destroy"], 2, None),
        (["demo", "--multiple", "0"], 2, None),
    ],
)
def test_with_json_errors_are_json_as_well(arguments: list[str], code: int, halcon: int | None) -> None:
    result = run(*arguments, "--json", code=code)
    assert result.stdout == ""
    error = json.loads(result.stderr)["error"]
    assert (error["exit_code"], error["code"]) == (code, halcon)
    assert error["message"]


def test_a_state_that_is_none_is_told_in_words(model_file: str, archive: Path, tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("nonsense")
    (tmp_path / "folder").mkdir()
    arguments = [model_file, "--images", archive, "-o", tmp_path / "a.onnx"]
    for command, more, state in (
        ("prune", [], "nowhere"),
        ("prune", [], "foreign"),
        ("prune", [], "folder"),
        ("prune", ["--steps", 2], "foreign"),
        ("prune", ["--steps", 2], "folder"),
        ("finetune", [], "nowhere"),
    ):
        text = " ".join(run(command, *arguments, *more, "--resume", tmp_path / state, code=2).stderr.split())
        assert "--resume" in text
        assert "Errno" not in text
    for command in ("finetune", "sparsify"):
        text = run(command, *arguments, "--resume", tmp_path / "foreign", code=1).stderr
        assert "no checkpoint" in text
    assert not (tmp_path / "a.onnx").exists()


def test_nobody_needs_to_read_to_the_end(model_file: str) -> None:
    """As in `dlprune inspect … | head -0`: no trace, no error code."""
    for more in ([], ["--json"]):
        command = [sys.executable, "-m", "dlprune", "inspect", model_file, *more]
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "wb") as stream:
            done = subprocess.run(command, stdout=stream, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_preprocessing_is_no_text_in_text(model_file: str, archive: Path, tmp_path: Path) -> None:
    options = ["--mean", "0.5", "--runs", 0, "--compensation", "none", "-o", tmp_path / "a.onnx"]
    found = as_json("prune", model_file, "--images", archive, *options)
    assert found["preprocessing"] == {"mean": [0.5]}


def test_scores_from_before_a_training_are_told(tmp_path: Path) -> None:
    handle = ha.read_dl_model(saved(plain(), tmp_path / "model.onnx"))
    images = np.random.default_rng(0).standard_normal((4, 8, 8, 3)).astype(np.float32)
    batch = [ha.from_python_dict({"image": ha.himage_from_numpy_array(one), "image_label_id": 0}) for one in images]
    ha.set_dl_model_param(handle, "batch_size", 4)
    pruning = ha.create_dl_pruning(handle, "oracle", [])
    for _ in range(2):
        ha.add_dl_pruning_batch(handle, pruning, batch)
    ha.gen_dl_pruned_model(handle, pruning)  # so far nothing is stale
    ha.train_dl_model_batch(handle, batch)
    stored = ha.deserialize_handle(ha.serialize_handle(pruning))
    for data in (pruning, stored):
        with pytest.warns(UserWarning, match="other weights"):
            ha.gen_dl_pruned_model(handle, data)
        with pytest.warns(UserWarning, match="both are added up"):
            ha.add_dl_pruning_batch(handle, data, batch)


def figures(macs: tuple[float, float], seconds: tuple[float, float]) -> Figures:
    costs = [Cost((LayerCost("a", "Conv", 8, 8, one),), 8) for one in macs]
    return Figures((costs[0], costs[1]), (1, 1), (1, 1), Latency(seconds, 3), (1, 1), None)


@pytest.mark.parametrize(
    ("macs", "seconds", "multiple", "word"),
    [
        ((100, 80), (1.0, 1.1), 1, "--multiple auto"),
        ((100, 80), (1.0, 1.1), 4, "--multiple auto"),
        ((100, 80), (1.0, 1.1), 48, "--target latency"),
        ((100, 80), (1.0, 1.1), "auto", "--target latency"),
        ((100, 80), (1.0, 0.8), 1, ""),
        ((100, 100), (1.0, 1.1), 1, ""),
    ],
)
def test_no_gain_in_speed_is_told(macs: Any, seconds: Any, multiple: Any, word: str) -> None:
    output = Output(OutputOptions(json=True))
    advise_on_speed(figures(macs, seconds), multiple, output)
    assert bool(output.notes) == bool(word)
    assert all(word in note for note in output.notes)


def test_multiples_can_be_left_to_the_processor(model_file: str, archive: Path, tmp_path: Path) -> None:
    options = ["-p", 50, "--runs", 0, "--compensation", "none", "-o", tmp_path / "a.onnx", "--multiple"]
    found = as_json("prune", model_file, "--images", archive, *options, "auto")
    assert found["settings"]["kernel_multiple"] == "auto"
    for wrong in ("0", "none", "1.5"):
        assert "--multiple" in run("prune", model_file, "--images", archive, *options, wrong, code=2).stderr


def test_an_original_is_compared_by_the_settings_of_the_pruned_one(tmp_path: Path) -> None:
    """The original leaves the image size open and says nothing of grey values; the pruned one carries both."""
    original = saved(plain(channels=1, size="S", classes=3), tmp_path / "open.onnx")
    images = np.random.default_rng(0).integers(0, 255, (12, 10, 10)).astype(np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=np.arange(12) % 3)
    pruned = tmp_path / "pruned.onnx"
    given = ("--images", tmp_path / "images.npz", "--percentage", 30, "--size", "10x10", "--range", 0, 1)
    run("prune", original, *given, "--out", pruned, "--runs", 0)
    alone = run("compare", original, pruned, "--images", tmp_path / "images.npz", "--runs", 0, "--json")
    told = run("compare", original, pruned, "--images", tmp_path / "images.npz", "--runs", 0, "--json", *given[4:])
    assert "what that of B says is taken" in run("compare", original, pruned, "--runs", 0).stderr
    assert json.loads(alone.stdout) == json.loads(told.stdout)


def test_every_command_tells_the_size_that_it_assumes(tmp_path: Path) -> None:
    file = saved(plain(channels=1, size="S", classes=3), tmp_path / "open.onnx")
    np.savez(tmp_path / "images.npz", images=np.zeros((6, 10, 10), np.uint8), labels=np.arange(6) % 3)
    for command in (
        ("inspect", file),
        ("evaluate", file, "--images", tmp_path / "images.npz"),
        ("compare", file, file),
    ):
        told = run(*command).stderr
        assert "224x224 is assumed" in told
        assert "is assumed" not in run(*command, "--size", "10x10").stderr
