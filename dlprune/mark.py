"""Which weights scores belong to: a mark of them that changes with training."""

from __future__ import annotations

import hashlib
import warnings

from .classifier import Classifier
from .pruningdata import PruningData

#: Numbers of each weight that a mark looks at.
_NUMBERS = 64


def mark_of(classifier: Classifier) -> str:
    """Return a digest of some numbers of every weight: it changes with training, and costs next to nothing."""
    with classifier.lock:
        derived = classifier.derived
        if "mark" not in derived:
            digest = hashlib.blake2b(digest_size=8)
            for value in classifier.model.graph.initializers.values():
                if value.const_value is not None:
                    numbers = value.const_value.numpy().reshape(-1)
                    digest.update(numbers[:: max(len(numbers) // _NUMBERS, 1)].tobytes())
            derived["mark"] = digest.hexdigest()
        mark: str = derived["mark"]
        return mark


def note_weights(classifier: Classifier, data: PruningData) -> None:
    """Remember which weights are being scored; warn if there are scores of other ones, e.g. from before a training."""
    mark = mark_of(classifier)
    with data.lock:
        stale, data.mark = data.mark not in ("", mark), mark
    if stale:
        warn_stale("scores of both are added up")


def warn_stale(what: str) -> None:
    """Warn that the scores are of other weights, and what is done all the same."""
    warnings.warn(
        f"The pruning data holds scores of a model with other weights (trained since?); {what}. After training create "
        "new pruning data with create_dl_pruning, and score again.",
        stacklevel=4,
    )
