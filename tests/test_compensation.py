"""Compensation: the regression view of a consumer, the refit, the choice that knows it, and the operators with it."""

from __future__ import annotations

import io
import itertools
import json
import threading

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import model
from onnx import numpy_helper

import dlprune as ha
from dlprune.calibration import Calibration
from dlprune.classifier import Classifier
from dlprune.compensation import distillation
from dlprune.compensation.behind import flat_level
from dlprune.compensation.cholesky import factorise
from dlprune.compensation.reference import fit_order
from dlprune.compensation.ridge import RIDGE, refit
from dlprune.compensation.rows import Regression
from dlprune.compensation.stages import Stages
from dlprune.compensation.sweep import Gram, folded_moments, over_taps
from dlprune.demo import demo_images
from dlprune.facts import gather_facts
from dlprune.fit import scored_data
from dlprune.handle import new_handle
from dlprune.ledger import CountLedger
from dlprune.model import unwrap_model
from dlprune.pruningdata import PruningData
from dlprune.reconstruction import RemainingHarm, choose_by_reconstruction
from dlprune.selection import Room
from dlprune.structure import Structure

RNG = np.random.default_rng(7)

RESIDUAL = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,3,8,8] x) => (float[N,5] y)
<float[8,3,3,3] w1, float[8] b1, float[8,8,3,3] w2, float[8] s2, float[8] t2, float[8] m2, float[8] var2,
 float[8,8,3,3] w3, float[12,8,1,1] w4, float[12,5] w5, float[5] b5>
{
  a = Conv<pads = [1,1,1,1]>(x, w1, b1)
  ar = Relu(a)
  c = Conv<pads = [1,1,1,1]>(ar, w2)
  cn = BatchNormalization(c, s2, t2, m2, var2)
  cr = Relu(cn)
  d = Conv<pads = [1,1,1,1]>(cr, w3)
  e = Add(d, ar)
  f = Conv(e, w4)
  fr = Relu(f)
  g = GlobalAveragePool(fr)
  h = Flatten(g)
  m = MatMul(h, w5)
  y = Add(m, b5)
}"""


def residual() -> Classifier:
    return Classifier.from_proto(model(RESIDUAL))


def in_half_precision() -> Classifier:
    proto = model(RESIDUAL.replace("float[", "float16["))
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    return Classifier.from_proto(proto)


def operators(classifier: Classifier, **parameters: object) -> tuple[ha.HHandle, ha.HHandle]:
    """Return model and pruning handle, batch size 4."""
    handle = new_handle("dl_model", classifier)
    ha.set_dl_model_param(handle, "batch_size", 4)
    pruning = ha.create_dl_pruning(handle, "oracle", [])
    for name, value in parameters.items():
        ha.set_dl_pruning_param(pruning, name, value)  # type: ignore[arg-type]
    return handle, pruning


def samples(count: int, seed: int = 0) -> list[ha.HHandle]:
    rng = np.random.default_rng(seed)
    found = []
    for index in range(count):
        image = ha.himage_from_numpy_array(rng.standard_normal((8, 8, 3)).astype(np.float32))
        found.append(ha.from_python_dict({"image": image, "image_label_id": index % 5}))
    return found


def logits(handle: ha.HHandle, images: np.ndarray) -> np.ndarray:
    return unwrap_model(handle, 1).logits(images)


def batches(items: list[ha.HHandle], size: int = 4) -> list[list[ha.HHandle]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


@settings(max_examples=60, deadline=None)
@given(
    op=st.sampled_from(["Conv", "ConvTranspose"]),
    group=st.sampled_from([1, 2]),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    auto=st.sampled_from(["", "SAME_UPPER", "SAME_LOWER", "VALID"]),
)
def test_rows_times_weights_are_the_outputs_of_a_convolution(op, group, kernel, stride, dilation, pads, auto):
    if auto.startswith("SAME"):
        dilation = (1, 1)  # ONNX Runtime does not dilate together with automatic padding
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)] * 2
    if op == "ConvTranspose":
        auto = ""
        pads = tuple(min(p, r) for p, r in zip(pads, reach, strict=True))
    padding = f', auto_pad = "{auto}"' if auto else f", pads = {list(pads)}"
    shape = [6, 4 // group, *kernel] if op == "Conv" else [4, 6 // group, *kernel]
    attributes = f"group = {group}, strides = {list(stride)}, dilations = {list(dilation)}{padding}"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    net (float[2,4,7,9] x) => (float[N,C,H,W] y) <float{shape} w, float[6] b> {{ y = {op}<{attributes}>(x, w, b) }}"""
    _check_rows(text, np.asarray((2, 4, 7, 9)))


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("net (float[2,6] x) => (float[2,3] y) <float[6,3] w, float[3] b> { y = Gemm(x, w, b) }", (2, 6)),
        (
            "net (float[2,6] x) => (float[2,3] y) <float[3,6] w, float[3] b> "
            "{ y = Gemm<transB = 1, alpha = 0.5>(x, w, b) }",
            (2, 6),
        ),
        ("net (float[2,5,6] x) => (float[2,5,3] y) <float[6,3] w, float[1] b> { y = MatMul(x, w) }", (2, 5, 6)),
        (
            "net (float[2,4,9] x) => (float[2,6,9] y) <float[6,4,3] w, float[6] b> { y = Conv<pads=[1,1]>(x, w, b) }",
            (2, 4, 9),
        ),
        (
            "net (float[2,4,5,5,5] x) => (float[2,6,3,3,3] y) <float[6,4,3,3,3] w, float[6] b> { y = Conv(x, w, b) }",
            (2, 4, 5, 5, 5),
        ),
    ],
)
def test_rows_times_weights_are_the_outputs_of_other_consumers(text, shape):
    _check_rows('<ir_version: 8, opset_import: ["" : 17]>\n' + text, np.asarray(shape))


