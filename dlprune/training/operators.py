"""The training operators."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np

from ..classifier import Classifier
from ..dictionary import from_python_dict
from ..errors import (
    H_ERR_DL_INPUT_WRONG_BS_WITH_MULTIPLIER,
    H_ERR_DL_INPUTS_MISSING,
    H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
    H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE,
    HOperatorError,
)
from ..gradients import GradientError
from ..handle import HHandle
from ..lift import LiftError
from ..model import unwrap_model
from ..samples import LABEL, Batch, images, labels, read_samples
from ..weights import frozen_names, trainable_weights
from .buffers import Array
from .graph import TrainGraphError
from .recipe import Rates, Recipe
from .trainer import NotFiniteError, StepResult, Trainer, trainer_of


def train_dl_model_batch(dlmodel_handle: HHandle, dlsample_batch: Sequence[HHandle]) -> HHandle:
    """Train a classifier by one step on one batch of samples.

    The loss is the mean cross-entropy of the samples (binary cross-entropy for a model that ends in a sigmoid) plus the
    weight prior α/2·Σ w² over kernels and matrices. 'sgd': v ← momentum·v − learning_rate·gradient, w ← w + v. 'adam':
    as published, with bias correction. BatchNormalization works with the statistics of the batch and updates the
    running ones, unless 'batchnorm_frozen' is 'true'; Dropout does nothing. Where the file has BatchNormalization
    folded into convolutions, plain weights and biases are trained; then use a learning rate that is about ten times
    smaller, and raise it slowly at the beginning.

    The solver's memory (velocity, moments) stays with the handle, is not written to files, and is fresh in copies.

    Parameters: `dlmodel_handle` (type 'classification'); `dlsample_batch` ('batch_size' × 'batch_size_multiplier' dicts
    with 'image' and 'image_label_id'). Relevant model parameters: 'learning_rate', 'momentum', 'weight_prior',
    'solver_type', 'adam_beta1', 'adam_beta2', 'adam_epsilon', 'batchnorm_momentum', 'batchnorm_frozen',
    'frozen_weights'.
    Returns a 'dict' handle with 'total_loss' (float, before the step). Raises HOperatorError 7800 (number of samples),
    7783/7790/7791/7793 (entries of a sample), 7912 (type 'generic', an operator without gradient, nothing to train,
    loss or gradient not finite; then nothing has changed), 7914 ('frozen_weights'), 2404/2454 (handle).
    Source: HALCON operator train_dl_model_batch.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> ha.set_dl_model_param(model, "batch_size", 16)
        >>> ha.set_dl_model_param(model, "learning_rate", 0.0001)
        >>> samples = ha.demo_samples()[:16]
        >>> first = ha.get_dict_tuple_s(ha.train_dl_model_batch(model, samples), "total_loss")
        >>> for _ in range(3):
        ...     last = ha.get_dict_tuple_s(ha.train_dl_model_batch(model, samples), "total_loss")
        >>> last < first
        True
    """
    classifier = unwrap_model(dlmodel_handle, 1)
    classifier.require_classification("train_dl_model_batch")
    batch = _read(dlsample_batch, classifier)
    result = train_step(classifier, batch.images, batch.labels)
    return from_python_dict({"total_loss": result.total_loss})


def _read(dlsample_batch: object, classifier: Classifier) -> Batch:
    samples = read_samples(dlsample_batch, 2)
    params = classifier.params
    expected = params.batch_size * params.batch_size_multiplier
    if len(samples) != expected:
        raise HOperatorError(
            H_ERR_DL_INPUT_WRONG_BS_WITH_MULTIPLIER,
            f"{len(samples)} samples were given; a step needs {expected}: 'batch_size' {params.batch_size} × "
            f"'batch_size_multiplier' {params.batch_size_multiplier}.",
        )
    found = labels(samples, classifier)
    if np.any(found < 0):
        raise HOperatorError(H_ERR_DL_INPUTS_MISSING, f"Sample 0 has no {LABEL!r}; training needs the class of each.")
    return Batch(images(samples, classifier), found)


def recipe_of(classifier: Classifier, *, batch: int | None = None, parts: int | None = None) -> Recipe:
    """Return what the parameters of a classifier say about its training graph.

    Raises HOperatorError 7914 if a pattern in 'frozen_weights' fits no weight, 7788 if the image size is not set.
    """
    params = classifier.params
    assert classifier.head is not None
    return Recipe(
        shape=classifier.input_shape(batch),
        parts=params.batch_size_multiplier if parts is None else parts,
        solver="adam" if params.solver_type == "adam" else "sgd",
        loss="sigmoid" if classifier.head.activation == "sigmoid" else "softmax",
        prior=params.weight_prior > 0,
        frozen=_frozen(classifier),
        frozen_statistics=params.batchnorm_frozen == "true",
    )


def rates_of(classifier: Classifier) -> Rates:
    """Return the numbers of a step that the parameters of a classifier give."""
    params = classifier.params
    return Rates(
        learning_rate=params.learning_rate,
        momentum=params.momentum,
        weight_prior=params.weight_prior,
        beta1=params.adam_beta1,
        beta2=params.adam_beta2,
        epsilon=params.adam_epsilon,
        batchnorm_momentum=params.batchnorm_momentum,
    )


def _frozen(classifier: Classifier) -> frozenset[str]:
    patterns = classifier.params.frozen_weights
    if not patterns:
        return frozenset()
    names = [value.name or "" for value in trainable_weights(classifier.model)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise HOperatorError(
                H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE,
                f"'frozen_weights': {pattern!r} fits no weight; those of this model are {names[:8]}"
                + (f" and {len(names) - 8} more." if len(names) > 8 else "."),
            )
    return frozen_names(classifier.model, patterns)


def train_step(
    classifier: Classifier,
    images: Array,
    labels: np.ndarray,
    *,
    recipe: Recipe | None = None,
    rates: Rates | None = None,
    teacher: Array | None = None,
) -> StepResult:
    """Take one step with a classifier; recipe and rates follow from its parameters unless they are given.

    Raises HOperatorError 7912 as train_dl_model_batch.
    """
    with classifier.lock:
        trainer: Trainer = trainer_of(classifier)
        try:
            return trainer.step(
                classifier, recipe or recipe_of(classifier), rates or rates_of(classifier), images, labels, teacher
            )
        except (GradientError, LiftError, TrainGraphError) as error:
            raise HOperatorError(
                H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, f"This model cannot be trained: {error}."
            ) from error
        except NotFiniteError as error:
            raise HOperatorError(
                H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
                f"Step {trainer.step_count + 1} was not applied: {error}. Use a smaller 'learning_rate', and check "
                "that the images have the range that the model was trained with.",
            ) from None
