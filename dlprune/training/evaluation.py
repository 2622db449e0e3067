"""How good a classifier is on labelled images, and logits of any number of images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..classifier import Classifier
from ..crossentropy import cross_entropy
from .buffers import Array
from .data import LabelledData

_BATCH = 64


@dataclass(frozen=True)
class Quality:
    """Mean loss and share of right decisions."""

    loss: float
    accuracy: float

    def better_than(self, other: Quality) -> bool:
        """Compare accuracies; where they are equal, losses."""
        return (self.accuracy, -self.loss) > (other.accuracy, -other.loss)


def logits_of(classifier: Classifier, images: Array) -> Array:
    """Return float32 [N, K]; where the file fixes the batch size the last batch is filled up."""
    fixed = classifier.image.batch if classifier.image is not None else None
    if fixed is None:
        return classifier.logits(images)
    found = []
    for first in range(0, len(images), fixed):
        part = images[first : first + fixed]
        number = len(part)
        part = np.concatenate([part, np.repeat(part[-1:], fixed - number, axis=0)])
        found.append(classifier.logits(part)[:number])
    return np.concatenate(found)


def quality(classifier: Classifier, data: LabelledData) -> Quality:
    """Return the mean loss and accuracy of a classifier (loss: cross-entropy, or binary for a final sigmoid)."""
    assert classifier.head is not None
    total, right = 0.0, 0
    for first in range(0, len(data.labels), _BATCH):
        numbers = range(first, min(first + _BATCH, len(data.labels)))
        labels = data.labels[numbers.start : numbers.stop]
        logits = logits_of(classifier, data.images(numbers))
        if classifier.head.activation == "sigmoid":
            z = logits.astype(np.float64)
            total += float(np.logaddexp(0.0, z).sum() - np.take_along_axis(z, labels[:, None], axis=1).sum())
        else:
            total += float(cross_entropy(logits, labels).sum())
        right += int((logits.argmax(axis=1) == labels).sum())
    return Quality(total / len(data.labels), right / len(data.labels))
