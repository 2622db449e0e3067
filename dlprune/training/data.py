"""Labelled images that training reads in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..classifier import Classifier
from ..dictionary import Dictionary
from ..errors import H_ERR_DL_INPUTS_MISSING, HOperatorError
from ..samples import LABEL, images, labels
from .buffers import Array

Labels = NDArray[np.int64]


class LabelledData(Protocol):
    """Images with the class index of each."""

    @property
    def labels(self) -> Labels: ...  # noqa: D102

    def images(self, numbers: Sequence[int]) -> Array:
        """Return float32 [n, …] in the model's layout."""
        ...


@dataclass(frozen=True)
class ArrayData:
    """Images in an array, which may be a file mapped into memory."""

    pixels: Array
    labels: Labels

    def images(self, numbers: Sequence[int]) -> Array:
        """Return float32 [n, …] in the model's layout."""
        return np.asarray(self.pixels[np.asarray(numbers, np.intp)], np.float32)


class Subset:
    """Some of the images of a data set, by their numbers there."""

    def __init__(self, data: LabelledData, numbers: Sequence[int]) -> None:
        self._data, self._numbers = data, np.asarray(numbers, np.intp)
        self.labels = data.labels[self._numbers]

    def images(self, numbers: Sequence[int]) -> Array:
        """Return float32 [n, …] in the model's layout."""
        return self._data.images(self._numbers[np.asarray(numbers, np.intp)].tolist())


class SampleData:
    """Images in sample dictionaries.

    Args:
        samples: dictionaries with 'image' and 'image_label_id'.
        classifier: whose size, layout and class ids they must have.
        what: begins error messages, e.g. 'dlsamples'.

    Raises:
        HOperatorError 7783, 7790, 7791, 7793: an entry of a sample is missing or unfit.
    """

    def __init__(self, samples: Sequence[Dictionary], classifier: Classifier, what: str) -> None:
        self._samples, self._classifier = samples, classifier
        self.labels = labels(samples, classifier)
        if np.any(self.labels < 0):
            raise HOperatorError(
                H_ERR_DL_INPUTS_MISSING, f"{what}: sample 0 has no {LABEL!r}; training needs the class of each."
            )
        for first in range(0, len(samples), 64):  # better now than in the middle of an epoch
            images(samples[first : first + 64], classifier, first)

    def images(self, numbers: Sequence[int]) -> Array:
        """Return float32 [n, …] in the model's layout."""
        return images([self._samples[number] for number in numbers], self._classifier)
