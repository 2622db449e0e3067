"""Budgets and limits of pruning: never more than asked, of whatever is asked, and never what is excluded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from exactness import assert_same, assert_valid, masked, run
from models import model as onnx_model
from netchecks import read
from netgenerator import generate as random_net

import dlprune as ha
from dlprune import targets
from dlprune.analysis import analysis_of
from dlprune.classifier import Classifier
from dlprune.cost import Latency, cost_of
from dlprune.handle import new_handle, unwrap
from dlprune.imagescores import add_images
from dlprune.ledger import CountLedger
from dlprune.limits import multiple_of
from dlprune.model import unwrap_model
from dlprune.pruningdata import PruningData
from dlprune.selection import FixedHarm, Limits, Room, choose
from dlprune.steps import way
from dlprune.timing import LayerTimes, block_width

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\nnet '
NET = """(float[N,3,8,8] x) => (float[N,5] y)
<float[20,3,3,3] w1, float[20] b1, float[24,20,3,3] w2, float[24] s2, float[24] h2, float[24] m2, float[24] var2,
 float[24,24,3,3] w3, float[24] b3, float[16,24,1,1] w4, float[16] b4, float[16,12] w5, float[12] b5, float[12,5] w6>
{
  a = Conv<pads = [1,1,1,1]>(x, w1, b1)
  ar = Relu(a)
  b = Conv<pads = [1,1,1,1], strides = [2,2]>(ar, w2)
  bn = BatchNormalization(b, s2, h2, m2, var2)
  br = Relu(bn)
  c = Conv<pads = [1,1,1,1]>(br, w3, b3)
  s = Add(br, c)
  d = Conv(s, w4, b4)
  dr = Relu(d)
  g = GlobalAveragePool(dr)
  f = Flatten(g)
  h = Gemm(f, w5, b5)
  hr = Relu(h)
  y = Gemm(hr, w6)
}"""
#: Kernels that can leave: one stays in each of three groups.
PRUNABLE = 19 + 2 * 23 + 15
Value = str | float | Sequence[str | float]


def net() -> ha.HHandle:
    """Return a classifier with a residual block and a hidden dense layer."""
    return new_handle("dl_model", Classifier.from_proto(onnx_model(HEADER + NET)))


def images(number: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((number, 3, 8, 8)).astype(np.float32)


def scored(model: ha.HHandle, mode: str = "oracle", **settings: Value) -> ha.HHandle:
    """Return pruning data that has seen 48 images."""
    pruning = ha.create_dl_pruning(model, mode, ha.from_python_dict({"compensation": "none", **settings}))
    data, batch = unwrap(pruning, "dl_pruning", PruningData, 1), images(48)
    add_images(unwrap_model(model, 1), data, batch, np.full(48, -1), 48)
    return pruning


def layer_kernels(model: ha.HHandle) -> list[int]:
    return [layer.kernel_num for layer in analysis_of(unwrap_model(model, 1)).structure.layers]


def value(pruning: ha.HHandle, name: str) -> float:
    found = ha.get_dl_pruning_param_s(pruning, name)
    assert isinstance(found, (int, float))
    return found


@pytest.fixture(scope="module")
def model() -> ha.HHandle:
    return net()


@pytest.mark.parametrize("percentage", [0, 3, 10, 30, 70, 100])
@pytest.mark.parametrize("step", [0.5, 10, 100])
def test_steps_shrink_with_what_is_left_and_end_where_they_should(percentage, step):
    limits = np.array([0.0, *way(percentage, step)])
    assert limits[-1] == pytest.approx(percentage)
    strides = np.diff(limits)
    assert (np.diff(strides) < 1e-9).all()
    assert (strides < step * np.maximum(1 - limits[:-1] / 100, 0.2) + 1e-9).all()
    assert len(strides) == 1 or strides.min() > step / 10


# --- targets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compensation", ["none", "bias", "least_squares"])
@pytest.mark.parametrize("target", ["macs", "params"])
def test_no_more_operations_or_parameters_leave_than_asked(model: ha.HHandle, target: str, compensation: str) -> None:
    before = cost_of(unwrap_model(model, 1))
    for percentage in (12.5, 40):
        settings = {"target": target, "percentage": percentage, "compensation": compensation}
        pruning = scored(model, step_percentage=20, **settings)
        after = cost_of(unwrap_model(ha.gen_dl_pruned_model(model, pruning), 1))
        amounts = (before.macs, after.macs) if target == "macs" else (before.parameters, after.parameters)
        removed = 100 * (1 - amounts[1] / amounts[0])
        assert value(pruning, "target_reached") == pytest.approx(removed)
        assert percentage - 5 < removed <= percentage


def test_kernels_are_counted_in_kernels_whatever_the_target(model: ha.HHandle) -> None:
    pruning = scored(model, target="macs", percentage=30)
    pruned = ha.gen_dl_pruned_model(model, pruning)
    removed = sum(layer_kernels(model)) - sum(layer_kernels(pruned))
    assert value(pruning, "pruned_kernel_num") == removed
    assert value(pruning, "pruned_percentage") == pytest.approx(100 * removed / PRUNABLE)
    assert value(pruning, "prunable_kernel_num") == PRUNABLE


def test_target_kernels_reaches_what_pruned_percentage_says(model: ha.HHandle) -> None:
    pruning = scored(model, percentage=37)
    assert value(pruning, "target_reached") == 0.0
    ha.gen_dl_pruned_model(model, pruning)
    assert value(pruning, "target_reached") == value(pruning, "pruned_percentage")
    assert 35 < value(pruning, "target_reached") <= 37


@pytest.mark.parametrize("compensation", ["none", "least_squares"])
def test_a_hundred_percent_of_the_kernels_leave_one_in_each_convolution(model: ha.HHandle, compensation: str) -> None:
    pruning = scored(model, percentage=100, compensation=compensation, step_percentage=40)
    pruned = ha.gen_dl_pruned_model(model, pruning)
    assert layer_kernels(pruned) == [1, 1, 1, 1]
    assert value(pruning, "pruned_percentage") == 100.0


def test_accuracy_drop_removes_as_much_as_held_out_images_allow() -> None:
    """The images of the refit and those that accuracy is measured on share out by content hash."""
    model = net()
    classifier = unwrap_model(model, 1)
    for compensation in ("none", "least_squares"):
        reached = []
        for points in (5, 40):
            settings = {"target": "accuracy_drop", "percentage": points, "step_percentage": 50}
            pruning = scored(
                model, compensation=compensation, calibration_image_num=24, held_out_image_num=24, **settings
            )
            pruned = unwrap_model(ha.gen_dl_pruned_model(model, pruning), 1)
            images = unwrap(pruning, "dl_pruning", PruningData, 1).calibration.arrays()[0]
            agree = classifier.logits(images).argmax(axis=1) == pruned.logits(images).argmax(axis=1)
            assert value(pruning, "target_reached") == pytest.approx(100 * (1 - agree[24:].mean()))
            assert 100 * (1 - agree[:24].mean()) <= points
            assert value(pruning, "target_reached") <= points
            reached.append(value(pruning, "pruned_percentage"))
        assert reached[0] <= reached[1]
        assert reached[1] > 0


def test_accuracy_drop_needs_remembered_images(model: ha.HHandle) -> None:
    settings = ha.from_python_dict({"target": "accuracy_drop", "compensation": "none"})
    pruning = ha.create_dl_pruning(model, "l1", settings)
    with pytest.raises(ha.HOperatorError) as caught:
        ha.gen_dl_pruned_model(model, pruning)
    assert caught.value.error_code == 7980
    assert "images" in str(caught.value)


def test_held_out_images_are_remembered_beside_the_others() -> None:
    model = net()
    pruning = ha.create_dl_pruning(
        model, "oracle", ha.from_python_dict({"calibration_image_num": 10, "held_out_image_num": 6})
    )
    data = unwrap(pruning, "dl_pruning", PruningData, 1)
    add_images(unwrap_model(model, 1), data, images(32), np.full(32, -1), 32)
    assert len(data.calibration) == 10
    ha.set_dl_pruning_param(pruning, "target", "accuracy_drop")
    add_images(unwrap_model(model, 1), data, images(32), np.full(32, -1), 32)
    assert len(data.calibration) == 16


def test_latency_is_measured_and_comes_out_as_target_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of large convolutions, so that the clock has something to measure: that of the processor time here."""
    monkeypatch.setattr(time, "perf_counter", time.process_time)  # others may use the same processor
    text = """(float[N,3,48,48] x) => (float[N,5] y)
    <float[96,3,3,3] w1, float[96,96,3,3] w2, float[96,96,3,3] w3, float[96,5] w4> {
      a = Conv<pads = [1,1,1,1]>(x, w1)
      ar = Relu(a)
      b = Conv<pads = [1,1,1,1]>(ar, w2)
      br = Relu(b)
      c = Conv<pads = [1,1,1,1]>(br, w3)
      g = GlobalAveragePool(c)
      f = Flatten(g)
      y = Gemm(f, w4)
    }"""
    model = new_handle("dl_model", Classifier.from_proto(onnx_model(HEADER + text)))
    settings = ha.from_python_dict({"target": "latency", "percentage": 40, "compensation": "none"})
    pruning = ha.create_dl_pruning(model, "l2", settings)
    pruned = ha.gen_dl_pruned_model(model, pruning)
    # Caches that others use as well: only the direction is certain.
    assert 10 < value(pruning, "target_reached") < 70
    assert all(kernels % 8 == 0 for kernels in layer_kernels(pruned))
    assert sum(layer_kernels(pruned)) < 3 * 96