def _check_rows(text: str, shape: np.ndarray) -> None:
    proto = model(text)
    net = ir.from_proto(proto)
    facts = gather_facts(net, {"x": tuple(int(d) for d in shape)})
    node = next(node for node in net.graph)
    if facts.shape("y") is None or 0 in (facts.shape("y") or ()):
        return  # the padding asks for more than the image holds; such a node has no output
    x = RNG.standard_normal(shape).astype(np.float32)
    y = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0]
    regression = Regression(node, facts, 2)
    chosen = np.tile(np.arange(regression.positions), (2, 1))
    weight = regression.weight(facts.const("w"))
    rows = regression.inputs(x, 2, chosen)
    found = np.einsum("rgk,gok->rgo", rows, weight).reshape(len(rows), -1)
    if node.op_type != "MatMul":
        found = found + facts.const("b")
    np.testing.assert_allclose(found, regression.outputs(y, 2, chosen), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(regression.weight_array(weight, facts.const("w")), facts.const("w"))


def test_refit_is_the_closed_form_of_ridge_regression():
    x = RNG.standard_normal((500, 6)).astype(np.float32) + 1
    y = (x @ RNG.standard_normal((6, 3)) + RNG.standard_normal((500, 3)) * 0.1).astype(np.float32)
    old = RNG.standard_normal((3, 6))
    fit = refit(x, y, old, 5)
    xc, yc = x - x.mean(0, dtype=float), y - y.mean(0, dtype=float)
    ridge = RIDGE * np.mean(np.sum(xc**2, axis=0))
    expected = old + np.linalg.solve(xc.T @ xc + ridge * np.eye(6), xc.T @ (yc - xc @ old.T)).T
    np.testing.assert_allclose(fit.weight, expected, atol=1e-5)  # sums of products in single precision
    np.testing.assert_allclose((x @ fit.weight.T + fit.bias).mean(0), y.mean(0), atol=1e-5)
    assert fit.method == "least_squares"


@pytest.mark.parametrize("rows", [8, 40])
def test_refit_with_few_rows_keeps_the_weights_where_noise_is_all_there_is(rows):
    x = RNG.standard_normal((rows, 50)).astype(np.float32)
    old = RNG.standard_normal((4, 50))
    y = (x @ old.T + 3 * RNG.standard_normal((rows, 4)) + 2).astype(np.float32)
    fit = refit(x, y, old, 1)
    test = RNG.standard_normal((4000, 50))
    error = np.mean((test @ (fit.weight - old).T) ** 2)
    assert error < 3.0  # least squares without a check would reach the noise of the targets, 9, or far more
    assert np.isfinite(fit.bias).all()


def test_refit_is_never_worse_than_a_matched_bias_on_its_rows():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((60, rng.integers(2, 90))).astype(np.float32)
        y = rng.standard_normal((60, 3)).astype(np.float32) + x[:, :1]
        old = rng.standard_normal((3, x.shape[1]))
        fit = refit(x, y, old, 3)
        by_bias = y - x @ old.T
        by_bias -= by_bias.mean(0)
        assert np.mean((x @ fit.weight.T + fit.bias - y) ** 2) <= np.mean(by_bias**2) * (1 + 1e-9)


def _room(units: int, budget: int) -> Room:
    structure = _structure(units)
    return Room(structure, CountLedger(structure), (budget, 0))


def _structure(units: int) -> Structure:
    every = np.arange(units)
    return Structure(
        layers=(),
        kernels=np.ones(units, np.int64),
        features=np.zeros(units, np.int64),
        groups=np.zeros(units, np.int64),
        consumers=(),
        tensors={},
        constraints=(every,),
        whole_groups={},
        shuffles={},
    )


def test_a_target_below_its_level_is_met_by_everything_down_there():
    """Behind a ReLU: where the original gives nothing, only a positive output is an error."""
    x = RNG.standard_normal((2000, 2)).astype(np.float32)
    level = np.zeros(1, np.float32)
    above = 2 * x[:, :1] - x[:, 1:] + 0.3
    targets = np.where(above > 0, above, 5 * above - np.abs(RNG.standard_normal(above.shape))).astype(np.float32)
    plain = refit(x, targets, np.zeros((1, 2)), 4)
    aware = refit(x, targets, np.zeros((1, 2)), 4, level)
    wrong = [np.mean((np.maximum(x @ f.weight.T + f.bias, 0) - np.maximum(targets, 0)) ** 2) for f in (plain, aware)]
    assert wrong[1] < 0.1 * wrong[0]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0.05, 0.95), spread=st.floats(0.5, 3.0), rare=st.booleans())
