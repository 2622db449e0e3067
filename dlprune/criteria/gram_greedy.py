"""Mode 'gram_greedy': which units together change the class scores least, by the second moments of their effects."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from ..calibration import Images, Labels
from ..scoring import unit_terms
from ..selection import Mask, Ranking, Room, Scores, choose
from ..structure import Structure
from .criterion import Measured, Network, Scorer, Tally, Values, criterion

#: Random directions of the logits, i.e. backward passes per batch.
_PROJECTIONS = 4
#: Up to so many units U the moments are kept as they are, U × U; beyond that as a sketch of so many rows, R × U, whose
#: inner products are the moments up to about √(2 / R). 134 MB at most for each 4,096 units.
_ROWS = 4096


@criterion("gram_greedy")
class GramGreedy(Measured):
    """The units are chosen one by one so that E[(Σ t)²] over all removed ones stays small.

    t is the first-order effect of a unit's removal on a random direction of a sample's logits; effects of units that
    cancel each other count as small, those that add up as large. The score of a unit is √E[t²]; labels do not matter.
    The scores decide alone under 'selection' 'auto', and 'normalization' has no meaning.
    """

    def start(self, units: int) -> Values:
        """Return the sums of an empty tally: second moments U × U, or a sketch of them."""
        return np.zeros((min(units, _ROWS), units))

    def scorer(self, network: Network) -> Scorer:
        """Build the score graph."""
        graph, structure = network.score_graph(upstream=True), network.structure

        def score(images: Images, labels: Labels, count: int) -> Values:
            del labels
            lots = [_lots(image, network.classifier.class_num) for image in images]
            total = self.start(structure.unit_num)
            for projection in range(_PROJECTIONS):
                upstream = np.stack([directions[projection] for directions, _ in lots])
                terms = graph.evaluate(images, upstream).terms
                effects = unit_terms(list(terms), structure.consumers, structure.unit_num)[:count]
                if len(total) == structure.unit_num:
                    total += effects.T @ effects
                else:
                    rows, signs = np.stack([buckets[projection] for _, buckets in lots[:count]]).T
                    np.add.at(total, rows, effects * signs[:, None])
            mean: Values = total / (_PROJECTIONS if len(total) == structure.unit_num else np.sqrt(_PROJECTIONS))
            return mean

        return score

    def scores(self, tally: Tally) -> Scores:
        """Return √E[t²] of each unit, float64 [U]."""
        scores: Scores = np.sqrt(np.maximum(_Moments(tally).squares, 0.0) / max(tally.count, 1))
        return scores

    def choose(self, structure: Structure, tally: Tally, room: Room, ranking: Ranking) -> Mask:
        """Choose greedily: next goes the unit that adds least to E[(Σ t)²] for its price."""
        del structure
        return choose(room, _Moments(tally), ranking.prices)


class _Moments:
    """E[(Σ t)²] of the removed units, up to a factor: what each further unit adds to it."""

    def __init__(self, tally: Tally) -> None:
        self._sums = tally.sums
        self._is_matrix = self._sums.shape[0] == self._sums.shape[1]
        self.squares: Values = np.diag(self._sums) if self._is_matrix else np.square(self._sums).sum(axis=0)
        self._with_removed = np.zeros(self._sums.shape[1])

    def values(self) -> Scores:
        """Return what the removal of each unit adds, float64 [U]; below 0 where it makes up for others."""
        added: Scores = 2.0 * self._with_removed + self.squares
        return added

    def remove(self, unit: int) -> None:
        """Take note that a unit has left."""
        self._with_removed += self._sums[unit] if self._is_matrix else self._sums[:, unit] @ self._sums


def _lots(image: NDArray[np.float32], classes: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Draw what belongs to an image, by its content alone, so that the order of images does not matter.

    Returns directions, float32 [P, K], whose components add up to 0 because a common shift of the logits is without
    effect; and the row and sign of each direction's place in the sketch, int64 [P, 2].
    """
    digest = hashlib.blake2b(np.ascontiguousarray(image).tobytes(), digest_size=16).digest()
    generator = np.random.default_rng(int.from_bytes(digest, "little"))
    signs = generator.choice(np.array([-1.0, 1.0], np.float32), (_PROJECTIONS, classes))
    places = np.stack([generator.integers(_ROWS, size=_PROJECTIONS), generator.choice([-1, 1], _PROJECTIONS)], axis=1)
    return signs - signs.mean(axis=1, keepdims=True), places.astype(np.int64)
