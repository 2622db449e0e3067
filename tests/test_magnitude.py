"""Mode 'magnitude': masks over training steps, the sparse copy, mixed use, serialized items."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import dlprune as ha
from dlprune import errors, sparsity
from dlprune.model import unwrap_model
from dlprune.sparsestorage import SparseStorageError, make_dense
from dlprune.sparsity.operators import magnitude_of
from dlprune.sparsity.strip import kept_kernels

KINDS = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,4,6,6] x) => (float[N,3] y)
<float[8,4,3,3] conv1, float[8] bias1, float[8,1,3,3] depth, float[8] s, float[8] t, float[8] m, float[8] v,
 float[8,2,2,2] up, float[6,4,1,1] conv10, float[5,6] matrix, float[5,3] last> {
  a = Conv<pads = [1,1,1,1]>(x, conv1, bias1)
  b = BatchNormalization(a, s, t, m, v)
  c = Relu(b)
  d = Conv<group = 8, pads = [1,1,1,1]>(c, depth)
  e = ConvTranspose<group = 2, strides = [2,2]>(d, up)
  f = Conv(e, conv10)
  g = GlobalAveragePool(f)
  h = Flatten(g)
  i = Gemm<transB = 1>(h, matrix)
  j = Relu(i)
  y = MatMul(j, last)
}"""
PRUNED = ["conv1", "up", "conv10", "matrix", "last"]
BAD, WRONG = errors.H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE, errors.H_ERR_DL_PRUNING_WRONG_DATA


def kinds(folder: Path, *, zero: str = "") -> ha.HHandle:
    """A model with every kind of weight; the running variances are positive."""
    proto = models.model(KINDS)
    for tensor in proto.graph.initializer:
        array = np.frombuffer(tensor.raw_data, np.float32).copy()
        if tensor.name == "v":
            array = np.abs(array) + 1
        if tensor.name == zero:
            array[:] = 0
        tensor.raw_data = array.tobytes()
    handle = ha.read_dl_model(models.saved(proto, folder / "kinds.onnx"))
    ha.set_dl_model_param(handle, "batch_size", 4)
    ha.set_dl_model_param(handle, "learning_rate", 0.01)
    return handle


def batch(seed: int) -> list[ha.HHandle]:
    rng = np.random.default_rng(seed)
    return [
        ha.from_python_dict(
            {
                "image": ha.himage_from_numpy_array(rng.normal(0, 1, (6, 6, 4)).astype(np.float32)),
                "image_label_id": int(rng.integers(3)),
            }
        )
        for _ in range(4)
    ]


def weights(handle: ha.HHandle) -> dict[str, np.ndarray]:
    graph = unwrap_model(handle, 1).model.graph
    return {name: value.const_value.numpy().copy() for name, value in graph.initializers.items()}


def now(model: ha.HHandle, text: str = "", **options: Any) -> ha.HHandle:
    """Pruning data whose masks were made at once, at the target."""
    hparams = ha.parse_pruning_hparams(text)
    for name, value in options.items():
        ha.set_dict_tuple(hparams, name, value)
    pruning = ha.create_dl_pruning(model, "magnitude", hparams)
    ha.set_dl_pruning_param(pruning, "global_step", 1000)
    ha.update_dl_pruning_masks(model, pruning)
    return pruning


def test_kernels_and_matrices_are_pruned_nothing_else(tmp_path: Path):
    """Conv, ConvTranspose, Gemm and MatMul weights; not depthwise kernels, biases, scales, statistics."""
    model = kinds(tmp_path)
    before = weights(model)
    pruning = now(model, "target_sparsity=0.75")
    assert ha.get_dl_pruning_param(pruning, "weight_names") == PRUNED
    after = weights(model)
    for name, old in before.items():
        zeros = np.count_nonzero(after[name] == 0)
        assert zeros == (old.size - max(round(old.size * 0.25), 1) if name in PRUNED else 0)
        assert np.array_equal(after[name][after[name] != 0], old[after[name] != 0])
    assert ha.get_dl_pruning_param_s(pruning, "percentage") == 75
    for share, name in zip(ha.get_dl_pruning_param(pruning, "weight_sparsity"), PRUNED, strict=True):
        assert abs(share - 0.75) <= 1 / before[name].size