def test_the_fit_above_a_level_makes_up_a_good_part_of_what_can_be_made_up(seed, share, spread, rare):
    """The best there is by plain gradient descent in double precision, in many small steps."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((240, 5))
    if rare:  # one input that hardly ever speaks up: no promise but that nothing gets worse
        x[:, 0] = np.where(rng.random(240) < 0.02, 30.0, 0.0)
    x = x.astype(np.float32).astype(np.float64)
    y = (x @ rng.standard_normal((5, 3)) + spread * rng.standard_normal((240, 3))).astype(np.float32)
    old = rng.standard_normal((3, 5))
    level = np.quantile(y, share, axis=0).astype(np.float32)
    pull = RIDGE * x.var(axis=0).mean() * len(x)

    def missed(weight, bias):
        given = x @ weight.T + bias
        return np.where(y > level, y - given, np.minimum(level - given, 0))

    def loss(weight, bias):
        return np.square(missed(weight, bias)).sum() + pull * np.square(weight - old).sum()

    plain = refit(x.astype(np.float32), y, old, 4)
    weight, bias, mean = plain.weight, plain.bias + plain.weight @ x.mean(axis=0), x.mean(axis=0)
    stiffest = np.linalg.eigvalsh((x - mean).T @ (x - mean))[-1] + pull + len(x)
    for _ in range(20000):
        left = missed(weight, bias - weight @ mean)
        step = left.T @ (x - mean) - pull * (weight - old)
        weight, bias = weight + step / stiffest, bias + left.sum(axis=0) / stiffest
        if np.abs(step).max() < 1e-6 * stiffest:
            break
    first, best = loss(plain.weight, plain.bias), loss(weight, bias - weight @ mean)
    found = refit(x.astype(np.float32), y, old, 4, level)
    assert loss(found.weight, found.bias) <= best + (1.0 if rare else 0.6) * (first - best) + 1e-4 * first


def test_stages_give_what_one_run_gives_and_leave_the_images_alone():
    """Memory of tensors is used again, that of the caller is not."""
    graph = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[N,3,6,6] x) => (float[N,3,6,6] f)
    <float[3,3,3,3] w1, float[4,3,3,3] w2, float[3,4,3,3] w3, float[3,3,1,1] w4>
    {
      a = Conv<pads = [1,1,1,1]>(x, w1)
      b = Conv<pads = [1,1,1,1]>(a, w2)
      c = Conv<pads = [1,1,1,1]>(b, w3)
      d = Add(a, c)
      e = Relu(d)
      f = Conv(e, w4)
    }"""
    classifier = Classifier.from_proto(model(graph))
    facts = gather_facts(classifier.model, {"x": (1, 3, 6, 6)})
    images = RNG.standard_normal((18, 3, 6, 6)).astype(np.float32)
    before, names = images.copy(), "abcdef"
    whole = model(graph)
    whole.graph.output.extend(type(whole.graph.output[0])(name=name) for name in names[:-1])
    session = ort.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = dict(zip(names, session.run(list(names), {"x": images}), strict=True))
    stages = Stages(classifier.model, facts, names, ("x", images), 4)
    for name in names:
        found = np.concatenate([part[:count] for part, count in stages.tensor(name)])
        np.testing.assert_allclose(found, expected[name], atol=1e-5)
        stages.release(name)
    np.testing.assert_array_equal(images, before)


