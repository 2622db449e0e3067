"""What must hold for every classifier: the questions that the random nets are asked.

python tests/netchecks.py 0 1000     # checks these nets and prints what is wrong
"""

from __future__ import annotations

import math
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from exactness import Mask, assert_sound, assert_valid, choose, masked
from netgenerator import RandomNet, generate
from numberformats import DOUBLE, FLOAT, HALF, retype
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from reference import OPERATORS

import dlprune as ha
from dlprune.analysis import analysis_of
from dlprune.classifier import Classifier
from dlprune.criteria import Network
from dlprune.facts import Facts
from dlprune.gradients import GradientError
from dlprune.handle import unwrap
from dlprune.model import unwrap_model
from dlprune.pruningdata import PruningData
from dlprune.scoregraph import ScoreGraph
from dlprune.selection import removable_kernels
from dlprune.structure import CONVOLUTIONS, FIXED, Structure
from dlprune.surgery import remove_units

Logits = NDArray[np.float64]

#: Allowed error of the logits, relative to the largest.
TOLERANCE = 1e-4
#: The same where both sides are computed in double precision.
TOLERANCE64 = 1e-6
_IMAGE_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


@dataclass(frozen=True)
class Outcome:
    """What came out for one net: its convolutions, those that can lose kernels, and how many those are."""

    convolutions: int
    prunable: int
    removable_kernels: int


def read(net: RandomNet) -> Classifier:
    """Return the classifier; an image size that the file leaves open is set to the nominal one."""
    classifier = Classifier.from_proto(net.proto)
    if net.open_size:
        classifier.set("image_height", (net.image_shape[2],))
        classifier.set("image_width", (net.image_shape[3],))
    assert classifier.is_classification, classifier.reason
    return classifier


def check_pruning(net: RandomNet) -> Outcome:
    """Structure, exactness at a random percentage and at several sizes, validity; then the same once more."""
    classifier = read(net)
    structure = analysis_of(classifier).structure
    outcome = check_structure(net, structure)
    if outcome.removable_kernels:
        rng = np.random.default_rng((net.seed, 1))
        gone = choose(structure, rng.choice([1.0, rng.uniform(0.05, 0.95), rng.uniform(0.05, 0.95)]), net.seed)
        pruned = check_exact(net, classifier, gone)
        again = analysis_of(pruned).structure
        assert_sound(again)
        if removable_kernels(again):
            check_exact(net, pruned, choose(again, rng.uniform(0.1, 1.0), net.seed + 1))
    return outcome


def check_structure(net: RandomNet, structure: Structure) -> Outcome:
    """Every convolution is there, and says why it is fixed if it is."""
    convolutions = sum(node.op_type in CONVOLUTIONS for node in net.proto.graph.node)
    assert len(structure.layers) == convolutions
    assert_sound(structure)
    removable = removable_kernels(structure)
    prunable = sum(not layer.reason for layer in structure.layers)
    assert (removable > 0) == (prunable > 0)
    return Outcome(convolutions, prunable, removable)


def check_exact(net: RandomNet, classifier: Classifier, gone: Mask) -> Classifier:
    """Remove units; the result must be valid and equal the original with masked consumers, at other sizes too."""
    found = analysis_of(classifier)
    structure = found.structure
    pruned = remove_units(classifier.model, found.facts, structure, gone, found.other_shapes)
    assert_valid(pruned)
    for layer in structure.layers:
        kept = structure.kept(layer.output, gone)
        assert kept is None or kept[1].any(), f"{layer.name} has lost all its kernels"
    truth = masked(classifier.model, found.facts, structure, gone)
    name = classifier.logits_name
    batches = [(1, 1), (3, 1)] if net.open_batch else [(None, 1)]
    batches += [(None, 2)] if net.open_size else []
    _compare(truth, pruned, name, [net.images(*batch) for batch in batches], "masked consumers")
    if net.zero_keeping:
        quiet = silenced(classifier.model, found.facts, structure, gone)
        _compare(quiet, pruned, name, [net.images(*batches[0])], "silenced kernels")
    return classifier.with_model(pruned)


