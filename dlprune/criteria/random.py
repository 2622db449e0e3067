"""Mode 'random': a yardstick for the others."""

from __future__ import annotations

import numpy as np

from ..selection import Mask, Prices, Ranking, Room, Scores
from ..structure import Structure
from .criterion import Network, Tally, Weighed, criterion


@criterion("random")
class Random(Weighed):
    """Numbers drawn for each unit, the same for the same parameter 'seed'; every unit is equally likely to leave."""

    def weigh(self, network: Network) -> Scores:
        """Return one score per unit, float64 [U]."""
        structure = network.structure
        # Later choices divide by the kernels of a unit; here that must not favour the large ones.
        return np.random.default_rng(self.seed).random(structure.unit_num) * np.maximum(structure.kernels, 1)

    def choose(self, structure: Structure, tally: Tally, room: Room, ranking: Ranking) -> Mask:
        """Choose by the drawn numbers as they are: layers need not be made comparable, and nothing has a price."""
        del ranking
        return super().choose(structure, tally, room, Ranking("none", Prices(by_kernels=True)))
