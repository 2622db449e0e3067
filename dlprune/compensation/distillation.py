"""Label-free finish: one scale and one bias per output channel, trained towards the original's logits.

Adam on the Kullback-Leibler divergence to the original's softened decisions, on the calibration images alone; the
scales and biases are then multiplied into the layers, so that the network keeps its operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..classifier import Classifier
from ..facts import Facts, gather_facts
from ..nodes import input_at, int_attribute, is_standard
from ..training.evaluation import logits_of
from ..training.recipe import Rates, Recipe
from ..training.trainer import trainer_of
from ..weights import trainable_weights
from .storage import store, value_of

Images = NDArray[np.float32]
Array = NDArray[np.float32]

_BATCH = 64
_LEARNING_RATE = 5e-3
_TEMPERATURE = 2.0
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm"})


@dataclass(frozen=True)
class _Layer:
    """A layer with a scale and a bias behind it; `name` is its output, the others name the added weights."""

    name: str
    scale: str
    bias: str


def distil(pruned: Classifier, original: Classifier, images: Images, steps: int, seed: int = 0) -> ir.Model:
    """Return the pruned graph with rescaled layers, or unchanged if that brings its decisions no closer.

    Args:
        pruned: the classifier to improve; it is not touched.
        original: whose logits are the aim.
        images: calibration images, float32 [n, …] in the layout of the model; no labels are needed.
        steps: number of Adam steps (learning rate 5e-3, falling to 0 by a half cosine; up to 64 images each).
        seed: of the order of the images.
    """
    aim = logits_of(original, images)
    model = pruned.model.clone()
    layers = _insert(model, _facts(pruned))
    if not layers or not steps:
        return pruned.model
    student = pruned.with_model(model)
    _train(student, layers, images, aim, steps, seed)
    found = {value.name: value.const_value for value in student.model.graph.initializers.values()}
    arrays = {
        layer.name: tuple(found[name].numpy().reshape(-1) for name in (layer.scale, layer.bias))  # type: ignore[union-attr]
        for layer in layers
    }
    folded = pruned.with_model(_fold(pruned, arrays))
    before, after = (_divergence(logits_of(net, images), aim) for net in (pruned, folded))
    return folded.model if after < before else pruned.model


def _facts(classifier: Classifier) -> Facts:
    batch = classifier.image.batch if classifier.image is not None else None
    return gather_facts(classifier.model, {classifier.input_name: classifier.input_shape(batch or 2)})


def _insert(model: ir.Model, facts: Facts) -> list[_Layer]:
    """Put a scale of ones and a bias of zeros behind every layer with constant weights and several channels."""
    layers = []
    for number, node in enumerate(list(model.graph)):
        if node.op_type not in _LAYERS or not is_standard(node):
            continue
        value = node.outputs[0]
        shape, width = facts.shape(value), _width(facts, node)
        if shape is None or width < 2 or value.is_graph_output() or not _is_plain(facts, node):
            continue
        form = (width,) if node.op_type == "Gemm" else (width, *([1] * (len(shape) - 2)))
        names = [f"dlprune.distillation.{number}.{what}" for what in ("scale", "bias", "scaled", "shifted")]
        weights = [
            _weight(model, name, array) for name, array in zip(names, (np.ones(form), np.zeros(form)), strict=False)
        ]
        readers = list(value.uses())
        scaled = ir.node("Mul", [value, weights[0]], outputs=[ir.Value(name=names[2], type=value.type)])
        shifted = ir.node("Add", [scaled.outputs[0], weights[1]], outputs=[ir.Value(name=names[3], type=value.type)])
        for user, index in readers:
            user.replace_input_with(index, shifted.outputs[0])
        node.append([scaled, shifted])
        layers.append(_Layer(value.name or "", names[0], names[1]))
    return layers


def _weight(model: ir.Model, name: str, array: NDArray[np.float64]) -> ir.Value:
    tensor = ir.tensor(array.astype(np.float32), name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    model.graph.register_initializer(value)
    return value


def _width(facts: Facts, node: ir.Node) -> int:
    shape = facts.shape(node.outputs[0])
    return 0 if shape is None else shape[-1] if node.op_type == "Gemm" else shape[1]


def _is_plain(facts: Facts, node: ir.Node) -> bool:
    """Tell whether weight and bias are constant single-precision tensors, so that a scale can be multiplied in."""
    given = [input_at(node, 1), *([bias] if (bias := input_at(node, 2)) is not None else [])]
    return all(
        facts.is_const(value) and facts.dtype(value) == ir.DataType.FLOAT for value in given if value is not None
    )


def _train(student: Classifier, layers: list[_Layer], images: Images, aim: Array, steps: int, seed: int) -> None:
    trainer = trainer_of(student)
    ours = {name for layer in layers for name in (layer.scale, layer.bias)}
    frozen = frozenset(value.name or "" for value in trainable_weights(student.model)) - ours
    fixed = student.image.batch if student.image is not None else None
    batch = fixed or min(_BATCH, len(images))
    recipe = Recipe(student.input_shape(batch), solver="adam", frozen=frozen, frozen_statistics=True, distilled=True)
    rng = np.random.default_rng(seed)
    order = np.zeros(0, np.int64)
    for step in range(steps):
        while len(order) < batch:
            order = np.concatenate([order, rng.permutation(len(images))])
        chosen, order = order[:batch], order[batch:]
        rate = _LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        rates = Rates(rate, temperature=_TEMPERATURE, distillation=1.0)
        trainer.step(student, recipe, rates, images[chosen], aim[chosen].argmax(axis=1), aim[chosen])


def _fold(pruned: Classifier, arrays: dict[str, tuple[Array, ...]]) -> ir.Model:
    """Return the graph with each layer's weights multiplied by its scale, and its bias by scale and shift."""
    model, facts = pruned.model.clone(), _facts(pruned)
    for node in list(model.graph):
        if (node.outputs[0].name or "") not in arrays or node.op_type not in _LAYERS:
            continue
        scale, shift = arrays[node.outputs[0].name or ""]
        weight = value_of(facts, node.inputs[1])
        given = input_at(node, 2)
        bias = np.zeros(len(scale), np.float32) if given is None else value_of(facts, given)
        if node.op_type == "Gemm" and "beta" in node.attributes:
            bias = bias * np.float32(node.attributes.pop("beta").as_float())
        store(model, facts, node, 1, (weight * along_outputs(node, weight, scale)).astype(weight.dtype))
        store(model, facts, node, 2, (bias * scale + shift).astype(weight.dtype))
    return model


def along_outputs(node: ir.Node, weight: NDArray[np.floating], scale: Array) -> Array:
    """Return the scale in a form that multiplies the weights of each output channel."""
    if node.op_type == "Gemm":
        return scale[:, None] if int_attribute(node, "transB", 0) else scale[None, :]
    spatial = (1,) * (weight.ndim - 2)
    if node.op_type == "Conv":
        return scale.reshape(-1, 1, *spatial)
    groups = int_attribute(node, "group", 1)
    return np.repeat(scale.reshape(groups, -1), weight.shape[0] // groups, axis=0).reshape(*weight.shape[:2], *spatial)


def _divergence(logits: Array, aim: Array) -> float:
    """Return the mean Kullback-Leibler divergence of softened decisions."""
    ours, theirs = (_log_softmax(values.astype(np.float64) / _TEMPERATURE) for values in (logits, aim))
    return float(np.mean(np.sum(np.exp(theirs) * (theirs - ours), axis=1)))


def _log_softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = values - values.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
