"""What a pruning mode is: how units are scored, and how the scores decide which of them leave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..calibration import Images, Labels
from ..classifier import Classifier
from ..compensation.stages import batches
from ..division import Division, divide
from ..scoregraph import ScoreGraph
from ..selection import Mask, Ranking, Room, Scores, choose_by_scores
from ..structure import Structure

Values = NDArray[np.float64]

#: Takes a batch of images, their labels (int64, −1 = the network's own decision) and how many of them count, the first
#: ones; returns what they add to a tally, float64 […, U].
Scorer = Callable[[Images, Labels, int], Values]


@dataclass(frozen=True)
class Network:
    """What is scored: a classifier, its units (numbered as in the original network) and the images per run."""

    classifier: Classifier
    structure: Structure
    batch: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a batch of images in the layout of the classifier."""
        return self.classifier.input_shape(self.batch)

    def score_graph(self, *, upstream: bool = False, together: bool = True) -> ScoreGraph:
        """Return the score graph, built once for each division of batches; see ScoreGraph.

        Raises GradientError, LiftError or ScoreGraphError where the network cannot be scored.
        """
        one, image = self.classifier, self.classifier.image
        assert image is not None
        division = Division(self.batch)
        runtime, gpu = one.params.runtime, one.params.gpu
        if image.batch is None and runtime == "cpu":
            division = divide(one.model, one.facts(), one.input_name, self.batch)
        shape = one.input_shape(division.images)
        with one.lock:
            key = ("score graph", shape, division, upstream, together, runtime, gpu)
            if key not in one.derived:
                one.derived[key] = ScoreGraph(
                    one.model,
                    one.input_name,
                    one.output_name,
                    shape,
                    self.structure.consumers,
                    upstream=upstream,
                    together=together,
                    workers=division.workers,
                    threads=division.threads,
                    runtime=runtime,
                    gpu=gpu,
                )
            found = one.derived[key]
            assert isinstance(found, ScoreGraph)
            return found


@dataclass(frozen=True)
class Tally:
    """What a criterion has found: `sums` float64 […, U] over `count` samples."""

    sums: Values
    count: int


class Criterion(ABC):
    """A pruning mode.

    Attributes:
        mode: its name in create_dl_pruning.
        selection: what 'selection' 'auto' means where a compensation follows: whether its scores are changes of the
            loss, which may be combined with the error that the compensation leaves, or decide alone.
        seed: parameter 'seed', for those that draw lots.
    """

    mode: ClassVar[str]
    selection: ClassVar[Literal["reconstruction", "score"]] = "score"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    @abstractmethod
    def measure(self, network: Network, images: Images, labels: Labels) -> Tally:
        """Score the units of a network on all these images, float32 [n, …], labels int64 [n]."""

    def start(self, units: int) -> Values:
        """Return the sums of an empty tally for so many units."""
        return np.zeros(units)

    def scores(self, tally: Tally) -> Scores:
        """Return one score per unit, float64 [U], at least 0; units with low scores leave first."""
        return tally.sums / max(tally.count, 1)

    def choose(self, structure: Structure, tally: Tally, room: Room, ranking: Ranking) -> Mask:
        """Choose the units to remove by the scores alone; see choose_by_scores."""
        return choose_by_scores(room, structure, self.scores(tally), ranking)


class Measured(Criterion):
    """A criterion that looks at images; its sums over samples add up, whatever the batches."""

    @abstractmethod
    def scorer(self, network: Network) -> Scorer:
        """Prepare for many batches of `network.batch` images; the result may be called from several threads.

        Raises GradientError, LiftError or ScoreGraphError where the network cannot be scored.
        """

    def measure(self, network: Network, images: Images, labels: Labels) -> Tally:
        """Score the units of a network on all these images, float32 [n, …], labels int64 [n]."""
        score = self.scorer(network)
        total = self.start(network.structure.unit_num)
        left = len(images)
        parts = zip(batches(images, network.batch), batches(labels, network.batch), strict=True)
        for some_images, some_labels in parts:
            total += score(some_images, some_labels, min(left, network.batch))
            left -= network.batch
        return Tally(total, len(images))


class Weighed(Criterion):
    """A criterion that looks at the weights alone and needs no images."""

    @abstractmethod
    def weigh(self, network: Network) -> Scores:
        """Return one score per unit, float64 [U]. Raises HOperatorError where the network has no such weights."""

    def measure(self, network: Network, images: Images, labels: Labels) -> Tally:
        """Score the units of a network; the images do not matter."""
        del images, labels
        return Tally(self.weigh(network), 1)


def absolute_sum(values: NDArray[np.floating]) -> Values:
    """Return the sum over samples of absolute values [N, U], the same in whatever order batches arrive.

    Rounding to single precision first leaves the double-precision sum room to be exact.
    """
    total: Values = np.abs(values).astype(np.float32).astype(np.float64).sum(axis=0)
    return total


_REGISTER: dict[str, type[Criterion]] = {}
_C = TypeVar("_C", bound=type[Criterion])


def criterion(mode: str) -> Callable[[_C], _C]:
    """Register a criterion under the name of its pruning mode."""

    def register(made: _C) -> _C:
        made.mode = mode
        _REGISTER[mode] = made
        return made

    return register


def modes() -> tuple[str, ...]:
    """Return the names of all pruning modes in alphabetical order, the default one first."""
    return tuple(sorted(_REGISTER, key=lambda mode: (mode != "oracle", mode)))


def make_criterion(mode: str, seed: int = 0) -> Criterion:
    """Return the criterion of a pruning mode. Raises KeyError."""
    return _REGISTER[mode](seed)
