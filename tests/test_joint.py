"""The refit of all layers together: its gradients, its solution, and the operators with it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from models import model
from test_compensation import batches, divergence, in_half_precision, operators, residual, samples

import dlprune as ha
from dlprune import steps
from dlprune.classifier import Classifier
from dlprune.compensation import joint
from dlprune.compensation.joint import _directions, _Equations, refit_jointly
from dlprune.demo import demo_images
from dlprune.fit import scored_data
from dlprune.model import unwrap_model

CONVOLUTIONS = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,4,6,6] x) => (float[N,3] y)
<float[6,4,3,3] w1, float[6] b1, float[6] s, float[6] t, float[6] mean, float[6] var, float[6,3,2,3] w2,
 float[6,4,2,2] w3, float[48,5] w4, float[5] b4, float[3,5] w5>
{
  a = Conv<pads = [1,0,1,2], strides = [2,1]>(x, w1, b1)
  n = BatchNormalization(a, s, t, mean, var)
  m = Sigmoid(n)
  c = Conv<group = 2, dilations = [1,2]>(m, w2)
  d = ConvTranspose<strides = [2,1]>(c, w3)
  e = Tanh(d)
  f = Flatten(e)
  g = Gemm<alpha = 0.5, beta = 2.0>(f, w4, b4)
  h = Tanh(g)
  y = Gemm<transB = 1>(h, w5)
}"""
TOKENS = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,4,6,6] x) => (float[N,3] y)
<float[5,4,3,3] w1, int64[3] s = {0, 5, 4}, float[5,6] w2, float[6] b2, float[6,3] w3>
{
  a = Conv<strides = [3,3]>(x, w1)
  b = Reshape(a, s)
  c = Transpose<perm = [0,2,1]>(b)
  d = MatMul(c, w2)
  e = Add(d, b2)
  f = Tanh(e)
  g = ReduceMean<axes = [1], keepdims = 0>(f)
  y = MatMul(g, w3)
}"""
LAST = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,3,8,8] x) => (float[N,5] y) <float[6,3,1,1] w1, float[5,6] w2, float[5] b2>
{
  a = Conv(x, w1)
  b = Relu(a)
  c = GlobalAveragePool(b)
  d = Flatten(c)
  y = Gemm<transB = 1>(d, w2, b2)
}"""
LAYERS = {"convolutions": (CONVOLUTIONS, ["a", "c", "d", "g", "y"]), "tokens": (TOKENS, ["a", "d", "y"])}


def pruned(
    scored: int = 32, classifier: Classifier | None = None, **parameters: object
) -> tuple[ir.Model, float, float]:
    """Prune a small network; return it and its divergence, on the images that it was fitted to and on others."""
    handle, pruning = operators(classifier or residual(), **{"percentage": 60, **parameters})
    for batch in batches(samples(scored)):
        ha.add_dl_pruning_batch(handle, pruning, batch)
    found = unwrap_model(ha.gen_dl_pruned_model(handle, pruning), 1)
    seen, _ = scored_data(pruning, 1).calibration.arrays()
    others = np.random.default_rng(9).standard_normal((200, *seen.shape[1:])).astype(np.float32)
    original = unwrap_model(handle, 1)
    far, near = (divergence(found.logits(x), original.logits(x), 1.0) for x in (others, seen))
    return found.model, near, far


def weights(graph: ir.Model) -> dict[str, np.ndarray]:
    return {name: value.const_value.numpy() for name, value in graph.graph.initializers.items()}


def assert_same(left: ir.Model, right: ir.Model) -> None:
    ours, theirs = weights(left), weights(right)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(theirs[name], array)


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_of_each_image_are_those_of_finite_differences(kind: str):
    """With a BatchNormalization behind the layer, strides, pads, groups, dilations, alpha, and a last batch of two."""
    text, layers = LAYERS[kind]
    classifier = Classifier.from_proto(model(text))
    rng = np.random.default_rng(3)
    images = rng.standard_normal((6, 4, 6, 6)).astype(np.float32)
    directions = rng.standard_normal((6, 2, 3))
    equations = _Equations(classifier, layers, 4)
    logits, gradients = equations._gradients(images, directions, lambda _: None)
    np.testing.assert_allclose(logits, classifier.logits(images), atol=1e-5)
    width, step = gradients.shape[1], 2e-2
    assert width == sum(array.size for name, array in weights(classifier.model).items() if name.startswith("w"))
    for column in rng.choice(width, 40, replace=False):
        one = np.zeros(width, np.float32)
        one[column] = step
        ahead, behind = (classifier.with_model(equations.changed(change)).logits(images) for change in (one, -one))
        slope = (ahead.astype(np.float64) - behind) / (2 * step)
        expected = np.einsum("nqk,nk->nq", directions, slope).ravel()
        np.testing.assert_allclose(gradients[:, column], expected, atol=2e-4 * np.abs(gradients).max())