def test_the_largest_weights_stay(tmp_path: Path):
    model = kinds(tmp_path)
    before = weights(model)
    pruning = now(model)
    masks = sparsity.get_masks(pruning)
    for name, threshold in zip(PRUNED, ha.get_dl_pruning_param(pruning, "thresholds"), strict=True):
        kept = masks[name]
        assert np.abs(before[name][kept]).min() == pytest.approx(threshold)
        assert np.abs(before[name][~kept]).max() <= threshold
        stored = ha.get_dict_tuple_s(ha.get_dl_pruning_masks(pruning), name)
        flat = np.array(ha.get_dict_tuple(stored, "mask")).reshape(ha.get_dict_tuple(stored, "shape"))
        assert np.array_equal(flat, kept)


def test_a_weight_of_zeros_keeps_its_share(tmp_path: Path):
    pruning = now(kinds(tmp_path, zero="matrix"))
    assert sparsity.get_masks(pruning)["matrix"].sum() == 15


def test_blocks_lie_in_the_documented_view(tmp_path: Path):
    """Rows are kernel row, column, input channel; columns are output channels; −1 is each weight's own full size."""
    model = kinds(tmp_path)
    before = weights(model)
    masks = sparsity.get_masks(now(model, "block_height=-1,block_width=1,block_pooling_function=MAX"))
    views = {
        "conv1": lambda w: w.transpose(2, 3, 1, 0).reshape(-1, w.shape[0]),
        "up": lambda w: w.transpose(2, 3, 0, 1).reshape(-1, w.shape[1]),
        "conv10": lambda w: w.transpose(2, 3, 1, 0).reshape(-1, w.shape[0]),
        "matrix": lambda w: w.T,
        "last": lambda w: w,
    }
    for name, view in views.items():
        columns = np.abs(view(before[name])).max(axis=0)
        kept = np.argsort(-columns, kind="stable")[: max(round(len(columns) / 2), 1)]
        assert np.flatnonzero(view(masks[name]).any(axis=0)).tolist() == sorted(kept)
        assert (view(masks[name]).all(axis=0) == view(masks[name]).any(axis=0)).all()


def test_partial_blocks_of_one_weight(tmp_path: Path):
    """block_dims_map gives `matrix`, 6 inputs × 5 outputs, blocks of 4×2: partial ones at both borders."""
    model = kinds(tmp_path)
    view = weights(model)["matrix"].T
    mask = sparsity.get_masks(now(model, "block_dims_map=[matrix:4x2]"))["matrix"].T
    parts = [(slice(i, i + 4), slice(j, j + 2)) for i in (0, 4) for j in (0, 2, 4)]
    means = [np.abs(view[part]).mean() for part in parts]
    kept = sorted(range(6), key=lambda k: -means[k])[:3]
    for k, part in enumerate(parts):
        assert mask[part].all() if k in kept else not mask[part].any()


def test_maps_match_weights_and_nodes_by_search(tmp_path: Path):
    """A regular expression for one weight, a node's name for another; others follow the target."""
    model = kinds(tmp_path)
    node = next(n.name for n in unwrap_model(model, 1).model.graph if n.op_type == "MatMul")
    pruning = now(model, weight_sparsity_map=["^conv1$:0.9", f"{node}:0.2"], target_sparsity=0.5)
    sizes = {name: array.size for name, array in weights(model).items()}
    expected = {"conv1": 0.9, "last": 0.2}
    for name, share in zip(PRUNED, ha.get_dl_pruning_param(pruning, "weight_sparsity"), strict=True):
        assert abs(share - expected.get(name, 0.5)) <= 1 / sizes[name]


def test_a_weight_of_the_map_rises_from_the_initial_sparsity(tmp_path: Path):
    """With another target the path is (initial − value)(1 − p)³ + value, not a multiple of the common one."""
    model = kinds(tmp_path)
    hparams = ha.parse_pruning_hparams("initial_sparsity=0.3,target_sparsity=0.6,weight_sparsity_map=[^conv1$:0.9]")
    pruning = ha.create_dl_pruning(model, "magnitude", hparams)
    ha.set_dl_pruning_param(pruning, "global_step", 50)
    ha.update_dl_pruning_masks(model, pruning)
    share = ha.get_dl_pruning_param(pruning, "weight_sparsity")[0]
    assert share == pytest.approx((0.3 - 0.9) / 8 + 0.9, abs=1 / 288)
    assert ha.get_dl_pruning_param_s(pruning, "sparsity") == pytest.approx((0.3 - 0.6) / 8 + 0.6)