def silenced(model: ir.Model, facts: Facts, structure: Structure, gone: Mask) -> ir.Model:
    """Return a copy of a model in which every layer puts out zeros in place of the kernels that are gone."""
    copy = model.clone()
    for index, node in enumerate(list(copy.graph)):
        kept = structure.kept(node.outputs[0].name or "", gone)
        if node.op_type not in (*CONVOLUTIONS, "Gemm", "MatMul") or kept is None:
            continue
        axis, keep = kept
        output = node.outputs[0]
        shape = [1] * len(structure.tensors[output.name or ""].shape)
        shape[axis] = len(keep)
        dtype = facts.dtype(output)
        assert dtype is not None
        mask = ir.Value(
            name=f"quiet{index}",
            shape=ir.Shape(shape),
            type=ir.TensorType(dtype),
            const_value=ir.tensor(keep.reshape(shape).astype(dtype.numpy()), name=f"quiet{index}"),
        )
        copy.graph.register_initializer(mask)
        product = ir.node("Mul", [output, mask], outputs=[ir.Value(name=f"quieted{index}")])
        node.append(product)
        for user, slot in list(output.uses()):
            if user is not product:
                user.replace_input_with(slot, product.outputs[0])
    return copy


def _compare(truth: ir.Model, pruned: ir.Model, name: str, batches: list[NDArray[np.float32]], what: str) -> None:
    sessions = [_session(_with_output(model, name)) for model in (truth, pruned)]
    for images in batches:
        try:
            expected = _run(sessions[0], images, name)
        except Exception:
            assert images.shape[2:] != batches[0].shape[2:], "the original does not run"
            continue  # it does not run at this size either
        found = _run(sessions[1], images, name)
        error = _error(expected, found)
        if error > TOLERANCE:
            # Single precision may be at fault: let double precision decide.
            expected, found = (run64(model, images, name) for model in (truth, pruned))
            error = _error(expected, found)
            assert error <= TOLERANCE64, f"{what}, shape {images.shape}: logits differ by {error:.2e}"


def _error(expected: Logits, found: Logits) -> float:
    assert expected.shape == found.shape
    assert np.isfinite(expected).all(), "the logits of the original are not finite"
    scale = float(np.abs(expected).max())
    return float(np.abs(found - expected).max()) / (scale or 1.0) if np.isfinite(found).all() else math.inf


def _with_output(model: ir.Model, name: str) -> ir.Model:
    """Return a model, or a copy of it, that has a value among its outputs."""
    if name in (value.name for value in model.graph.outputs):
        return model
    copy = model.clone()
    value = next(output for node in copy.graph for output in node.outputs if output.name == name)
    value.shape = None
    copy.graph.outputs.append(value)
    return copy


def _session(model: ir.Model) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])


def logits(model: ir.Model, images: NDArray[np.float32], name: str) -> Logits:
    """Return a value of a model, computed by ONNX Runtime in single precision."""
    return _run(_session(_with_output(model, name)), images, name)


def _run(session: ort.InferenceSession, images: NDArray[np.float32], name: str) -> Logits:
    image = session.get_inputs()[0]
    (found,) = session.run([name], {image.name: images.astype(_IMAGE_TYPES[image.type])})
    return np.asarray(found, np.float64)


# --- double precision -------------------------------------------------------------------------------------------------


def run64(model: ir.Model, images: NDArray[np.float32], name: str) -> Logits:
    """Return a value of a model, computed by ONNX's reference implementation in double precision."""
    evaluator = ReferenceEvaluator(in_double(_with_output(model, name)), new_ops=OPERATORS)
    (found,) = evaluator.run([name], {model.graph.inputs[0].name: images.astype(np.float64)})
    return np.asarray(found, np.float64)


def in_double(model: ir.Model) -> onnx.ModelProto:
    """Return a model in which every float is a double."""
    proto = ir.to_proto(model)
    for single in (HALF, FLOAT):
        retype(proto, single, DOUBLE)
    return proto


# --- scores -----------------------------------------------------------------------------------------------------------


