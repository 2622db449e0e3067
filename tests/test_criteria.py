"""Each criterion against its definition, computed in float64 by switching weights, without masks or gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from exactness import masked, run
from models import model
from netgenerator import generate
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import dlprune as ha
from dlprune.analysis import analysis_of
from dlprune.classifier import Classifier
from dlprune.criteria import (
    Network,
    Tally,
    Weighed,
    exact_oracle,
    gram_greedy,
    linear_logits,
    make_criterion,
    modes,
    norms,
)
from dlprune.ledger import CountLedger
from dlprune.rankcorrelation import rank_correlation
from dlprune.selection import Ranking, Room
from dlprune.structure import Structure
from dlprune.surgery import remove_units

# Units 0–3: channels of a, b and c, which only leave together; 4–8: of e.
RESIDUAL = """<ir_version: 8, opset_import: ["" : 17]>
net (float[{batch},3,6,6] x) => (float[{batch},4] y)
<float[4,3,3,3] w1, float[4] s1, float[4] h1, float[4] m1, float[4] var1, float[4,4,3,3] w2, float[4] b2,
 float[4,1,3,3] w3, float[4] s3, float[4] h3, float[4] m3, float[4] var3, float[5,4,1,1] w4, float[5] b4,
 float[5] s4, float[5] h4, float[5] m4, float[5] var4, float[4,5] w5, float[4] b5,
 float[4] s2, float[4] h2, float[4] m2, float[4] var2>
{{
  a = Conv<pads = [1,1,1,1]>(x, w1)
  an = BatchNormalization(a, s1, h1, m1, var1)
  ar = Relu(an)
  b = Conv<pads = [1,1,1,1]>(ar, w2, b2)
  bn = BatchNormalization(b, s2, h2, m2, var2)
  s = Add(bn, ar)
  c = Conv<group = 4, pads = [1,1,1,1]>(s, w3)
  cn = BatchNormalization(c, s3, h3, m3, var3)
  cr = Relu(cn)
  e = Conv(cr, w4, b4)
  en = BatchNormalization(e, s4, h4, m4, var4)
  er = Relu(en)
  g = GlobalAveragePool(er)
  f = Flatten(g)
  z = Gemm<transB = 1>(f, w5, b5)
  y = Softmax(z)
}}"""
# Units 0–4: channels of a, each four columns of the matrix behind the flatten.
FLAT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,2,4,4] x) => (float[N,3] y)
<float[5,2,3,3] w1, float[5] b1, float[20,3] w2>
{
  a = Conv<pads = [1,1,1,1]>(x, w1, b1)
  ar = Relu(a)
  p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(ar)
  f = Flatten(p)
  y = MatMul(f, w2)
}"""

Switch = Callable[[dict[str, np.ndarray], int, float], None]


def _residual(weights: dict[str, np.ndarray], unit: int, factor: float) -> None:
    if unit < 4:
        weights["w2"][:, unit] *= factor
        weights["w4"][:, unit] *= factor
    else:
        weights["w5"][:, unit - 4] *= factor


def _flat(weights: dict[str, np.ndarray], unit: int, factor: float) -> None:
    weights["w2"][4 * unit : 4 * unit + 4] *= factor


