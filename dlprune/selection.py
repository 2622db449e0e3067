"""Which units go: the least harmful first, within the budget and the limits, never the last one of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .incidence import Incidence
from .ledger import CountLedger, Ledger
from .structure import FIXED, Structure
from .structure.units import Ids

Scores = NDArray[np.float64]
Mask = NDArray[np.bool_]

NORMALIZATIONS = ("sqrt_mean", "none", "l2", "mean")
#: So many multiples of 'kernel_multiple' may leave a class of units at once, if that is the better bargain.
_MOST_BLOCKS = 4
_TOLERANCE = 1e-9


def removable(
    kernels: Ids,
    constraints: Sequence[Ids],
    held: Mask | None = None,
    values: Scores | None = None,
    already: Mask | None = None,
) -> Mask:
    """Return the units that leave if all leave that can: where several compete for the last place, a small one stays.

    Args:
        kernels: what counts, per unit, int64 [U]; units without any stay.
        constraints: unit sets of which at least one must stay.
        held: units that stay, bool [U].
        values: among units of one size the one with the highest value stays, float64 [U].
        already: units that have left before, bool [U]; they are not returned.
    """
    values = np.zeros(len(kernels)) if values is None else values
    before = np.zeros(len(kernels), np.bool_) if already is None else already
    stays = kernels == 0 if held is None else (kernels == 0) | held
    rank = np.empty(len(kernels), np.int64)
    rank[np.lexsort((values, -kernels))] = np.arange(len(kernels))
    kept = stays & ~before
    # In this order, the last unit of a constraint has to stay, and only if none has stayed before it.
    present = [constraint[~before[constraint]] for constraint in constraints]
    lasts = [(int(units[rank[units].argmax()]), units) for units in present if len(units)]
    for last, units in sorted(lasts, key=lambda entry: int(rank[entry[0]])):
        kept[last] |= not kept[units].any()
    gone: Mask = ~(stays | before | kept)
    return gone


def removable_kernels(structure: Structure, held: Mask | None = None) -> int:
    """Return the most kernels that can leave, i.e. what 100 percent means; `held` units stay."""
    return int(structure.kernels[removable(structure.kernels, structure.constraints, held)].sum())


def dense_features(kernels: Ids, features: Ids) -> Ids:
    """Return the features of units that hold no kernel, int64 [U]; 0 for the others."""
    return np.where(kernels == 0, features, 0)


def selection_values(structure: Structure, scores: Scores, normalization: str) -> Scores:
    """Make scores comparable across groups and per kernel (or, without kernels, per feature) removed.

    Args:
        structure: the network's units.
        scores: mean absolute score per unit, float64 [U], at least 0.
        normalization: 'sqrt_mean' divides by the root of the group's mean score, 'mean' by the mean, 'l2' by the
            group's L2 norm (Molchanov et al. 2017), 'none' leaves the scores as they are.

    Returns:
        Values to sort by, float64 [U].
    """
    values = scores.copy()
    sizes = structure.kernels + dense_features(structure.kernels, structure.features)
    for group in np.unique(structure.groups[sizes > 0]):
        members = (structure.groups == group) & (sizes > 0)
        own = scores[members]
        scale = {
            "sqrt_mean": float(np.sqrt(own.mean())),
            "mean": float(own.mean()),
            "l2": float(np.sqrt(np.square(own).sum())),
            "none": 1.0,
        }[normalization]
        if scale > 0:
            values[members] = own / scale
    per_kernel: Scores = values / np.maximum(sizes, 1)
    return per_kernel


@dataclass(frozen=True)
class Limits:
    """What holds besides the budget.

    Attributes:
        cap: share of its kernels that a group may lose, 0…1.
        held: units that never leave, bool [U]; None = no unit is held.
        floors: kernels that must stay in each convolution and dense layer (in the order of `all_layers`), int64 [L];
            None = 1.
        multiple: a layer that loses kernels keeps a multiple of this number.
    """

    cap: float = 1.0
    held: Mask | None = None
    floors: Ids | None = None
    multiple: int = 1


class Room:
    """What may still leave: within the budgets and the limits, and never the last unit of a tensor.

    Args:
        structure: the units of the *original* network.
        ledger: what removing units saves; kept up to date.
        budgets: what may leave at most, one number per purse of the ledger, in its currency.
        limits: what else holds; all of it counts from the original network on.
        gone: units that left in earlier steps.

    Attributes:
        gone: units that were taken from this room, without earlier ones.
        sizes: kernels of each unit, or its features if it holds no kernel, int64 [U].
    """

    def __init__(
        self,
        structure: Structure,
        ledger: Ledger,
        budgets: Sequence[float],
        limits: Limits | None = None,
        gone: Mask | None = None,
    ) -> None:
        self.ledger, self.budgets = ledger, list(budgets)
        self.limits = limits or Limits()
        self.gone: Mask = np.zeros(structure.unit_num, dtype=np.bool_)
        before = self.gone if gone is None else gone
        earlier = np.flatnonzero(before)
        self._tensors = Incidence(structure.constraints, structure.unit_num)
        self._loose = self._tensors.sizes - self._tensors.counts(earlier) - 1
        self.sizes = structure.kernels + dense_features(structure.kernels, structure.features)
        self._groups = structure.groups
        self._shares = np.bincount(structure.groups, weights=self.sizes, minlength=1) * self.limits.cap + _TOLERANCE
        self._shares -= np.bincount(structure.groups, weights=self.sizes * before, minlength=1)
        layers = structure.all_layers
        self._layers = Incidence([layer.units[layer.units != FIXED] for layer in layers], structure.unit_num)
        self._kept = np.array([layer.kernel_num for layer in layers], np.int64) - self._layers.counts(earlier)
        self._spare = self._kept - (1 if self.limits.floors is None else self.limits.floors)

    @property
    def candidates(self) -> Mask:
        """Units that save something and are not held, bool [U]."""
        found: Mask = (self.ledger.savings > 0) & ~self.gone
        return found if self.limits.held is None else found & ~self.limits.held

    def take(self, *units: int) -> bool:
        """Take units if all of them may leave together, and tell whether they did."""
        chosen = np.array(units)
        purse, saving = self.ledger.purses[units[0]], self.ledger.saving(units)
        if saving > _tolerant(self.budgets[purse]) or not self._allows(chosen):
            return False
        self.budgets[purse] -= saving
        self._remove(chosen)
        return True

    def take_each(self, units: Ids) -> None:
        """Take units one after the other, each if it may leave then."""
        if not self.ledger.additive:
            for unit in units.tolist():
                self.take(unit)
            return
        units = self._possible(units)  # what may not leave now may not leave later
        if not len(units):
            return
        first = self._affordable(units)
        if first == len(units) > 1 and not self._allows(units):
            first //= 2
        if first < len(units):
            self.take_each(units[:first])
            self.take_each(units[first:])
            return
        for purse in np.unique(self.ledger.purses[units]).tolist():
            self.budgets[purse] -= float(self.ledger.savings[units[self.ledger.purses[units] == purse]].sum())
        self._remove(units)

    def _affordable(self, units: Ids) -> int:
        """Return how many of these units the budgets pay for, the first for certain."""
        number, savings, purses = len(units), self.ledger.savings[units], self.ledger.purses[units]
        for purse, budget in enumerate(self.budgets):
            paid = np.cumsum(np.where(purses == purse, savings, 0.0))
            number = min(number, int(np.searchsorted(paid, budget, side="right")))
        return max(number, 1)

    def _possible(self, units: Ids) -> Ids:
        """Return the units that may leave, each by itself."""
        budgets = np.array([_tolerant(budget) for budget in self.budgets])
        units = units[self.ledger.savings[units] <= budgets[self.ledger.purses[units]]]
        if self.limits.held is not None:
            units = units[~self.limits.held[units]]
        units = units[self.sizes[units] <= self._shares[self._groups[units]]]
        units = units[self._tensors.within(units, self._loose)]
        return units[self._layers.within(units, self._spare)]

    def _allows(self, units: Ids) -> bool:
        """Tell whether limits and tensors let units leave together."""
        if self.limits.held is not None and self.limits.held[units].any():
            return False
        members, kernels = self._tensors.counts(units), self._layers.counts(units)
        return bool(
            (self._spent(units) <= self._shares)[self._groups[units]].all()
            and (members <= self._loose)[members > 0].all()
            and (kernels <= self._spare)[kernels > 0].all()
        )

    def _spent(self, units: Ids) -> NDArray[np.float64]:
        """Return what units take from the share of each group."""
        spent = np.bincount(self._groups[units], weights=self.sizes[units], minlength=len(self._shares))
        return spent.astype(np.float64)

    def _remove(self, units: Ids) -> None:
        self.gone[units] = True
        self._shares -= self._spent(units)
        self._loose -= self._tensors.counts(units)
        kernels = self._layers.counts(units)
        self._spare -= kernels
        self._kept -= kernels
        self.ledger.remove_all(units)

    def classes(self) -> list[Ids]:
        """Return the candidates in classes: units of one class hold equally many kernels in the same layers."""
        found: dict[tuple[bytes, ...], list[int]] = {}
        for unit in np.flatnonzero(self.candidates).tolist():
            key = tuple(part.tobytes() for part in self._layers.of(unit))
            found.setdefault(key, []).append(unit)
        return [np.array(units) for units in found.values()]

    def block_sizes(self, unit: int, available: int) -> list[int]:
        """Return how many units of this one's class may leave so that a multiple of kernels stays in every layer."""
        multiple = self.limits.multiple
        layers, numbers = self._layers.of(unit)
        sizes: list[int] = []
        # Sizes that fit repeat after `multiple` units at the latest.
        for size in range(1, min(available, multiple * _MOST_BLOCKS) + 1):
            if not ((self._kept[layers] - size * numbers) % multiple).any():
                sizes.append(size)
        return sizes[:_MOST_BLOCKS]