@pytest.mark.parametrize("classes", [4, 40])
def test_directions_are_the_greatest_eigenvectors_of_the_information_of_the_softened_decision(classes: int):
    aim = (3 * np.random.default_rng(0).standard_normal((5, classes))).astype(np.float32)
    if classes > 32:
        aim[:, 32:] = -80  # beyond the 32 most probable ones nobody looks
    found = _directions(aim, 1000)
    assert found.shape == (5, min(classes - 1, 9), classes)
    for row, directions in zip(aim.astype(np.float64), found, strict=True):
        p = np.exp(row / 2) / np.exp(row / 2).sum()
        values, vectors = np.linalg.eigh(np.diag(p) - np.outer(p, p))
        best = slice(classes - found.shape[1], None)
        np.testing.assert_allclose(
            directions.T @ directions, (vectors[:, best] * values[best]) @ vectors[:, best].T, atol=1e-9
        )
    assert _directions(aim, 10).shape[1] == 2


def test_the_solution_for_a_last_layer_is_the_ridge_regression_of_the_textbook(monkeypatch: pytest.MonkeyPatch):
    """Its logits are linear in its weights, so one step is the minimum, found here by the equations of the weights."""
    monkeypatch.setattr(joint, "_STEPS", 1)
    classifier = Classifier.from_proto(model(LAST))
    images = np.random.default_rng(1).standard_normal((20, 3, 8, 8)).astype(np.float32)
    z = classifier.logits(images).astype(np.float64)
    aim = (z + 0.3 * np.random.default_rng(2).standard_normal(z.shape)).astype(np.float32)
    found = refit_jointly(classifier, ["y"], images, aim, 8, lambda graph: float(graph is classifier.model))
    (features,) = classifier.run(images, ["d"])
    w = weights(classifier.model)["w2"].astype(np.float64)
    p = np.exp(aim / 2.0) / np.exp(aim / 2.0).sum(axis=1, keepdims=True)
    fisher = p[:, :, None] * np.eye(5) - p[:, :, None] * p[:, None, :]
    matrix = np.einsum("nkl,ni,nj->kilj", fisher, features, features).reshape(w.size, w.size)
    right = np.einsum("nkl,nl,ni->ki", fisher, aim - z, features).ravel()
    pull = joint.RIDGE * np.trace(matrix) / (20 * 4)  # the mean over the rows: four directions per image
    change = np.linalg.solve(matrix + pull * np.eye(w.size), right).reshape(w.shape)
    np.testing.assert_allclose(weights(found)["w2"] - w, change, atol=1e-4 * np.abs(change).max())
    np.testing.assert_array_equal(weights(found)["w1"], weights(classifier.model)["w1"])


def test_the_joint_refit_brings_decisions_much_closer_on_other_images_too():
    """A trained network, on its test images, by the formula of the divergence."""
    handle = ha.read_dl_model(ha.demo_model_file())
    images = demo_images("test")[0][:, np.newaxis].astype(np.float32) - 127
    wanted = unwrap_model(handle, 1).logits(images)
    far = {}
    for value in ("false", "true"):
        settings = {"calibration_image_num": 256, "step_percentage": 30, "choice_num": 1, "joint_refit": value}
        found, _, _ = ha.prune_dl_model(handle, ha.demo_samples()[:256], 75, **settings)
        far[value] = divergence(unwrap_model(found, 1).logits(images), wanted, 1.0)
    assert far["true"] < 0.8 * far["false"]


def test_a_network_in_half_precision_keeps_its_precision():
    plain, wanted = (pruned(64, in_half_precision(), joint_refit=value) for value in ("false", "true"))
    assert wanted[1] < 0.9 * plain[1]
    assert {a.dtype for a in weights(wanted[0]).values()} == {np.dtype(np.float16)}


def test_small_networks_are_refitted_jointly_and_large_ones_are_not(monkeypatch: pytest.MonkeyPatch):
    plain, wanted = (pruned(joint_refit=value)[0] for value in ("false", "true"))
    assert_same(pruned()[0], wanted)
    monkeypatch.setattr(steps, "_LITTLE_WORK", 1.0)
    monkeypatch.setattr(steps.Stepper, "_choice_num", lambda *_: 2)
    assert_same(pruned()[0], plain)


