"""The independent truth of pruning: the original network with a 0/1 mask in front of every node that mixes channels.

A unit that leaves must change the logits exactly as if the slices that its consumers hold for it were zero. Here the
consumers' inputs are masked instead of their weights cut, so that nothing of the surgery is used to judge it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from dlprune import onnxfile
from dlprune.analysis import analysis_of
from dlprune.classifier import Classifier
from dlprune.facts import Facts
from dlprune.selection import choose_units, removable_kernels
from dlprune.structure import FIXED, Structure
from dlprune.surgery import remove_units

Mask = NDArray[np.bool_]


def masked(model: ir.Model, facts: Facts, structure: Structure, gone: Mask) -> ir.Model:
    """Return a copy of a model in which every consumer reads zeros in place of the units that are gone."""
    copy = model.clone()
    nodes = {node.outputs[0].name: node for node in copy.graph if node.outputs}
    for index, consumer in enumerate(structure.consumers):
        keep = ~((consumer.units != FIXED) & gone[consumer.units])
        if keep.all():
            continue
        node = nodes[consumer.output]
        slot = next(i for i, v in enumerate(node.inputs) if v is not None and v.name == consumer.input)
        value = node.inputs[slot]
        assert value is not None
        shape = [1] * len(structure.tensors[consumer.input].shape)
        shape[consumer.axis] = len(keep)
        dtype = facts.dtype(value)
        assert dtype is not None
        tensor = ir.tensor(keep.reshape(shape).astype(dtype.numpy()), name=f"mask{index}")
        mask = ir.Value(name=f"mask{index}", shape=ir.Shape(shape), type=ir.TensorType(dtype), const_value=tensor)
        copy.graph.register_initializer(mask)
        product = ir.node("Mul", [value, mask], outputs=[ir.Value(name=f"masked{index}")])
        node.prepend(product)
        node.replace_input_with(slot, product.outputs[0])
    return copy


Runner = Callable[[NDArray[np.float32]], NDArray[np.float64]]


def runner(model: ir.Model, output: str) -> Runner:
    """Return a function that gives an output or inner value for a batch; ONNX Runtime must not rewrite the graph."""
    if all(value.name != output for value in model.graph.outputs):
        model = model.clone()
        model.graph.outputs.extend(v for node in model.graph for v in node.outputs if v.name == output)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    with onnxfile.runnable(model) as source:
        session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    entry = model.graph.inputs[0]
    assert entry.dtype is not None
    dtype = entry.dtype.numpy()
    return lambda images: np.asarray(session.run([output], {entry.name: images.astype(dtype)})[0], np.float64)


def run(model: ir.Model, images: NDArray[np.float32], output: str) -> NDArray[np.float64]:
    """Return an output or inner value of a model for a batch."""
    return runner(model, output)(images)


def random_images(classifier: Classifier, batch: int | None = None, seed: int = 0) -> NDArray[np.float32]:
    """Return noise in the shape of a model's input; the batch is the model's own where it is fixed."""
    assert classifier.image is not None
    shape = classifier.input_shape(classifier.image.batch or batch or 2)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_same(found: NDArray[np.float64], expected: NDArray[np.float64], rtol: float, what: str) -> None:
    """Compare logits relative to the largest of them."""
    assert found.shape == expected.shape, what
    scale = np.abs(expected).max()
    assert np.isfinite(expected).all()
    assert scale > 0, f"{what}: the logits are all zero and tell nothing"
    error = np.abs(found - expected).max() / scale
    assert error <= rtol, f"{what}: logits differ by {error:.2e}"


def assert_valid(model: ir.Model) -> None:
    """Run ONNX's full check and strict shape inference."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)


def assert_sound(structure: Structure) -> None:
    """A convolution without a free kernel says why; one with a free kernel does not."""
    for layer in structure.layers:
        if np.all(layer.units == FIXED):
            assert layer.reason, f"{layer.name} is fixed without a reason"
        if not layer.reason:
            assert np.any(layer.units != FIXED), f"{layer.name} is called prunable but is fixed"


def assert_exact(classifier: Classifier, gone: Mask, rtol: float = 1e-4) -> Classifier:
    """Remove units and compare with the masked original, also at another batch size; return the pruned classifier."""
    found = analysis_of(classifier)
    structure = found.structure
    truth = masked(classifier.model, found.facts, structure, gone)
    pruned = remove_units(classifier.model, found.facts, structure, gone, found.other_shapes)
    assert_valid(pruned)
    assert classifier.image is not None
    what = f"without {int(structure.kernels[gone].sum())} kernels"
    sides = [runner(model, classifier.logits_name) for model in (truth, pruned)]
    for batch in (2, 3, 1) if classifier.image.batch is None else (None,):
        images = random_images(classifier, batch, seed=batch or 0)
        expected, actual = (side(images) for side in sides)
        assert_same(actual, expected, rtol, f"{what}, batch {len(images)}")
    for layer in structure.layers:
        kept = structure.kept(layer.output, gone)
        assert kept is None or kept[1].any(), f"{layer.name} has lost all its kernels"
    return classifier.with_model(pruned)


def choose(structure: Structure, share: float, seed: int = 0) -> Mask:
    """Choose units at random that hold a share of the removable kernels, as the operator would for random scores."""
    values = np.random.default_rng(seed).random(structure.unit_num)
    return choose_units(structure, values, math.floor(removable_kernels(structure) * share + 1e-9))


def assert_prunable(
    classifier: Classifier, shares: tuple[float, ...] = (0.2, 0.5, 1.0), rtol: float = 1e-4, seed: int = 0
) -> None:
    """Prune at several shares, each exact; then prune the last but one a second time."""
    structure = analysis_of(classifier).structure
    assert_sound(structure)
    for number, share in enumerate(shares):
        pruned = assert_exact(classifier, choose(structure, share, seed + number), rtol)
        if number == max(len(shares) - 2, 0):
            second = analysis_of(pruned).structure
            assert_sound(second)
            if removable_kernels(second):
                assert_exact(pruned, choose(second, 0.5, seed), rtol)
