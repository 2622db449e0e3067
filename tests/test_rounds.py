"""Pruning in rounds with training in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from test_finetune import code_of, equal, samples

import dlprune as ha

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,1,8,8] x) => (float[N,3] y)
<float[12,1,3,3] w1, float[12] s1, float[12] t1, float[12] m1, float[12] var1,
 float[10,12,3,3] w2, float[10] b2, float[3,10] w3, float[3] b3> {
  a = Conv<pads = [1,1,1,1]>(x, w1)
  b = BatchNormalization(a, s1, t1, m1, var1)
  r = Relu(b)
  c = Conv<pads = [1,1,1,1], strides = [2,2]>(r, w2, b2)
  d = Relu(c)
  g = GlobalMaxPool(d)
  f = Flatten(g)
  y = Gemm<transB = 1>(f, w3, b3)
}"""
#: Removable kernels of the net: one of each convolution stays.
REMOVABLE = 11 + 9
TRAINING = {"epochs": 2, "batch_size": 16}


@pytest.fixture
def model(tmp_path: Path) -> ha.HHandle:
    """A trained net."""
    handle = ha.read_dl_model(models.saved(models.model(NET), tmp_path / "model.onnx"))
    ha.set_dl_model_param(handle, "solver_type", "adam")
    ha.set_dl_model_param(handle, "learning_rate", 0.02)
    ha.finetune_dl_model(handle, samples(240), epochs=5, batch_size=16)
    return handle


def run(model: ha.HHandle, **options: Any) -> tuple[ha.HHandle, list[dict[str, Any]]]:
    options = {"percentage": 50, "rounds": 3, "finetune": TRAINING, "compensation": "bias", **options}
    return ha.prune_and_finetune_dl_model(model, samples(80), dlsamples_validation=samples(40, 1), **options)


def kernels(handle: ha.HHandle) -> int:
    return int(ha.get_dl_pruning_param_s(ha.create_dl_pruning(handle, "oracle", []), "prunable_kernel_num"))


def test_each_round_removes_its_share(model: ha.HHandle):
    """Never more than asked, the same number in each round; the original stays as it is."""
    before = ha.deserialize_dl_model(ha.serialize_dl_model(model))
    pruned, history = run(model)
    assert [entry["round"] for entry in history] == [1, 2, 3]
    assert [entry["pruned_kernel_num"] for entry in history] == [3, 6, 10]
    assert [entry["pruned_percentage"] for entry in history] == [15, 30, 50]
    assert all(entry["epochs"] == 2 and len(entry["validation_accuracy"]) == 3 for entry in history)
    assert kernels(pruned) == REMOVABLE - 10
    assert equal(model, before)
    last = history[-1]
    assert last["validation_accuracy"][last["best_epoch"]] > 0.8


def test_one_round_is_prune_then_finetune(model: ha.HHandle):
    """The result of a single round is that of the two operators in turn."""
    pruned, _ = run(model, rounds=1, distill=False)
    expected, _, _ = ha.prune_dl_model(model, samples(80), 50, compensation="bias")
    ha.finetune_dl_model(expected, samples(80), samples(40, 1), **TRAINING)
    assert equal(pruned, expected)


@pytest.mark.parametrize(
    "moment", [(1, "prune", 0), (1, "train", 3), (2, "score", 0), (2, "train", 8), (3, "train", 1)]
)
def test_interrupted_and_resumed(model: ha.HHandle, tmp_path: Path, moment: tuple[int, str, int]):
    """Broken off while pruning or training and resumed with a fresh model, the result is the same bit for bit."""
    expected, history = run(model)
    path = str(tmp_path / "start.onnx")
    ha.write_dl_model(model, path)
    count = 0

    def stop(number: int, what: str, _done: object) -> None:
        nonlocal count
        if (number, what) == moment[:2]:
            if count == moment[2]:
                raise KeyboardInterrupt
            count += 1

    with pytest.raises(KeyboardInterrupt):
        run(ha.read_dl_model(path), checkpoint=tmp_path / "state", progress=stop)
    seen: list[tuple[int, str]] = []
    pruned, again = run(
        ha.read_dl_model(path),
        checkpoint=tmp_path / "state",
        resume=True,
        progress=lambda number, what, _done: seen.append((number, what)),
    )
    assert equal(pruned, expected)
    assert again == history
    assert min(seen)[0] == moment[0]
    if moment[1] == "train":
        assert seen[0] == (moment[0], "train")


def test_a_new_run_does_not_use_what_is_left_of_another(model: ha.HHandle, tmp_path: Path):
    run(model, rounds=1, percentage=20, checkpoint=tmp_path / "state")
    _, history = run(model, checkpoint=tmp_path / "state")
    assert history[-1]["pruned_kernel_num"] == 10


def test_a_state_of_other_work_is_refused(model: ha.HHandle, tmp_path: Path):
    run(model, rounds=1, checkpoint=tmp_path / "state")
    for options in ({"rounds": 2}, {"percentage": 20, "rounds": 1}, {"rounds": 1, "compensation": "none"}):
        code, text = code_of(lambda options=options: run(model, checkpoint=tmp_path / "state", resume=True, **options))
        assert code == 7914
        assert "settings" in text
    ha.finetune_dl_model(model, samples(16), epochs=1, batch_size=16)
    assert "weights" in code_of(lambda: run(model, rounds=1, checkpoint=tmp_path / "state", resume=True))[1]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"percentage": 120}, 7914),
        ({"rounds": 0}, 7914),
        ({"rounds": 2, "target": "macs"}, 7914),
        ({"finetune": {"epochs": -1}}, 7914),
        ({"finetune": {"epoch": 1}}, 7911),
        ({"finetune": {"resume": True}}, 7911),
        ({"resume": True}, 7914),
        ({"mode": "nothing"}, 1302),
    ],
)
def test_impossible_options_are_refused(model: ha.HHandle, options: dict[str, Any], code: int):
    assert code_of(lambda: run(model, **options))[0] == code


def test_distillation_reaches_for_the_original(model: ha.HHandle):
    """With all of the loss from the original, its decisions are kept."""
    pruned, _ = run(model, rounds=1, finetune={**TRAINING, "epochs": 6, "distillation": 1.0, "temperature": 2.0})
    test = samples(60, 9)
    decisions = [
        [ha.get_dict_tuple(r, "classification_class_ids")[0] for r in ha.apply_dl_model(one, test, [])]
        for one in (model, pruned)
    ]
    assert np.mean(np.array(decisions[0]) == np.array(decisions[1])) > 0.85
