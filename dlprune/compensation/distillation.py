"""Label-free finish: all weights take steps towards the original's logits on the calibration images.

Adam on the Kullback-Leibler divergence to the original's softened decisions (G. Hinton et al., "Distilling the
Knowledge in a Neural Network", 2015). A step is relative to the size of each weight tensor, so that one learning rate
suits every network. Every step sees the images moved by other numbers of pixels, beside the original's answers to
those: so a few hundred images teach many more weights than there are images.
"""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..classifier import Classifier
from ..training.augmentation import Augmentation
from ..training.evaluation import logits_of
from ..training.recipe import Rates, Recipe
from ..training.trainer import NotFiniteError, trainer_of
from ..weights import frozen_names, trainable_weights

Array = NDArray[np.float32]

_BATCH = 64
_LEARNING_RATE = 5e-3
_TEMPERATURE = 2.0
#: Movements up to this share of width and height.
_MOVEMENT = Augmentation(shift=0.07)


def distil(pruned: Classifier, original: Classifier, images: Array, steps: int, seed: int = 0) -> ir.Model:
    """Return the pruned graph with trained weights, or unchanged if that brings decisions on moved images no closer.

    Weights that 'frozen_weights' names stay as they are.

    Args:
        pruned: the classifier to improve; it is not touched.
        original: whose logits are the aim.
        images: calibration images, float32 [n, …] in the layout of the model; no labels are needed.
        steps: number of steps (learning rate 5e-3, falling to 0 by a half cosine; up to 64 images each).
        seed: of the order and of the movements of the images.
    """
    frozen = frozen_names(pruned.model, pruned.params.frozen_weights)
    if all(value.name in frozen for value in trainable_weights(pruned.model)):
        return pruned.model
    student = pruned.with_model(pruned.model.clone())
    with suppress(NotFiniteError):  # the weights are then those before that step
        _train(student, original, images, steps, seed, frozen)
    # The images as they are may have been fitted already; moved as in no step they are new to both.
    moved = _MOVEMENT.apply(images, student.layout, seed, steps, range(len(images)))
    aim = logits_of(original, moved)
    before, after = (divergence(logits_of(net, moved), aim, _TEMPERATURE) for net in (pruned, student))
    return student.model if after < before else pruned.model


def _train(
    student: Classifier, original: Classifier, images: Array, steps: int, seed: int, frozen: frozenset[str]
) -> None:
    trainer = trainer_of(student)
    fixed = student.image_input().batch
    batch = fixed or min(_BATCH, len(images))
    shape = student.input_shape(batch)
    recipe = Recipe(shape, solver="relative_adam", frozen=frozen, frozen_statistics=True, distilled=True)
    rng = np.random.default_rng(seed)
    order = np.zeros(0, np.int64)
    for step in range(steps):
        while len(order) < batch:
            order = np.concatenate([order, rng.permutation(len(images))])
        chosen, order = order[:batch], order[batch:]
        moved = _MOVEMENT.apply(images[chosen], student.layout, seed, step, chosen.tolist())
        aim = logits_of(original, moved)
        rate = _LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        rates = Rates(rate, temperature=_TEMPERATURE, distillation=1.0)
        trainer.step(student, recipe, rates, moved, aim.argmax(axis=1), aim)


def divergence(logits: Array, aim: Array, temperature: float = 1.0) -> float:
    """Return the mean Kullback-Leibler divergence of decisions, softened by a temperature."""
    ours, theirs = (_log_softmax(values.astype(np.float64) / temperature) for values in (logits, aim))
    return float(np.mean(np.sum(np.exp(theirs) * (theirs - ours), axis=1)))


def _log_softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = values - values.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
