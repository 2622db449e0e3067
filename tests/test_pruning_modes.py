"""Pruning modes through the operators: what each needs, merging, comparing, serialising."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from models import model as onnx_model
from models import plain

import dlprune as ha
from dlprune.classifier import Classifier
from dlprune.criteria import modes
from dlprune.handle import new_handle, unwrap
from dlprune.pruningdata import PruningData
from dlprune.rankcorrelation import average_ranks, rank_correlation

DATA_FREE = ("bn_scale", "l1", "l2", "random")
WITH_IMAGES = tuple(mode for mode in modes() if mode not in DATA_FREE)
BATCH = 8


SMALL = """<ir_version: 8, opset_import: ["" : 17]>
small (float[N,3,8,8] x) => (float[N,5] y)
<float[8,3,3,3] w1, float[8] s1, float[8] h1, float[8] m1, float[8] var1, float[14,8,3,3] w2,
 float[14] s2, float[14] h2, float[14] m2, float[14] var2, float[14,5] w3, float[5] b3>
{
  a = Conv<pads = [1,1,1,1]>(x, w1)
  an = BatchNormalization(a, s1, h1, m1, var1)
  ar = Relu(an)
  b = Conv<pads = [1,1,1,1]>(ar, w2)
  bn = BatchNormalization(b, s2, h2, m2, var2)
  br = Relu(bn)
  g = GlobalAveragePool(br)
  f = Flatten(g)
  y = Gemm(f, w3, b3)
}"""
PRUNABLE = 20  # 8 + 14 kernels, of which one stays in each convolution


def small(batch_size: int = BATCH) -> ha.HHandle:
    """Return a network of two convolutions with batch normalisation."""
    handle = new_handle("dl_model", Classifier.from_proto(onnx_model(SMALL, 3)))
    ha.set_dl_model_param(handle, "batch_size", batch_size)
    return handle


@pytest.fixture(scope="module")
def model() -> ha.HHandle:
    return small()


@pytest.fixture(scope="module")
def samples() -> list[ha.HHandle]:
    images = np.random.default_rng(8).standard_normal((4 * BATCH, 8, 8, 3)).astype(np.float32)
    return [
        ha.from_python_dict({"image": ha.himage_from_numpy_array(image), "image_label_id": number % 5})
        for number, image in enumerate(images)
    ]


@pytest.fixture(scope="module")
def demo() -> tuple[ha.HHandle, list[ha.HHandle]]:
    """The embedded classifier and some of its images."""
    handle = ha.read_dl_model(ha.demo_model_file())
    ha.set_dl_model_param(handle, "batch_size", BATCH)
    return handle, ha.demo_samples()[: 2 * BATCH]


def created(model: ha.HHandle, mode: str, **settings: object) -> ha.HHandle:
    return ha.create_dl_pruning(model, mode, ha.from_python_dict(settings) if settings else [])


def scored(
    model: ha.HHandle, samples: list[ha.HHandle], mode: str, batches: tuple[int, ...] = (0,), **settings: object
) -> ha.HHandle:
    pruning = created(model, mode, **settings)
    for number in batches:
        ha.add_dl_pruning_batch(model, pruning, samples[number * BATCH : (number + 1) * BATCH])
    return pruning


def data_of(pruning: ha.HHandle) -> PruningData:
    return unwrap(pruning, "dl_pruning", PruningData, 1)


@contextmanager
def error_of(code: int, match: str) -> Iterator[None]:
    """Expect a HOperatorError with this code and a message that matches."""
    with pytest.raises(ha.HOperatorError, match=match) as caught:
        yield
    assert caught.value.error_code == code


# --- what each mode needs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", modes())
@pytest.mark.parametrize("compensation", ["none", "bias"])
def test_every_mode_prunes(model: ha.HHandle, samples: list[ha.HHandle], mode: str, compensation: str):
    """One batch, 30 percent: as many kernels leave as were asked for, and the model runs."""
    pruning = scored(model, samples, mode, percentage=30, compensation=compensation, step_percentage=20)
    pruned = ha.gen_dl_pruned_model(model, pruning)
    assert ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num") == 0.3 * PRUNABLE
    assert ha.get_dl_pruning_param_s(pruning, "mode") == mode
    results = ha.apply_dl_model(pruned, samples[:BATCH], [])
    assert len(results) == BATCH


@pytest.mark.parametrize("mode", DATA_FREE)
def test_modes_of_weights_need_no_batch_for_plain_removal(model: ha.HHandle, mode: str):
    """Scores are there from the start; gen_dl_pruned_model works without a batch."""
    pruning = created(model, mode, percentage=20, compensation="none")
    scores = ha.get_dict_tuple(ha.get_dl_pruning_layer_info(pruning)[0], "kernel_scores")
    assert scores
    assert min(scores) > 0
    ha.gen_dl_pruned_model(model, pruning)
    assert ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num") == 0.2 * PRUNABLE


@pytest.mark.parametrize("mode", ["l2", "random"])
def test_modes_of_weights_can_be_set_later(model: ha.HHandle, mode: str):
    """Set after creation, a mode of weights scores when the model is pruned, and removes the same kernels."""
    late = created(model, "oracle", compensation="none")
    ha.set_dl_pruning_param(late, "mode", mode)
    assert not ha.get_dict_tuple(ha.get_dl_pruning_layer_info(late)[0], "kernel_scores")
    early = created(model, mode, compensation="none")
    for pruning in (late, early):
        ha.gen_dl_pruned_model(model, pruning)
    removed = [data_of(pruning).removed for pruning in (late, early)]
    np.testing.assert_array_equal(*removed)


@pytest.mark.parametrize(
    "settings", [{}, {"compensation": "bias"}, {"compensation": "none", "selection": "reconstruction"}]
)
def test_compensation_needs_images_in_every_mode(model: ha.HHandle, settings: dict[str, str]):
    """Error 7980 tells both ways out."""
    pruning = created(model, "l2", **settings)
    with error_of(7980, "add_dl_pruning_batch.*'none'"):
        ha.gen_dl_pruned_model(model, pruning)


@pytest.mark.parametrize("mode", WITH_IMAGES)
def test_modes_of_gradients_need_a_batch(model: ha.HHandle, mode: str):
    """Error 7980 without scores, whatever the compensation."""
    pruning = created(model, mode, compensation="none")
    with error_of(7980, "no scores yet"):
        ha.gen_dl_pruned_model(model, pruning)


def test_the_seed_decides_what_random_removes(model: ha.HHandle):
    """The same seed removes the same kernels; the seed may change at any time."""
    pruning = created(model, "random", compensation="none", percentage=30, seed=3)
    removed = []
    for seed in (3, 4, 3):
        ha.set_dl_pruning_param(pruning, "seed", seed)
        ha.gen_dl_pruned_model(model, pruning)
        removed.append(data_of(pruning).removed.tolist())
    assert removed[0] == removed[2] != removed[1]


@pytest.mark.parametrize(
    ("value", "code"), [(-1, 7914), (0.5, 1203), ("a", 1203), ([1, 2], 1403)], ids=["negative", "float", "str", "two"]
)
def test_a_seed_is_a_natural_number(model: ha.HHandle, value: object, code: int):
    with error_of(code, "seed"):
        ha.set_dl_pruning_param(created(model, "random"), "seed", value)


def test_unknown_modes_are_refused(model: ha.HHandle):
    """Error 1302 lists the modes."""
    for act in (
        lambda: created(model, "taylor"),
        lambda: ha.set_dl_pruning_param(created(model, "l1"), "mode", "taylor"),
    ):
        with error_of(1302, "'oracle', 'bn_scale', 'exact_oracle'"):
            act()


@pytest.mark.parametrize(("before", "after"), [("oracle", "l2"), ("l2", "oracle"), ("gram_greedy", "oracle")])
def test_the_mode_is_fixed_by_the_first_batch(model: ha.HHandle, samples: list[ha.HHandle], before: str, after: str):
    """Until then it can change; then 7980, and nothing has changed. The same mode may be set again."""
    pruning = created(model, after)
    ha.set_dl_pruning_param(pruning, "mode", before)
    ha.add_dl_pruning_batch(model, pruning, samples[:BATCH])
    scores = data_of(pruning).scores()
    with error_of(7980, f"{before}.*{after}"):
        ha.set_dl_pruning_param(pruning, "mode", after)
    ha.set_dl_pruning_param(pruning, "mode", before)
    np.testing.assert_array_equal(data_of(pruning).scores(), scores)


def test_bn_scale_set_later_is_refused_when_it_is_used():
    """A handle knows no weights: error 7981 comes with the model."""
    handle = new_handle("dl_model", Classifier.from_proto(plain()))
    pruning = created(handle, "l2", compensation="none")
    ha.set_dl_pruning_param(pruning, "mode", "bn_scale")
    with error_of(7981, "BatchNormalization"):
        ha.gen_dl_pruned_model(handle, pruning)


@pytest.mark.parametrize("mode", WITH_IMAGES)
def test_batches_add_up(model: ha.HHandle, samples: list[ha.HHandle], mode: str):
    """Two batches in either order give what one batch twice as large gives."""
    in_order, reverse = (scored(model, samples, mode, order) for order in ((0, 1), (1, 0)))
    large = small(2 * BATCH)
    together = created(large, mode)
    ha.add_dl_pruning_batch(large, together, samples[: 2 * BATCH])
    a, b, c = (data_of(pruning).scores() for pruning in (in_order, reverse, together))
    np.testing.assert_allclose(a, b, rtol=1e-12)
    np.testing.assert_allclose(a, c, rtol=2e-4, atol=1e-5 * c.max())


@pytest.mark.parametrize("mode", ["exact_oracle", "linear_logits", "gram_greedy"])
def test_threads_may_add_batches_at_once(model: ha.HHandle, samples: list[ha.HHandle], mode: str):
    """Four threads give the scores of one."""
    pruning = created(model, mode)
    parts = [samples[start : start + BATCH] for start in range(0, 4 * BATCH, BATCH)]
    threads = [threading.Thread(target=ha.add_dl_pruning_batch, args=(model, pruning, part)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one = scored(model, samples, mode, (0, 1, 2, 3))
    np.testing.assert_allclose(data_of(pruning).scores(), data_of(one).scores(), rtol=1e-10)


@pytest.mark.parametrize("mode", modes())
def test_handles_survive_serialisation(model: ha.HHandle, samples: list[ha.HHandle], mode: str):
    """Mode, seed, scores and what they decide come back."""
    pruning = scored(model, samples, mode, percentage=40, compensation="none", seed=9)
    item = ha.serialized_item_as_bytes(ha.serialize_handle(pruning))
    back = ha.deserialize_handle(ha.serialized_item_from_bytes(item))
    assert ha.get_dl_pruning_param_s(back, "mode") == mode
    assert ha.get_dl_pruning_param_s(back, "seed") == 9
    np.testing.assert_array_equal(data_of(back).scores(), data_of(pruning).scores())
    for one in (pruning, back):
        ha.gen_dl_pruned_model(model, one)
    np.testing.assert_array_equal(data_of(back).removed, data_of(pruning).removed)


# --- merging ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", modes())
def test_merged_handles_are_one_that_has_seen_everything(model: ha.HHandle, samples: list[ha.HHandle], mode: str):
    """Scores, number of samples, remembered images and the choice; the other handle stays as it is."""
    settings = {"compensation": "none", "percentage": 40, "calibration_image_num": 11}
    first = scored(model, samples, mode, (0, 1), **settings)
    second = scored(model, samples, mode, (2,), **settings)
    whole = scored(model, samples, mode, (0, 1, 2), **settings)
    before = data_of(second).scores()
    ha.merge_dl_pruning(first, second)
    merged, expected = data_of(first), data_of(whole)
    assert merged.count == expected.count == 3 * BATCH
    np.testing.assert_allclose(merged.scores(), expected.scores(), rtol=1e-10)
    for a, b in zip(merged.calibration.arrays(), expected.calibration.arrays(), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(data_of(second).scores(), before)
    assert data_of(second).count == BATCH
    for pruning in (first, whole):
        ha.gen_dl_pruned_model(model, pruning)
    np.testing.assert_array_equal(merged.removed, expected.removed)


def test_merging_keeps_the_parameters_of_the_first(model: ha.HHandle, samples: list[ha.HHandle]):
    """Of the other handle only the scores and images count; both may be fresh."""
    first = created(model, "oracle", percentage=40)
    second = scored(model, samples, "oracle", percentage=5)
    ha.merge_dl_pruning(first, second)
    assert ha.get_dl_pruning_param_s(first, "percentage") == 40
    np.testing.assert_array_equal(data_of(first).scores(), data_of(second).scores())
    ha.merge_dl_pruning(first, created(model, "oracle"))
    np.testing.assert_array_equal(data_of(first).scores(), data_of(second).scores())


def test_a_handle_may_be_merged_with_itself(model: ha.HHandle, samples: list[ha.HHandle]):
    """Every sample counts twice, the scores stay."""
    pruning = scored(model, samples, "oracle")
    before = data_of(pruning).scores()
    ha.merge_dl_pruning(pruning, pruning)
    assert data_of(pruning).count == 2 * BATCH
    np.testing.assert_array_equal(data_of(pruning).scores(), before)


def test_only_what_belongs_together_is_merged(model: ha.HHandle, samples: list[ha.HHandle]):
    """Error 7980 for another mode or another network; then nothing has changed."""
    pruning = scored(model, samples, "oracle")
    other = new_handle("dl_model", Classifier.from_proto(plain()))
    before = data_of(pruning).scores()
    for stranger, match in ((created(model, "l1"), "'oracle'.*'l1'"), (created(other, "oracle"), "two architectures")):
        with error_of(7980, match):
            ha.merge_dl_pruning(pruning, stranger)
    np.testing.assert_array_equal(data_of(pruning).scores(), before)
    with error_of(2404, "dl_pruning"):
        ha.merge_dl_pruning(pruning, model)


def test_handles_merged_both_ways_at_once_do_not_wait_for_each_other(model: ha.HHandle, samples: list[ha.HHandle]):
    """Two threads that merge each into the other come to an end."""
    first, second = (scored(model, samples, "oracle", (number,)) for number in (0, 1))
    threads = [
        threading.Thread(target=lambda pair=pair: [ha.merge_dl_pruning(*pair) for _ in range(5)], daemon=True)
        for pair in ((first, second), (second, first))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()


# --- comparing --------------------------------------------------------------------------------------------------------


def plain_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's correlation by the definition: of ranks that count lower and equal values one by one."""
    ranks = [[sum(v < w for v in x) + (sum(v == w for v in x) + 1) / 2 for w in x] for x in (a, b)]
    return float(np.corrcoef(ranks)[0, 1])


