"""A model pruned in many ways: every point is what pruning alone would give; what is done is kept."""

from __future__ import annotations

import csv
import json
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import commandline
import numpy as np
import pytest
from commandline import small_model
from models import plain
from PIL import Image

import dlprune as ha
from dlprune import errors
from dlprune.classifier import Classifier
from dlprune.fit import scored_data
from dlprune.handle import new_handle
from dlprune.model import unwrap_model
from dlprune.sweep import run as sweep_run
from dlprune.sweep.run import Point, Setting, SweepJob, with_optimal

QUICK: dict[str, Any] = {"compensation": "bias", "calibration_image_num": 8}
TIMES = ("seconds", "latency", "optimal")


def samples(number: int, seed: int = 1) -> list[ha.HHandle]:
    images = np.random.default_rng(seed).standard_normal((number, 8, 8, 3)).astype(np.float32)
    return [
        ha.from_python_dict({"image": ha.himage_from_numpy_array(image), "image_label_id": i % 5})
        for i, image in enumerate(images)
    ]


@pytest.fixture
def model() -> ha.HHandle:
    return new_handle("dl_model", Classifier.from_proto(plain()))


def untimed(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in point.items() if name not in TIMES} for point in points]


def test_every_point_is_what_pruning_alone_gives(model: ha.HHandle) -> None:
    test = samples(20, seed=2)
    points = ha.sweep_dl_pruning(
        model, samples(16), [25, 50], ["oracle", "l2"], targets=["kernels", "macs"], test=test, latency_runs=1, **QUICK
    )
    assert [(p["mode"], p["target"], p["percentage"]) for p in points] == [
        ("", "kernels", 0.0),
        *((mode, target, share) for mode in ("oracle", "l2") for target in ("kernels", "macs") for share in (25, 50)),
    ]
    assert points[0]["pruned_kernel_num"] == 0
    for point in points[1:]:
        settings = {"mode": point["mode"], "target": point["target"], **QUICK}
        pruned, pruning, _ = ha.prune_dl_model(model, samples(16), point["percentage"], **settings)
        for name in ("pruned_kernel_num", "pruned_percentage", "target_reached"):
            assert point[name] == ha.get_dl_pruning_param_s(pruning, name)
        assert point["file_size"] == len(unwrap_model(pruned, 1).to_bytes())
        ha.set_dl_model_param(pruned, "batch_size", 20)
        found = ha.apply_dl_model(pruned, test, [])
        right = [ha.get_dict_tuple(one, "classification_class_ids")[0] == i % 5 for i, one in enumerate(found)]
        assert point["accuracy"] == np.mean(right)
        assert point["latency"] > 0


def test_each_criterion_scores_once(model: ha.HHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    from dlprune.sweep import operators

    scored: list[str] = []
    add = operators.add_dl_pruning_batches

    def counting(handle: ha.HHandle, pruning: ha.HHandle, *others: Any) -> object:
        scored.append(str(ha.get_dl_pruning_param_s(pruning, "mode")))
        return add(handle, pruning, *others)

    monkeypatch.setattr(operators, "add_dl_pruning_batches", counting)
    ha.sweep_dl_pruning(model, samples(8), [10, 20, 30], ["l1", "oracle"], targets=["kernels", "params"], **QUICK)
    assert scored == ["l1", "oracle"]


def test_a_point_is_optimal_if_none_is_better_in_one_and_no_worse_in_the_other() -> None:
    def point(name: str, macs: int, accuracy: float | None) -> Point:
        return Point(name, "kernels", 0.0, 0, 0.0, 0.0, 1, 1, macs, macs, None, accuracy, 0.0)

    numbers = [("a", 100, 0.9), ("b", 50, 0.9), ("c", 50, 0.8), ("d", 10, 0.5), ("e", 20, 0.5), ("f", 1, None)]
    found = with_optimal([point(*one) for one in numbers])
    assert {one.mode for one in found if "macs" in one.optimal} == {"b", "d"}
    assert not any("latency" in one.optimal for one in found)


def test_an_interrupted_sweep_goes_on_from_its_folder(
    model: ha.HHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (model, samples(8), [20, 40], ["l2", "l1"])
    whole = ha.sweep_dl_pruning(*arguments, **QUICK)

    def stop(done: int, _total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ha.sweep_dl_pruning(*arguments, folder=str(tmp_path / "a"), progress=stop, **QUICK)
    assert len(json.loads((tmp_path / "a/sweep.json").read_text())["points"]) == 3
    pruned: list[Setting] = []
    job = SweepJob.__call__
    monkeypatch.setattr(SweepJob, "__call__", lambda self, one: (pruned.append(one), job(self, one))[1])
    points = ha.sweep_dl_pruning(*arguments, folder=str(tmp_path / "a"), **QUICK)
    assert [(one.mode, one.percentage) for one in pruned] == [("l1", 20), ("l1", 40)]
    assert untimed(points) == untimed(whole)
    lines = list(csv.DictReader((tmp_path / "a/sweep.csv").read_text().splitlines()))
    assert [int(line["kernels"]) for line in lines] == [point["kernels"] for point in points]


def test_points_of_other_work_are_refused(model: ha.HHandle, tmp_path: Path) -> None:
    ha.sweep_dl_pruning(model, samples(8), [20], ["l2"], folder=str(tmp_path), **QUICK)
    before = (tmp_path / "sweep.json").read_bytes()
    other = new_handle("dl_model", Classifier.from_proto(plain(seed=1)))
    for handle, settings in ((other, QUICK), (model, {**QUICK, "kernel_multiple": 2})):
        with pytest.raises(ha.HOperatorError, match="other work") as caught:
            ha.sweep_dl_pruning(handle, samples(8), [20], ["l2"], folder=str(tmp_path), **settings)
        assert caught.value.error_code == errors.H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(ha.HOperatorError, match="damaged"):
        ha.sweep_dl_pruning(model, samples(8), [20], ["l2"], folder=str(tmp_path), **QUICK)
    (tmp_path / "sweep.json").write_bytes(before)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"percentages": []}, errors.H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE),
        ({"percentages": [120]}, errors.H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE),
        ({"criteria": []}, errors.H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE),
        ({"criteria": ["magic"]}, errors.H_ERR_WIPV2),
        ({"targets": ["speed"]}, errors.H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE),
        ({"latency_runs": -1}, errors.H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE),
    ],
)
def test_wrong_parameters_are_told_before_the_work(model: ha.HHandle, changed: dict[str, Any], code: int) -> None:
    arguments: dict[str, Any] = {"percentages": [10], "criteria": ["l2"], **changed}
    with pytest.raises(ha.HOperatorError) as caught:
        ha.sweep_dl_pruning(model, samples(4), **arguments)
    assert caught.value.error_code == code


