"""Which sets (the channels of a tensor, the kernels of a layer) the units take part in, by unit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .structure.units import Ids


class Incidence:
    """How many positions each unit holds in each of some sets; flat arrays, as there are many units and few numbers.

    Args:
        sets: unit of each position of each set.
        unit_num: number of units.

    Attributes:
        sizes: positions of each set, int64 [S].
    """

    def __init__(self, sets: Sequence[Ids], unit_num: int) -> None:
        self.sizes = np.array([len(one) for one in sets], np.int64)
        units = np.concatenate([np.zeros(0, np.int64), *sets])
        owners = np.repeat(np.arange(len(sets)), self.sizes)
        order = np.argsort(units, kind="stable")  # by unit, then by set
        units, owners = units[order], owners[order]
        first = np.ones(len(units), np.bool_)
        first[1:] = (units[1:] != units[:-1]) | (owners[1:] != owners[:-1])
        entries = np.flatnonzero(first)
        self._sets, self._numbers = owners[entries], np.diff(np.append(entries, len(units)))
        self._starts = np.searchsorted(units[entries], np.arange(unit_num + 1))

    def of(self, unit: int) -> tuple[Ids, Ids]:
        """Return the sets that a unit takes part in, in order, and how many positions it holds in each."""
        own = slice(self._starts[unit], self._starts[unit + 1])
        return self._sets[own], self._numbers[own]

    def counts(self, units: Ids) -> Ids:
        """Return how many positions units hold together in each set, int64 [S]."""
        entries, _ = self._entries(units)
        found = np.bincount(self._sets[entries], weights=self._numbers[entries], minlength=len(self.sizes))
        return found.astype(np.int64)

    def within(self, units: Ids, limits: Ids) -> NDArray[np.bool_]:
        """Tell which units hold no more than so many positions in each of their sets, bool [len(units)].

        Args:
            units: the units.
            limits: positions for each set, int64 [S].
        """
        entries, owners = self._entries(units)
        result = np.ones(len(units), np.bool_)
        result[owners[self._numbers[entries] > limits[self._sets[entries]]]] = False
        return result

    def _entries(self, units: Ids) -> tuple[Ids, Ids]:
        """Return the entries of units, and which of the units each belongs to."""
        starts = self._starts[units]
        lengths = self._starts[units + 1] - starts
        owners = np.repeat(np.arange(len(units)), lengths)
        before = np.cumsum(lengths) - lengths
        return np.arange(len(owners)) + (starts - before)[owners], owners
