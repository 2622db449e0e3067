"""Units are chosen in bulk; one by one they must be the same."""

from __future__ import annotations

import numpy as np
import pytest

from dlprune.ledger import CountLedger
from dlprune.selection import Limits, Mask, Room, removable
from dlprune.structure import FIXED, Layer, Structure
from dlprune.structure.units import Ids


def random_structure(rng: np.random.Generator) -> Structure:
    """Layers, groups and constraints at random over a few units."""
    count = int(rng.integers(1, 60))
    layers = []
    for index in range(int(rng.integers(2, 8))):
        units = rng.integers(0, count, int(rng.integers(1, 20)))
        units[rng.random(len(units)) < 0.1] = FIXED
        layers.append(Layer(f"layer{index}", f"output{index}", units, ""))
    held_by = [np.bincount(layer.units[layer.units != FIXED], minlength=count) for layer in layers]
    sets = [np.unique(rng.integers(0, count, int(rng.integers(1, count + 1)))) for _ in range(int(rng.integers(0, 8)))]
    return Structure(
        layers=tuple(layers[:-1]),
        dense=tuple(layers[-1:]),
        kernels=np.sum(held_by[:-1], axis=0),
        features=held_by[-1],
        groups=rng.integers(0, int(rng.integers(1, 6)), count),
        consumers=(),
        tensors={},
        constraints=tuple(sets),
        whole_groups={},
        shuffles={},
    )


def one_by_one(kernels: Ids, sets: tuple[Ids, ...], held: Mask, values: np.ndarray, already: Mask) -> Mask:
    """What may leave leaves, the largest units first, those of low value before others."""
    gone = np.zeros(len(kernels), np.bool_)
    for unit in np.lexsort((values, -kernels)):
        last = any(unit in members and (already | gone)[members].sum() == len(members) - 1 for members in sets)
        gone[unit] = kernels[unit] > 0 and not held[unit] and not already[unit] and not last
    return gone


@pytest.mark.parametrize("seed", range(40))
def test_the_last_unit_of_a_tensor_stays(seed: int) -> None:
    rng = np.random.default_rng(seed)
    structure = random_structure(rng)
    count = structure.unit_num
    held, already = (rng.random(count) < share for share in rng.choice([0.0, 0.3], 2))
    values = rng.integers(0, 6, count) / 3
    expected = one_by_one(structure.kernels, structure.constraints, held, values, already)
    assert np.array_equal(removable(structure.kernels, structure.constraints, held, values, already), expected)
    everything = one_by_one(structure.kernels, structure.constraints, held & False, values * 0, already & False)
    assert np.array_equal(removable(structure.kernels, structure.constraints), everything)


@pytest.mark.parametrize("seed", range(40))
def test_units_taken_in_bulk_are_those_taken_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    structure = random_structure(rng)
    count, layers = structure.unit_num, len(structure.all_layers)
    limits = Limits(
        cap=float(rng.choice([1.0, 0.5, 0.3])),
        held=rng.random(count) < 0.2 if rng.random() < 0.5 else None,
        floors=rng.integers(0, 5, layers) if rng.random() < 0.5 else None,
    )
    before = rng.random(count) < rng.choice([0.0, 0.2])
    budgets = (float(rng.integers(0, structure.kernels.sum() + 2)) + 0.3, 2.0)
    order = rng.permutation(count)
    bulk, single = (Room(structure, CountLedger(structure, True), budgets, limits, before) for _ in range(2))
    order = order[~before[order] & (bulk.ledger.savings[order] > 0)]
    bulk.take_each(order)
    for unit in order.tolist():
        single.take(unit)
    assert np.array_equal(bulk.gone, single.gone)
    assert bulk.budgets == pytest.approx(single.budgets)