@pytest.mark.parametrize(
    ("entries", "name"),
    [
        ({"weight_sparsity_map": ["conv1:0.9", "conv10:0.8"]}, "weight_sparsity_map"),
        ({"weight_sparsity_map": ["nowhere:0.9"]}, "weight_sparsity_map"),
        ({"block_dims_map": ["conv1:1x1", "onv1:2x2"]}, "block_dims_map"),
        ({"weight_sparsity_map": ["conv1:1.5"]}, "weight_sparsity_map"),
    ],
)
def test_maps_that_fit_badly_are_refused(tmp_path: Path, entries: dict[str, Any], name: str):
    """`conv1` is found in `conv10` too, so two entries fit it."""
    hparams = ha.get_pruning_hparams()
    for key, value in entries.items():
        ha.set_dict_tuple(hparams, key, value)
    with pytest.raises(ha.HOperatorError, match=name) as error:
        ha.create_dl_pruning(kinds(tmp_path), "magnitude", hparams)
    assert error.value.error_code == BAD


def test_masks_follow_the_schedule_and_hold_while_training(tmp_path: Path):
    """Updates at their steps only; in between zeros stay zero and all other weights move."""
    model = kinds(tmp_path)
    hparams = ha.parse_pruning_hparams("pruning_frequency=3,sparsity_function_end_step=6,target_sparsity=0.8")
    pruning = ha.create_dl_pruning(model, "magnitude", hparams)
    updates = []
    for step in range(1, 9):
        before = weights(model)
        ha.train_dl_model_batch(model, batch(step))
        masks = sparsity.get_masks(pruning)
        for name, mask in masks.items():
            new = weights(model)[name]
            assert not new[~mask].any()
        if masks:
            kept = masks["conv1"]
            assert (weights(model)["conv1"][kept] != before["conv1"][kept]).any()
        ha.update_dl_pruning_masks(model, pruning)
        assert ha.get_dl_pruning_param_s(pruning, "global_step") == step
        updates.append(ha.get_dl_pruning_param_s(pruning, "last_mask_update_step"))
    assert updates == [0, 0, 3, 3, 3, 6, 6, 6]
    assert ha.get_dl_pruning_param(pruning, "weight_sparsity")[0] == pytest.approx(0.8, abs=1 / 288)
    ha.finetune_dl_model(model, batch(0), epochs=1, batch_size=4)
    assert not any(weights(model)[name][~mask].any() for name, mask in sparsity.get_masks(pruning).items())


def test_smoothed_thresholds_lag_behind(tmp_path: Path):
    """With threshold_decay 0.5 the first threshold is half of the undelayed one."""
    model = kinds(tmp_path)
    magnitudes = np.abs(weights(model)["conv1"])
    undelayed = sparsity.histogram_mask(magnitudes, 0.5).threshold
    pruning = now(model, "threshold_decay=0.5")
    assert ha.get_dl_pruning_param(pruning, "thresholds")[0] == pytest.approx(undelayed / 2)
    assert np.array_equal(sparsity.get_masks(pruning)["conv1"], magnitudes > undelayed / 2)


def test_two_of_four_along_the_inputs(tmp_path: Path):
    """Every run of four input channels at one kernel position keeps its two largest weights."""
    model = kinds(tmp_path)
    before = weights(model)["conv1"]
    pruning = sparsity.prune_low_magnitude(model, sparsity.ConstantSparsity(0.5, 0), sparsity_m_by_n=(2, 4))
    sparsity.update_pruning_step(model, pruning)
    masks = sparsity.get_masks(pruning)
    order = np.argsort(-np.abs(before), axis=1)
    expected = np.zeros(before.shape, bool)
    np.put_along_axis(expected, order[:, :2], True, axis=1)
    assert np.array_equal(masks["conv1"], expected)
    assert (masks["matrix"].sum(axis=1) == 4).all(), "six inputs: two of four, and two that are no full run"


