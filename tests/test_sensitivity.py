"""get_dl_pruning_sensitivity: each group of coupled layers alone, against the original with masked consumers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exactness import masked, run
from models import model as onnx_model

import dlprune as ha
from dlprune.analysis import analysis_of
from dlprune.classifier import Classifier
from dlprune.handle import new_handle, unwrap
from dlprune.model import unwrap_model
from dlprune.pruningdata import PruningData
from dlprune.removal import sensitivity_of

# Coupled: a and b through the addition; c alone. Of d nothing can leave: it ends in the classes.
NET = """<ir_version: 8, opset_import: ["" : 17]>
small (float[N,2,6,6] x) => (float[N,4] y)
<float[6,2,3,3] w1, float[6,6,3,3] w2, float[9,6,3,3] w3, float[4,9,1,1] w4>
{
  a = Conv<pads = [1,1,1,1]>(x, w1)
  ar = Relu(a)
  b = Conv<pads = [1,1,1,1]>(ar, w2)
  s = Add(b, ar)
  sr = Relu(s)
  c = Conv(sr, w3)
  cr = Relu(c)
  g = GlobalAveragePool(cr)
  d = Conv(g, w4)
  y = Flatten(d)
}"""
IMAGES = np.random.default_rng(4).standard_normal((24, 6, 6, 2)).astype(np.float32)
LABELS = np.random.default_rng(5).integers(0, 4, 24)


def samples(images: np.ndarray = IMAGES, labels: np.ndarray | None = LABELS) -> list[ha.HHandle]:
    found = []
    for index, image in enumerate(images):
        entries: dict[str, Any] = {"image": ha.himage_from_numpy_array(image)}
        if labels is not None:
            entries["image_label_id"] = int(labels[index])
        found.append(ha.from_python_dict(entries))
    return found


@pytest.fixture
def model() -> ha.HHandle:
    handle = new_handle("dl_model", Classifier.from_proto(onnx_model(NET, 1)))
    ha.set_dl_model_param(handle, "batch_size", 12)
    return handle


def scored(model: ha.HHandle, **settings: object) -> ha.HHandle:
    pruning = ha.create_dl_pruning(model, "oracle", ha.from_python_dict(settings) if settings else [])
    ha.add_dl_pruning_batch(model, pruning, samples()[:12])
    return pruning


def groups_of(found: ha.HHandle) -> list[dict[str, Any]]:
    single = ("kernel_num", "prunable_kernel_num")
    several = ("layer_names", "pruned_kernel_num", "accuracy", "loss")
    return [
        {key: ha.get_dict_tuple_s(group, key) for key in single}
        | {key: ha.get_dict_tuple(group, key) for key in several}
        for group in ha.get_dict_tuple(found, "groups")
    ]


def loss(logits: np.ndarray, labels: np.ndarray) -> float:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return float(-np.log(powers[np.arange(len(labels)), labels] / powers.sum(axis=1)).mean())


def test_only_the_group_itself_loses_kernels(model: ha.HHandle):
    """Accuracy and loss are those of the original whose consumers read zeros in place of the group's lowest scores."""
    pruning = scored(model, compensation="none")
    found = ha.get_dl_pruning_sensitivity(model, pruning, samples(), [0, 40, 100])
    assert ha.get_dict_tuple(found, "percentages") == [0, 40, 100]
    classifier = unwrap_model(model, 1)
    structure = analysis_of(classifier).structure
    scores = unwrap(pruning, "dl_pruning", PruningData, 1).scores()
    batch = IMAGES.transpose(0, 3, 1, 2)
    before = run(classifier.model, batch, "y")
    assert ha.get_dict_tuple_s(found, "accuracy") == pytest.approx((before.argmax(axis=1) == LABELS).mean())
    assert ha.get_dict_tuple_s(found, "loss") == pytest.approx(loss(before, LABELS), rel=1e-4)
    coupled, single = groups_of(found)
    layers = [layer.name for layer in structure.layers]
    assert coupled["layer_names"] == layers[:2]
    assert single["layer_names"] == layers[2:3]
    assert (coupled["kernel_num"], coupled["prunable_kernel_num"]) == (12, 10)
    assert (single["kernel_num"], single["prunable_kernel_num"]) == (9, 8)
    assert coupled["pruned_kernel_num"] == [0, 4, 10]
    assert single["pruned_kernel_num"] == [0, 3, 8]
    for group, units, per_unit in ((coupled, np.arange(6), 2), (single, np.arange(6, 15), 1)):
        order = units[np.argsort(scores[units])]
        for index, kernels in enumerate(group["pruned_kernel_num"]):
            gone = np.zeros(structure.unit_num, bool)
            gone[order[: kernels // per_unit]] = True
            logits = run(masked(classifier.model, analysis_of(classifier).facts, structure, gone), batch, "y")
            assert group["accuracy"][index] == pytest.approx((logits.argmax(axis=1) == LABELS).mean())
            assert group["loss"][index] == pytest.approx(loss(logits, LABELS), rel=1e-3)


def test_nothing_is_changed(model: ha.HHandle):
    """Model, parameters, scores and the outcome of the last removal stay."""
    pruning = scored(model, compensation="bias", percentage=30)
    ha.gen_dl_pruned_model(model, pruning)
    data = unwrap(pruning, "dl_pruning", PruningData, 1)
    before = (data.to_bytes(), unwrap_model(model, 1).to_bytes())
    ha.get_dl_pruning_sensitivity(model, pruning, samples()[:6], 50)
    assert before == (data.to_bytes(), unwrap_model(model, 1).to_bytes())


def test_compensation_is_as_set():
    """On the embedded classifier a refit loses less than plain removal, in the mean over three of the groups."""
    model = ha.read_dl_model(ha.demo_model_file())
    ha.set_dl_model_param(model, "batch_size", 48)
    losses, others = [], ["stem.*", "stage2.second.*", "stage3.expand.*", "stage4.second.*"]
    for settings in ({"compensation": "none"}, {"compensation": "least_squares"}):
        pruning = ha.create_dl_pruning(model, "oracle", ha.from_python_dict({"exclude_layers": others, **settings}))
        ha.add_dl_pruning_batch(model, pruning, ha.demo_samples()[:48])
        groups = groups_of(ha.get_dl_pruning_sensitivity(model, pruning, ha.demo_samples("test")[:100], [50]))
        assert len(groups) == 3
        losses.append(np.mean([group["loss"] for group in groups]))
    assert losses[1] < 0.5 * losses[0]


def test_without_labels_the_models_own_decisions_count(model: ha.HHandle):
    """The accuracy is then the share of equal decisions: all of them without removal."""
    found = ha.get_dl_pruning_sensitivity(model, scored(model, compensation="none"), samples(labels=None), [0, 100])
    assert ha.get_dict_tuple_s(found, "accuracy") == 1.0
    for group in groups_of(found):
        assert group["accuracy"][0] == 1.0
        assert group["accuracy"][1] < 1.0


def test_excluded_layers_are_left_out(model: ha.HHandle):
    """A group with an excluded layer cannot lose kernels, and there is nothing to measure."""
    pruning = scored(model, compensation="none")
    name = ha.get_dl_pruning_param(pruning, "prunable_conv_layer_name")[0]
    ha.set_dl_pruning_param(pruning, "exclude_layers", name)
    (group,) = groups_of(ha.get_dl_pruning_sensitivity(model, pruning, samples(), [50]))
    assert group["kernel_num"] == 9


def test_limits_for_layers_and_multiples_do_hold(model: ha.HHandle):
    """'min_kernel_num' keeps that many kernels in each layer; the target of the budget does not matter."""
    pruning = scored(model, compensation="none", min_kernel_num=4, target="macs", max_layer_percentage=10)
    coupled, single = groups_of(ha.get_dl_pruning_sensitivity(model, pruning, samples(), [100]))
    assert coupled["pruned_kernel_num"] == [4]
    assert single["pruned_kernel_num"] == [5]


def test_progress_is_told(model: ha.HHandle):
    """The share of the work that is done grows from 0 to 1."""
    classifier, data = unwrap_model(model, 1), unwrap(scored(model, compensation="none"), "dl_pruning", PruningData, 1)
    shares: list[float] = []
    test = (IMAGES.transpose(0, 3, 1, 2), LABELS)
    found = sensitivity_of(classifier, data, test, [10.0, 50.0], shares.append)
    assert shares == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert found.percentages == (10.0, 50.0)


@pytest.mark.parametrize(
    ("percentages", "code"), [([], 7914), ([101], 7914), ([-1], 7914), (["a"], 1203), ([float("nan")], 7914)]
)
def test_percentages_are_checked(model: ha.HHandle, percentages: list[Any], code: int):
    with pytest.raises(ha.HOperatorError, match="percentages") as caught:
        ha.get_dl_pruning_sensitivity(model, scored(model), samples()[:2], percentages)
    assert caught.value.error_code == code


def test_samples_and_scores_are_needed(model: ha.HHandle):
    """Error 7784 without a sample, 7980 without scores or for another network."""
    pruning = scored(model)
    with pytest.raises(ha.HOperatorError) as caught:
        ha.get_dl_pruning_sensitivity(model, pruning, [], [50])
    assert caught.value.error_code == 7784
    other = ha.read_dl_model(ha.demo_model_file())
    for handle, data in ((model, ha.create_dl_pruning(model, "oracle", [])), (other, pruning)):
        some = ha.demo_samples()[:2] if handle is other else samples()[:2]
        with pytest.raises(ha.HOperatorError) as caught:
            ha.get_dl_pruning_sensitivity(handle, data, some, [50])
        assert caught.value.error_code == 7980
