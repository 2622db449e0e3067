"""Mode 'l1': the sum of the absolute weights."""

from __future__ import annotations

import numpy as np

from ..selection import Scores
from .criterion import Network, Weighed, criterion
from .norms import kernel_norms


@criterion("l1")
class L1(Weighed):
    """L1 norm of the weights, summed over the unit's kernels.

    Source: Li et al., Pruning Filters for Efficient ConvNets, 2017.
    """

    def weigh(self, network: Network) -> Scores:
        """Return one score per unit, float64 [U]."""
        return kernel_norms(network, lambda kernels: np.abs(kernels).sum(axis=1))
