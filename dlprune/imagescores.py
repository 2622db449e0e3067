"""Scores of images: what a criterion finds on a batch, added to pruning data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from .analysis import analysis_of
from .calibration import Images, Labels
from .classifier import Classifier
from .criteria import Measured, Network, Scorer, Weighed
from .errors import H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, HOperatorError
from .gradients import GradientError
from .lift import LiftError
from .pruningdata import PruningData
from .scoregraph import ScoreGraphError
from .surgery import SurgeryError


def add_images(classifier: Classifier, data: PruningData, images: Images, labels: Labels, count: int) -> None:
    """Score a batch of any length, of which the first `count` images count, and add the scores to the data.

    Raises HOperatorError 7912 (an operator without gradient, or gradients that are not finite).
    """
    criterion = data.criterion
    if isinstance(criterion, Weighed):
        data.add_weighed(criterion.weigh(network_of(classifier)), images[:count], labels[:count])
        return
    assert isinstance(criterion, Measured)
    with understandable():
        sums = _scorer(classifier, criterion, len(images))(images, labels, count)
    if not np.isfinite(sums).all():
        raise HOperatorError(
            H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
            "The gradients of this batch are not finite (overflow inside the network); nothing was added. "
            "Check that the images have the range that the model was trained with.",
        )
    data.add(sums, images[:count], labels[:count])


def network_of(classifier: Classifier) -> Network:
    """Return what criteria score: a classifier at its batch size."""
    return Network(classifier, analysis_of(classifier).structure, classifier.params.batch_size)


def _scorer(classifier: Classifier, criterion: Measured, batch: int) -> Scorer:
    """Return a criterion's scorer for a classifier at a batch size and its image size, made once for each."""
    network = Network(classifier, analysis_of(classifier).structure, batch)
    params = classifier.params
    with classifier.lock:
        key = ("scorer", criterion.mode, criterion.seed, network.shape, params.runtime, params.gpu)
        if key not in classifier.derived:
            classifier.derived[key] = criterion.scorer(network)
        found: Scorer = classifier.derived[key]
        return found


@contextmanager
def understandable() -> Iterator[None]:
    """Turn what goes wrong inside into errors that a user understands."""
    try:
        yield
    except SurgeryError as error:
        raise HOperatorError(
            H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, f"This model cannot be pruned: {error}. It was left as it is."
        ) from error
    except (GradientError, LiftError, ScoreGraphError) as error:
        raise _not_scorable(error) from error


def _not_scorable(error: Exception) -> HOperatorError:
    return HOperatorError(
        H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
        f"This model cannot be scored by gradients: {error}. The modes 'l1', 'l2', 'bn_scale' and 'random' look at "
        "weights alone.",
    )
