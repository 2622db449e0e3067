"""Mode 'oracle': what the removal of a unit does to each sample's loss, to first order."""

from __future__ import annotations

from ..calibration import Images, Labels
from ..scoring import unit_terms
from .criterion import Measured, Network, Scorer, Values, absolute_sum, criterion


@criterion("oracle")
class Oracle(Measured):
    """Mean over samples of |t|: t is activation × gradient of the sample's own loss, summed over the unit's consumers.

    Source: Molchanov et al., Pruning Convolutional Neural Networks for Resource Efficient Inference, 2017, taken at the
    consumers of a channel.
    """

    selection = "reconstruction"

    def scorer(self, network: Network) -> Scorer:
        """Build the score graph."""
        graph, structure = network.score_graph(), network.structure

        def score(images: Images, labels: Labels, count: int) -> Values:
            terms = unit_terms(graph.run(images, labels), structure.consumers, structure.unit_num)
            return absolute_sum(terms[:count])

        return score