def _tolerant(budget: float) -> float:
    """Return the most that may be paid from a budget, roundoff included."""
    return budget + _TOLERANCE * max(1.0, budget)


class Harm(Protocol):
    """What removing a unit does to the network, as it is by then."""

    def values(self) -> Scores:
        """Return the harm of each unit, float64 [U], at least 0."""

    def remove(self, unit: int) -> None:
        """Take note that a unit has left."""


@dataclass(frozen=True)
class FixedHarm:
    """Harm that does not depend on what else leaves."""

    harm: Scores

    def values(self) -> Scores:
        """Return the harm of each unit, float64 [U]."""
        return self.harm

    def remove(self, unit: int) -> None:
        """Nothing changes."""


@dataclass(frozen=True)
class Prices:
    """What harm is divided by: what a unit saves, or the kernels (or features) that it holds, to a power."""

    power: float = 1.0
    by_kernels: bool = False

    def of(self, room: Room) -> Scores:
        """Return the price of each unit, float64 [U]."""
        prices: Scores = np.maximum(room.sizes if self.by_kernels else room.ledger.savings, 1e-12) ** self.power
        return prices

    def of_block(self, room: Room, block: Ids) -> float:
        """Return the price of units that leave together, per unit."""
        total = float(room.sizes[block].sum()) if self.by_kernels else room.ledger.saving(block.tolist())
        return float(max(total / len(block), 1e-12) ** self.power)


