"""Mode 'l2': the Euclidean norm of the weights."""

from __future__ import annotations

import numpy as np

from ..selection import Scores
from .criterion import Network, Weighed, criterion
from .norms import kernel_norms


@criterion("l2")
class L2(Weighed):
    """L2 norm of the weights, summed over the unit's kernels.

    Source: He et al., Soft Filter Pruning for Accelerating Deep Convolutional Neural Networks, 2018.
    """

    def weigh(self, network: Network) -> Scores:
        """Return one score per unit, float64 [U]."""
        return kernel_norms(network, lambda kernels: np.sqrt(np.square(kernels).sum(axis=1)))