@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlation_equals_the_definition(ties: bool):
    """Also where values are equal; they share the mean of their ranks."""
    rng = np.random.default_rng(0)
    for size in (2, 3, 10, 50):
        a, b = rng.standard_normal((2, size)) if not ties else rng.integers(0, 4, (2, size)).astype(float)
        if len(set(a)) > 1 and len(set(b)) > 1:
            assert rank_correlation(a, b) == pytest.approx(plain_correlation(a.tolist(), b.tolist()), abs=1e-12)
    assert average_ranks(np.array([5.0, 1.0, 5.0, 7.0])).tolist() == [2.5, 1.0, 2.5, 4.0]


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0, 2.0]])
def test_rank_correlation_of_equal_values_is_none(values: list[float]):
    assert rank_correlation(np.array(values), np.arange(len(values), dtype=float)) is None


def test_compared_scores_agree_pooled_and_per_layer(demo: tuple[ha.HHandle, list[ha.HHandle]]):
    """The numbers are those of the scores in get_dl_pruning_layer_info."""
    model, samples = demo
    pair = [scored(model, samples, mode, (0, 1)) for mode in ("oracle", "linear_logits")]
    found = ha.as_python_dict_s(ha.compare_dl_pruning_scores(*pair))
    infos = [[ha.as_python_dict_s(i) for i in ha.get_dl_pruning_layer_info(one)] for one in pair]
    pooled: dict[int, tuple[float, float]] = {}
    for a, b in zip(*infos, strict=True):
        pooled.update(
            {
                unit: scores
                for unit, *scores in zip(a["unit_ids"], a["kernel_scores"], b["kernel_scores"], strict=True)
                if unit >= 0
            }
        )
    assert found["unit_num"] == len(pooled)
    assert found["correlation"] == pytest.approx(plain_correlation(*map(list, zip(*pooled.values(), strict=True))))
    assert found["correlation"] > 0.9
    prunable = [(a, b) for a, b in zip(*infos, strict=True) if a["prunable"]]
    assert [layer["name"] for layer in found["layers"]] == [a["name"] for a, _ in prunable]
    for layer, (a, b) in zip(found["layers"], prunable, strict=True):
        assert layer["kernel_num"] == a["kernel_num"]
        assert layer["correlation"] == pytest.approx(plain_correlation(a["kernel_scores"], b["kernel_scores"]))