@pytest.mark.parametrize(("left", "reached"), [(0.62, 38), (0.35, 0)])
def test_a_step_of_time_that_goes_too_far_is_taken_only_if_it_comes_nearer(
    model: ha.HHandle, monkeypatch: pytest.MonkeyPatch, left: float, reached: float
) -> None:
    """30 % are asked for, and whatever is removed saves 38 % or 65 %, by a pretended clock."""

    def pretended(classifiers: list[Classifier], _seconds: float) -> Latency:
        kernels = [cost_of(classifier).kernels for classifier in classifiers]
        return Latency(tuple(1.0 if kernel == kernels[0] else left for kernel in kernels), 1)

    monkeypatch.setattr(targets, "latency", pretended)
    pruning = scored(model, target="latency", percentage=30)
    pruned = ha.gen_dl_pruned_model(model, pruning)
    assert value(pruning, "target_reached") == pytest.approx(reached)
    assert (layer_kernels(pruned) == layer_kernels(model)) == (reached == 0)


def test_times_between_measured_widths_are_interpolated_and_never_fall_with_the_width() -> None:
    times = LayerTimes([8, 16], [10, 20], np.array([[1.0, 3.0], [2.0, 2.5]]))
    read, made = np.array([8.0, 8.0, 16.0, 12.0, 16.0]), np.array([10.0, 15.0, 20.0, 10.0, 0.0])
    assert times(read, made).tolist() == [1.0, 2.0, 3.0, 1.5, 1.0]


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["kernels", "macs"])
@pytest.mark.parametrize("compensation", ["none", "least_squares"])
def test_layers_that_lose_kernels_keep_a_multiple(model: ha.HHandle, target: str, compensation: str) -> None:
    before = layer_kernels(model)
    for percentage in (30, 60):
        pruning = scored(model, kernel_multiple=8, percentage=percentage, target=target, compensation=compensation)
        after = layer_kernels(ha.gen_dl_pruned_model(model, pruning))
        assert after != before
        assert all(kept == all_ or kept % 8 == 0 for kept, all_ in zip(after, before, strict=True))
        assert value(pruning, "target_reached") <= percentage