def test_keras_names_end_in_a_plain_model(tmp_path: Path):
    """The stripped copy has the zeros, the masks stay behind, and the summary tells each weight's state."""
    model = kinds(tmp_path)
    schedule = sparsity.PolynomialDecay(0.0, 0.5, begin_step=0, end_step=2, frequency=1)
    pruning = sparsity.prune_low_magnitude(model, schedule, (2, 2), "MAX")
    for step in range(2):
        ha.train_dl_model_batch(model, batch(step))
        sparsity.update_pruning_step(model, pruning)
    stripped = sparsity.strip_pruning(model, pruning)
    summary = ha.as_python_dict_s(sparsity.pruning_summaries(pruning))
    assert (summary["global_step"], summary["last_mask_update_step"], summary["sparsity"]) == (2, 2, 0.5)
    assert [one["name"] for one in summary["weights"]] == PRUNED
    assert all(np.array_equal(a, weights(stripped)[name]) for name, a in weights(model).items())
    ha.train_dl_model_batch(stripped, batch(9))
    assert (weights(stripped)["conv1"] == 0).mean() < 0.1
    assert (weights(model)["conv1"] == 0).mean() == pytest.approx(0.5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"block_size": (0, 1)},
        {"block_pooling_type": "MIN"},
        {"sparsity_m_by_n": (4, 4)},
        {"sparsity_m_by_n": (2, 4), "block_size": (2, 2)},
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, arguments: dict[str, Any]):
    with pytest.raises(ha.HOperatorError) as error:
        sparsity.prune_low_magnitude(kinds(tmp_path), **arguments)
    assert error.value.error_code == BAD


def test_empty_kernels_leave_for_real(tmp_path: Path):
    """Whole kernels are masked; without bias, scale and shift behind them their removal changes nothing."""
    proto = models.plain(classes=3)
    for tensor in proto.graph.initializer:
        if len(tensor.dims) == 1:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros(tensor.dims, np.float32), tensor.name))
    model = ha.read_dl_model(models.saved(proto, tmp_path / "plain.onnx"))
    pruning = now(model, "block_height=-1,block_pooling_function=MAX")
    images = np.random.default_rng(0).normal(0, 1, (2, 3, 8, 8)).astype(np.float32)
    whole = ha.gen_dl_pruned_model(model, pruning)
    assert ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num") == 0
    ha.set_dl_pruning_param(pruning, "remove_empty_kernels", "true")
    small = ha.gen_dl_pruned_model(model, pruning)
    empty = sum(
        int((~mask.reshape(len(mask), -1).any(axis=1)).sum())
        for mask in sparsity.get_masks(pruning).values()
        if mask.ndim == 4
    )
    assert empty > 0
    assert ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num") == empty
    assert ha.get_dl_pruning_param_s(pruning, "pruned_percentage") > 0
    expected = unwrap_model(whole, 1).logits(images)
    assert unwrap_model(small, 1).logits(images) == pytest.approx(expected, abs=1e-5)
    assert sum(a.size for a in weights(small).values()) < sum(a.size for a in weights(whole).values())
    assert expected == pytest.approx(unwrap_model(model, 1).logits(images), abs=1e-6)


def test_masks_follow_the_surgery(tmp_path: Path):
    """A sparse model that 'l1' prunes keeps its zeros: the masks are cut like the weights, training respects them."""
    model = kinds(tmp_path)
    pruning = now(model, "target_sparsity=0.6")
    norms = ha.create_dl_pruning(model, "l1", ha.from_python_dict({"compensation": "none", "percentage": 40}))
    small = ha.gen_dl_pruned_model(model, norms)
    ha.train_dl_model_batch(small, batch(1))
    ha.update_dl_pruning_masks(small, pruning)
    masks, large = sparsity.get_masks(pruning), weights(model)
    assert {name: mask.shape for name, mask in masks.items()} == {name: weights(small)[name].shape for name in PRUNED}
    assert masks["conv1"].size < large["conv1"].size
    first = ha.get_dict_tuple(ha.get_dl_pruning_layer_info(norms)[0], "pruned_kernel_ids")
    assert first
    assert np.array_equal(masks["conv1"], np.delete(large["conv1"], first, axis=0) != 0)
    ha.train_dl_model_batch(small, batch(2))
    assert not any(weights(small)[name][~mask].any() for name, mask in masks.items())
    again = ha.deserialize_handle(ha.serialize_handle(pruning))
    assert all(np.array_equal(mask, masks[name]) for name, mask in sparsity.get_masks(again).items())


