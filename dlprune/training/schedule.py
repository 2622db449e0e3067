"""Learning rates over the steps of a training run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["cosine", "step", "constant"]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: What a learning rate is multiplied by at each milestone of 'step'.
_DROP = 0.1
#: Milestones of 'step' unless they are given, as shares of the run.
_MILESTONES = (0.5, 0.75)


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then 'cosine' down to zero, 'step' (× 0.1 at every milestone) or 'constant'.

    Attributes:
        rate: the highest learning rate.
        steps: steps of the whole run.
        warmup: steps at the beginning in which the rate rises.
        kind: what follows.
        milestones: steps at which 'step' drops; empty = at half and three quarters of the run.

    Example:
        >>> schedule = Schedule(rate=1.0, steps=100, warmup=10)
        >>> [round(schedule.at(step), 2) for step in (0, 9, 55, 99)]
        [0.1, 1.0, 0.48, 0.0]
    """

    rate: float
    steps: int
    warmup: int = 0
    kind: Kind = "cosine"
    milestones: Sequence[int] = ()

    def at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        if self.kind == "constant":
            return self.rate
        if self.kind == "step":
            drops = self.milestones or [math.ceil(share * self.steps) for share in _MILESTONES]
            return self.rate * _DROP ** sum(step >= drop for drop in drops)
        share = (step - self.warmup + 1) / max(self.steps - self.warmup, 1)
        # The rate never gets to zero: a solver step of length zero would be a step for nothing.
        return self.rate * max(0.5 * (1.0 + math.cos(math.pi * min(share, 1.0))), 1e-4)
