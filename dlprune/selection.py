"""Which units go: from the lowest score on, within the budget, never the last one of a tensor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .structure import Structure

Scores = NDArray[np.float64]
Mask = NDArray[np.bool_]

NORMALIZATIONS = ("sqrt_mean", "none", "l2", "mean")


def removable_kernels(structure: Structure) -> int:
    """Return the most kernels that can leave, i.e. what 100 percent means."""
    return int(structure.kernels[_largest(structure, np.zeros(structure.unit_num))].sum())


def selection_values(structure: Structure, scores: Scores, normalization: str) -> Scores:
    """Make scores comparable across groups and per kernel removed.

    Args:
        structure: the network's units.
        scores: mean absolute score per unit, float64 [U], at least 0.
        normalization: 'sqrt_mean' divides by the root of the group's mean score, 'mean' by the mean, 'l2' by the
            group's L2 norm (Molchanov et al. 2017), 'none' leaves the scores as they are.

    Returns:
        Values to sort by, float64 [U].
    """
    values = scores.copy()
    for group in np.unique(structure.groups[structure.kernels > 0]):
        members = (structure.groups == group) & (structure.kernels > 0)
        own = scores[members]
        scale = {
            "sqrt_mean": float(np.sqrt(own.mean())),
            "mean": float(own.mean()),
            "l2": float(np.sqrt(np.square(own).sum())),
            "none": 1.0,
        }[normalization]
        if scale > 0:
            values[members] = own / scale
    return values / np.maximum(structure.kernels, 1)


def choose_units(structure: Structure, values: Scores, budget: int, cap: float = 1.0) -> Mask:
    """Choose the units to remove.

    Args:
        structure: the network's units.
        values: what to sort by, float64 [U]; the lowest go first, ties by graph order.
        budget: kernels that may leave at most.
        cap: share of its kernels that a group may lose at most, 0…1.

    Returns:
        Mask of the units to remove, bool [U]; they hold `budget` kernels at most.
    """
    if budget >= removable_kernels(structure):
        return _largest(structure, values)
    order = np.lexsort((np.arange(structure.unit_num), values))
    return _greedy(structure, order, budget, cap)


def _largest(structure: Structure, values: Scores) -> Mask:
    """Remove all that can go: where units of several sizes compete for the last place, a small one stays."""
    order = np.lexsort((np.arange(structure.unit_num), values, -structure.kernels))
    return _greedy(structure, order, int(structure.kernels.sum()), 1.0)


def _greedy(structure: Structure, order: NDArray[np.int64], budget: int, cap: float) -> Mask:
    room = Room(structure, budget, cap)
    for unit in order:
        room.take(int(unit))
    return room.gone


class Room:
    """What may still leave: within the budget, within each group's share, and never the last unit of a tensor.

    `gone` tells the units that were taken so far.
    """

    def __init__(self, structure: Structure, budget: int, cap: float) -> None:
        self.gone: Mask = np.zeros(structure.unit_num, dtype=np.bool_)
        self.budget = budget
        self._kernels, self._groups = structure.kernels, structure.groups
        self._members: list[list[int]] = [[] for _ in range(structure.unit_num)]
        for index, constraint in enumerate(structure.constraints):
            for unit in constraint:
                self._members[unit].append(index)
        self._left = [len(constraint) for constraint in structure.constraints]
        self._shares = np.bincount(structure.groups, weights=structure.kernels, minlength=1) * cap + 1e-9

    def take(self, unit: int) -> bool:
        """Take a unit if it may leave, and tell whether it did."""
        cost, group = int(self._kernels[unit]), self._groups[unit]
        if cost == 0 or cost > self.budget or cost > self._shares[group]:
            return False
        if any(self._left[index] == 1 for index in self._members[unit]):
            return False
        self.gone[unit] = True
        self.budget -= cost
        self._shares[group] -= cost
        for index in self._members[unit]:
            self._left[index] -= 1
        return True
