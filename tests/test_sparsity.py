"""Sparsity functions, schedules, masks and hyperparameters of magnitude pruning, checked against slow, plain code."""

from __future__ import annotations

import doctest
import gzip
import importlib
import io
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dlprune as ha
from dlprune import errors, sparsity
from dlprune.hparams import HParams
from dlprune.sparsity.schedule import HParamsSchedule, schedule_from_config

UNKNOWN, BAD = errors.H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM, errors.H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE

# --- sparsity function -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.1), (1000, 0.1), (1500, 0.9 - 0.8 * 0.75**3), (2000, 0.8), (2500, 0.8875), (3000, 0.9), (9999, 0.9)],
)
def test_sparsity_at_stated_steps(step: int, expected: float):
    """From 10 to 90 percent between steps 1000 and 3000, worked out by hand."""
    assert sparsity.sparsity_at(step, 0.1, 0.9, 1000, 3000) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("update", "expected"), [(0, 0.0), (3, 0.5 - 0.5 * (6 / 9) ** 3), (9, 0.5)])
def test_documented_formula_at_stated_updates(update: int, expected: float):
    """With the defaults there are ten updates; the formula reaches the target at the last one."""
    assert sparsity.documented_sparsity(update, 0.0, 0.5, 0, 100, 10) == pytest.approx(expected, abs=1e-12)


@given(number=st.integers(2, 60), frequency=st.integers(1, 20), initial=st.floats(0, 0.99), target=st.floats(0, 0.99))
def test_documented_formula_is_the_rule_over_updates(number: int, frequency: int, initial: float, target: float):
    """Where it is defined, it is the rule in the code over 0…num_steps − 1, counted in updates."""
    for update in range(number):
        printed = sparsity.documented_sparsity(update, initial, target, 0, number * frequency, frequency)
        assert printed == pytest.approx(sparsity.sparsity_at(update, initial, target, 0, number - 1), abs=1e-9)


def test_documented_formula_differs_from_the_rule_over_steps():
    """Counted in steps as the code does, the sparsity of the third update is another one."""
    assert sparsity.sparsity_at(30, 0.0, 0.5, 0, 100) == pytest.approx(0.3285)
    assert sparsity.documented_sparsity(3, 0.0, 0.5, 0, 100, 10) == pytest.approx(0.351852, abs=1e-6)


@pytest.mark.parametrize(("update", "end", "frequency"), [(0, 10, 10), (10, 100, 10), (-1, 100, 10)])
def test_documented_formula_is_refused_where_it_is_not_defined(update: int, end: int, frequency: int):
    with pytest.raises(ha.HOperatorError):
        sparsity.documented_sparsity(update, 0.0, 0.5, 0, end, frequency)


@given(
    st.floats(0, 0.99), st.floats(0, 0.99), st.integers(0, 500), st.integers(1, 500), st.floats(0.2, 6), st.integers()
)
def test_sparsity_is_monotone_and_clipped(
    initial: float, target: float, begin: int, length: int, exponent: float, step: int
):
    def at(when: int) -> float:
        return sparsity.sparsity_at(when, initial, target, begin, begin + length, exponent)

    low, high = sorted((initial, target))
    assert low - 1e-12 <= at(step) <= high + 1e-12
    assert (at(step + 1) - at(step)) * (target - initial) >= -1e-12
    assert at(begin - 1) == at(begin) == pytest.approx(initial)
    assert at(begin + length) == at(begin + length + 7) == target


@given(st.floats(0, 0.99), st.floats(0, 0.99), st.integers(0, 100))
def test_exponent_one_is_linear(initial: float, target: float, step: int):
    expected = initial + (target - initial) * step / 100
    assert sparsity.sparsity_at(step, initial, target, 0, 100, 1.0) == pytest.approx(expected, abs=1e-12)


# --- schedules -------------------------------------------------------------------------------------------------------


def fired(schedule: sparsity.Schedule, steps: int) -> list[int]:
    last, found = None, []
    for step in range(steps):
        if schedule.due(step, last):
            found.append(step)
            last = step
    return found


