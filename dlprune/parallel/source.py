"""What operators on many images take: samples, image files, or something that holds them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ..classifier import Classifier
from ..dictionary import Dictionary
from ..errors import H_ERR_DL_CLASS_IDS_INVALID, H_ERR_WIPN1, H_ERR_WIPT1, H_ERR_WIPV1, HOperatorError
from ..evaluation import Integers, LabelledImages
from ..handle import HHandle
from ..imagefiles import UNLABELLED, ClassLabel, ImageFiles, Pixels, match_classes, open_images
from ..preprocessing import Preprocessing, preprocessing_of
from ..samples import labels as sample_labels
from ..samples import pixels_of, read_samples

StrPath: TypeAlias = str | os.PathLike[str]
#: Samples; the names of image files; or a folder, an archive or a list of images.
SamplesOrFiles: TypeAlias = HHandle | Sequence[HHandle] | StrPath | Sequence[StrPath]


@dataclass(frozen=True)
class SampleImages:
    """The images of samples, checked when they are read."""

    samples: Sequence[Dictionary]
    classifier: Classifier
    classes: Sequence[ClassLabel] | None = None

    @property
    def names(self) -> Sequence[str]:
        """See Images."""
        return [f"sample {number}" for number in range(len(self.samples))]

    def read(self, indices: Sequence[int]) -> Iterator[Pixels]:
        """See Images.read. Raises HOperatorError as samples.images does."""
        return (pixels_of(self.samples[index], index, self.classifier) for index in indices)


@dataclass(frozen=True)
class Source:
    """Labelled images, and how they are prepared for a classifier."""

    data: LabelledImages
    preprocessing: Preprocessing


def open_source(
    given: SamplesOrFiles, labels: Sequence[int] | None, skip_bad: bool, classifier: Classifier, index: int
) -> Source:
    """Understand the images of control parameter number `index`; pixels are not read yet.

    Raises HOperatorError (wrong type, nothing given, samples, labels that do not fit), ImagesError (files).
    """
    if isinstance(given, (str, os.PathLike)):
        images = open_images(given)
        params = classifier.params
        ids = match_classes(images.classes, params.class_ids, params.class_names, len(images.names)).ids
        if labels is not None:
            raise _refused(index, H_ERR_WIPT1, f"{given!r} with labels; labels go with a list of file names.")
        return Source(LabelledImages(images, ids, skip_bad), preprocessing_of(classifier))
    many = [given] if isinstance(given, HHandle) else given
    if not isinstance(many, Sequence):
        raise _refused(index, H_ERR_WIPT1, f"{given!r}; samples, file names, or the name of a folder are needed.")
    if not many:
        raise _refused(index, H_ERR_WIPV1, "empty; at least one sample or file is needed.")
    paths = [Path(one) for one in many if isinstance(one, (str, os.PathLike))]
    if len(paths) == len(many):
        files = ImageFiles(paths, [str(path) for path in paths], None)
        return Source(
            LabelledImages(files, _class_ids(labels, len(paths), classifier, index), skip_bad),
            preprocessing_of(classifier),
        )
    samples = read_samples(many, index)
    if labels is not None:
        raise _refused(index, H_ERR_WIPT1, "samples with labels; the label of a sample is its 'image_label_id'.")
    known = np.array([*classifier.params.class_ids, UNLABELLED], np.int64)
    images = SampleImages(samples, classifier)
    # Pixels of samples are prepared already, so they pass through preprocessing unchanged.
    return Source(LabelledImages(images, known[sample_labels(samples, classifier)]), Preprocessing())


def _class_ids(labels: Sequence[int] | None, number: int, classifier: Classifier, index: int) -> Integers:
    """Check the class id of each file; all UNLABELLED if none are given."""
    if labels is None:
        return np.full(number, UNLABELLED, np.int64)
    ids = np.asarray(labels)
    if ids.shape != (number,) or ids.dtype.kind not in "iu":
        raise _refused(index, H_ERR_WIPN1, f"{number} files with {ids.size} labels; one class id per file is needed.")
    strange = np.setdiff1d(ids, classifier.params.class_ids)
    if len(strange):
        raise HOperatorError(
            H_ERR_DL_CLASS_IDS_INVALID,
            f"labels holds {strange[0]}; the class ids of the model are {list(classifier.params.class_ids)[:12]}.",
        )
    return ids.astype(np.int64)


def _refused(index: int, code: int, what: str) -> HOperatorError:
    return HOperatorError(code + index - 1, f"samples_or_files is {what}")