@dataclass(frozen=True)
class Case:
    """A network with the knowledge, worked out by hand, where each unit's slices in its consumers are."""

    proto: onnx.ModelProto
    switch: Switch
    units: int
    logits: str

    @property
    def classifier(self) -> Classifier:
        return Classifier.from_proto(self.proto)

    def network(self, batch: int) -> Network:
        classifier = self.classifier
        structure = analysis_of(classifier).structure
        assert structure.unit_num == self.units
        return Network(classifier, structure, batch)

    def images(self, number: int, seed: int = 3) -> np.ndarray:
        dims = [d.dim_value for d in self.proto.graph.input[0].type.tensor_type.shape.dim][1:]
        return np.random.default_rng(seed).standard_normal((number, *dims)).astype(np.float32)

    def truth(self, images: np.ndarray, unit: int | None = None, factor: float = 1.0) -> np.ndarray:
        """Logits in float64 with one unit's slices multiplied by a factor."""
        proto = onnx.ModelProto.FromString(self.proto.SerializeToString())
        proto.graph.output[0].name = self.logits
        weights = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in proto.graph.initializer}
        if unit is not None:
            self.switch(weights, unit, factor)
        for tensor in proto.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
        rows = [ReferenceEvaluator(proto).run(None, {"x": one[None].astype(np.float64)})[0] for one in images]
        return np.concatenate(rows)

    def slopes(self, images: np.ndarray) -> np.ndarray:
        """Derivative of the logits by the scale of each unit's slices, [U, N, K]."""
        step = 1e-6
        return np.stack(
            [
                (self.truth(images, unit, 1 + step) - self.truth(images, unit, 1 - step)) / (2 * step)
                for unit in range(self.units)
            ]
        )


CASES = {
    "residual": Case(model(RESIDUAL.format(batch="N"), 5), _residual, 9, "z"),
    "flat": Case(model(FLAT, 6), _flat, 5, "y"),
}
FIXED_BATCH = Case(model(RESIDUAL.format(batch="4"), 5), _residual, 9, "z")


def chosen_units(mode: str, structure: Structure, tally: Tally, budget: int) -> np.ndarray:
    """Choose units by a criterion alone, with a budget of kernels and no other limits."""
    room = Room(structure, CountLedger(structure), (budget, 0))
    return make_criterion(mode).choose(structure, tally, room, Ranking("sqrt_mean"))


