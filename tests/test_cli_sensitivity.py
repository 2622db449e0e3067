"""`dlprune sensitivity`: what get_dl_pruning_sensitivity tells, as a table and a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commandline import as_json, run, small_model
from PIL import Image

import dlprune as ha


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    rng = np.random.default_rng(0)
    for name, number in (("train", 16), ("test", 12)):
        images = rng.integers(0, 255, (number, 8, 8)).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(number) % 3)
    train, test = (str(tmp_path / f"{name}.npz") for name in ("train", "test"))
    return ["sensitivity", small_model(tmp_path), "--images", train, "--test-images", test]


def samples(file: Path) -> list[ha.HHandle]:
    with np.load(file) as arrays:
        return [
            ha.from_python_dict({"image": image.astype(np.float32) - 127, "image_label_id": int(label)})
            for image, label in zip(arrays["images"], arrays["labels"], strict=True)
        ]


def test_the_numbers_are_those_of_the_operator(files: list[str], tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    found = as_json(*files, "--percentages", "20,60", "--plot", plot)
    model = ha.read_dl_model(files[1])
    ha.set_dl_model_param(model, "batch_size", 16)
    pruning = ha.create_dl_pruning(model, "oracle", [])
    ha.add_dl_pruning_batch(model, pruning, samples(tmp_path / "train.npz"))
    expected = ha.as_python_dict_s(
        ha.get_dl_pruning_sensitivity(model, pruning, samples(tmp_path / "test.npz"), [20, 60])
    )
    assert found["accuracy"] == expected["accuracy"]
    for ours, theirs in zip(found["groups"], expected["groups"], strict=True):
        assert ours["layers"] == list(np.atleast_1d(theirs["layer_names"]))
        assert ours["pruned_kernel_num"] == theirs["pruned_kernel_num"]
        np.testing.assert_allclose(ours["accuracy"], theirs["accuracy"])
        np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-4)
    with Image.open(plot) as image:
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 5  # something is drawn


def test_the_table_has_a_row_per_group(files: list[str]) -> None:
    text = run(*files, "--percentages", "50").stdout
    assert "Conv_0" in text
    assert "points lost at 50 %" in text


def test_it_needs_images_to_measure_on(files: list[str]) -> None:
    assert "--holdout" in run(*files[:4], "--holdout", "0", code=1).stderr