def test_a_level_below_all_targets_changes_nothing():
    x, targets = (RNG.standard_normal((200, n)).astype(np.float32) for n in (5, 3))
    weight = RNG.standard_normal((3, 5))
    plain = refit(x, targets, weight, 4)
    for level in (np.full(3, -100, np.float32), np.full((200, 3), -np.inf, np.float32)):
        np.testing.assert_array_equal(refit(x, targets, weight, 4, level).weight, plain.weight)


@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_a_refit_tells_the_covariance_of_channels_over_rows_and_taps(offset: float):
    x = (RNG.standard_normal((300, 4, 9)) + offset * RNG.standard_normal((4, 9))).astype(np.float32)
    rows, targets = x.reshape(300, 36), RNG.standard_normal((300, 2)).astype(np.float32)
    found = refit(rows, targets, RNG.standard_normal((2, 36)), 3).moments
    assert found is not None
    truth = np.cov(x.astype(np.float64).transpose(0, 2, 1).reshape(-1, 4), rowvar=False, bias=True)
    taps = np.arange(36).reshape(4, 9)
    np.testing.assert_allclose(folded_moments(found, taps), truth, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(over_taps(rows, taps), truth, rtol=1e-5, atol=1e-5)


def test_choice_by_reconstruction_equals_refitting_after_each_removal():
    x = RNG.standard_normal((400, 8)) @ RNG.standard_normal((8, 8))
    weight = RNG.standard_normal((5, 8))
    scores = RNG.uniform(0.5, 2.0, 8)
    gram = Gram(np.arange(8), x.T @ x / len(x), weight.T @ weight, 0.7)
    gone = choose_by_reconstruction(_room(8, 4), scores, [gram])

    ridge = 1e-3 * np.trace(gram.inputs) / 8
    system = gram.inputs + ridge * np.eye(8)
    left, current = list(range(8)), weight.copy()
    removed = []
    for _ in range(4):
        costs = {}
        for unit in left:
            rest = [u for u in left if u != unit]
            # The refit of the rest to the current outputs, and the error that it leaves.
            step = np.linalg.solve(system[np.ix_(rest, rest)], system[np.ix_(rest, [unit])]) @ current[:, [unit]].T
            schur = system[unit, unit] - system[unit, rest] @ np.linalg.solve(
                system[np.ix_(rest, rest)], system[rest, unit]
            )
            costs[unit] = (scores[unit] * np.sqrt(0.7 * schur * np.sum(current[:, unit] ** 2)), rest, step)
        unit = min(costs, key=lambda u: costs[u][0])
        _, rest, step = costs[unit]
        current[:, rest] += step.T
        left = rest
        removed.append(unit)
    assert sorted(removed) == np.flatnonzero(gone).tolist()


def test_choice_by_reconstruction_prefers_a_copy_of_another_channel():
    x = RNG.standard_normal((300, 6))
    x[:, 4] = x[:, 1]
    weight = RNG.standard_normal((4, 6))
    gram = Gram(np.arange(6), x.T @ x / len(x), weight.T @ weight, 1.0)
    gone = choose_by_reconstruction(_room(6, 1), np.ones(6), [gram])
    assert np.flatnonzero(gone).tolist() in ([1], [4])


@pytest.mark.parametrize(
    ("behind", "level"),
    [
        ("y = Relu(a)", 0.0),
        ("y = HardSwish(a)", -3.0),
        ("y = HardSigmoid<alpha = 0.25, beta = 0.5>(a)", -2.0),
        ("y = Clip(a, low)", 0.5),
        ("y = Sigmoid(a)", None),
        ("r = Relu(a) h = HardSwish(a) y = Add(r, h)", -3.0),
        ("r = Relu(a) y = Add(r, a)", None),
    ],
)
def test_the_activations_behind_a_tensor_say_below_what_it_does_not_matter(behind, level):
    text = f"""<ir_version: 8, opset_import: ["" : 17]> net (float[2,4] x) => (float[2,4] y) <float low = {{0.5}}> {{
      a = Neg(x)
      {behind}
    }}"""
    found = ir.from_proto(model(text))
    facts = gather_facts(found, {"x": (2, 4)})
    assert flat_level(found.graph[0].outputs[0], facts) == level


def test_a_matmul_keeps_the_mean_of_the_logits_in_every_step():
    """Its bias is an addition of its own, and must not be added again in each step."""
    for step in (100, 20):
        handle, pruning = operators(residual(), percentage=60, step_percentage=step, joint_refit="false")
        for batch in batches(samples(32)):
            ha.add_dl_pruning_batch(handle, pruning, batch)
        pruned = ha.gen_dl_pruned_model(handle, pruning)
        images, _ = scored_data(pruning, 1).calibration.arrays()
        means = [logits(one, images).mean(axis=0) for one in (handle, pruned)]
        np.testing.assert_allclose(means[1], means[0], atol=1e-5)


def test_the_demo_survives_where_branches_meet():
    """A shortcut's target must follow the order of the refits: with the order of the graph 14 % were left here."""
    handle = ha.read_dl_model(ha.demo_model_file())
    pruned, _, _ = ha.prune_dl_model(handle, ha.demo_samples()[:64], 70, calibration_image_num=64, step_percentage=70)
    images, labels = demo_images("test")
    pixels = images[:, np.newaxis].astype(np.float32) - 127
    assert np.mean(unwrap_model(pruned, 1).confidences(pixels).argmax(axis=1) == labels) > 0.95


def test_the_longer_of_two_branches_that_meet_is_fitted_last():
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[N,3,8,8] x) => (float[N,4,8,8] y) <float[4,3,1,1] w1, float[4,4,1,1] w2, float[4,3,1,1] w3> {
      a = Conv(x, w1)
      ar = Relu(a)
      main = Conv(ar, w2)
      short = Conv(x, w3)
      y = Add(main, short)
    }"""
    order = [node.outputs[0].name for node in fit_order(ir.from_proto(model(text)))]
    assert order == ["short", "a", "ar", "main", "y"]


def test_calibration_keeps_the_same_images_in_whatever_order_they_come():
    images = RNG.standard_normal((40, 3, 4, 4)).astype(np.float32)
    labels = np.arange(40)
    first, second, third = Calibration(10), Calibration(10), Calibration(10)
    first.add(images, labels)
    order = RNG.permutation(40)
    second.add(images[order], labels[order])
    third.add(images[:20], labels[:20])
    other = Calibration(10)
    other.add(images[20:], labels[20:])
    third.merge(other)
    for candidate in (second, third):
        for a, b in zip(first.arrays(), candidate.arrays(), strict=True):
            np.testing.assert_array_equal(a, b)
    assert len(first) == 10


def test_calibration_counts_equal_images_once():
    sample = Calibration(10)
    image = np.ones((1, 3, 4, 4), np.float32)
    sample.add(image, np.array([1]))
    sample.add(image, np.array([1]))
    assert len(sample) == 1


@pytest.mark.parametrize("compensation", ["least_squares", "bias", "none"])
@pytest.mark.parametrize("selection", ["auto", "reconstruction", "score"])
def test_every_way_of_pruning_removes_what_was_asked_for(compensation, selection):
    handle, pruning = operators(residual(), compensation=compensation, selection=selection, percentage=40)
    for batch in batches(samples(16)):
        ha.add_dl_pruning_batch(handle, pruning, batch)
    pruned = ha.gen_dl_pruned_model(handle, pruning)
    removed = ha.get_dl_pruning_param_s(pruning, "pruned_percentage")
    assert 30 < removed <= 40
    assert ha.get_dl_model_param_s(pruned, "num_trainable_params") < ha.get_dl_model_param_s(
        handle, "num_trainable_params"
    )


def test_nothing_removed_changes_nothing():
    handle, pruning = operators(residual(), percentage=0)
    ha.add_dl_pruning_batch(handle, pruning, samples(4))
    pruned = ha.gen_dl_pruned_model(handle, pruning)
    images = RNG.standard_normal((4, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(logits(pruned, images), logits(handle, images), rtol=1e-6)


def test_removing_silent_kernels_changes_nothing():
    proto = model(RESIDUAL)
    for tensor in proto.graph.initializer:
        if tensor.name in ("w2", "s2", "t2"):
            array = np.frombuffer(tensor.raw_data, np.float32).reshape(tuple(tensor.dims)).copy()
            array[[1, 3, 6]] = 0
            tensor.raw_data = array.tobytes()
    handle, pruning = operators(Classifier.from_proto(proto), percentage=12)
    for batch in batches(samples(16)):
        ha.add_dl_pruning_batch(handle, pruning, batch)
    pruned = ha.gen_dl_pruned_model(handle, pruning)
    info = {ha.get_dict_tuple_s(one, "name"): one for one in ha.get_dl_pruning_layer_info(pruning)}
    gone = [kernel for one in info.values() for kernel in ha.get_dict_tuple(one, "pruned_kernel_ids")]
    assert set(gone) <= {1, 3, 6}
    assert gone
    images = RNG.standard_normal((4, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(logits(pruned, images), logits(handle, images), rtol=1e-4, atol=1e-5)


def test_least_squares_stays_closer_to_the_original_than_bias_and_bias_closer_than_nothing():
    images = np.random.default_rng(99).standard_normal((64, 3, 8, 8)).astype(np.float32)
    errors = {}
    for method in ("least_squares", "bias", "none"):
        # In one step the same kernels leave whatever the compensation.
        wanted = {"compensation": method, "selection": "score", "step_percentage": 100, "percentage": 40}
        wanted["joint_refit"] = "false"
        handle, pruning = operators(residual(), **wanted)
        for batch in batches(samples(64)):
            ha.add_dl_pruning_batch(handle, pruning, batch)
        pruned = ha.gen_dl_pruned_model(handle, pruning)
        errors[method] = float(np.mean((logits(pruned, images) - logits(handle, images)) ** 2))
    assert errors["least_squares"] < errors["bias"] < errors["none"]


def _pruned_bytes(order: list[int], threads: int) -> bytes:
    handle, pruning = operators(residual(), percentage=40, calibration_image_num=20)
    parts = batches(samples(32))
    pending = iter([parts[index] for index in order])
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                batch = next(pending, None)
            if batch is None:
                return
            ha.add_dl_pruning_batch(handle, pruning, batch)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return unwrap_model(ha.gen_dl_pruned_model(handle, pruning), 1).to_bytes()


def test_the_result_does_not_depend_on_the_order_of_batches_or_on_threads():
    expected = _pruned_bytes(list(range(8)), 1)
    for order in itertools.islice(itertools.permutations(range(8)), 5000, 5002):
        assert _pruned_bytes(list(order), 1) == expected
    assert _pruned_bytes(list(range(8)), 3) == expected


def test_a_serialized_handle_remembers_scores_images_and_settings():
    handle, pruning = operators(residual(), percentage=40)
    for batch in batches(samples(16)):
        ha.add_dl_pruning_batch(handle, pruning, batch)
    copy = ha.deserialize_handle(ha.serialize_handle(pruning))
    first, second = ha.gen_dl_pruned_model(handle, pruning), ha.gen_dl_pruned_model(handle, copy)
    assert unwrap_model(first, 1).to_bytes() == unwrap_model(second, 1).to_bytes()
    assert ha.get_dl_pruning_param(copy, "pruned_percentage") == ha.get_dl_pruning_param(pruning, "pruned_percentage")


def test_the_original_is_not_touched():
    handle, pruning = operators(residual(), percentage=40)
    before = unwrap_model(handle, 1).to_bytes()
    ha.add_dl_pruning_batch(handle, pruning, samples(4))
    ha.gen_dl_pruned_model(handle, pruning)
    assert unwrap_model(handle, 1).to_bytes() == before


def test_images_without_labels_serve_as_well():
    handle, pruning = operators(residual(), percentage=40)
    unlabelled = samples(8)
    for sample in unlabelled:
        ha.remove_dict_key(sample, "image_label_id")
    for batch in batches(unlabelled):
        ha.add_dl_pruning_batch(handle, pruning, batch)
    ha.gen_dl_pruned_model(handle, pruning)
    assert ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num") > 0


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("compensation", "magic", 7914),
        ("compensation", 1, 1203),
        ("selection", "best", 7914),
        ("step_percentage", 0, 7914),
        ("step_percentage", 101, 7914),
        ("step_percentage", "x", 1203),
        ("calibration_image_num", 0, 7914),
        ("calibration_image_num", 2.5, 1203),
        ("choice_num", 0, 7914),
        ("choice_num", 3, 7914),
        ("choice_num", "many", 7914),
        ("choice_num", 1.5, 1203),
    ],
)
def test_wrong_parameters_of_compensation_are_refused_and_change_nothing(name, value, code):
    _, pruning = operators(residual())
    before = ha.get_dl_pruning_param(pruning, name)
    with pytest.raises(ha.HOperatorError) as caught:
        ha.set_dl_pruning_param(pruning, name, value)
    assert caught.value.error_code == code
    assert ha.get_dl_pruning_param(pruning, name) == before


def pruned_with(choices: int | str, percentage: float = 60, seed: int = 0) -> tuple[np.ndarray, float]:
    """Return the choice made in one step, and the divergence by NumPy's formula on the images of the refit."""
    wanted = {"step_percentage": 100, "choice_num": choices, "joint_refit": "false"}
    handle, pruning = operators(residual(), percentage=percentage, **wanted)
    for batch in batches(samples(32, seed)):
        ha.add_dl_pruning_batch(handle, pruning, batch)
    pruned = ha.gen_dl_pruned_model(handle, pruning)
    data = scored_data(pruning, 1)
    images, _ = data.calibration.arrays()
    assert data.removed is not None
    return data.removed, divergence(logits(pruned, images), logits(handle, images), 1.0)