def test_a_pruned_model_becomes_sparse(tmp_path: Path):
    """The other way round: first kernels leave, then single weights."""
    model = kinds(tmp_path)
    norms = ha.create_dl_pruning(model, "l2", ha.from_python_dict({"compensation": "none", "percentage": 30}))
    small = ha.gen_dl_pruned_model(model, norms)
    pruning = now(small, "target_sparsity=0.9")
    for name, share in zip(PRUNED, ha.get_dl_pruning_param(pruning, "weight_sparsity"), strict=True):
        assert abs(share - 0.9) <= 1 / weights(small)[name].size + 1e-9


_RESUMED = """
import sys
from pathlib import Path
import dlprune as ha
folder = Path(sys.argv[1])
model = ha.deserialize_handle(ha.serialized_item_from_bytes((folder / "model").read_bytes()))
pruning = ha.deserialize_handle(ha.serialized_item_from_bytes((folder / "pruning").read_bytes()))
ha.update_dl_pruning_masks(model, pruning)
for step in range(4, 8):
    ha.train_dl_model_batch(model, ha.demo_samples()[16 * step : 16 * step + 16])
    ha.update_dl_pruning_masks(model, pruning)
ha.write_dl_model(model, str(folder / "resumed.onnx"))
print(ha.get_dl_pruning_param_s(pruning, "global_step"), ha.get_dl_pruning_param_s(pruning, "last_mask_update_step"))
"""


