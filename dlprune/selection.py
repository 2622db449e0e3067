"""Which units go: the least harmful first, within the budget and the limits, never the last one of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

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
    gone: Mask = np.zeros(len(kernels), np.bool_)
    before = gone if already is None else already
    members = _memberships(constraints, len(kernels))
    left = [int((~before[constraint]).sum()) for constraint in constraints]
    for unit in np.lexsort((np.arange(len(kernels)), values, -kernels)):
        stays = kernels[unit] == 0 or before[unit] or (held is not None and held[unit])
        if stays or any(left[i] == 1 for i in members[unit]):
            continue
        gone[unit] = True
        for index in members[unit]:
            left[index] -= 1
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
        self._members = _memberships(structure.constraints, structure.unit_num)
        self._left = [int((~before[members]).sum()) for members in structure.constraints]
        self.sizes = structure.kernels + dense_features(structure.kernels, structure.features)
        self._groups = structure.groups
        self._shares = np.bincount(structure.groups, weights=self.sizes, minlength=1) * self.limits.cap + _TOLERANCE
        self._shares -= np.bincount(structure.groups, weights=self.sizes * before, minlength=1)
        self._layers: list[list[tuple[int, int]]] = [[] for _ in range(structure.unit_num)]
        self._spare: list[int] = []
        self._kept: list[int] = []
        for index, layer in enumerate(structure.all_layers):
            units, counts = np.unique(layer.units[layer.units != FIXED], return_counts=True)
            for unit, number in zip(units.tolist(), counts.tolist(), strict=True):
                self._layers[unit].append((index, number))
            self._kept.append(len(layer.units) - int(counts[before[units]].sum()))
            floor = 1 if self.limits.floors is None else int(self.limits.floors[index])
            self._spare.append(self._kept[-1] - floor)

    @property
    def candidates(self) -> Mask:
        """Units that save something and are not held, bool [U]."""
        found: Mask = (self.ledger.savings > 0) & ~self.gone
        return found if self.limits.held is None else found & ~self.limits.held

    def take(self, *units: int) -> bool:
        """Take units if all of them may leave together, and tell whether they did."""
        if not self._allows(units):
            return False
        self.budgets[self.ledger.purses[units[0]]] -= self.ledger.saving(units)
        for unit in units:
            self.gone[unit] = True
            self._shares[self._groups[unit]] -= self.sizes[unit]
            self.ledger.remove(unit)
            for index in self._members[unit]:
                self._left[index] -= 1
            for index, number in self._layers[unit]:
                self._spare[index] -= number
                self._kept[index] -= number
        return True

    def _allows(self, units: Sequence[int]) -> bool:
        budget = self.budgets[self.ledger.purses[units[0]]]
        if self.ledger.saving(units) > budget + _TOLERANCE * max(1.0, budget):
            return False
        if self.limits.held is not None and self.limits.held[list(units)].any():
            return False
        shares: dict[int, int] = {}
        members: dict[int, int] = {}
        layers: dict[int, int] = {}
        for unit in units:
            shares[self._groups[unit]] = shares.get(self._groups[unit], 0) + int(self.sizes[unit])
            for index in self._members[unit]:
                members[index] = members.get(index, 0) + 1
            for index, number in self._layers[unit]:
                layers[index] = layers.get(index, 0) + number
        return (
            all(size <= self._shares[group] for group, size in shares.items())
            and all(number < self._left[index] for index, number in members.items())
            and all(number <= self._spare[index] for index, number in layers.items())
        )

    def classes(self) -> list[Ids]:
        """Return the candidates in classes: units of one class hold equally many kernels in the same layers."""
        found: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for unit in np.flatnonzero(self.candidates).tolist():
            found.setdefault(tuple(self._layers[unit]), []).append(unit)
        return [np.array(units) for units in found.values()]

    def block_sizes(self, unit: int, available: int) -> list[int]:
        """Return how many units of this one's class may leave so that a multiple of kernels stays in every layer."""
        multiple = self.limits.multiple
        holds = [(self._kept[index], number) for index, number in self._layers[unit]]
        sizes: list[int] = []
        # Sizes that fit repeat after `multiple` units at the latest.
        for size in range(1, min(available, multiple * _MOST_BLOCKS) + 1):
            if all((kept - size * number) % multiple == 0 for kept, number in holds):
                sizes.append(size)
        return sizes[:_MOST_BLOCKS]


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
    for unit in np.lexsort((np.arange(structure.unit_num), values)):
        if structure.kernels[unit]:
            room.take(int(unit))
    return room.gone


def _memberships(constraints: Sequence[Ids], unit_num: int) -> list[list[int]]:
    """Return for each unit the constraints that it is a member of."""
    members: list[list[int]] = [[] for _ in range(unit_num)]
    for index, constraint in enumerate(constraints):
        for unit in constraint.tolist():
            members[unit].append(index)
    return members
