"""Classifiers on labelled images from files: batches for any number of models, their decisions, accuracy, agreement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from .ahead import ahead
from .classifier import Array, Classifier
from .imagefiles import UNLABELLED, Images, Pixels, Unreadable, unreadable_error
from .preprocessing import ImageForm, Preprocessing, PreprocessingError

Integers = npt.NDArray[np.int64]
T = TypeVar("T")

#: Prepared images that wait for their use.
_AHEAD: Final = 32


@dataclass
class LabelledImages:
    """Images with the class id of each (UNLABELLED without one), and what to do with those that cannot be read.

    `skipped` collects the unreadable ones if `skip_bad`; otherwise the first one stops the work, and the error lists
    all that follow as well.
    """

    images: Images
    class_ids: Integers
    skip_bad: bool = False
    skipped: dict[str, Unreadable] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.class_ids)

    def prepared(
        self, indices: Sequence[int], prepare: Callable[[Pixels], tuple[Array, ...]]
    ) -> Iterator[tuple[int, tuple[Array, ...]]]:
        """Yield index and prepared forms of each readable image; `indices` must ascend.

        Images are read and prepared in the background, a few ahead of their use.
        Raises ImagesError that lists the unreadable ones unless `skip_bad`.
        """
        return ahead(self._prepared(indices, prepare), _AHEAD)

    def _prepared(
        self, indices: Sequence[int], prepare: Callable[[Pixels], tuple[Array, ...]]
    ) -> Iterator[tuple[int, tuple[Array, ...]]]:
        bad: list[Unreadable] = []
        for index, found in zip(indices, self.images.read(indices), strict=True):
            result = self._prepare(index, found, prepare)
            if isinstance(result, Unreadable):
                (self.skipped.setdefault(result.name, result) if self.skip_bad else bad.append(result))
            elif not bad:  # once one is bad only the others that are bad matter
                yield index, result
        if bad:
            raise unreadable_error(bad)

    def _prepare(
        self, index: int, found: Pixels | Unreadable, prepare: Callable[[Pixels], tuple[Array, ...]]
    ) -> tuple[Array, ...] | Unreadable:
        if isinstance(found, Unreadable):
            return found
        try:
            prepared = prepare(found)
        except PreprocessingError as error:
            return Unreadable(self.images.names[index], str(error))
        if not all(np.isfinite(one).all() for one in prepared):
            return Unreadable(self.images.names[index], "it holds NaN or infinity")
        return prepared


@dataclass(frozen=True)
class Contestant:
    """A classifier and how its images are prepared; `form` is what they become, by default what the classifier says."""

    classifier: Classifier
    preprocessing: Preprocessing
    form: ImageForm | None = None

    def prepare(self, pixels: Pixels) -> Array:
        """Return an image as float32 [height, width, channels]. Raises PreprocessingError."""
        return self.preprocessing.bring(pixels, self.form or ImageForm.of(self.classifier))


@dataclass(frozen=True)
class Evaluation:
    """What classifiers made of the same images.

    Attributes:
        indices: the images that could be read, int64 [N].
        class_ids: their class, int64 [N]; UNLABELLED without one.
        decisions: class id that each classifier decided for, int64 [M, N].
        confidences: of these decisions, float32 [M, N].
    """

    indices: Integers
    class_ids: Integers
    decisions: Integers
    confidences: Array

    @classmethod
    def nothing(cls, contestants: int) -> Evaluation:
        """Return the evaluation of no images by so many classifiers."""
        none = np.zeros(0, np.int64)
        return cls(none, none, np.zeros((contestants, 0), np.int64), np.zeros((contestants, 0), np.float32))

    @classmethod
    def joined(cls, parts: Sequence[Evaluation]) -> Evaluation:
        """Return one evaluation of all the images of several."""
        return cls(
            np.concatenate([part.indices for part in parts]),
            np.concatenate([part.class_ids for part in parts]),
            np.concatenate([part.decisions for part in parts], axis=1),
            np.concatenate([part.confidences for part in parts], axis=1),
        )

    @property
    def accuracies(self) -> list[float | None]:
        """Share of the labelled images that each classifier decided rightly; None where no image has a class."""
        labelled = self.class_ids != UNLABELLED
        if not labelled.any():
            return [None] * len(self.decisions)
        return [float(np.mean(row[labelled] == self.class_ids[labelled])) for row in self.decisions]

    @property
    def agreement(self) -> float | None:
        """Share of the images on which first and last classifier decide alike; None without images."""
        return float(np.mean(self.decisions[0] == self.decisions[-1])) if len(self.indices) else None

    def confusion(self, class_ids: Sequence[int], contestant: int = 0) -> Integers:
        """Return how many images of class i were taken for class j, int64 [K, K], in the order of `class_ids`."""
        position = {class_id: i for i, class_id in enumerate(class_ids)}
        table = np.zeros((len(class_ids), len(class_ids)), np.int64)
        for truth, decision in zip(self.class_ids.tolist(), self.decisions[contestant].tolist(), strict=True):
            if truth != UNLABELLED:
                table[position[truth], position[decision]] += 1
        return table


def evaluate(
    contestants: Sequence[Contestant],
    data: LabelledImages,
    indices: Sequence[int] | None = None,
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """Apply classifiers to images, each of which is read once.

    Parameters: `contestants`; `data`; `indices` (ascending; None = all); `progress` (called with the number of images
    done since the last call).
    Raises ImagesError (unreadable images), HOperatorError 7912 (a classifier cannot be run).

    Example:
        >>> import dlprune as ha
        >>> from dlprune.imagefiles import match_classes, open_images
        >>> def accuracy(model_file, folder):
        ...     classifier = Classifier.read(model_file)
        ...     images = open_images(folder)
        ...     params = classifier.params
        ...     match = match_classes(images.classes, params.class_ids, params.class_names, len(images.names))
        ...     found = evaluate([Contestant(classifier, Preprocessing())], LabelledImages(images, match.ids))
        ...     return found.accuracies[0]
    """
    chosen = range(len(data)) if indices is None else indices
    for one in contestants:
        one.preprocessing.check(one.classifier)

    def prepare(pixels: Pixels) -> tuple[Array, ...]:
        return tuple(one.prepare(pixels) for one in contestants)

    size = max(one.classifier.params.batch_size for one in contestants)
    found = [Evaluation.nothing(len(contestants))]
    for batch in batched(data.prepared(chosen, prepare), size):
        seen = np.array([index for index, _ in batch], np.int64)
        columns = zip(*(images for _, images in batch), strict=True)
        rows = [_confidences(one.classifier, column) for one, column in zip(contestants, columns, strict=True)]
        best = np.stack([_best_ids(one.classifier, row) for one, row in zip(contestants, rows, strict=True)])
        found.append(Evaluation(seen, data.class_ids[seen], best, np.stack([row.max(axis=1) for row in rows])))
        if progress is not None:
            progress(len(batch))
    return Evaluation.joined(found)


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` items, the last of which may be shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def _best_ids(classifier: Classifier, rows: Array) -> Integers:
    best: Integers = np.array(classifier.params.class_ids, np.int64)[rows.argmax(axis=1)]
    return best


def _confidences(classifier: Classifier, images: Sequence[Array]) -> Array:
    """Return the confidences of images [H, W, C], float32 [N, K]; the last batch is filled with its last image."""
    size = classifier.params.batch_size
    results: list[Array] = []
    for first in range(0, len(images), size):
        part = list(images[first : first + size])
        number = len(part)
        if classifier.image is not None and classifier.image.batch is not None:
            part += part[-1:] * (size - number)
        results.append(classifier.confidences(to_layout(classifier, part))[:number])
    return np.concatenate(results)


def to_layout(classifier: Classifier, images: Sequence[Array]) -> Array:
    """Stack images [H, W, C] in the layout of a classifier."""
    batch: Array = np.stack(images)
    return np.ascontiguousarray(batch.transpose(0, 3, 1, 2)) if classifier.layout == "NCHW" else batch
