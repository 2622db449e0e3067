"""Mode 'linear_logits': each sample's loss where the logits, not the loss, are linear in the removal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..calibration import Images, Labels
from ..crossentropy import Floats, log_sum_exp, targets
from ..scoring import unit_terms
from .criterion import Measured, Network, Scorer, Values, absolute_sum, criterion

#: Backward passes per batch: the target, the most probable classes one by one, and the others together.
_PASSES = 64


@criterion("linear_logits")
class LinearLogits(Measured):
    """Mean over samples of |CE(z + Δz) − CE(z)|: Δz is the first-order change of the logits when the unit is removed.

    One backward pass per class. Beyond 64 classes, those that a sample finds least probable are moved together, by
    their mean change weighted with their probabilities.
    """

    selection = "reconstruction"

    def scorer(self, network: Network) -> Scorer:
        """Build the score graph."""
        graph, structure = network.score_graph(upstream=True), network.structure
        classes = network.classifier.class_num

        def score(images: Images, labels: Labels, count: int) -> Values:
            nothing = np.zeros((network.batch, classes), np.float32)
            logits = graph.evaluate(images, nothing).logits
            directions = _directions(logits, targets(logits, labels), min(classes, _PASSES))
            before = np.stack([_projected(logits, one) for one in directions])
            changes = []
            for one in directions:
                terms = graph.evaluate(images, one).terms
                changes.append(-unit_terms(list(terms), structure.consumers, structure.unit_num))
            return absolute_sum(_loss_changes(before, np.stack(changes))[:count])

        return score


def _directions(logits: NDArray[np.float32], labels: Labels, passes: int) -> list[NDArray[np.float32]]:
    """Return the directions in which the logits are followed, each float32 [N, K] with rows that add up to one.

    The first is each sample's target, then come its other classes, the most probable first. Where there are more
    classes than passes, the last direction holds the rest by their probabilities.
    """
    samples, classes = logits.shape
    keys = logits.astype(np.float64)
    np.put_along_axis(keys, labels[:, None], np.inf, axis=1)
    order = np.argsort(-keys, axis=1, kind="stable")
    singles = passes if passes == classes else passes - 1
    directions = []
    for place in range(singles):
        one = np.zeros((samples, classes), np.float32)
        np.put_along_axis(one, order[:, place : place + 1], 1.0, axis=1)
        directions.append(one)
    if singles < classes:
        rest = logits.astype(np.float64)
        np.put_along_axis(rest, order[:, :singles], -np.inf, axis=1)
        directions.append(np.exp(rest - log_sum_exp(rest)[:, None]).astype(np.float32))
    return directions


def _projected(logits: NDArray[np.float32], direction: NDArray[np.float32]) -> Floats:
    """Return the logit that a direction stands for, float64 [N]: log Σ exp over the classes that it holds."""
    return log_sum_exp(np.where(direction > 0, logits, -np.inf))


def _loss_changes(before: Floats, changes: Floats) -> Floats:
    """Return the change of the loss [N, U]; `before` are the logits [S, N], the target's first, `changes` [S, N, U]."""
    after = before[:, :, None] + changes
    loss_after = log_sum_exp(np.moveaxis(after, 0, -1)) - after[0]
    loss_before = log_sum_exp(before.T) - before[0]
    changed: Floats = loss_after - loss_before[:, None]
    return changed