def test_a_handle_agrees_with_itself(model: ha.HHandle, samples: list[ha.HHandle]):
    """Correlation 1, also across serialisation and machines."""
    pruning = scored(model, samples, "oracle")
    found = ha.as_python_dict_s(ha.compare_dl_pruning_scores(pruning, pruning))
    assert found["correlation"] == pytest.approx(1)


def test_only_scores_of_one_network_are_compared(model: ha.HHandle, samples: list[ha.HHandle]):
    """Error 7980 for another network and for handles without scores."""
    ready, empty = scored(model, samples, "oracle"), created(model, "oracle")
    other = created(new_handle("dl_model", Classifier.from_proto(plain())), "l1")
    for pair, match in (
        ((ready, other), "two architectures"),
        ((ready, empty), "data 2 hold no"),
        ((empty, ready), "data 1 hold no"),
    ):
        with error_of(7980, match):
            ha.compare_dl_pruning_scores(*pair)


def test_norms_agree_with_each_other_more_than_with_chance(demo: tuple[ha.HHandle, list[ha.HHandle]]):
    """Within each layer; data-free modes are compared without a batch."""
    model, _ = demo
    handles = {mode: created(model, mode) for mode in ("l1", "l2", "random")}
    found = {
        pair: ha.as_python_dict_s(ha.compare_dl_pruning_scores(*(handles[mode] for mode in pair)))["layers"]
        for pair in itertools.combinations(handles, 2)
    }
    assert min(layer["correlation"] for layer in found["l1", "l2"]) > 0.6
    assert np.mean([abs(layer["correlation"]) for layer in found["l2", "random"]]) < 0.4