#: Operators whose insides have no gradient: the modes that need none remain.
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


def check_operators(net: RandomNet, folder: Path) -> None:
    """The five operators from file to file: scored, pruned, written, read again, applied.

    A quantised net must be refused, and so must scores by gradients that would have to pass control flow.
    """
    path = folder / "net.onnx"
    path.write_bytes(net.proto.SerializeToString())
    model = ha.read_dl_model(str(path))
    images = net.images()
    if net.open_size:
        ha.set_dl_model_param(model, "image_dimensions", [images.shape[3], images.shape[2], images.shape[1]])
    if net.open_batch:
        ha.set_dl_model_param(model, "batch_size", len(images))
    if not removable_kernels(analysis_of(unwrap_model(model, 1)).structure):
        return
    rng = np.random.default_rng((net.seed, 2))
    percentage, compensation = int(rng.integers(10, 91)), str(rng.choice(["none", "none", "bias", "least_squares"]))
    settings = {"percentage": percentage, "compensation": compensation, "step_percentage": 40}
    operators = {node.op_type for node in net.proto.graph.node}
    batch = samples(net, images, rng)
    try:
        pruning = ha.create_dl_pruning(model, "oracle", ha.from_python_dict(settings))
        ha.add_dl_pruning_batch(model, pruning, batch)
    except ha.HOperatorError as error:
        unforeseen = error.error_code != ha.errors.H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED
        if not unforeseen and "QuantizeLinear" in operators and "This model is quantised" in str(error):
            return
        if unforeseen or not any(f"operator {name} " in str(error) for name in operators & _CONTROL_FLOW):
            raise
        pruning = ha.create_dl_pruning(model, "l2", ha.from_python_dict(settings))
        ha.add_dl_pruning_batch(model, pruning, batch)
    assert "QuantizeLinear" not in operators
    pruned = ha.gen_dl_pruned_model(model, pruning)
    assert ha.get_dl_pruning_param_s(pruning, "pruned_percentage") <= percentage
    ha.write_dl_model(pruned, str(folder / "pruned.onnx"))
    again = unwrap_model(ha.read_dl_model(str(folder / "pruned.onnx")), 1)
    assert_valid(again.model)
    classifier = unwrap_model(model, 1)
    if compensation == "none":
        found = analysis_of(classifier)
        gone = unwrap(pruning, "dl_pruning", PruningData, 2).removed
        truth = masked(classifier.model, found.facts, found.structure, gone)
    else:
        truth = unwrap_model(pruned, 1).model
    _compare(truth, again.model, classifier.logits_name, [images], "after writing and reading")


def samples(net: RandomNet, images: NDArray[np.float32], rng: np.random.Generator) -> list[ha.HHandle]:
    """Return the images as sample dictionaries, all of them with a label or none."""
    if net.proto.graph.input[0].name != "image_nhwc":
        images = images.transpose(0, 2, 3, 1)
    labelled, found = rng.random() < 0.7, []
    for image in images:
        sample = ha.create_dict()
        ha.set_dict_object(np.ascontiguousarray(image), sample, "image")
        if labelled:
            ha.set_dict_tuple(sample, "image_label_id", int(rng.integers(2)))
        found.append(sample)
    return found


def score_graph_of(classifier: Classifier) -> ScoreGraph:
    """Return the score graph of a classifier at its batch size and image size, with terms of every consumer."""
    network = Network(classifier, analysis_of(classifier).structure, classifier.params.batch_size)
    return network.score_graph(together=False)