def test_an_automatic_multiple_is_the_width_that_this_machine_computes_at_once(model: ha.HHandle) -> None:
    assert block_width() in (8, 16)
    pruned = [
        ha.gen_dl_pruned_model(model, scored(model, kernel_multiple=multiple, percentage=60))
        for multiple in ("auto", block_width())
    ]
    assert layer_kernels(pruned[0]) == layer_kernels(pruned[1])


def test_the_width_that_this_machine_computes_at_once_follows_from_its_instructions() -> None:
    flags = Path("/proc/cpuinfo")
    if not flags.exists() or "avx2" not in flags.read_text():
        pytest.skip("no list of this processor's instructions, or others")
    assert block_width() == (16 if "avx512f" in flags.read_text() else 8)


@pytest.mark.parametrize(
    ("width", "wanted"),
    [
        (16, {1: 1, 4: 4, 8: 16, 12: 12, 24: 48, 32: 32, "auto": 16}),
        (8, {1: 1, 4: 4, 8: 8, 12: 12, 24: 24, 32: 32, "auto": 8}),
    ],
)
def test_multiples_of_eight_are_whole_blocks_of_the_machine_too(
    width: int, wanted: dict[int | str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlprune.limits.block_width", lambda: width)
    assert {multiple: multiple_of(multiple) for multiple in wanted} == wanted


def test_no_half_blocks_stay_with_a_multiple_of_eight(model: ha.HHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a block costs as much as a whole one, and pooling falls out of the blocked layout."""
    left = []
    for width in (8, 16):
        monkeypatch.setattr("dlprune.limits.block_width", lambda width=width: width)
        pruned = ha.gen_dl_pruned_model(model, scored(model, kernel_multiple=8, percentage=40, compensation="none"))
        left.append(
            {kept for kept, before in zip(layer_kernels(pruned), layer_kernels(model), strict=True) if kept < before}
        )
    assert {kept % 16 for kept in left[0]} == {0, 8}
    assert {kept % 16 for kept in left[1]} == {0}


def test_the_block_with_the_best_bargain_leaves() -> None:
    """20 kernels: 4 leave a multiple of 8; the four least harmful ones are cheaper than 8 of another layer."""
    structure = analysis_of(unwrap_model(net(), 1)).structure
    harm = np.ones(structure.unit_num)
    first = structure.layers[0].units
    harm[first[3:7]] = 0.1
    room = Room(structure, CountLedger(structure), (25, 0), Limits(multiple=8))
    assert np.flatnonzero(choose(room, FixedHarm(harm))).tolist()[:4] == first[3:7].tolist()
    assert room.budgets[0] == 25 - 4 - 16  # then 8 units of the residual group, of two kernels each


def test_every_convolution_keeps_min_kernel_num(model: ha.HHandle) -> None:
    pruning = scored(model, percentage=100, min_kernel_num=5, max_layer_percentage=100)
    assert layer_kernels(ha.gen_dl_pruned_model(model, pruning)) == [5, 5, 5, 5]


def test_excluded_layers_and_what_is_coupled_with_them_stay_and_do_not_count(model: ha.HHandle) -> None:
    names = ha.get_dl_pruning_param(scored(model), "prunable_conv_layer_name")
    pruning = scored(model, exclude_layers=[names[1]], percentage=100)
    assert ha.get_dl_pruning_param(pruning, "exclude_layers") == [names[1]]
    assert value(pruning, "prunable_kernel_num") == 19 + 15
    assert ha.get_dl_pruning_param(pruning, "prunable_conv_layer_name") == [names[0], names[3]]
    assert value(pruning, "prunable_conv_num") == 2
    reasons = [ha.get_dict_tuple_s(layer, "reason") for layer in ha.get_dl_pruning_layer_info(pruning)]
    assert [bool(reason) for reason in reasons] == [False, True, True, False]
    assert "excluded" in str(reasons[1])
    assert layer_kernels(ha.gen_dl_pruned_model(model, pruning)) == [1, 24, 24, 1]
    assert value(pruning, "pruned_percentage") == 100.0
    ha.set_dl_pruning_param(pruning, "exclude_layers", [])
    assert value(pruning, "prunable_kernel_num") == PRUNABLE


def test_patterns_are_regular_expressions_for_whole_names(model: ha.HHandle) -> None:
    names = [str(name) for name in ha.get_dl_pruning_param(scored(model), "prunable_conv_layer_name")]
    pruning = scored(model, exclude_layers=f"({names[0]}|{names[3]})", percentage=100)
    assert layer_kernels(ha.gen_dl_pruned_model(model, pruning)) == [20, 1, 1, 16]


def test_single_layers_lose_no_more_than_their_percentage(model: ha.HHandle) -> None:
    names = [str(name) for name in ha.get_dl_pruning_param(scored(model), "prunable_conv_layer_name")]
    for limits in ([f"{names[0]}:0", f"{names[2]}:50"], ha.from_python_dict({names[0]: 0, names[2]: 50.0})):
        for compensation in ("none", "least_squares"):
            pruning = scored(model, percentage=100, compensation=compensation, step_percentage=30)
            ha.set_dl_pruning_param(pruning, "layer_percentages", limits)
            kept = layer_kernels(ha.gen_dl_pruned_model(model, pruning))
            assert kept == [20, 12, 12, 1]


def test_the_first_pattern_that_fits_a_layer_counts(model: ha.HHandle) -> None:
    names = [str(name) for name in ha.get_dl_pruning_param(scored(model), "prunable_conv_layer_name")]
    pruning = scored(model, percentage=100, layer_percentages=[f"{names[0]}:25", ".*:0"])
    assert layer_kernels(ha.gen_dl_pruned_model(model, pruning)) == [15, 24, 24, 16]


@pytest.mark.parametrize(
    ("name", "wrong", "code"),
    [
        ("target", "flops", 7914),
        ("kernel_multiple", 0, 7914),
        ("kernel_multiple", "many", 7914),
        ("min_kernel_num", 0, 7914),
        ("exclude_layers", "no such layer", 7914),
        ("exclude_layers", 3, 1203),
        ("layer_percentages", "no such layer:50", 7914),
        ("layer_percentages", ".*", 7914),
        ("layer_percentages", ".*:half", 7914),
        ("layer_percentages", ".*:101", 7914),
        ("prune_dense", "yes", 7914),
        ("batchnorm", "forget", 7914),
        ("held_out_image_num", 0, 7914),
        ("target_reached", 5, 7911),
        ("pruned_feature_num", 5, 7911),
    ],
)
def test_wrong_values_are_refused_and_change_nothing(model: ha.HHandle, name: str, wrong: Value, code: int) -> None:
    pruning = scored(model)
    before = ha.get_dl_pruning_param(pruning, name)
    with pytest.raises(ha.HOperatorError) as caught:
        ha.set_dl_pruning_param(pruning, name, wrong)
    assert caught.value.error_code == code
    assert ha.get_dl_pruning_param(pruning, name) == before


def test_settings_and_outcome_survive_serialisation(model: ha.HHandle) -> None:
    names = [str(name) for name in ha.get_dl_pruning_param(scored(model), "prunable_conv_layer_name")]
    settings = {"exclude_layers": names[:1], "layer_percentages": [f"{names[3]}:40"], "kernel_multiple": 4}
    pruning = scored(model, target="params", prune_dense="true", percentage=30, **settings)
    ha.gen_dl_pruned_model(model, pruning)
    again = ha.deserialize_handle(ha.serialize_handle(pruning))
    for name in (*settings, "target", "prune_dense", "target_reached", "pruned_percentage", "prunable_kernel_num"):
        assert ha.get_dl_pruning_param(again, name) == ha.get_dl_pruning_param(pruning, name)
    for name in ("prunable_feature_num", "pruned_feature_num", "scored_image_num"):
        assert value(again, name) == value(pruning, name)
        assert value(again, name) > 0


def test_an_auto_cap_counts_from_the_original_network_in_all_steps(model: ha.HHandle) -> None:
    pruning = scored(model, percentage=40, selection="score", compensation="bias", step_percentage=10)
    kept = layer_kernels(ha.gen_dl_pruned_model(model, pruning))
    assert all(n >= all_ * 0.4 for n, all_ in zip(kept, layer_kernels(model), strict=True))


# --- dense layers -----------------------------------------------------------------------------------------------------


def test_dense_features_stay_unless_asked(model: ha.HHandle) -> None:
    pruning = scored(model, percentage=50)
    assert value(pruning, "prunable_feature_num") == 0
    pruned = ha.gen_dl_pruned_model(model, pruning)
    assert value(pruning, "pruned_feature_num") == 0
    assert [layer.kernel_num for layer in analysis_of(unwrap_model(pruned, 1)).structure.dense] == [12, 5]


def test_dense_features_leave_apart_from_kernels_and_exactly(model: ha.HHandle) -> None:
    pruning = scored(model, percentage=50, prune_dense="true")
    assert value(pruning, "prunable_feature_num") == 11
    pruned = unwrap_model(ha.gen_dl_pruned_model(model, pruning), 1)
    assert value(pruning, "pruned_feature_num") == 5
    assert value(pruning, "pruned_kernel_num") == PRUNABLE // 2
    assert [layer.kernel_num for layer in analysis_of(pruned).structure.dense] == [7, 5]
    _assert_exact(model, pruning, pruned)


def _assert_exact(model: ha.HHandle, pruning: ha.HHandle, pruned: Classifier) -> None:
    """The pruned network equals the original with masked consumers."""
    classifier, gone = unwrap_model(model, 1), unwrap(pruning, "dl_pruning", PruningData, 1).removed
    assert gone is not None
    assert gone.any()
    found = analysis_of(classifier)
    truth = masked(classifier.model, found.facts, found.structure, gone)
    assert_valid(pruned.model)
    shape = classifier.input_shape(3)
    batch = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    expected, actual = (run(graph, batch, classifier.logits_name) for graph in (truth, pruned.model))
    assert_same(actual, expected, 1e-4, "dense pruning")


TRANSFORMER = """(float[N,3,8,8] x) => (float[N,5] y)
<float[12,3,2,2] w1, float[12] g1, float[12] h1, float[12,30] w2, float[30] b2, float[30,12] w3, float[12] b3,
 float[12,5] w4, int64[3] s = {0, 12, 16}, float half = {0.5}, float one = {1.0}, float root = {1.4142135}>
{
  p = Conv<strides = [2,2]>(x, w1)
  q = Reshape(p, s)
  t = Transpose<perm = [0,2,1]>(q)
  n = LayerNormalization<axis = -1>(t, g1, h1)
  u = MatMul(n, w2)
  v = Add(u, b2)
  e1 = Div(v, root)
  e2 = Erf(e1)
  e3 = Add(e2, one)
  e4 = Mul(v, e3)
  e = Mul(e4, half)
  o = MatMul(e, w3)
  ob = Add(o, b3)
  r = Add(t, ob)
  m = ReduceMean<axes = [1], keepdims = 0>(r)
  y = MatMul(m, w4)
}"""


def test_a_transformer_whose_convolution_is_fixed_can_lose_features_of_its_hidden_layer() -> None:
    model = new_handle("dl_model", Classifier.from_proto(onnx_model(HEADER + TRANSFORMER)))
    with pytest.raises(ha.HOperatorError) as caught:
        ha.create_dl_pruning(model, "oracle", ha.from_python_dict({"prune_dense": "false"}))
    assert caught.value.error_code == 7981
    assert "'prune_dense'" in str(caught.value)
    pruning = scored(model, percentage=40)
    assert (value(pruning, "prunable_kernel_num"), value(pruning, "prunable_feature_num")) == (0, 29)
    pruned = unwrap_model(ha.gen_dl_pruned_model(model, pruning), 1)
    assert (value(pruning, "pruned_kernel_num"), value(pruning, "pruned_feature_num")) == (0, 11)
    assert value(pruning, "target_reached") == pytest.approx(100 * 11 / 29)
    _assert_exact(model, pruning, pruned)


def test_dense_features_count_as_parameters_and_what_reads_them_is_refitted(model: ha.HHandle) -> None:
    settings: dict[str, Value] = {"target": "params", "percentage": 1, "compensation": "least_squares"}
    pruning = scored(model, prune_dense="true", exclude_layers=_conv_names(model), **settings)
    before = cost_of(unwrap_model(model, 1)).parameters
    pruned = unwrap_model(ha.gen_dl_pruned_model(model, pruning), 1)
    # Each feature has 16 weights, a bias and 5 readers; the refit has given these a bias.
    features = before // 100 // 22
    assert before - cost_of(pruned).parameters == features * 22 - 5
    assert value(pruning, "target_reached") == pytest.approx(100 * (features * 22 - 5) / before)
    assert value(pruning, "pruned_feature_num") == features
    assert value(pruning, "pruned_kernel_num") == 0


def _conv_names(model: ha.HHandle) -> list[str]:
    return [layer.name for layer in analysis_of(unwrap_model(model, 1)).structure.layers]


# --- batch normalisation ----------------------------------------------------------------------------------------------


def test_a_multiple_above_every_width_is_named_in_a_warning(model: ha.HHandle) -> None:
    with pytest.warns(UserWarning, match=r"No kernel was removed.*'kernel_multiple' 1024"):
        ha.gen_dl_pruned_model(model, scored(model, kernel_multiple=1024, percentage=50))


def test_reestimated_statistics_are_those_of_the_calibration_images(model: ha.HHandle) -> None:
    """All 16 output positions of 48 images are looked at, so the statistics are exact."""
    settings: dict[str, Value] = {"compensation": "least_squares", "batchnorm": "reestimate"}
    pruning = scored(model, percentage=50, step_percentage=50, exclude_layers=_conv_names(model)[1:], **settings)
    pruned = unwrap_model(ha.gen_dl_pruned_model(model, pruning), 1)
    node = next(node for node in pruned.model.graph if node.op_type == "BatchNormalization")
    batch = unwrap(pruning, "dl_pruning", PruningData, 1).calibration.arrays()[0]
    (seen,) = pruned.run(batch, [node.inputs[0].name])
    mean, variance = (node.inputs[index].const_value.numpy() for index in (3, 4))
    np.testing.assert_allclose(mean, seen.mean(axis=(0, 2, 3)), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(variance, seen.var(axis=(0, 2, 3)), rtol=1e-3)


def test_statistics_stay_where_nothing_was_lost(model: ha.HHandle) -> None:
    names = _conv_names(model)
    pruning = scored(
        model, percentage=50, compensation="least_squares", batchnorm="reestimate", exclude_layers=names[:3]
    )
    pruned = unwrap_model(ha.gen_dl_pruned_model(model, pruning), 1)
    found, given = (
        next(node for node in one.model.graph if node.op_type == "BatchNormalization")
        for one in (pruned, unwrap_model(model, 1))
    )
    for index in (3, 4):
        assert np.array_equal(found.inputs[index].const_value.numpy(), given.inputs[index].const_value.numpy())


# --- random nets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_random_nets_stay_within_every_budget(seed: int) -> None:
    classifier = read(random_net(seed))
    structure = analysis_of(classifier).structure
    if not structure.kernels.any() or not any(not layer.reason for layer in structure.layers):
        return
    model = new_handle("dl_model", classifier)
    before, rng = cost_of(classifier), np.random.default_rng(seed)
    for target in ("kernels", "macs", "params"):
        multiple, percentage = int(rng.choice([1, 2, 4])), float(rng.uniform(5, 95))
        settings: dict[str, Value] = {"target": target, "percentage": percentage, "kernel_multiple": multiple}
        settings |= {"prune_dense": str(rng.choice(["true", "false"])), "max_layer_percentage": 100}
        pruning = ha.create_dl_pruning(model, "l1", ha.from_python_dict({"compensation": "none", **settings}))
        pruned = unwrap_model(ha.gen_dl_pruned_model(model, pruning), 1)
        after = cost_of(pruned)
        assert value(pruning, "target_reached") <= percentage + 1e-9
        if target != "kernels":
            amounts = (before.macs, after.macs) if target == "macs" else (before.parameters, after.parameters)
            assert amounts[1] >= amounts[0] * (1 - percentage / 100) - 1e-6
        gone = unwrap(pruning, "dl_pruning", PruningData, 1).removed
        assert gone is not None
        for layer in structure.layers:
            left = int((~gone[layer.units] | (layer.units < 0)).sum())
            assert left >= 1
            assert left == layer.kernel_num or left % multiple == 0