def test_of_two_choices_the_one_nearest_to_the_original_is_kept():
    gained = 0
    for seed in range(4):
        one, two = (pruned_with(choices, seed=seed)[1] for choices in (1, 2))
        assert two <= one * (1 + 1e-9)
        gained += two < one * (1 - 1e-3)
    assert gained


def test_automatically_only_networks_that_take_little_work_have_several_choices(monkeypatch: pytest.MonkeyPatch):
    found = {choices: pruned_with(choices) for choices in (1, 2, "auto")}
    np.testing.assert_array_equal(found["auto"][0], found[2][0])
    monkeypatch.setattr("dlprune.steps._LITTLE_WORK", 1.0)
    assert pruned_with("auto")[1] == found[1][1]


def test_pruning_data_of_an_older_version_takes_defaults_for_what_it_does_not_know():
    _, pruning = operators(residual(), percentage=35, choice_num=2)
    with np.load(io.BytesIO(scored_data(pruning, 1).to_bytes())) as stored:
        arrays = dict(stored)
    head = json.loads(str(arrays["head"]))
    del head["settings"]["choice_num"]
    stream = io.BytesIO()
    np.savez_compressed(stream, **{**arrays, "head": np.array(json.dumps(head))})
    found = PruningData.from_bytes(stream.getvalue()).settings
    assert (found.choice_num, found.percentage) == ("auto", 35)


