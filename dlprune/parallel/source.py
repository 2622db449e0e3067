"""What operators on many images take: samples, image files, or something that holds them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ..classifier import Classifier
from ..dictionary import Dictionary, unwrap_dict
from ..errors import H_ERR_DL_CLASS_IDS_INVALID, H_ERR_WIPN1, H_ERR_WIPT1, H_ERR_WIPV1, HOperatorError
from ..evaluation import Contestant, Integers, LabelledImages
from ..handle import HHandle
from ..imagefiles import UNLABELLED, ClassLabel, ImageFiles, Pixels, match_classes, open_images
from ..parameters import bad_value
from ..preprocessing import ImageForm, Preprocessing, preprocessing_of
from ..procedures.dataset import Dataset, check_classes
from ..procedures.preprocessing import read_preprocess_param
from ..procedures.settings import tuple_of
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
    """Labelled images, and how they are prepared for a classifier, see Contestant."""

    data: LabelledImages
    preprocessing: Preprocessing
    form: ImageForm | None = None

    def contestant(self, classifier: Classifier) -> Contestant:
        """Return a classifier that is given the images."""
        return Contestant(classifier, self.preprocessing, self.form)


def open_source(
    given: SamplesOrFiles,
    labels: Sequence[int] | None,
    skip_bad: bool,
    classifier: Classifier,
    index: int,
    preprocess_param: HHandle | None = None,
) -> Source:
    """Understand the images of control parameter number `index`; pixels are not read yet.

    Raises HOperatorError (wrong type, nothing given, samples, labels or preprocessing that do not fit), ImagesError.
    """
    many = [given] if isinstance(given, (HHandle, str, os.PathLike)) else given
    if not isinstance(many, Sequence):
        raise _refused(index, H_ERR_WIPT1, f"{given!r}; samples, file names, or the name of a folder are needed.")
    if not many:
        raise _refused(index, H_ERR_WIPV1, "empty; at least one sample or file is needed.")
    paths = [Path(one) for one in many if isinstance(one, (str, os.PathLike))]
    param: object = preprocess_param
    if labels is not None and (not paths or many is not given):
        raise _refused(index, H_ERR_WIPT1, f"{given!r} with labels; labels go with a list of file names.")
    if many is given and len(paths) == len(many):
        files = ImageFiles(paths, [str(path) for path in paths], None)
        data = LabelledImages(files, _class_ids(labels, len(paths), classifier, index), skip_bad)
    elif paths and many is not given:
        images, params = open_images(paths[0]), classifier.params
        match = match_classes(images.classes, params.class_ids, params.class_names, len(images.names))
        data = LabelledImages(images, match.ids, skip_bad)
    elif len(many) == 1 and _is_dataset(many[0]):
        dataset = Dataset.of(many[0], index)
        stored = tuple_of("preprocess_param", dataset.dictionary.entries.get("preprocess_param", ()))
        param = preprocess_param or (stored[0] if stored else None)
        data = LabelledImages(*_dataset_files(dataset, classifier, index), skip_bad)
    else:
        return _samples(many, preprocess_param, classifier, index)
    return Source(data, *_preparation(param, classifier))


def _is_dataset(handle: object) -> bool:
    return isinstance(handle, HHandle) and handle.sem_type == "dict" and "samples" in unwrap_dict(handle, 1).entries


def _samples(many: Sequence[object], preprocess_param: HHandle | None, classifier: Classifier, index: int) -> Source:
    samples = read_samples(many, index)
    if preprocess_param is not None:
        raise _refused(index, H_ERR_WIPT1, "samples, whose images are prepared already, with preprocess_param.")
    known = np.array([*classifier.params.class_ids, UNLABELLED], np.int64)
    ids = known[sample_labels(samples, classifier)]
    return Source(LabelledImages(SampleImages(samples, classifier), ids), Preprocessing())  # which leaves them alone


def _dataset_files(dataset: Dataset, classifier: Classifier, index: int) -> tuple[ImageFiles, Integers]:
    if not dataset.samples:
        raise _refused(index, H_ERR_WIPV1, "a dataset without samples.")
    check_classes(dataset, classifier)
    numbers = range(len(dataset.samples))
    names = [dataset.text(number, "image_file_name") for number in numbers]
    folder = Path(dataset.folder("image_dir"))
    ids = _class_ids([dataset.class_id(number) for number in numbers], len(names), classifier, index)
    return ImageFiles([folder / name for name in names], names, None), ids


def _preparation(param: object, classifier: Classifier) -> tuple[Preprocessing, ImageForm | None]:
    """Return how files are prepared, and to which form. Raises HOperatorError 7914 if the model takes another size."""
    if param is None:
        return preprocessing_of(classifier), None
    form, preprocessing = read_preprocess_param(param, 1)
    own = ImageForm.of(classifier)
    if replace(form, low=own.low, high=own.high) != own:
        found, needed = (f"{one.width}×{one.height}×{one.channels}" for one in (form, own))
        raise bad_value("preprocess_param", found, f"the model takes images of {needed} (width, height, channels)")
    return preprocessing, form


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