def test_contrib_gate_counts_from_the_last_update():
    """The first update comes one frequency after step 0 and not before the begin; the end is the last step."""
    make = lambda **values: HParamsSchedule.of(HParams(**values))  # noqa: E731
    assert fired(make(pruning_frequency=4), 13) == [4, 8, 12]
    assert fired(make(pruning_frequency=4, begin_pruning_step=6, end_pruning_step=10), 20) == [6, 10]
    assert not make(pruning_frequency=4).due(7, 4)
    assert make(pruning_frequency=4).due(9, 4), "after missed steps the next chance counts"


def test_keras_schedules_fire_by_modulo():
    """At begin, begin + frequency, … up to the end."""
    assert fired(sparsity.ConstantSparsity(0.5, 3, 11, 4), 30) == [3, 7, 11]
    assert fired(sparsity.ConstantSparsity(0.5, 0, frequency=9), 30) == [0, 9, 18, 27]
    assert fired(sparsity.PolynomialDecay(0.0, 0.5, 2, 6, frequency=2), 30) == [2, 4, 6]
    assert sparsity.PolynomialDecay(0.2, 0.8, 10, 20)(15) == (False, pytest.approx(0.8 - 0.6 * 0.125))


@pytest.mark.parametrize(
    "make",
    [
        lambda: sparsity.PolynomialDecay(0.0, 0.5, 0, -1),
        lambda: sparsity.PolynomialDecay(0.0, 0.5, 5, 5),
        lambda: sparsity.PolynomialDecay(0.0, 1.0, 0, 5),
        lambda: sparsity.PolynomialDecay(-0.1, 0.5, 0, 5),
        lambda: sparsity.PolynomialDecay(0.0, 0.5, 0, 5, frequency=0),
        lambda: sparsity.PolynomialDecay(0.0, 0.5, 0, 5, power=0),
        lambda: sparsity.ConstantSparsity(1.0, 0),
        lambda: sparsity.ConstantSparsity(0.5, -1),
        lambda: sparsity.ConstantSparsity(0.5, 5, 4),
    ],
)
def test_impossible_schedules_are_refused(make):
    with pytest.raises(ha.HOperatorError) as error:
        make()
    assert error.value.error_code == BAD


def test_schedules_come_back_from_their_configuration():
    for schedule in (sparsity.ConstantSparsity(0.5, 1), sparsity.PolynomialDecay(0.0, 0.5, 2, 9, 2.5, 3)):
        assert schedule_from_config(schedule.get_config()) == schedule


# --- masks -----------------------------------------------------------------------------------------------------------


def slow_exact(magnitudes: np.ndarray, share: float) -> np.ndarray:
    """Sort positions by magnitude, then place, and keep the first ones."""
    values = magnitudes.ravel().tolist()
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    kept = set(order[: max(round(len(values) * (1 - share)), 1)])
    return np.array([i in kept for i in range(len(values))]).reshape(magnitudes.shape)


def slow_blocks(matrix: np.ndarray, height: int, width: int, pooling: str, share: float) -> np.ndarray:
    """Cut the matrix into blocks by hand."""
    rows, columns = matrix.shape
    height, width = rows if height == -1 else height, columns if width == -1 else width
    down, across = math.ceil(rows / height), math.ceil(columns / width)
    pooled = np.zeros((down, across))
    for i in range(down):
        for j in range(across):
            part = np.abs(matrix[i * height : (i + 1) * height, j * width : (j + 1) * width])
            pooled[i, j] = part.mean() if pooling == "AVG" else part.max()
    blocks = slow_exact(pooled, share)
    return np.array([[blocks[i // height, j // width] for j in range(columns)] for i in range(rows)])


TIED = st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 4.0])  # small numbers: sums are exact, ties are frequent


@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=TIED),
    st.sampled_from([1, 2, 4, -1]),
    st.sampled_from([1, 2, 4, -1]),
    st.sampled_from(["AVG", "MAX"]),
    st.floats(0, 0.99),
)
@settings(deadline=None)
def test_block_masks_equal_plain_code(matrix, height, width, pooling, share):
    """AVG and MAX, border blocks that are not full, −1, ties, zeros alone."""
    pooled = sparsity.pool_blocks(matrix, (height, width), pooling)
    mask = sparsity.expand_blocks(sparsity.exact_mask(pooled, share).mask, matrix.shape, (height, width))
    assert np.array_equal(mask, slow_blocks(matrix, height, width, pooling, share))