@pytest.mark.parametrize("shared", [False, True])
def test_the_remaining_error_after_removals_is_that_of_a_refit_from_scratch(shared: bool):
    """‖w_u‖² / (G⁻¹)_uu of the Gram and the refitted weights of the channels that are left, by NumPy."""
    rng = np.random.default_rng(3)
    count = 24
    units = rng.permutation(count) // (2 if shared else 1)
    units[[3, 7]] = -1
    samples, weights = rng.standard_normal((60, count)), rng.standard_normal((5, count))
    moments = samples.T @ samples / len(samples)
    harm = RemainingHarm(np.ones(count), [Gram(units, moments, weights.T @ weights, 0.5)])
    gone = list(dict.fromkeys(rng.permutation(units[units >= 0]).tolist()))[:6]
    for unit in gone:
        harm.remove(unit)
    ridged = moments + 1e-3 * np.trace(moments) / count * np.eye(count)
    left = np.flatnonzero(~np.isin(units, gone))
    lost = np.flatnonzero(np.isin(units, gone))
    inverse = np.linalg.inv(ridged[np.ix_(left, left)])
    refitted = weights[:, left] + weights[:, lost] @ ridged[np.ix_(lost, left)] @ inverse
    for unit in set(units[left].tolist()) - {-1}:
        at = np.flatnonzero(units[left] == unit)
        error = np.trace(refitted[:, at] @ np.linalg.inv(inverse[np.ix_(at, at)]) @ refitted[:, at].T)
        assert harm.values()[unit] == pytest.approx(np.sqrt(0.5 * error), rel=1e-9)


