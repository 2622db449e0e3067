"""Spearman's rank correlation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def average_ranks(values: Floats) -> Floats:
    """Return the rank of each value, 1 for the lowest; equal values share the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2)[places]
    return ranks


def rank_correlation(a: Floats, b: Floats) -> float | None:
    """Return the correlation of the ranks of two series, −1…1; None where one of them has no two different values."""
    first, second = (ranks - ranks.mean() if len(ranks) else ranks for ranks in (average_ranks(a), average_ranks(b)))
    size = np.sqrt(np.square(first).sum() * np.square(second).sum())
    return None if size == 0 else float(np.clip(first @ second / size, -1.0, 1.0))