@pytest.mark.parametrize("solver", ["sgd", "adam"])
def test_a_resumed_run_ends_like_an_uninterrupted_one(tmp_path: Path, solver: str):
    """Handle and model are serialized after four of eight steps; a new process ends with the same weights, bit by bit.

    The masks, the step and the solver's memory are in the handle.
    """
    model = ha.read_dl_model(ha.demo_model_file())
    for name, value in {"batch_size": 16, "learning_rate": 0.0005, "solver_type": solver}.items():
        ha.set_dl_model_param(model, name, value)
    hparams = ha.parse_pruning_hparams("pruning_frequency=3,sparsity_function_end_step=6,target_sparsity=0.7")
    pruning = ha.create_dl_pruning(model, "magnitude", hparams)
    for step in range(8):
        if step == 4:
            for name, handle in (("model", model), ("pruning", pruning)):
                (tmp_path / name).write_bytes(ha.serialized_item_as_bytes(ha.serialize_handle(handle)))
        ha.train_dl_model_batch(model, ha.demo_samples()[16 * step : 16 * step + 16])
        ha.update_dl_pruning_masks(model, pruning)
    done = subprocess.run(
        [sys.executable, "-c", _RESUMED, str(tmp_path)], check=True, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.split() == ["8", "6"]
    resumed = weights(ha.read_dl_model(str(tmp_path / "resumed.onnx")))
    for name, array in weights(model).items():
        assert np.array_equal(resumed[name], array), name


def test_everything_comes_back_from_a_serialized_item(tmp_path: Path):
    model = kinds(tmp_path)
    pruning = now(model, "weight_sparsity_map=[^conv1$:0.9],block_dims_map=[matrix:2x2],threshold_decay=0.1")
    ha.set_dl_pruning_param(pruning, "remove_empty_kernels", "true")
    again = ha.deserialize_handle(ha.serialize_handle(pruning))
    for name in (
        *("mode", "percentage", "global_step", "sparsity", "weight_names", "weight_sparsity", "thresholds"),
        *("last_mask_update_step", "remove_empty_kernels", "weight_sparsity_map", "block_dims_map", "threshold_decay"),
        *("prunable_kernel_num", "pruned_kernel_num"),
    ):
        assert ha.get_dl_pruning_param(again, name) == ha.get_dl_pruning_param(pruning, name), name


def test_parameters_of_the_mode(tmp_path: Path):
    """Hyperparameters can be changed later; 'percentage' is 100 × target; unknown names list what is possible."""
    model = kinds(tmp_path)
    pruning = ha.create_dl_pruning(model, "magnitude", [])
    assert ha.get_dl_pruning_param_s(pruning, "mode") == "magnitude"
    ha.set_dl_pruning_param(pruning, "percentage", 62.5)
    assert ha.get_dl_pruning_param_s(pruning, "target_sparsity") == 0.625
    ha.set_dl_pruning_param(pruning, "pruning_frequency", 7)
    for name, value, code in (
        ("sparsity", 0.5, errors.H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM),
        ("compensation", "none", errors.H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM),
        ("sparsity_function_end_step", 0, BAD),
        ("percentage", 100, BAD),
        ("mode", "oracle", WRONG),
    ):
        with pytest.raises(ha.HOperatorError) as error:
            ha.set_dl_pruning_param(pruning, name, value)
        assert error.value.error_code == code, name
    keras = sparsity.prune_low_magnitude(model)
    with pytest.raises(ha.HOperatorError, match="prune_low_magnitude"):
        ha.set_dl_pruning_param(keras, "target_sparsity", 0.7)


def test_modes_do_not_mix_within_a_handle(tmp_path: Path):
    """Operators of scoring refuse masks, those of masks refuse scores, and each says what to do."""
    model = kinds(tmp_path)
    masks, scores = ha.create_dl_pruning(model, "magnitude", []), ha.create_dl_pruning(model, "oracle", [])
    for call in (
        lambda: ha.add_dl_pruning_batch(model, masks, batch(0)),
        lambda: ha.merge_dl_pruning(scores, masks),
        lambda: ha.merge_dl_pruning(masks, scores),
        lambda: ha.compare_dl_pruning_scores(scores, masks),
        lambda: ha.update_dl_pruning_masks(model, scores),
        lambda: ha.get_dl_pruning_masks(scores),
        lambda: ha.set_dl_pruning_param(scores, "mode", "magnitude"),
    ):
        with pytest.raises(ha.HOperatorError, match="magnitude") as error:
            call()
        assert error.value.error_code == WRONG


def test_another_model_is_refused(tmp_path: Path):
    pruning = ha.create_dl_pruning(kinds(tmp_path), "magnitude", [])
    other = ha.read_dl_model(ha.demo_model_file())
    for call in (ha.update_dl_pruning_masks, ha.gen_dl_pruned_model):
        with pytest.raises(ha.HOperatorError) as error:
            call(other, pruning)
        assert error.value.error_code == WRONG


def test_sparse_storage_reads_back_and_runs_everywhere(tmp_path: Path):
    """Where it is smaller weights are sparse in the file; ONNX's checker, ONNX Runtime and dlprune give the same."""
    model = kinds(tmp_path)
    now(model, "target_sparsity=0.9,weight_sparsity_map=[matrix:0.3]")
    plain, small = tmp_path / "plain.onnx", tmp_path / "sparse.onnx"
    ha.write_dl_model(model, str(plain))
    sparsity.write_sparse_model(model, str(small))
    proto = onnx.load(small)
    onnx.checker.check_model(proto)
    assert {tensor.values.name for tensor in proto.graph.sparse_initializer} == {"conv1", "up", "conv10"}
    assert small.stat().st_size < plain.stat().st_size
    images = np.random.default_rng(0).normal(0, 1, (2, 4, 6, 6)).astype(np.float32)
    results = [ort.InferenceSession(str(path)).run(None, {"x": images})[0] for path in (plain, small)]
    assert np.array_equal(*results)
    again = weights(ha.read_dl_model(str(small)))
    assert all(np.array_equal(again[name], array) for name, array in weights(model).items())


@pytest.mark.parametrize("positions", [np.array([0, 5]), np.array([[0, 0], [1, 2]])])
def test_positions_are_read_in_both_forms(positions: np.ndarray):
    """Numbered through, or one column per axis."""
    values = numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "w")
    sparse = onnx.helper.make_sparse_tensor(values, numpy_helper.from_array(positions.astype(np.int64)), [2, 3])
    proto = onnx.ModelProto()
    proto.graph.sparse_initializer.append(sparse)
    make_dense(proto, 24)
    assert numpy_helper.to_array(proto.graph.initializer[0]).tolist() == [[2, 0, 0], [0, 0, 3]]