def loss(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def found(case: Case, mode: str, images: np.ndarray, labels: np.ndarray, batch: int, seed: int = 0) -> np.ndarray:
    criterion = make_criterion(mode, seed)
    return criterion.scores(criterion.measure(case.network(batch), images, labels))


# --- oracle -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_oracle_is_the_mean_absolute_slope_of_each_samples_loss(name: str):
    """The score is mean |Σ_k (p_k − y_k) · dz_k/ds|, whatever the batch size."""
    case = CASES[name]
    images, labels = case.images(6), np.array([0, 1, 2, 0, 1, 2])
    logits = case.truth(images)
    error = softmax(logits) - np.eye(logits.shape[1])[labels]
    expected = np.abs(np.einsum("unk,nk->un", case.slopes(images), error)).mean(axis=1)
    for batch in (4, 6):
        np.testing.assert_allclose(found(case, "oracle", images, labels, batch), expected, rtol=1e-3, atol=1e-6)


# --- exact oracle -----------------------------------------------------------------------------------------------------


def exact_truth(case: Case, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    before = loss(case.truth(images), labels)
    return np.array([np.abs(loss(case.truth(images, u, 0.0), labels) - before).mean() for u in range(case.units)])


@pytest.mark.parametrize("case", [*CASES.values(), FIXED_BATCH], ids=[*CASES, "fixed batch"])
def test_exact_oracle_is_the_loss_change_with_the_slices_set_to_zero(case: Case):
    """Zeros at all consumers of a unit, in open and fixed batches, also where the last batch is padded."""
    images, labels = case.images(6), np.array([0, 1, 2, 0, 1, 2])
    np.testing.assert_allclose(
        found(case, "exact_oracle", images, labels, 4), exact_truth(case, images, labels), rtol=1e-4, atol=1e-6
    )


def test_exact_oracle_takes_the_models_decision_without_a_label():
    """Label −1 gives what the arg max as label gives."""
    case = CASES["residual"]
    images = case.images(3)
    decided = case.truth(images).argmax(axis=1)
    scores = found(case, "exact_oracle", images, np.full(3, -1), 3)
    np.testing.assert_allclose(scores, exact_truth(case, images, decided), rtol=1e-4, atol=1e-6)


def test_exact_oracle_gives_the_same_within_small_memory(monkeypatch: pytest.MonkeyPatch):
    """Few pairs per run, images one by one and no sessions kept change nothing."""
    case = CASES["residual"]
    images, labels = case.images(5), np.array([0, 1, 2, 3, 0])
    plenty = found(case, "exact_oracle", images, labels, 5)
    monkeypatch.setattr(exact_oracle, "_TENSOR_BYTES", 4 * 5 * 36 * 3)
    monkeypatch.setattr(exact_oracle, "_ENTRY_BYTES", 1)
    monkeypatch.setattr(exact_oracle, "_KEPT_BYTES", 0)
    np.testing.assert_allclose(found(case, "exact_oracle", images, labels, 5), plenty, rtol=1e-5, atol=1e-7)


def test_exact_oracle_works_in_half_precision():
    """A network in float16 gets masks in float16."""
    proto = model(FLAT.replace("float[", "float16["), 6)
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    case = Case(proto, _flat, 5, "y")
    images, labels = case.images(4), np.array([0, 1, 2, 0])
    full = Case(model(FLAT, 6), _flat, 5, "y")
    np.testing.assert_allclose(
        found(case, "exact_oracle", images, labels, 4), exact_truth(full, images, labels), rtol=0.05, atol=0.01
    )


@pytest.mark.parametrize("seed", [0, 3, 9, 19, 24])
def test_exact_oracle_agrees_with_masked_consumers_on_random_networks(seed: int):
    """On networks of all kinds, open and fixed batches: the loss with a 0/1 mask in front of every consumer."""
    net = generate(seed)
    classifier = Classifier.from_proto(net.proto)
    found_analysis = analysis_of(classifier)
    structure, images = found_analysis.structure, net.images()
    labels = np.arange(len(images)) % classifier.class_num
    criterion = make_criterion("exact_oracle")
    scores = criterion.scores(criterion.measure(Network(classifier, structure, len(images)), images, labels))
    before = loss(run(classifier.model, images, classifier.logits_name).reshape(len(images), -1), labels)
    for unit in range(0, structure.unit_num, 5):
        mask = masked(classifier.model, found_analysis.facts, structure, np.arange(structure.unit_num) == unit)
        after = loss(run(mask, images, classifier.logits_name).reshape(len(images), -1), labels)
        assert scores[unit] == pytest.approx(
            np.abs(after - before).mean(), rel=10 * net.tolerance, abs=1e-5 * scores.max()
        )


# --- linearised logits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_linear_logits_is_the_loss_change_by_first_order_logits(name: str):
    """The score is mean |CE(z − dz/ds) − CE(z)|."""
    case = CASES[name]
    images, labels = case.images(6), np.array([0, 1, 2, 0, 1, -1])
    logits = case.truth(images)
    own = np.where(labels < 0, logits.argmax(axis=1), labels)
    expected = [np.abs(loss(logits - slope, own) - loss(logits, own)).mean() for slope in case.slopes(images)]
    np.testing.assert_allclose(found(case, "linear_logits", images, labels, 4), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("passes", [2, 3])
def test_linear_logits_moves_improbable_classes_together(monkeypatch: pytest.MonkeyPatch, passes: int):
    """With fewer passes than classes the least probable ones change by their mean weighted with their probabilities."""
    monkeypatch.setattr(linear_logits, "_PASSES", passes)
    case = CASES["residual"]
    images, labels = case.images(5), np.array([0, 1, 2, 3, 0])
    logits, slopes = case.truth(images), case.slopes(images)
    expected = np.zeros(case.units)
    for n, label in enumerate(labels):
        others = [k for k in np.argsort(-logits[n]) if k != label]
        alone, rest = [label, *others[: passes - 2]], others[passes - 2 :]
        share = np.exp(logits[n, rest]) / np.exp(logits[n, rest]).sum()
        together = np.log(np.exp(logits[n, rest]).sum())
        before = np.array([[*logits[n, alone], together]])
        for unit in range(case.units):
            moved = before - np.array([[*slopes[unit, n, alone], share @ slopes[unit, n, rest]]])
            target = np.zeros(1, int)
            expected[unit] += np.abs(loss(moved, target) - loss(before, target))[0] / len(labels)
    np.testing.assert_allclose(found(case, "linear_logits", images, labels, 5), expected, rtol=1e-3, atol=1e-6)


# --- second moments ---------------------------------------------------------------------------------------------------


def moment_rows(case: Case, images: np.ndarray) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Effects on the drawn directions of the logits, [N · P, U], and the place of each row in a sketch."""
    slopes = case.slopes(images)
    rows, places = [], []
    for n, image in enumerate(images):
        directions, own = gram_greedy._lots(image, slopes.shape[2])
        rows.extend(slopes[:, n] @ direction.astype(np.float64) for direction in directions)
        places.extend((int(row), int(sign)) for row, sign in own)
    return np.array(rows), places


def greedy_truth(structure: Structure, moments: np.ndarray, budget: int) -> np.ndarray:
    """Take units one by one so that the sum over all pairs of removed ones grows least per kernel."""
    gone = np.zeros(len(moments), bool)
    left = set(range(len(moments)))
    while left:
        costs = {}
        for unit in left:
            trial = gone.copy()
            trial[unit] = True
            growth = moments[np.ix_(trial, trial)].sum() - moments[np.ix_(gone, gone)].sum()
            costs[unit] = growth / structure.kernels[unit]
        unit = min(left, key=lambda u: (costs[u], u))
        left.remove(unit)
        fits = structure.kernels[gone].sum() + structure.kernels[unit] <= budget
        some_stay = all((~gone[members]).sum() - (unit in members) >= 1 for members in structure.constraints)
        gone[unit] = fits and some_stay
    return gone


@pytest.mark.parametrize("name", CASES)
def test_gram_greedy_holds_the_second_moments_of_logit_changes(name: str):
    """The matrix is E[t tᵀ] over samples and directions; the score is the root of its diagonal."""
    case = CASES[name]
    images = case.images(6)
    criterion = make_criterion("gram_greedy")
    tally = criterion.measure(case.network(4), images, np.full(6, -1))
    rows, _ = moment_rows(case, images)
    moments = rows.T @ rows / len(rows)
    np.testing.assert_allclose(tally.sums / tally.count, moments, rtol=1e-3, atol=1e-4 * moments.max())
    np.testing.assert_allclose(criterion.scores(tally), np.sqrt(np.diag(moments)), rtol=1e-3)


def test_directions_of_the_logits_are_balanced_and_belong_to_the_image():
    """The components add up to nothing, and the same image gets the same directions anywhere."""
    image, other = CASES["flat"].images(2)
    directions, _ = gram_greedy._lots(image, 3)
    np.testing.assert_allclose(directions.sum(axis=1), 0, atol=1e-6)
    np.testing.assert_array_equal(directions, gram_greedy._lots(image.copy(), 3)[0])
    assert any(not np.array_equal(a, gram_greedy._lots(other, 3)[i]) for i, a in enumerate(gram_greedy._lots(image, 3)))


@pytest.mark.parametrize("budget", [1, 4, 6, 9, 30])
def test_gram_greedy_chooses_what_together_changes_least(budget: int):
    """Brute force over all pairs gives the same choice."""
    case = CASES["residual"]
    network, images = case.network(6), case.images(6)
    criterion = make_criterion("gram_greedy")
    tally = criterion.measure(network, images, np.full(6, -1))
    chosen = chosen_units("gram_greedy", network.structure, tally, budget)
    np.testing.assert_array_equal(chosen, greedy_truth(network.structure, tally.sums, budget))
    assert network.structure.kernels[chosen].sum() <= budget


def test_gram_greedy_prefers_units_that_cancel():
    """A larger effect of opposite sign goes before a smaller one of the same sign."""
    structure = CASES["flat"].network(1).structure
    effects = np.array([2.0, 2.1, -2.2, 50.0, 60.0])
    chosen = chosen_units("gram_greedy", structure, Tally(np.outer(effects, effects), 1), 2)
    assert np.flatnonzero(chosen).tolist() == [0, 2]


def test_large_networks_keep_a_sketch_of_the_moments(monkeypatch: pytest.MonkeyPatch):
    """Rows land with a sign where their image says; the choice is that of the sketch's own inner products."""
    monkeypatch.setattr(gram_greedy, "_ROWS", 7)
    case = CASES["residual"]
    network, images = case.network(4), case.images(6)
    criterion = make_criterion("gram_greedy")
    tally = criterion.measure(network, images, np.full(6, -1))
    rows, places = moment_rows(case, images)
    sketch = np.zeros((7, case.units))
    for effect, (row, sign) in zip(rows, places, strict=True):
        sketch[row] += sign * effect / 2  # √4 directions
    np.testing.assert_allclose(tally.sums, sketch, rtol=1e-3, atol=1e-4 * np.abs(sketch).max())
    np.testing.assert_allclose(criterion.scores(tally), np.sqrt(np.square(sketch).sum(axis=0) / 6), rtol=1e-3)
    expected = greedy_truth(network.structure, tally.sums.T @ tally.sums, 6)
    np.testing.assert_array_equal(chosen_units("gram_greedy", network.structure, tally, 6), expected)


def test_a_sketch_is_right_on_average(monkeypatch: pytest.MonkeyPatch):
    """Inner products of a sketch with many rows come near the moments themselves."""
    case = CASES["flat"]
    images = case.images(40)
    criterion = make_criterion("gram_greedy")
    exact = criterion.measure(case.network(8), images, np.full(40, -1)).sums
    monkeypatch.setattr(gram_greedy.GramGreedy, "start", lambda _self, units: np.zeros((400, units)))
    original = gram_greedy._lots

    def spread(image: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
        directions, places = original(image, classes)
        places[:, 0] = np.random.default_rng(image.view(np.uint32).sum()).integers(400, size=len(places))
        return directions, places

    monkeypatch.setattr(gram_greedy, "_lots", spread)
    sketch = criterion.measure(case.network(8), images, np.full(40, -1)).sums
    np.testing.assert_allclose(sketch.T @ sketch, exact, atol=0.25 * exact.max())


# --- criteria of weights ----------------------------------------------------------------------------------------------


def arrays(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor).copy() for tensor in proto.graph.initializer}


@pytest.mark.parametrize(("mode", "power"), [("l1", 1), ("l2", 2)])
def test_norms_add_up_over_the_kernels_of_a_unit(mode: str, power: int):
    """A unit of three coupled convolutions gets three norms, one of a single convolution one."""
    case = CASES["residual"]
    weights = arrays(case.proto)
    expected = [
        sum(np.linalg.norm(weights[name][unit].ravel(), power) for name in ("w1", "w2", "w3")) for unit in range(4)
    ] + [np.linalg.norm(weights["w4"][unit].ravel(), power) for unit in range(5)]
    np.testing.assert_allclose(found(case, mode, case.images(1), np.zeros(1, int), 1), expected, rtol=1e-6)


@pytest.mark.parametrize("part", [1, 20, 1 << 22])
def test_norms_know_transposed_and_dense_layers(part: int, monkeypatch: pytest.MonkeyPatch):
    """Kernels of a grouped ConvTranspose lie across its weight; those of Gemm and MatMul are columns or rows."""
    monkeypatch.setattr(norms, "_PART", part)
    proto = model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[N,4,3,3] x) => (float[N,3] y)
        <float[4,3,2,2] w1, float[6,5,1,1] w0, float[5,7] w2, float[4,7] w3, float[4,3] w4>
        {
          a = ConvTranspose<group = 2, strides = [2,2]>(x, w1)
          ar = Relu(a)
          c = ConvTranspose(ar, w0)
          cr = Relu(c)
          g = GlobalAveragePool(cr)
          f = Flatten(g)
          d = MatMul(f, w2)
          dr = Relu(d)
          e = Gemm<transB = 1>(dr, w3)
          er = Relu(e)
          y = Gemm(er, w4)
        }"""
    )
    weights = arrays(proto)
    classifier = Classifier.from_proto(proto)
    structure = analysis_of(classifier).structure
    scores = make_criterion("l1").scores(
        make_criterion("l1").measure(Network(classifier, structure, 2), np.zeros(0), np.zeros(0))
    )
    per_tensor = {
        "a": [np.abs(weights["w1"][2 * (o // 3) : 2 * (o // 3) + 2, o % 3]).sum() for o in range(6)],
        "c": [np.abs(weights["w0"][:, o]).sum() for o in range(5)],
        "d": np.abs(weights["w2"]).sum(axis=0),
        "e": np.abs(weights["w3"]).sum(axis=1),
    }
    expected = np.zeros(structure.unit_num)
    for name, values in per_tensor.items():
        units = structure.tensors[name].units
        np.add.at(expected, units[units >= 0], np.asarray(values)[units >= 0])
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    assert (expected > 0).all()


def test_bn_scale_is_the_scale_behind_each_kernel():
    """A unit of three coupled convolutions gets the sizes of three scales; their sign does not matter."""
    case = CASES["residual"]
    weights = arrays(case.proto)
    expected = np.concatenate([sum(np.abs(weights[name]) for name in ("s1", "s2", "s3")), np.abs(weights["s4"])])
    assert min(weights["s1"].min(), weights["s4"].min()) < 0
    np.testing.assert_allclose(found(case, "bn_scale", case.images(1), np.zeros(1, int), 1), expected, rtol=1e-6)


def test_bn_scale_follows_a_kernel_to_the_next_normalisation():
    """Behind activations and a concatenation the first normalisation that reads the kernel counts, at its place."""
    proto = model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[N,2,4,4] x) => (float[N,3] y)
        <float[3,2,1,1] w1, float[2,3,1,1] w2, float[5] s, float[5] h, float[5] m, float[5] var,
         float[5] s9, float[3,5] w3>
        {
          a = Conv(x, w1)
          ar = Relu(a)
          b = Conv(ar, w2)
          c = Concat<axis = 1>(b, ar)
          n = BatchNormalization(c, s, h, m, var)
          k = BatchNormalization(n, s9, h, m, var)
          g = GlobalAveragePool(k)
          f = Flatten(g)
          y = Gemm<transB = 1>(f, w3)
        }"""
    )
    scales = np.abs(arrays(proto)["s"])
    classifier = Classifier.from_proto(proto)
    network = Network(classifier, analysis_of(classifier).structure, 1)
    criterion = make_criterion("bn_scale")
    assert isinstance(criterion, Weighed)
    np.testing.assert_allclose(criterion.weigh(network), [*scales[2:], *scales[:2]], rtol=1e-6)


def test_bn_scale_says_which_convolution_has_no_normalisation():
    """Error 7981 names the convolution and tells why exporters leave none."""
    handle = ha.read_dl_model(ha.demo_model_file())
    ha.create_dl_pruning(handle, "bn_scale", [])
    classifier = CASES["flat"].classifier
    with pytest.raises(ha.HOperatorError, match=r"behind .*fold") as caught:
        ha.create_dl_pruning(ha.handle.new_handle("dl_model", classifier), "bn_scale", [])
    assert caught.value.error_code == 7981


def test_random_scores_belong_to_the_seed():
    """The same seed gives the same scores, another seed others."""
    case = CASES["residual"]
    first, again, other = (found(case, "random", case.images(1), np.zeros(1, int), 1, seed) for seed in (4, 4, 5))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_random_removal_favours_no_layer():
    """Of four units of three kernels and five of one, each is the first with the same probability."""
    network = CASES["residual"].network(1)
    large = 0
    for seed in range(300):
        criterion = make_criterion("random", seed)
        assert isinstance(criterion, Weighed)
        large += chosen_units("random", network.structure, Tally(criterion.weigh(network), 1), 3)[:4].any()
    assert 0.35 < large / 300 < 0.54  # 4 of 9


# --- all of them ------------------------------------------------------------------------------------------------------


def test_the_default_mode_comes_first():
    """All modes of the documentation are there."""
    assert modes() == (
        "oracle",
        "bn_scale",
        "exact_oracle",
        "gram_greedy",
        "l1",
        "l2",
        "linear_logits",
        "random",
    )


@pytest.mark.parametrize("mode", modes())
def test_every_criterion_scores_a_pruned_network_in_the_numbers_of_the_original(mode: str):
    """Units that are left keep their numbers; scores of a pruned network equal those of the switched-off original."""
    case = CASES["residual"]
    network, images, labels = case.network(3), case.images(3), np.array([0, 1, 2])
    found_facts = analysis_of(network.classifier)
    gone = np.zeros(case.units, bool)
    gone[[1, 6]] = True
    model_left = remove_units(
        network.classifier.model, found_facts.facts, network.structure, gone, found_facts.other_shapes
    )
    pruned = Network(network.classifier.with_model(model_left), network.structure.without(gone), 3)
    weights = arrays(case.proto)
    for unit in (1, 6):
        case.switch(weights, unit, 0.0)
    silenced = onnx.ModelProto.FromString(case.proto.SerializeToString())
    for tensor in silenced.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    truth = Case(silenced, _residual, case.units, "z")
    criterion = make_criterion(mode, 1)
    scores = criterion.scores(criterion.measure(pruned, images, labels))
    expected = found(truth, mode, images, labels, 3, 1)
    if mode in ("l1", "l2"):  # the kernels of the later layers themselves have become smaller
        assert (scores[~gone] > 0).all()
        assert not scores[gone].any()
    else:
        np.testing.assert_allclose(scores[~gone], expected[~gone], rtol=1e-4, atol=1e-6)


# --- how they agree ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo_scores() -> dict[str, np.ndarray]:
    """Scores of the embedded classifier on 32 images, of the units that hold kernels."""
    classifier = Classifier.read(ha.demo_model_file())
    network = Network(classifier, analysis_of(classifier).structure, 32)
    pixels, labels = ha.demo.demo_images()
    images = (pixels[:32].astype(np.float32) - 127)[:, None]
    scores = {}
    for mode in ("oracle", "exact_oracle", "linear_logits", "l2", "random"):
        criterion = make_criterion(mode)
        scores[mode] = criterion.scores(criterion.measure(network, images, labels[:32]))[network.structure.kernels > 0]
    return scores


@pytest.mark.parametrize(("mode", "least"), [("oracle", 0.93), ("linear_logits", 0.95)])
def test_first_order_scores_rank_kernels_as_the_exact_oracle_does(
    demo_scores: dict[str, np.ndarray], mode: str, least: float
):
    """On the embedded classifier, whose layers are so narrow that each kernel counts."""
    found_correlation = rank_correlation(demo_scores[mode], demo_scores["exact_oracle"])
    assert found_correlation is not None
    assert found_correlation > least


def test_weight_norms_and_chance_rank_kernels_otherwise(demo_scores: dict[str, np.ndarray]):
    """Norms agree little with the truth, drawn numbers not at all."""
    weights, chance = (rank_correlation(demo_scores[mode], demo_scores["exact_oracle"]) for mode in ("l2", "random"))
    assert weights is not None
    assert chance is not None
    assert weights < 0.8
    assert abs(chance) < 0.25