def check_scores(net: RandomNet, directions: int = 3) -> float:
    """Compare the score graph with central differences of the loss in double precision; return the worst error.

    The score of a consumer's channel is the derivative of the sample's loss by a factor on what that consumer reads.
    """
    classifier = read(net)
    images = net.images()
    if net.open_batch:
        classifier.set("batch_size", (len(images),))
    consumers = analysis_of(classifier).structure.consumers
    if not consumers:
        return 0.0
    rng = np.random.default_rng((net.seed, 3))
    labels = rng.integers(0, classifier.class_num, len(images))
    try:
        graph = score_graph_of(classifier)
    except GradientError as error:
        if error.op_type in _CONTROL_FLOW | {"QuantizeLinear"}:
            return 0.0
        raise
    terms = graph.run(images, labels)
    # What passes a saturated Tanh, or a layer whose scale does not matter, drowns in single precision; so does what
    # little reaches a sample that is all but certain.
    floor = max(2e-2, 0.2 * max(float(np.abs(term).max()) for term in terms))
    worst = 0.0
    for index in rng.permutation(len(consumers))[:directions]:
        consumer, term = consumers[index], terms[index].astype(np.float64)
        direction = rng.standard_normal(term.shape[1]) * (consumer.units != FIXED)
        loss = _Loss(classifier, index, labels)
        step = 1e-6
        slope = (loss(images, 1 + step * direction) - loss(images, 1 - step * direction)) / (2 * step)
        error = float(np.abs(slope - term @ direction).max())
        worst = max(worst, error / max(np.abs(term).max() * math.sqrt(len(direction)), floor))
    return worst


class _Loss:
    """The cross-entropy of each sample as a function of factors on the channels that one consumer reads."""

    def __init__(self, classifier: Classifier, index: int, labels: NDArray[np.int64]) -> None:
        structure = analysis_of(classifier).structure
        consumer = structure.consumers[index]
        copy = classifier.model.clone()
        node = next(n for n in copy.graph if n.outputs[0].name == consumer.output)
        slot = next(i for i, v in enumerate(node.inputs) if v is not None and v.name == consumer.input)
        factors = ir.Value(name="factors", type=ir.TensorType(ir.DataType.FLOAT))
        rank = len(structure.tensors[consumer.input].shape)
        self._shape = [1] * rank
        self._shape[consumer.axis] = len(consumer.units)
        factors.shape = ir.Shape(self._shape)
        copy.graph.inputs.append(factors)
        product = ir.node("Mul", [node.inputs[slot], factors], outputs=[ir.Value(name="scaled")])
        node.prepend(product)
        node.replace_input_with(slot, product.outputs[0])
        self._name = classifier.logits_name
        self._evaluator = ReferenceEvaluator(in_double(_with_output(copy, self._name)), new_ops=OPERATORS)
        self._input = classifier.input_name
        self._labels = labels

    def __call__(self, images: NDArray[np.float32], factors: NDArray[np.float64]) -> NDArray[np.float64]:
        feeds = {self._input: images.astype(np.float64), "factors": factors.reshape(self._shape)}
        (found,) = self._evaluator.run([self._name], feeds)
        logits = found.reshape(len(images), -1)
        top = logits.max(axis=1, keepdims=True)
        logs = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
        return -logs[np.arange(len(images)), self._labels]


# --- by hand ----------------------------------------------------------------------------------------------------------


def smallest(seed: int) -> RandomNet:
    """Leave out building blocks of a net that fails as long as it still fails."""

    def fails(skip: set[int]) -> bool:
        try:
            check_pruning(generate(seed, skip))
        except Exception:
            return True
        return False

    skip: set[int] = set()
    for block in reversed(range(60)):
        if fails({*skip, block}):
            skip.add(block)
    return generate(seed, skip)


def main(first: int, last: int, scores: int = 0) -> None:
    """Check a range of nets, and the scores of every so many."""
    counts: Counter[str] = Counter()
    for seed in range(first, last):
        net = generate(seed)
        try:
            outcome = check_pruning(net)
            counts["refused"] += not outcome.prunable
            counts["convolutions"] += outcome.convolutions
            counts["prunable"] += outcome.prunable
            if scores and seed % scores == 0:
                with tempfile.TemporaryDirectory() as folder:
                    check_operators(net, Path(folder))
                error = check_scores(net)
                assert error < 1e-3, f"scores differ by {error:.1e}"
        except Exception as error:
            counts["failed"] += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            opset = net.proto.opset_import[0].version
            text = " ".join(str(error).split())[:300]
            print(f"{seed} opset {opset} {type(error).__name__} at {place}: {text} {net.blocks}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
