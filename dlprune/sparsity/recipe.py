"""What magnitude pruning is to do: a schedule, and how masks are made from weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..hparams import POOLINGS, HParams, block_entries, sparsity_entries
from ..parameters import bad_value
from .masks import (
    Masked,
    Pooling,
    exact_mask,
    expand_blocks,
    histogram_mask,
    m_by_n_mask,
    pool_blocks,
)
from .schedule import HParamsSchedule, Schedule, schedule_from_config
from .weights import SparseWeight, matched

Block = tuple[int, int]


@dataclass(frozen=True)
class Treatment:
    """What holds for one weight: its target (None: the schedule's) and its blocks."""

    target: float | None
    block: Block


@dataclass(frozen=True)
class Recipe:
    """How weights become sparse.

    Attributes:
        schedule: when and how much.
        block, pooling: blocks of weights that leave together, and what counts of their magnitudes.
        m_by_n: (m, n): m zeros in every n along the input channels, whatever the schedule's sparsity is; or None.
        hparams: the hyperparameters that all this came from, or None.
    """

    schedule: Schedule
    block: Block = (1, 1)
    pooling: Pooling = "AVG"
    m_by_n: tuple[int, int] | None = None
    hparams: HParams | None = None

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise bad_value("block_pooling_type", self.pooling, "possible are 'AVG' and 'MAX'")
        if any(isinstance(size, bool) or not isinstance(size, int) or (size < 1 and size != -1) for size in self.block):
            raise bad_value("block_size", self.block, "two integers of at least 1, or −1 for the full size, are needed")
        if self.m_by_n is not None:
            zeros, of = self.m_by_n
            if not (isinstance(zeros, int) and isinstance(of, int) and 0 < zeros < of):
                raise bad_value("sparsity_m_by_n", self.m_by_n, "(m, n) with 0 < m < n is needed: m zeros in every n")
            if self.block != (1, 1):
                raise bad_value("sparsity_m_by_n", self.m_by_n, f"it cannot be combined with 'block_size' {self.block}")

    @classmethod
    def of_hparams(cls, hparams: HParams) -> Recipe:
        """Return what checked hyperparameters say."""
        return cls(
            HParamsSchedule.of(hparams),
            (hparams.block_height, hparams.block_width),
            "MAX" if hparams.block_pooling_function == "MAX" else "AVG",
            hparams=hparams,
        )

    def treatments(self, weights: Sequence[SparseWeight]) -> dict[str, Treatment]:
        """Return what holds for each weight. Raises HOperatorError 7914 if an entry of a map fits badly."""
        hparams = self.hparams or HParams()
        targets: list[tuple[str, float | None]] = [
            *sparsity_entries("weight_sparsity_map", hparams.weight_sparsity_map)
        ]
        by_target = matched("weight_sparsity_map", targets, weights, None)
        blocks = block_entries("block_dims_map", hparams.block_dims_map)
        by_block = matched("block_dims_map", blocks, weights, self.block)
        return {w.name: Treatment(by_target[w.name], by_block[w.name]) for w in weights}

    def mask(
        self, values: NDArray[Any], weight: SparseWeight, treatment: Treatment, step: int, previous: float = 0.0
    ) -> Masked:
        """Return the mask of a weight, in its own shape, for a step; `previous` is its last threshold."""
        matrix = weight.view.matrix(values)
        if self.m_by_n is not None:
            found = m_by_n_mask(matrix, *self.m_by_n, inputs=weight.view.inputs)
            return Masked(weight.view.restore(found.mask), found.threshold)
        pooled = pool_blocks(matrix, treatment.block, self.pooling)
        sparsity = self.schedule.sparsity(step, treatment.target)
        hparams = self.hparams
        if hparams is not None and hparams.threshold_decay > 0:
            found = histogram_mask(pooled, sparsity, hparams.nbins, previous, hparams.threshold_decay)
        else:
            found = exact_mask(pooled, sparsity)
        expanded = expand_blocks(found.mask, matrix.shape, treatment.block)
        return Masked(weight.view.restore(expanded), found.threshold)

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and numbers."""
        return {
            "schedule": self.schedule.get_config(),
            "block": list(self.block),
            "pooling": self.pooling,
            "m_by_n": None if self.m_by_n is None else list(self.m_by_n),
            "hparams": None if self.hparams is None else asdict(self.hparams),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        """Invert to_json."""
        if data["hparams"] is not None:
            values = {
                name: tuple(value) if isinstance(value, list) else (value,) for name, value in data["hparams"].items()
            }
            return cls.of_hparams(HParams().changed(values))
        m_by_n = data["m_by_n"]
        recipe = cls(schedule_from_config(data["schedule"]))
        return replace(
            recipe,
            block=(data["block"][0], data["block"][1]),
            pooling=data["pooling"],
            m_by_n=None if m_by_n is None else (m_by_n[0], m_by_n[1]),
        )


def share_of_zeros(mask: NDArray[np.bool_]) -> float:
    """Return the share of a mask that is not kept, 0…1."""
    return 1.0 - int(np.count_nonzero(mask)) / max(mask.size, 1)
