"""The loss of a classifier's logits, and the targets of images without a label."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


def log_sum_exp(values: NDArray[np.floating]) -> Floats:
    """Return log Σ exp along the last axis in double precision, without overflow."""
    exact = values.astype(np.float64)
    top = exact.max(axis=-1, keepdims=True)
    summed: Floats = np.log(np.exp(exact - top).sum(axis=-1)) + top[..., 0]
    return summed


def cross_entropy(logits: NDArray[np.floating], labels: Labels) -> Floats:
    """Return each sample's loss, float64 [N], of logits [N, K] and class indices int64 [N]."""
    picked: Floats = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0].astype(np.float64)
    return log_sum_exp(logits) - picked


def targets(logits: NDArray[np.floating], labels: Labels) -> Labels:
    """Return the labels, with the decision that the logits stand for in place of each −1."""
    return np.where(labels < 0, logits.argmax(axis=1), labels).astype(np.int64, copy=False)