@dataclass(frozen=True)
class Ranking:
    """How scores turn into an order: how layers are made comparable (see selection_values), and the prices."""

    normalization: str
    prices: Prices = Prices()


def choose(room: Room, harm: Harm, prices: Prices | None = None) -> Mask:
    """Take units from a room, always the one that does the least harm for its price, until nothing fits any more.

    Args:
        room: what may leave; with a multiple, units leave by blocks.
        harm: what their removal does.
        prices: what it is divided by; the savings unless given.

    Returns:
        Mask of the units to remove, bool [U]. Ties are resolved by graph order.
    """
    prices = prices or Prices()
    if room.limits.multiple > 1:
        _by_blocks(room, harm, prices)
        return room.gone
    left = room.candidates
    if room.ledger.additive and isinstance(harm, FixedHarm):
        units = np.flatnonzero(left)
        rates = harm.values()[units] / prices.of(room)[units]
        room.take_each(units[np.argsort(rates, kind="stable")])
        return room.gone
    while left.any():
        values = np.where(left, harm.values() / prices.of(room), np.inf)
        unit = int(np.argmin(values))
        left[unit] = False
        if room.take(unit):
            harm.remove(unit)
    return room.gone


def _by_blocks(room: Room, harm: Harm, prices: Prices) -> None:
    left = room.classes()
    most = [_MOST_BLOCKS * room.limits.multiple] * len(left)  # a block that did not fit will not fit later
    while True:
        values = harm.values()
        best, bargain = (math.inf, -1), np.zeros(0, np.int64)
        for index, units in enumerate(left):
            ordered = units[np.argsort(values[units], kind="stable")]
            sizes = room.block_sizes(int(units[0]), min(len(units), most[index])) if len(units) else []
            for size in sizes:
                block = ordered[:size]
                rate = values[block].mean() / prices.of_block(room, block)
                if rate < best[0]:
                    best, bargain = (rate, index), block
        if not len(bargain):
            return
        index = best[1]
        if room.take(*bargain.tolist()):
            left[index] = np.setdiff1d(left[index], bargain)
            for unit in bargain.tolist():
                harm.remove(unit)
        else:
            most[index] = len(bargain) - 1


def choose_by_scores(room: Room, structure: Structure, scores: Scores, ranking: Ranking) -> Mask:
    """Choose units by scores alone.

    Args:
        room: what may leave.
        structure: the network's units as it is now.
        scores: one per unit, float64 [U], at least 0.
        ranking: what makes them comparable.

    Returns:
        Mask of the units to remove, bool [U].
    """
    values = selection_values(structure, scores, ranking.normalization)
    return choose(room, FixedHarm(values * np.maximum(room.sizes, 1)), ranking.prices)


def choose_units(structure: Structure, values: Scores, budget: int, cap: float = 1.0) -> Mask:
    """Choose units by fixed values and a budget of kernels alone.

    Args:
        structure: the network's units.
        values: what to sort by, float64 [U]; the lowest go first, ties by graph order.
        budget: kernels that may leave at most.
        cap: share of its kernels that a group may lose at most, 0…1.

    Returns:
        Mask of the units to remove, bool [U]; they hold `budget` kernels at most.
    """
    everything = removable(structure.kernels, structure.constraints, values=values)
    if budget >= structure.kernels[everything].sum():
        return everything
    room = Room(structure, CountLedger(structure), (budget, 0), Limits(cap))
    order = np.argsort(values, kind="stable")
    room.take_each(order[structure.kernels[order] > 0])
    return room.gone