@pytest.mark.parametrize(
    "parameters", [{"compensation": "bias"}, {"compensation": "none"}, {"batchnorm": "reestimate"}, {"percentage": 0}]
)
def test_nothing_is_refitted_jointly_where_that_would_belie_what_was_asked(parameters: dict[str, object]):
    """Least squares alone is followed by it, not where statistics have to fit nor where nothing has left."""
    assert_same(pruned(**parameters)[0], pruned(joint_refit="false", **parameters)[0])


def test_a_joint_refit_that_brings_nothing_closer_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    plain = pruned(joint_refit="false")[0]
    monkeypatch.setattr(joint, "_SHARES", (1e6, -1.0))
    assert_same(pruned(joint_refit="true")[0], plain)


def test_a_network_that_cannot_be_differentiated_is_left_as_the_sweep_left_it():
    """Scores by the weights need no gradients, so there is only the joint refit that does; who asks for it is told."""
    text = LAST.replace("float[6,3,1,1] w1", "float[6,3,1,1] w1, float[6,6,1,1] w3")
    text = text.replace("Pool(b)", "Pool(h)").replace("Relu(a)", "Relu(a)\n  e = Conv(b, w3)\n  h = Round(e)")
    parameters = {"mode": "l2", "percentage": 40, "joint_refit": "false"}
    plain = pruned(8, Classifier.from_proto(model(text)), **parameters)[0]
    assert_same(pruned(8, Classifier.from_proto(model(text)), **{**parameters, "joint_refit": "auto"})[0], plain)
    with pytest.raises(ha.HOperatorError, match="Round"):
        pruned(8, Classifier.from_proto(model(text)), **{**parameters, "joint_refit": "true"})


def test_decisions_of_classes_by_themselves_are_left_alone():
    """A sigmoid for each class is no decision between them, which is what is brought closer."""
    text = LAST.replace("y = Gemm", "z = Gemm").replace("d, w2, b2)\n", "d, w2, b2)\n  y = Sigmoid(z)\n")
    classifiers = [Classifier.from_proto(model(text)) for _ in range(2)]
    plain, wanted = (
        pruned(8, one, joint_refit=value)[0] for one, value in zip(classifiers, ("false", "true"), strict=True)
    )
    assert_same(wanted, plain)


def test_weights_that_are_frozen_stay():
    found = {}
    for value in ("false", "true"):
        handle, pruning = operators(residual(), percentage=60, joint_refit=value)
        ha.set_dl_model_param(handle, "frozen_weights", ["w[34]"])
        for batch in batches(samples(64)):
            ha.add_dl_pruning_batch(handle, pruning, batch)
        found[value] = weights(unwrap_model(ha.gen_dl_pruned_model(handle, pruning), 1).model)
    still = [name for name, array in found["false"].items() if np.array_equal(array, found["true"][name])]
    assert {"w3", "w4"} <= set(still)
    assert not {"w2", "w5"} & set(still)


def test_few_images_are_fitted_where_gradients_would_need_too_much_memory(monkeypatch: pytest.MonkeyPatch):
    """A row of gradients has 4 bytes for each weight: there is room for three rows or four, each from another image."""
    limit = (
        3 * 4 * sum(array.size for name, array in weights(residual().model).items() if name in ("w2", "w3", "w4", "w5"))
    )
    monkeypatch.setattr(joint, "_BYTES", limit)
    seen = []
    gradients = _Equations._gradients

    def look(self: _Equations, images: np.ndarray, directions: np.ndarray, progress: object) -> object:
        logits, found = gradients(self, images, directions, progress)  # type: ignore[arg-type]
        seen.append((directions.shape[1], len(found), found.nbytes))
        return logits, found

    monkeypatch.setattr(_Equations, "_gradients", look)
    pruned(percentage=10, joint_refit="true")
    assert seen
    for directions, rows, size in seen:
        assert directions == 1
        assert rows >= 3
        assert size <= limit


@pytest.mark.parametrize(("value", "code"), [("maybe", 7914), (1, 1203), (["true", "false"], 1403)])
def test_a_wrong_value_of_joint_refit_is_refused(value: object, code: int):
    _, pruning = operators(residual())
    with pytest.raises(ha.HOperatorError) as caught:
        ha.set_dl_pruning_param(pruning, "joint_refit", value)  # type: ignore[arg-type]
    assert caught.value.error_code == code
    assert ha.get_dl_pruning_param_s(pruning, "joint_refit") == "auto"
