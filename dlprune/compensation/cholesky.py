"""A positive definite system that is solved for several right sides, one after the other; NumPy factorises it anew."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

#: Nearly all of the work is in products of blocks of so many rows.
_BLOCK = 192


class Cholesky:
    """Lower triangle L with L·Lᵀ = A.

    Args:
        system: A, symmetric and positive definite, float64 [K, K].

    Raises:
        numpy.linalg.LinAlgError: A is not positive definite.
    """

    def __init__(self, system: Matrix) -> None:
        self._lower = np.linalg.cholesky(system)
        self._blocks = [slice(start, start + _BLOCK) for start in range(0, len(system), _BLOCK)]
        self._inverses = [np.linalg.inv(self._lower[own, own]) for own in self._blocks]

    def solve(self, right: Matrix) -> Matrix:
        """Return X with A·X = right, float64 [K, …]."""
        found = right.copy()
        for own, inverse in zip(self._blocks, self._inverses, strict=True):
            found[own] = inverse @ (found[own] - self._lower[own, : own.start] @ found[: own.start])
        for own, inverse in zip(reversed(self._blocks), reversed(self._inverses), strict=True):
            behind = slice(own.stop, None)
            found[own] = inverse.T @ (found[own] - self._lower[behind, own].T @ found[behind])
        return found
