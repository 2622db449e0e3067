"""The command line: every command on small models, wrong input, interruption and going on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commandline import as_json, run, small_model, stopped
from models import model, plain, saved
from PIL import Image

import dlprune as ha
from dlprune import cli
from dlprune.cli import job
from dlprune.cli.commands import doctor as doctor_module

COMMANDS = ("demo", "inspect", "prune", "evaluate", "compare", "doctor")
FAST = ["--runs", "0"]  # no latency


@pytest.fixture
def model_file(tmp_path: Path) -> str:
    return small_model(tmp_path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Thirty small grey images in three folders."""
    rng = np.random.default_rng(0)
    for label in ("a", "b", "c"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(0, 255, (8, 8)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"photos/{label}/{i}.png")
    return tmp_path / "photos"


# --- prune -----------------------------------------------------------------------------------------------------------


def test_prune_writes_a_smaller_model_and_prints_what_changed(model_file: str, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.onnx"
    text = run("prune", model_file, "--images", photos, "--percentage", 50, "--out", out, "--runs", 3).stdout
    assert "Layers" in text
    for word in ("kernels", "parameters", "multiply-accumulates", "file size", "latency", "accuracy on 6 images"):
        assert word in text
    last = text.splitlines()[-6:]
    assert [line.split(":")[0] for line in last] == [
        "prunable_conv_num",
        "prunable_kernel_num",
        "pruned_kernel_num",
        "pruned_percentage",
        "accuracy before",
        "accuracy after",
    ]
    assert last[1:4] == ["prunable_kernel_num: 12", "pruned_kernel_num: 6", "pruned_percentage: 50.00"]
    assert ha.get_dl_model_param_s(ha.read_dl_model(str(out)), "batch_size") == 16
    assert not (tmp_path / "small.onnx.state").exists()


def test_prune_gives_the_same_file_as_the_five_operators(model_file: str, photos: Path, tmp_path: Path) -> None:
    run("prune", model_file, "--images", photos, "-p", 30, "-o", tmp_path / "a.onnx", "--holdout", 0, *FAST)
    handle = ha.read_dl_model(model_file)
    samples = [
        ha.from_python_dict(
            {"image": np.asarray(Image.open(file)).astype(np.float32) - 127, "image_label_id": "abc".index(label)}
        )
        for label in "abc"
        for file in sorted((photos / label).iterdir())
    ]
    ha.set_dl_model_param(handle, "batch_size", 15)
    pruning = ha.create_dl_pruning(handle, "oracle", ha.from_python_dict({"percentage": 30}))
    for first in (0, 15):
        ha.add_dl_pruning_batch(handle, pruning, samples[first : first + 15])
    ours = ha.apply_dl_model(ha.read_dl_model(str(tmp_path / "a.onnx")), samples, [])
    theirs = ha.apply_dl_model(ha.gen_dl_pruned_model(handle, pruning), samples, [])
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(
            ha.get_dict_tuple(one, "classification_confidences"),
            ha.get_dict_tuple(other, "classification_confidences"),
            rtol=1e-4,
        )


def test_json_holds_every_figure_of_both_models(model_file: str, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.onnx"
    found = as_json("prune", model_file, "--images", photos, "-p", 50, "-o", out, "--runs", 3)
    assert (found["prunable_conv_num"], found["prunable_kernel_num"], found["pruned_kernel_num"]) == (2, 12, 6)
    assert found["pruned_percentage"] == 50
    assert (found["scored_images"], found["test_images"]) == (24, 6)
    assert found["kernels"] == {"before": 14, "after": 8}
    assert found["file_size"] == {"before": os.path.getsize(model_file), "after": out.stat().st_size}
    trainable = ha.get_dl_model_param_s(ha.read_dl_model(out), "num_trainable_params")
    assert found["trainable_parameters"]["after"] == trainable
    for key in ("parameters", "trainable_parameters", "macs"):
        assert found[key]["after"] < found[key]["before"]
    assert found["latency_ratio"] > 0
    assert 0 <= found["accuracy"]["before"] <= 1
    assert sum(layer["kernels"]["after"] for layer in found["layers"][:2]) == 8


def test_quiet_prints_nothing(model_file: str, photos: Path, tmp_path: Path) -> None:
    result = run("prune", model_file, "--images", photos, "-o", tmp_path / "a.onnx", "--quiet", *FAST)
    assert result.output == ""
    assert (tmp_path / "a.onnx").exists()


def test_all_pruning_options_arrive(model_file: str, photos: Path, tmp_path: Path) -> None:
    options = ["--compensation", "none", "--selection", "score", "--normalization", "l2", "--max-layer", 40]
    options += ["--step", 5, "--calibration-images", 9, "--multiple", 1, "--param", "calibration_image_num=10"]
    arguments = ("prune", model_file, "--images", photos, "-p", 50, "-o", tmp_path / "a.onnx", *FAST)
    found = as_json(*arguments, *options)
    assert found["settings"] == {
        "percentage": 50.0,
        "target": "kernels",
        "compensation": "none",
        "selection": "score",
        "normalization": "l2",
        "max_layer_percentage": 40.0,
        "step_percentage": 5.0,
        "calibration_image_num": 10,
        "kernel_multiple": 1,
    }
    assert found["pruned_kernel_num"] == 5  # 2 of 6 and 3 of 8 kernels are 40 percent at most


def test_preprocessing_options_are_stored_with_the_pruned_model(photos: Path, tmp_path: Path) -> None:
    file = saved(plain(channels=3, size=8, classes=3), tmp_path / "model.onnx")
    out = tmp_path / "a.onnx"
    options = ["--range", 0, 1, "--mean", "0.5,0.4,0.3", "--std", "0.2", "--channels", "bgr", "--fit", "crop"]
    run("prune", file, "--images", photos, "-o", out, "--class-names", "a,b,c", *options, *FAST)
    pruned = ha.read_dl_model(str(out))
    assert ha.get_dl_model_param(pruned, "class_names") == ["a", "b", "c"]
    assert ha.get_dl_model_param_s(pruned, "image_range_max") == 1
    stored = json.loads(ha.as_python_dict_s(ha.get_dl_model_param_s(pruned, "meta_data"))["preprocessing"])
    assert stored == {"mean": [0.5, 0.4, 0.3], "std": [0.2], "channel_order": "bgr", "fit": "crop"}
    # so that later commands need no options
    assert (
        as_json("evaluate", out, "--images", photos)["accuracy"]
        == as_json("evaluate", out, "--images", photos, *options)["accuracy"]
    )


def test_images_in_an_archive_and_other_images_for_the_accuracy(model_file: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, number in (("train", 20), ("test", 9)):
        images = rng.integers(0, 255, (number, 8, 8)).astype(np.uint8)
        np.savez_compressed(tmp_path / f"{name}.npz", images=images, labels=np.arange(number) % 3)
    arguments = ["prune", model_file, "--images", tmp_path / "train.npz", "--test-images", tmp_path / "test.npz"]
    found = as_json(*arguments, "-o", tmp_path / "a.onnx", *FAST)
    assert (found["scored_images"], found["test_images"]) == (20, 9)
    fewer = as_json(*arguments, "-o", tmp_path / "a.onnx", "--max-images", 6, *FAST)
    assert fewer["scored_images"] == 6


def test_images_without_classes_can_be_scored(model_file: str, photos: Path, tmp_path: Path) -> None:
    found = as_json("prune", model_file, "--images", photos / "a", "-o", tmp_path / "a.onnx", *FAST)
    assert found["accuracy"] == {"before": None, "after": None}
    assert found["agreement"] is not None


def test_a_fixed_batch_leaves_out_what_does_not_fill_it_and_says_so(photos: Path, tmp_path: Path) -> None:
    file = saved(plain(channels=1, size=8, classes=3, batch=7), tmp_path / "fixed.onnx")
    result = run("prune", file, "--images", photos, "-o", tmp_path / "a.onnx", *FAST)  # 24 images are scored
    assert "3 images do not fill a batch of 7" in result.stderr
    assert "21 images scored in 3 batches" in result.stdout


def test_fewer_images_than_a_fixed_batch_are_used_repeatedly(photos: Path, tmp_path: Path) -> None:
    file = saved(plain(channels=1, size=8, classes=3, batch=40), tmp_path / "fixed.onnx")
    result = run("prune", file, "--images", photos, "-o", tmp_path / "a.onnx", *FAST)
    assert "takes 40 images at once and there are 24" in result.stderr
    assert "accuracy on 6 images" in result.stdout


def test_unreadable_images_stop_the_work_unless_they_may_be_skipped(
    model_file: str, photos: Path, tmp_path: Path
) -> None:
    (photos / "a/3.png").write_bytes(b"")
    (photos / "b/3.png").write_bytes((photos / "b/4.png").read_bytes()[:60])
    arguments = ("prune", model_file, "--images", photos, "-o", tmp_path / "a.onnx", "--holdout", 0, *FAST)
    error = run(*arguments, code=1).stderr
    assert "\nError: 2 images cannot be read" in error
    assert "a/3.png: it is no image" in error.replace("\\", "/")
    assert not (tmp_path / "a.onnx").exists()
    found = as_json(*arguments, "--skip-bad")
    assert found["scored_images"] == 28
    assert len(found["skipped"]) == 2


# --- Interruption ----------------------------------------------------------------------------------------------------


def stop_after(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send Ctrl-C to ourselves while the given batch is being scored."""
    add: Callable[..., None] = ha.add_dl_pruning_batch
    calls = 0

    def counting(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == batches:
            signal.raise_signal(signal.SIGINT)
        add(*arguments)

    monkeypatch.setattr(ha, "add_dl_pruning_batch", counting)


def test_interrupted_scoring_goes_on_from_its_state_to_the_same_file(
    model_file: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["prune", model_file, "--images", photos, "-p", 40, "--batch-size", 5, *FAST]
    run(*arguments, "-o", tmp_path / "whole.onnx")
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        stopped = run(*arguments, "-o", tmp_path / "parts.onnx", code=130)
    state = tmp_path / "parts.onnx.state"
    assert "Interrupted after 10 of 24 images" in stopped.stderr
    assert f"--resume {state}" in stopped.stderr
    assert not (tmp_path / "parts.onnx").exists()
    result = run(*arguments, "-o", tmp_path / "parts.onnx", "--resume", state)
    assert "Going on after 10 of 24 images" in result.stderr
    assert "24 images scored in 5 batches" in result.stdout
    assert (tmp_path / "parts.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()
    assert not state.exists()


#: Has the state written after each batch.
_SAVING = "from dlprune.cli import scoring\nscoring._SAVE_EVERY, scoring._SAVE_SHARE = 0.0, 1e9\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
def test_a_process_that_is_stopped_leaves_a_state_from_which_the_same_file_comes(
    model_file: str, photos: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C, a polite end and a rude one: byte for byte the file of an uninterrupted run."""
    arguments = ["prune", model_file, "--images", photos, "-p", 40, "--batch-size", 2, *FAST]
    run(*arguments, "-o", tmp_path / "whole.onnx")
    out, state = tmp_path / "parts.onnx", tmp_path / "parts.onnx.state"
    batch = {"function": "dlprune:add_dl_pruning_batch", "calls": 4, "before": _SAVING}
    code, told = stopped(*arguments, "-o", out, number=number, **batch)
    assert code == (-number if number == signal.SIGKILL else 128 + number), told
    assert state.exists()
    assert not out.exists()
    result = run(*arguments, "-o", out, "--resume", state)
    position = int(re.search(r"Going on after (\d+) of 24", result.stderr)[1])  # type: ignore[index]
    assert position == (6 if number == signal.SIGKILL else 8)
    assert out.read_bytes() == (tmp_path / "whole.onnx").read_bytes()


def test_a_state_goes_on_with_another_percentage_but_not_with_other_images_or_models(
    model_file: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, state = tmp_path / "a.onnx", tmp_path / "a.onnx.state"
    arguments = ["prune", model_file, "--images", photos, "-o", out, "--batch-size", 5, *FAST]
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        run(*arguments, code=130)
    other = saved(plain(channels=1, size=8, classes=3, seed=1), tmp_path / "other.onnx")
    for wrong in (
        [*arguments, "--seed", 1],
        [*arguments, "--range", 0, 1],
        ["prune", other, *arguments[2:]],
        [*arguments, "--batch-size", 6],
    ):
        assert "belongs to other work" in " ".join(run(*wrong, "--resume", state, code=2).stderr.split())
    (tmp_path / "nonsense").write_bytes(b"nonsense")
    assert "no state" in run(*arguments, "--resume", tmp_path / "nonsense", code=2).stderr
    found = as_json(*arguments, "-p", 50, "--resume", state)
    assert found["pruned_kernel_num"] == 6


def test_an_interruption_while_kernels_are_removed_keeps_the_scores(
    model_file: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    arguments = ["prune", model_file, "--images", photos, "-o", tmp_path / "a.onnx", *FAST]
    with monkeypatch.context() as patch:
        patch.setattr(job, "generate", interrupted)
        run(*arguments, code=130)
    found = as_json(*arguments, "--resume", tmp_path / "a.onnx.state")
    assert found["scored_images"] == 24


def test_an_interruption_elsewhere_is_one_line(model_file: str, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ha, "read_dl_model", interrupted)
    assert run("evaluate", model_file, "--images", photos, code=130).stderr == "Interrupted.\n"


# --- inspect, evaluate, compare, doctor, demo ------------------------------------------------------------------------


def test_inspect_tells_per_convolution_what_can_go_or_why_not(tmp_path: Path) -> None:
    file = saved(
        model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[N,3,8,8] x) => (float[N,4] y)
        <float[6,3,3,3] w1, float[6,6,3,3] w2, float[5,6,1,1] w3, float[4,5,1,1] w4>
        {
          a = Conv<pads = [1,1,1,1]>(x, w1)
          b = Conv<pads = [1,1,1,1]>(a, w2)
          c = Add(a, b)
          d = Conv(c, w3)
          e = Relu(d)
          f = Conv(e, w4)
          g = GlobalAveragePool(f)
          y = Flatten(g)
        }"""),
        tmp_path / "a.onnx",
    )
    found = as_json("inspect", file)
    assert [layer["prunable"] for layer in found["layers"]] == [True, True, True, False]
    assert [layer["group"] for layer in found["layers"]] == [1, 1, None, None]
    assert [layer["units"] for layer in found["layers"]] == [6, 6, 5, 0]
    assert found["layers"][3]["reason"]
    assert (found["convolutions"], found["prunable_convolutions"], found["kernels"]) == (4, 3, 21)
    assert found["prunable_kernel_num"] == 2 * 5 + 4
    text = run("inspect", file).stdout
    assert f"no: {found['layers'][3]['reason']}" in re.sub(r"\s*│\s*\n\W*", " ", text) or "no: " in text
    assert "prunable_kernel_num: 14" in text


def test_inspect_says_what_a_model_with_open_size_needs(tmp_path: Path) -> None:
    file = saved(plain(size="S"), tmp_path / "a.onnx")
    assert as_json("inspect", file, "--size", "12x10")["input"] == "x [16, 3, 10, 12] NCHW"
    assert "no size" in run("inspect", file, "--size", "12", code=2).stderr


def test_evaluate_counts_right_decisions_per_class(model_file: str, photos: Path) -> None:
    found = as_json("evaluate", model_file, "--images", photos)
    assert found["images"] == 30
    assert [one["images"] for one in found["classes"]] == [10, 10, 10]
    right = sum(one["right"] for one in found["classes"])
    assert found["accuracy"] == pytest.approx(right / 30)
    assert sum(map(sum, found["confusion"])) == 30
    assert f"accuracy: {right / 30:.4f}" in run("evaluate", model_file, "--images", photos).stdout


def test_evaluate_needs_classes(model_file: str, photos: Path) -> None:
    assert "no classes" in run("evaluate", model_file, "--images", photos / "a", code=1).stderr


def test_compare_shows_both_models_and_how_often_they_agree(model_file: str, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.onnx"
    run("prune", model_file, "--images", photos, "-p", 50, "-o", out, *FAST)
    found = as_json("compare", model_file, out, "--images", photos, "--runs", 3)
    assert found["kernels"] == {"a": 14, "b": 8}
    assert found["latency_runs"] == 3
    assert 0 <= found["agreement"] <= 1
    same = as_json("compare", model_file, model_file, "--images", photos, *FAST)
    assert same["agreement"] == 1
    assert "latency_ms" not in same
    text = run("compare", model_file, out).stdout
    assert f"B: {out}" in text


def test_doctor_shows_versions_and_a_passed_test() -> None:
    found = as_json("doctor")
    assert found["dlprune"] == ha.__version__
    assert "CPUExecutionProvider" in found["providers"]
    assert set(found["self_test"].values()) == {"ok"}


def test_doctor_ends_with_an_error_code_if_its_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "_self_test", lambda: {"score": "it is broken"})
    assert "score: FAILED: it is broken" in run("doctor", code=1).stdout


def test_demo_ends_with_the_five_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--step", 20, "--calibration-images", 128, "--runs", 3]
    lines = run("demo", "-p", 20, "--multiple", 1, "--finetune-epochs", 0, *quick).stdout.splitlines()[-5:]
    assert lines[:2] == ["prunable_kernel_num: 708", "pruned_kernel_num: 141"]
    assert lines[2].startswith("pruned_percentage: 19.9")
    assert float(lines[3].removeprefix("accuracy before: ")) > 0.98
    assert float(lines[4].removeprefix("accuracy after: ")) > 0.95
    assert (tmp_path / "digits_pruned.onnx").stat().st_size < os.path.getsize(ha.demo_model_file())


# --- Wrong input -----------------------------------------------------------------------------------------------------


def test_errors_of_the_operators_are_one_line_with_their_code(tmp_path: Path, photos: Path) -> None:
    generic = saved(plain(), tmp_path / "model.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x08junk")
    for arguments, code, start in (
        (("inspect", tmp_path / "none.onnx"), 1, "Error 5200: "),
        (("inspect", tmp_path / "broken.onnx"), 1, "Error 7801: "),
        (("inspect", generic, "--class-output", "z"), 1, "Error 7914: "),
        (("demo", "--param", "seeds=1"), 1, "Error 7911: "),
        (("demo", "--mode", "magic"), 1, "Error 1302: "),
        (("evaluate", generic, "--images", tmp_path / "nowhere"), 1, "Error: There is no folder"),
        (("evaluate", generic, "--images", photos, "--mean", "1,2"), 1, "Error: mean has 2 values"),
    ):
        error = run(*arguments, code=code).stderr
        assert error.splitlines()[-1].startswith(start), error
        assert "Traceback" not in error


def test_wrong_command_lines_end_with_code_two(model_file: str, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.onnx"
    for arguments in (
        ("prune", model_file, "--images", photos, "-o", model_file),
        ("prune", model_file, "--images", photos, "-o", tmp_path / "no/where.onnx"),
        ("prune", model_file, "--images", photos, "-o", out, "-p", 101),
        ("prune", model_file, "--images", photos, "-o", out, "--range", 1, 0),
        ("prune", model_file, "--images", photos, "-o", out, "--mean", "a"),
        ("prune", model_file, "--images", photos, "-o", out, "--param", "seed"),
        ("prune", model_file, "--images", photos),
        ("destroy",),
    ):
        run(*arguments, code=2)
    assert not out.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples(command: str) -> None:
    text = run(command, "--help").stdout
    assert "Examples:" in text
    assert f"dlprune {command}" in text


def test_options_of_the_same_name_have_the_same_meaning_in_all_commands() -> None:
    for command in COMMANDS:
        text = run(command, "--help").stdout
        assert "--json" in text
        assert "--quiet" in text


def test_without_its_packages_the_command_says_which_extra_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_NEEDED", {"pip-name": "no_such_package_here"})
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    message = capsys.readouterr().err
    assert "missing here: pip-name" in message
    assert "pip install 'dlprune[cli]'" in message


def test_the_installed_command_runs_in_a_process_of_its_own(model_file: str) -> None:
    for arguments in (["inspect", model_file, "--json"], ["inspect", "none.onnx"]):
        done = subprocess.run(
            [sys.executable, "-m", "dlprune", *arguments], capture_output=True, text=True, check=False, timeout=120
        )
        if arguments[-1] == "--json":
            assert json.loads(done.stdout)["convolutions"] == 2
        else:
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith("Error 5200: ")