def divergence(ours: np.ndarray, theirs: np.ndarray, heat: float = 2.0) -> float:
    """Kullback-Leibler, by the formula, at a temperature."""
    ours, theirs = (z / heat - np.log(np.exp(z / heat).sum(axis=1, keepdims=True)) for z in (ours, theirs))
    return float(np.mean(np.sum(np.exp(theirs) * (theirs - ours), axis=1)))


@pytest.mark.parametrize("half", [False, True])
def test_distillation_brings_decisions_closer_on_other_images_too_and_keeps_the_operations(half: bool):
    divergences, operations = {}, {}
    for steps in (0, 30):
        handle, pruning = operators(in_half_precision() if half else residual(), percentage=60)
        ha.set_dl_pruning_param(pruning, "distillation_steps", steps)
        for batch in batches(samples(64)):
            ha.add_dl_pruning_batch(handle, pruning, batch)
        pruned = unwrap_model(ha.gen_dl_pruned_model(handle, pruning), 1)
        seen, _ = scored_data(pruning, 1).calibration.arrays()
        others = np.random.default_rng(9).standard_normal(seen.shape).astype(np.float32)
        divergences[steps] = [divergence(pruned.logits(x), logits(handle, x)) for x in (seen, others)]
        operations[steps] = [node.op_type for node in pruned.model.graph]
    assert divergences[30][0] < divergences[0][0]
    assert divergences[30][1] < divergences[0][1]
    assert operations[30] == operations[0]


