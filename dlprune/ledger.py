"""What removing a unit saves, in the network as it is by then: kernels, multiply-accumulates, parameters or time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .structure import FIXED, Structure
from .structure.units import Ids

Amounts = NDArray[np.float64]
#: Costs of a layer whose inputs and outputs are so and so many channels wide; works element by element.
CostOf = Callable[[Amounts, Amounts], Amounts]


class Term:
    """One layer's, or one weight's, share of the costs: a function of how wide it reads and how wide it writes.

    Args:
        cost: costs at a number of read channels and of written channels.
        reads: unit of each channel that is read, FIXED where none leaves; empty where reading is no matter.
        makes: the same of what is written.
    """

    def __init__(self, cost: CostOf, reads: Ids, makes: Ids) -> None:
        self._cost = cost
        self._read, self._made = float(len(reads)), float(len(makes))
        known = np.concatenate([reads[reads != FIXED], makes[makes != FIXED]])
        self.members = np.unique(known)
        self._reads, self._makes = (self._counts(units) for units in (reads, makes))

    def _counts(self, units: Ids) -> Amounts:
        """Return how many of these channels belong to each member."""
        places = np.searchsorted(self.members, units[units != FIXED])
        return np.bincount(places, minlength=len(self.members)).astype(np.float64)

    @property
    def total(self) -> float:
        """Costs at the present widths."""
        return float(self._cost(np.array(self._read), np.array(self._made)))

    def savings(self) -> Amounts:
        """Return what each member alone would save."""
        return self.total - self._cost(self._read - self._reads, self._made - self._makes)

    def saving(self, units: Sequence[int]) -> float:
        """Return what these members would save together."""
        places = np.searchsorted(self.members, np.asarray(units))
        read, made = self._read - self._reads[places].sum(), self._made - self._makes[places].sum()
        return self.total - float(self._cost(np.array(read), np.array(made)))

    def remove(self, unit: int) -> None:
        """Take a member out; alone it saves nothing any more."""
        place = int(np.searchsorted(self.members, unit))
        self._read -= self._reads[place]
        self._made -= self._makes[place]
        self._reads[place] = self._makes[place] = 0.0


class Ledger:
    """Keeps account of one quantity while units leave.

    Args:
        terms: what the quantity is the sum of.
        unit_num: number of units.
        purses: which budget each unit is paid from, int64 [U]; one for all unless given.

    Attributes:
        savings: what each unit alone would save now, float64 [U]; 0 once it has gone.
        additive: whether what a unit saves does not depend on which others leave.
    """

    additive = False

    def __init__(self, terms: Iterable[Term], unit_num: int, purses: Ids | None = None) -> None:
        self._terms = [term for term in terms if len(term.members)]
        self.purses = np.zeros(unit_num, np.int64) if purses is None else purses
        self.savings: Amounts = np.zeros(unit_num)
        self._open = np.ones(unit_num, np.bool_)
        self._concerns: dict[int, list[Term]] = {}
        for term in self._terms:
            self.savings[term.members] += term.savings()
            for unit in term.members.tolist():
                self._concerns.setdefault(unit, []).append(term)

    @property
    def total(self) -> float:
        """The sum of all terms that a unit takes part in."""
        return sum(term.total for term in self._terms)

    def close(self, units: NDArray[np.bool_]) -> None:
        """Leave units out of the account; they seem to save nothing, bool [U]."""
        self._open &= ~units
        self.savings[units] = 0.0

    def saving(self, units: Sequence[int]) -> float:
        """Return what these units would save together; they are of one purse."""
        if len(units) == 1:
            return float(self.savings[units[0]])
        shares: dict[int, tuple[Term, list[int]]] = {}
        for unit in units:
            for term in self._concerns.get(unit, ()):
                shares.setdefault(id(term), (term, []))[1].append(unit)
        return sum(term.saving(members) for term, members in shares.values())

    def remove(self, unit: int) -> None:
        """Take a unit out; what its neighbours would save changes with it."""
        for term in self._concerns.get(unit, ()):
            before = term.savings()
            term.remove(unit)
            self.savings[term.members] += (term.savings() - before) * self._open[term.members]
        self.savings[unit] = 0.0

    def remove_all(self, units: Ids) -> None:
        """Take several units out."""
        for unit in units.tolist():
            self.remove(unit)


class CountLedger(Ledger):
    """Counts kernels, and where asked features of dense layers, which are paid from a budget of their own.

    Args:
        structure: the network's units.
        dense: whether units without a kernel may leave; purse 1 pays for them, in features.
    """

    additive = True

    def __init__(self, structure: Structure, dense: bool = False) -> None:
        is_dense = structure.kernels == 0
        super().__init__((), structure.unit_num, is_dense.astype(np.int64))
        self._counts = structure.kernels + np.where(is_dense & dense, structure.features, 0)
        self.savings = self._counts.astype(np.float64)

    def saving(self, units: Sequence[int]) -> float:
        """Return how many kernels (or features) these units hold."""
        return float(self.savings[list(units)].sum())

    def remove_all(self, units: Ids) -> None:
        """Take several units out; the others keep what they hold."""
        self.savings[units] = 0.0