@given(hnp.arrays(np.float32, st.integers(1, 60), elements=TIED), st.floats(0, 0.99))
def test_sparsity_is_met_within_one_weight(values, share):
    """Also with ties and zeros alone, but one weight always stays."""
    mask = sparsity.exact_mask(np.abs(values), share).mask
    assert mask.sum() == max(round(len(values) * (1 - share)), 1)
    assert abs((1 - mask.mean()) - share) <= 1 / len(values)


def test_histogram_threshold_by_hand():
    """Ten numbers in ten bins: half of the bins lie below; smoothing goes half of the way."""
    values = np.arange(1.0, 11.0)
    new = sparsity.histogram_mask(values, 0.5, bins=10)
    assert new.threshold == pytest.approx(5.0)
    assert new.mask.tolist() == [False] * 5 + [True] * 5
    smoothed = sparsity.histogram_mask(values, 0.5, bins=10, previous=1.0, decay=0.5)
    assert smoothed.threshold == pytest.approx(3.0)
    assert smoothed.mask.sum() == 7


def test_histogram_of_zeros_divides_by_nothing():
    found = sparsity.histogram_mask(np.zeros(10), 0.5, previous=0.3, decay=0.5)
    assert found.mask.sum() == 5


@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 3), st.sampled_from([(1, 2), (2, 4), (3, 4), (1, 4)]))
@settings(deadline=None, max_examples=40)
def test_m_by_n_equals_plain_code(positions, inputs, outputs, m_by_n):
    """Of every n along the input channels of one kernel position the m smallest are zero."""
    zeros, of = m_by_n
    matrix = np.random.default_rng(inputs).permutation(positions * inputs * outputs).astype(np.float32)
    matrix = matrix.reshape(positions * inputs, outputs) - matrix.size / 2
    mask = sparsity.m_by_n_mask(matrix, zeros, of, inputs).mask
    for position in range(positions):
        for output in range(outputs):
            for start in range(0, inputs, of):
                rows = range(position * inputs + start, position * inputs + min(start + of, inputs))
                order = sorted(rows, key=lambda row: -abs(matrix[row, output]))
                assert {row for row in rows if mask[row, output]} == set(order[: of - zeros])


def test_view_comes_back():
    """A matrix made of a weight gives the weight again, through moves of the graph as well."""
    weight = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    view = sparsity.View.of((2, 3, 4, 5), (), (2, 3, 1, 0))
    assert view.matrix(weight).shape == (60, 2)
    assert view.matrix(weight)[4, 1] == weight[1, 1, 0, 1], "rows: height, width, inputs, the last one fastest"
    assert np.array_equal(view.restore(view.matrix(weight)), weight)
    moved = sparsity.View.of((2, 3, 4, 5), (("reshape", (6, 20)), ("transpose", (1, 0))), (0, 1))
    assert np.array_equal(moved.matrix(weight), weight.reshape(6, 20).T)
    assert np.array_equal(moved.restore(moved.matrix(weight)), weight)


# --- hyperparameters -------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_document():
    assert ha.as_python_dict_s(ha.get_pruning_hparams()) == {
        "name": "model_pruning",
        "begin_pruning_step": 0,
        "end_pruning_step": -1,
        "weight_sparsity_map": "",
        "block_dims_map": "",
        "threshold_decay": 0.0,
        "pruning_frequency": 10,
        "nbins": 256,
        "block_height": 1,
        "block_width": 1,
        "block_pooling_function": "AVG",
        "initial_sparsity": 0.0,
        "target_sparsity": 0.5,
        "sparsity_function_begin_step": 0,
        "sparsity_function_end_step": 100,
        "sparsity_function_exponent": 3.0,
        "use_tpu": "false",
    }


