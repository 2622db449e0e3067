"""What workers do with a part of the images: score them, or decide on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..classifier import Array
from ..evaluation import Contestant, Evaluation, LabelledImages, batched, evaluate, to_layout
from ..imagefiles import Pixels, Unreadable
from ..imagescores import add_images
from ..pruningdata import Findings, PruningData
from .parts import Part


@dataclass(frozen=True)
class ScoringPart:
    """Images to score; of these, only images with content hashes below `bound` are worth remembering."""

    part: Part
    bound: str


@dataclass(frozen=True)
class Scored:
    """What a part has brought, and its images that could not be read."""

    findings: Findings
    skipped: Mapping[str, Unreadable]


@dataclass(frozen=True)
class ScoringJob:
    """Scores images.

    Attributes:
        contestant: whose kernels are scored.
        empty: pruning data that have seen nothing.
        batch: images per run; a batch that is not full is filled up with its last image, which then counts once.
    """

    contestant: Contestant
    empty: PruningData
    batch: int

    def __call__(self, task: ScoringPart, /) -> Scored:
        """Score the images of a part. Raises HOperatorError, ImagesError."""
        data, images, classifier = self.empty.fresh(), task.part.data, self.contestant.classifier
        positions = {class_id: position for position, class_id in enumerate(classifier.params.class_ids)}
        for some in batched(self._prepared(images), self.batch):
            targets = np.array([positions.get(int(images.class_ids[index]), -1) for index, _ in some], np.int64)
            filled = [min(place, len(some) - 1) for place in range(self.batch)]
            batch = to_layout(classifier, [some[place][1] for place in filled])
            add_images(classifier, data, batch, targets[filled], len(some))
        data.calibration.restrict(task.bound)
        return Scored(data.findings(), images.skipped)

    def _prepared(self, images: LabelledImages) -> Iterator[tuple[int, Array]]:
        def prepare(pixels: Pixels) -> tuple[Array, ...]:
            return (self.contestant.prepare(pixels),)

        return ((index, image) for index, (image,) in images.prepared(range(len(images)), prepare))


@dataclass(frozen=True)
class Decided:
    """What classifiers made of a part, and its images that could not be read."""

    evaluation: Evaluation
    skipped: Mapping[str, Unreadable]


@dataclass(frozen=True)
class EvaluationJob:
    """Applies classifiers to images."""

    contestants: Sequence[Contestant]

    def __call__(self, part: Part, /) -> Decided:
        """Decide on the images of a part. Raises HOperatorError, ImagesError."""
        found = evaluate(self.contestants, part.data)
        indices = np.asarray(part.indices, np.int64)[found.indices]
        return Decided(Evaluation(indices, found.class_ids, found.decisions, found.confidences), part.data.skipped)