def test_others_can_do_the_job(model: ha.HHandle) -> None:
    """A job that was sent to another process gives the same point."""
    pruning = ha.create_dl_pruning(model, "l2", ha.from_python_dict({"compensation": "none"}))
    ha.add_dl_pruning_batches(model, pruning, samples(8))
    job = SweepJob(unwrap_model(model, 1), {"l2": scored_data(pruning, 1)})
    setting = Setting("l2", "kernels", 30.0)
    here, there = (one(setting) for one in (job, pickle.loads(pickle.dumps(job))))
    assert untimed([vars(here)]) == untimed([vars(there)])


# --- command line ----------------------------------------------------------------------------------------------------


run = partial(commandline.run, "sweep")


@pytest.fixture
def files(tmp_path: Path) -> list[object]:
    images = np.random.default_rng(0).integers(0, 255, (40, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=np.arange(40) % 3)
    options = ["--images", tmp_path / "images.npz", "--compensation", "bias", "--out", tmp_path / "out"]
    return [small_model(tmp_path), *options]


def test_the_command_prints_a_table_and_draws_pictures(files: list[object], tmp_path: Path) -> None:
    text = run(*files, "--percentages", "20,40", "--criteria", "l2,oracle", "--runs", 2, "--keep-models").stdout
    assert "not beaten in" in text
    assert "4 models; written" in text
    for name in ("accuracy", "pareto"):
        with Image.open(tmp_path / f"out/{name}.png") as image:
            assert image.size[0] > 500
            assert len(image.convert("RGB").getcolors(1 << 24) or []) > 5  # something is drawn
    assert sorted(path.name for path in (tmp_path / "out").glob("*.onnx")) == [
        f"{mode}_kernels_{share}.onnx" for mode in ("l2", "oracle") for share in (20, 40)
    ]
    pruned = ha.read_dl_model(str(tmp_path / "out/l2_kernels_40.onnx"))
    points = json.loads((tmp_path / "out/sweep.json").read_text())["points"]
    assert len(unwrap_model(pruned, 1).to_bytes()) == points[2]["file_size"]
    more = json.loads(run(*files, "--percentages", "20,60", "--criteria", "l2", "--runs", 2, "--json").stdout)
    assert [(point["mode"], point["percentage"]) for point in more["points"]] == [("", 0), ("l2", 20), ("l2", 60)]
    assert more["points"][1]["seconds"] == points[1]["seconds"]  # it was there already
    assert not list((tmp_path / "out").glob("*.state"))


def test_the_command_goes_on_after_ctrl_c(files: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = [*files, "--percentages", "20,40", "--criteria", "oracle", "--runs", 0, "--json"]
    generate = sweep_run.generate

    def interrupted(classifier: Classifier, data: Any) -> Any:
        if data.settings.percentage == 40:
            raise KeyboardInterrupt
        return generate(classifier, data)

    with monkeypatch.context() as patch:
        patch.setattr(sweep_run, "generate", interrupted)
        stopped = json.loads(run(*options, code=130).stderr)
    assert "The same command goes on" in stopped["error"]["message"]
    monkeypatch.setattr(ha, "add_dl_pruning_batch", None)  # nothing is scored again
    found = json.loads(run(*options).stdout)
    assert [point["percentage"] for point in found["points"]] == [0, 20, 40]
    assert run(*options, "--seed", 1, code=1).stderr.count("other work") == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("--percentages", "10,x"), ("--percentages", "110"), ("--criteria", ","), ("--out", "images.npz")],
)
def test_wrong_command_lines(files: list[object], tmp_path: Path, option: str, value: str) -> None:
    text = str(tmp_path / value) if option == "--out" else value
    assert option in run(*files, option, text, code=2).output