@pytest.mark.parametrize(
    ("positions", "dims", "message"),
    [([0, 9], [2, 3], "outside"), ([0], [2, 3], "fit"), ([0, 1], [1 << 40, 2], "limit"), ([0, 1], [-2, 3], "negative")],
)
def test_damaged_sparse_weights_are_refused(positions: list[int], dims: list[int], message: str):
    values = numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "w")
    sparse = onnx.helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(positions, np.int64)), dims)
    proto = onnx.ModelProto()
    proto.graph.sparse_initializer.append(sparse)
    with pytest.raises(SparseStorageError, match=message):
        make_dense(proto, 1 << 30)


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_weights_behind_moves_and_in_half_precision(tmp_path: Path, dtype: str):
    """A matrix that the graph transposes is seen as its reader sees it; half precision stays half precision."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    net ({dtype}[N,3,4,4] x) => ({dtype}[N,2] y)
    <float[4,3,3,3] w, float[2,4] m> {{
      a = Conv(x, w)
      b = GlobalAveragePool(a)
      c = Flatten(b)
      t = Transpose<perm = [1,0]>(m)
      y = MatMul(c, t)
    }}"""
    proto = models.model(text)
    if dtype == "float16":
        for tensor in proto.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    model = ha.read_dl_model(models.saved(proto, tmp_path / "moved.onnx"))
    before = weights(model)
    pruning = now(model, "block_height=-1,block_pooling_function=MAX")
    masks = sparsity.get_masks(pruning)
    assert list(masks) == ["w", "m"]
    rows = np.abs(before["m"]).max(axis=1)
    assert np.array_equal(masks["m"], np.repeat(rows[:, None] == rows.max(), 4, axis=1)), "one output of two stays"
    sparse = weights(ha.gen_dl_pruned_model(model, pruning))
    assert sparse["w"].dtype == before["w"].dtype
    assert np.array_equal(sparse["w"] != 0, masks["w"])


def test_networks_without_convolution_are_pruned_too(tmp_path: Path):
    """Dense layers are enough for this mode, though not for those that remove kernels."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[N,1,4,4] x) => (float[N,3] y)
    <float[16,8] m, float[8,3] n> {
      a = Flatten(x)
      b = MatMul(a, m)
      c = Relu(b)
      y = MatMul(c, n)
    }"""
    pruning = now(ha.read_dl_model(models.saved(models.model(text), tmp_path / "dense.onnx")))
    assert ha.get_dl_pruning_param(pruning, "weight_sparsity") == [0.5, 0.5]


def test_a_model_without_such_weights_is_refused(tmp_path: Path):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[N,4,4,4] x) => (float[N,4] y)
    <float[4,1,3,3] depth> {
      a = Conv<group = 4>(x, depth)
      b = GlobalAveragePool(a)
      y = Flatten(b)
    }"""
    model = ha.read_dl_model(models.saved(models.model(text), tmp_path / "depth.onnx"))
    with pytest.raises(ha.HOperatorError) as error:
        ha.create_dl_pruning(model, "magnitude", [])
    assert error.value.error_code == errors.H_ERR_DL_PRUNING_UNSUPPORTED_BY_CNN


def test_grouped_transposed_kernels_leave_when_empty(tmp_path: Path):
    """The kernels of all groups share columns of the stored weight; each is judged by its own inputs."""
    model = kinds(tmp_path)
    data = sparsity.prune_low_magnitude(model, sparsity.ConstantSparsity(0.5, 0))
    sparsity.update_pruning_step(model, data)
    payload = magnitude_of(data, 1)
    weight = next(one for one in payload.weights if one.name == "up")
    mask = np.ones((8, 2, 2, 2), bool)
    mask[4:, 1] = False  # group 1, its second kernel: kernel 3 of four
    assert kept_kernels(mask, weight).tolist() == [True, True, True, False]