def test_text_is_parsed():
    found = ha.as_python_dict_s(
        ha.parse_pruning_hparams(
            "target_sparsity=0.75, weight_sparsity_map=[conv1:0.9,conv2/kernel:0.8],block_width=-1,"
            "block_dims_map=[dense1:4x4,dense2:1x16,dense3:1x1],name=my pruning,use_tpu=False"
        )
    )
    assert found["target_sparsity"] == 0.75
    assert found["weight_sparsity_map"] == ["conv1:0.9", "conv2/kernel:0.8"]
    assert found["block_dims_map"] == ["dense1:4x4", "dense2:1x16", "dense3:1x1"]
    assert (found["block_width"], found["name"], found["nbins"]) == (-1, "my pruning", 256)
    assert ha.as_python_dict(ha.parse_pruning_hparams("")) == ha.as_python_dict(ha.get_pruning_hparams())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("begin_pruning_step=-1", "begin_pruning_step"),
        ("begin_pruning_step=5,end_pruning_step=5", "end_pruning_step"),
        ("end_pruning_step=-2", "end_pruning_step"),
        ("sparsity_function_begin_step=-1", "sparsity_function_begin_step"),
        ("sparsity_function_begin_step=100", "sparsity_function_end_step"),
        ("threshold_decay=1", "threshold_decay"),
        ("threshold_decay=-0.1", "threshold_decay"),
        ("initial_sparsity=1.0", "initial_sparsity"),
        ("target_sparsity=1.0", "target_sparsity"),
        ("target_sparsity=-0.5", "target_sparsity"),
        ("target_sparsity=half", "target_sparsity"),
        ("pruning_frequency=0", "pruning_frequency"),
        ("nbins=0", "nbins"),
        ("block_height=0", "block_height"),
        ("block_width=-2", "block_width"),
        ("block_pooling_function=MIN", "block_pooling_function"),
        ("sparsity_function_exponent=0", "sparsity_function_exponent"),
        ("use_tpu=True", "use_tpu"),
        ("weight_sparsity_map=[conv1:1.0]", "weight_sparsity_map"),
        ("weight_sparsity_map=[conv1]", "weight_sparsity_map"),
        ("weight_sparsity_map=[a:b:0.5]", "weight_sparsity_map"),
        ("weight_sparsity_map=[(:0.5]", "weight_sparsity_map"),
        ("block_dims_map=[dense:4]", "block_dims_map"),
        ("block_dims_map=[dense:0x4]", "block_dims_map"),
        ("nbins=5,nbins=6", "nbins"),
    ],
)
def test_wrong_hyperparameters_are_named(text: str, name: str):
    with pytest.raises(ha.HOperatorError, match=name) as error:
        ha.parse_pruning_hparams(text)
    assert error.value.error_code == BAD


def test_unknown_hyperparameters_and_broken_text_are_refused():
    with pytest.raises(ha.HOperatorError, match="'sparsity'") as error:
        ha.parse_pruning_hparams("sparsity=0.5")
    assert error.value.error_code == UNKNOWN
    with pytest.raises(ha.HOperatorError, match="brackets"):
        ha.parse_pruning_hparams("weight_sparsity_map=[conv1:0.9")


# --- compression -----------------------------------------------------------------------------------------------------


def test_compressed_size_is_that_of_real_archives(tmp_path: Path):
    """What gzip and zip really write, to the byte."""
    data = Path(ha.demo_model_file()).read_bytes()
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    size = sparsity.compressed_size(path)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr(zipfile.ZipInfo(path.name), data, zipfile.ZIP_DEFLATED, 9)
    assert size == sparsity.CompressedSize(len(data), len(gzip.compress(data, 9)), len(stream.getvalue()))
    assert size.ratio == len(data) / size.gzip


def test_compressed_size_of_no_file_says_so(tmp_path: Path):
    with pytest.raises(ha.HOperatorError) as error:
        sparsity.compressed_size(tmp_path / "none.onnx")
    assert error.value.error_code == errors.H_ERR_FNF


@pytest.mark.parametrize("name", ["", ".compressed", ".masks", ".operators", ".schedule", ".view"])
def test_examples_give_what_they_show(name: str):
    result = doctest.testmod(importlib.import_module(f"dlprune.sparsity{name}"))
    assert result.attempted
    assert not result.failed
