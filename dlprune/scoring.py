"""Oracle scores of units: the terms of all consumers of a batch, added up by unit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .structure import FIXED, Consumer


def unit_terms(terms: list[NDArray[np.float32]], consumers: tuple[Consumer, ...], units: int) -> NDArray[np.float64]:
    """Return the signed first-order loss change of each sample and unit.

    Args:
        terms: per consumer, float32 [N, C]: what each channel that it reads contributes.
        consumers: whose terms these are; several channels may belong to one unit.
        units: number of units U.

    Returns:
        t of quality: float64 [N, U]; the score of a unit is the mean over samples of its absolute value.
    """
    total = np.zeros((len(terms[0]) if terms else 0, units))
    for term, consumer in zip(terms, consumers, strict=True):
        columns = np.flatnonzero(consumer.units != FIXED)
        order = columns[np.argsort(consumer.units[columns], kind="stable")]
        members, starts = np.unique(consumer.units[order], return_index=True)
        total[:, members] += np.add.reduceat(term[:, order].astype(np.float64), starts, axis=1)
    return total
