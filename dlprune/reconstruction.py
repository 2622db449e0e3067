"""Choose units by the error that remains after the least-squares refit of whoever reads them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .compensation.sweep import Gram, Matrix
from .selection import Mask, Prices, Room, choose
from .structure import FIXED

#: Ridge of the Grams, in units of their mean diagonal; weaker than the refit's, as it only ranks.
_RIDGE = 1e-3
#: How much the error that the refit leaves counts beside the score, the best guess first. Neither is best in all
#: networks and steps, so both are tried where time allows; more of them fit the calibration images and no others.
POWERS = (0.5, 1.0)


class _Reader:
    """One group of a consumer during the choice: inverse Gram and weights' Gram of the channels that are left."""

    def __init__(self, gram: Gram) -> None:
        self.units, self.scale = gram.units, gram.scale
        count = len(gram.units)
        ridge = _RIDGE * float(np.trace(gram.inputs)) / max(count, 1) + 1e-30
        self.inverse = np.asarray(np.linalg.inv(gram.inputs + ridge * np.eye(count)), dtype=np.float64)
        self.weights: Matrix = gram.weights
        self.members, first = np.unique(gram.units, return_inverse=True)
        self.columns = [np.flatnonzero(first == index) for index in range(len(self.members))]

    def errors(self) -> NDArray[np.float64]:
        """Return for each unit of `members` the error that its removal leaves after the refit of the others."""
        pairs = zip(self.members, self.columns, strict=True)
        return np.array([0.0 if unit == FIXED else self.scale * self._error(columns) for unit, columns in pairs])

    def _error(self, columns: NDArray[np.int64]) -> float:
        block = np.ix_(columns, columns)
        return float(np.trace(np.linalg.pinv(self.inverse[block], hermitian=True) @ self.weights[block]))

    def remove(self, unit: int) -> None:
        """Take a unit out: the refit of the other channels changes their weights and their inverse Gram."""
        columns = self.columns[int(np.searchsorted(self.members, unit))]
        block = np.ix_(columns, columns)
        gain = self.inverse[:, columns] @ np.linalg.pinv(self.inverse[block], hermitian=True)
        cross = self.weights[:, columns] @ gain.T
        self.weights = self.weights + gain @ self.weights[block] @ gain.T - cross - cross.T
        self.inverse -= gain @ self.inverse[columns]
        for matrix in (self.weights, self.inverse):
            matrix[columns] = 0.0
            matrix[:, columns] = 0.0


class _PlainReader(_Reader):
    """A reader of one column per unit: only diagonals are kept up to date, a column is worked out when it leaves.

    With R of C channels removed that takes R²·C steps instead of R·C².
    """

    def __init__(self, gram: Gram) -> None:
        super().__init__(gram)
        self._order = np.array([columns[0] for columns in self.columns])
        self._diagonals = np.diag(self.inverse).copy(), np.diag(self.weights).copy()
        self._left = np.ones(len(gram.units))
        # Of each column that has left, as it was then: gain, column of the inverse, and what the weights' Gram takes.
        self._gone, self._number = np.zeros((3, 16, len(gram.units))), 0

    def errors(self) -> NDArray[np.float64]:
        """Return for each unit of `members` the error that its removal leaves after the refit of the others."""
        inverse, weights = self._diagonals
        found: NDArray[np.float64] = self.scale * weights[self._order] / np.maximum(inverse[self._order], 1e-300)
        return found

    def remove(self, unit: int) -> None:
        """Take a unit out; see _Reader.remove."""
        column = int(self._order[np.searchsorted(self.members, unit)])
        inverse, weights = self.inverse[:, column].copy(), self.weights[:, column].copy()
        gains, inverses, crosses = self._gone[:, : self._number]
        inverse -= inverses[:, column] @ gains
        weights -= crosses[:, column] @ gains + gains[:, column] @ crosses
        inverse *= self._left
        weights *= self._left
        gain = inverse / inverse[column] if inverse[column] else inverse
        # W + g·w·gᵀ − c·gᵀ − g·cᵀ with c' = c − g·w/2 has two terms.
        cross = weights - gain * (weights[column] / 2)
        if self._number == self._gone.shape[1]:
            self._gone = np.concatenate([self._gone, np.zeros_like(self._gone)], axis=1)
        self._gone[:, self._number] = gain, inverse, cross
        self._number += 1
        for diagonal, change in zip(self._diagonals, (gain * inverse, 2 * gain * cross), strict=True):
            diagonal -= change
            diagonal[column] = 0.0
        self._left[column] = 0.0


def _reader(gram: Gram) -> _Reader:
    units, counts = np.unique(gram.units, return_counts=True)
    return (_PlainReader if (counts[units != FIXED] == 1).all() else _Reader)(gram)


class RemainingHarm:
    """Score · (error that the refit leaves)^power of each unit, brought up to date after each removal.

    Args:
        scores: mean absolute oracle score per unit, float64 [U].
        grams: of every consumer, from the sweep over the network as it is now.
        power: how much the error counts beside the score.
    """

    def __init__(self, scores: NDArray[np.float64], grams: Sequence[Gram], power: float = POWERS[0]) -> None:
        self._scores, self._power = scores, power
        self._readers = [_reader(gram) for gram in grams]
        self._reading: list[list[int]] = [[] for _ in range(len(scores))]
        self._contributions = np.zeros(len(scores))
        self._errors: list[NDArray[np.float64]] = []
        for index, reader in enumerate(self._readers):
            self._errors.append(reader.errors())
            for unit in reader.members:
                if unit != FIXED:
                    self._reading[unit].append(index)
            self._spread(reader, self._errors[index])

    def values(self) -> NDArray[np.float64]:
        """Return the harm of each unit, float64 [U]."""
        harm: NDArray[np.float64] = self._scores * np.maximum(self._contributions, 0.0) ** self._power
        return harm

    def remove(self, unit: int) -> None:
        """Take a unit out of all its readers."""
        for index in self._reading[unit]:
            reader = self._readers[index]
            self._spread(reader, -self._errors[index])
            reader.remove(unit)
            self._errors[index] = reader.errors()
            self._spread(reader, self._errors[index])

    def _spread(self, reader: _Reader, errors: NDArray[np.float64]) -> None:
        known = reader.members != FIXED
        self._contributions[reader.members[known]] += errors[known]


def choose_by_reconstruction(
    room: Room,
    scores: NDArray[np.float64],
    grams: Sequence[Gram],
    prices: Prices | None = None,
    power: float = POWERS[0],
) -> Mask:
    """Choose the units whose removal hurts least when the consumers are refitted.

    Args:
        room: what may leave.
        scores: mean absolute oracle score per unit, float64 [U].
        grams: of every consumer, from the sweep over the network as it is now.
        prices: what the harm is divided by; what the removal saves unless given.
        power: how much the remaining error counts beside the score.

    Returns:
        Mask of the units to remove, bool [U].
    """
    return choose(room, RemainingHarm(scores, grams, power), prices)