def test_distillation_that_brings_nothing_closer_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    weights = []
    for steps in (0, 3):
        monkeypatch.setattr(distillation, "_LEARNING_RATE", 1e6)
        handle, pruning = operators(residual(), percentage=60, distillation_steps=steps)
        for batch in batches(samples(16)):
            ha.add_dl_pruning_batch(handle, pruning, batch)
        graph = unwrap_model(ha.gen_dl_pruned_model(handle, pruning), 1).model.graph
        weights.append({name: value.const_value.numpy() for name, value in graph.initializers.items()})
    assert weights[0].keys() == weights[1].keys()
    for name, array in weights[0].items():
        np.testing.assert_array_equal(weights[1][name], array)


def test_distillation_leaves_frozen_weights_alone():
    """Patterns of the model's 'frozen_weights' name them; the others move, and nothing does if all are frozen."""
    weights = []
    for steps, frozen in ((0, ["*"]), (30, ["*"]), (30, ["w[12]"])):
        handle, pruning = operators(residual(), percentage=60, distillation_steps=steps)
        ha.set_dl_model_param(handle, "frozen_weights", frozen)
        for batch in batches(samples(16)):
            ha.add_dl_pruning_batch(handle, pruning, batch)
        graph = unwrap_model(ha.gen_dl_pruned_model(handle, pruning), 1).model.graph
        weights.append({name: value.const_value.numpy() for name, value in graph.initializers.items()})
    plain, still, moved = weights
    for name, array in plain.items():
        np.testing.assert_array_equal(still[name], array)
    for name in ("w1", "w2"):
        np.testing.assert_array_equal(moved[name], plain[name])
    assert not np.array_equal(moved["w3"], plain["w3"])


def test_inputs_that_never_change_hold_no_information():
    """What rounding leaves of them must not be taken for it."""
    old = RNG.standard_normal((2, 6))
    x = np.tile(np.float32([3.3, 0.1, 1e4, 7.7, 0, -2.9]), (300, 1))
    for rows in (300, 4):
        fit = refit(x[:rows], RNG.standard_normal((rows, 2)).astype(np.float32), old, 1)
        np.testing.assert_allclose(fit.weight, old, atol=1e-4)
        assert np.isfinite(fit.bias).all()


def test_a_factorised_system_is_solved_for_one_right_side_after_the_other():
    x = RNG.standard_normal((700, 500))
    system = x.T @ x
    factor = factorise(system.copy())
    for width in (1, 30):
        right = RNG.standard_normal((500, width))
        np.testing.assert_allclose(system @ factor.solve(right), right, atol=1e-9)
