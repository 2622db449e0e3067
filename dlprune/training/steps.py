"""Steps of a classifier as its parameters ask for them, with errors in words."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from ..classifier import Classifier
from ..errors import H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE, HOperatorError
from ..gradients import GradientError
from ..lift import LiftError
from ..quantised import refuse_converted
from ..weights import frozen_names, trainable_weights
from .buffers import Array
from .graph import TrainGraphError
from .recipe import Rates, Recipe
from .trainer import NotFiniteError, StepResult, Trainer, trainer_of


def recipe_of(classifier: Classifier, *, batch: int | None = None, parts: int | None = None) -> Recipe:
    """Return what the parameters of a classifier say about its training graph.

    Raises HOperatorError 7914 if a pattern in 'frozen_weights' fits no weight, 7788 if the image size is not set, 7912
    if the model is quantised or converted.
    """
    refuse_converted(classifier)
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
    labels: NDArray[np.int64],
    *,
    recipe: Recipe | None = None,
    rates: Rates | None = None,
    teacher: Array | None = None,
    what: str | None = None,
) -> StepResult:
    """Take one step with a classifier; recipe and rates follow from its parameters unless they are given.

    `what` names the step in messages. Raises HOperatorError 7912 as train_dl_model_batch.
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
            step = what or f"Step {trainer.step_count + 1}"
            raise HOperatorError(
                H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
                f"{step} was not applied: {error}. Use a smaller 'learning_rate', and check "
                "that the images have the range that the model was trained with.",
            ) from None
