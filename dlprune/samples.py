"""Samples (dictionaries with an image and perhaps a label) as batches of numbers, with every check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .classifier import Array, Classifier
from .dictionary import Dictionary, from_python_dict, unwrap_dict
from .errors import (
    H_ERR_DL_CLASS_IDS_INVALID,
    H_ERR_DL_INPUT_WRONG_BS,
    H_ERR_DL_INPUT_WRONG_TYPE,
    H_ERR_DL_INPUT_WRONG_VALUES,
    H_ERR_DL_INPUTS_MISSING,
    HOperatorError,
)
from .image import HObject
from .tuples import to_handles

IMAGE = "image"
LABEL = "image_label_id"
#: Images per run where the model leaves the batch size open and was not told a larger one.
_BATCH = 16


@dataclass(frozen=True)
class Batch:
    """Images float32 [N, …] in the model's layout, and labels int64 [N]: class index (not id), −1 without label."""

    images: Array
    labels: npt.NDArray[np.int64]


def read_samples(dlsample_batch: object, index: int) -> list[Dictionary]:
    """Return the dictionaries behind the sample handles of control parameter number `index`.

    Python dicts in the place of handles are taken as from_python_dict takes them (beyond HALCON).

    Raises HTupleConversionError, HOperatorError 1200 + index (no handle), 2404 or 2454 with the number of the sample.
    """
    if isinstance(dlsample_batch, Mapping):
        dlsample_batch = [dlsample_batch]
    if isinstance(dlsample_batch, Sequence) and not isinstance(dlsample_batch, str):
        dlsample_batch = [from_python_dict(one) if isinstance(one, Mapping) else one for one in dlsample_batch]
    samples: list[Dictionary] = []
    for handle in to_handles(dlsample_batch, "dlsample_batch", index):
        try:
            samples.append(unwrap_dict(handle, index))
        except HOperatorError as error:
            raise HOperatorError(error.error_code, f"Sample {len(samples)}: {error.extended_error_message}") from None
    return samples


def images_per_run(classifier: Classifier, number: int) -> int:
    """Return how many of a number of images go through the network at once: as many as the file says, or a few."""
    fixed = classifier.image.batch if classifier.image is not None else None
    return fixed or max(1, min(max(classifier.params.batch_size, _BATCH), number))


def read_batch(dlsample_batch: object, classifier: Classifier, index: int, length: int | None = None) -> Batch:
    """Return the samples of control parameter number `index` as one batch; see read_samples, images and labels.

    Raises HOperatorError 7784 if `length` is given and the number of samples differs.
    """
    samples = read_samples(dlsample_batch, index)
    if length is not None and len(samples) != length:
        raise HOperatorError(
            H_ERR_DL_INPUT_WRONG_BS,
            f"{len(samples)} samples were given; the model needs batches of exactly {length} ('batch_size').",
        )
    return Batch(images(samples, classifier), labels(samples, classifier))


def images(samples: Sequence[Dictionary], classifier: Classifier, first: int = 0) -> Array:
    """Return the images of the samples as float32 [N,C,H,W] or [N,H,W,C], whichever the model takes.

    Raises HOperatorError 7783 (no image), 7790 (no image object), 7791 (size, channels, pixel type, NaN or infinity);
    the message names the sample, counted from `first`.
    """
    batch: Array = np.empty(classifier.input_shape(len(samples)), np.float32)
    for i, sample in enumerate(samples):
        pixels = pixels_of(sample, first + i, classifier)
        batch[i] = pixels.transpose(2, 0, 1) if classifier.layout == "NCHW" else pixels
    return batch


def pixels_of(sample: Dictionary, number: int, classifier: Classifier) -> Array:
    """Return the checked image of one sample as H×W×C."""
    value = sample.entries.get(IMAGE)
    if value is None:
        known = ", ".join(repr(key) for key in sample.entries) or "no keys"
        raise HOperatorError(
            H_ERR_DL_INPUTS_MISSING,
            f"Sample {number} has no {IMAGE!r} (found: {known}); store the preprocessed image with set_dict_object.",
        )
    if not isinstance(value, HObject):
        raise HOperatorError(
            H_ERR_DL_INPUT_WRONG_TYPE,
            f"Sample {number}, {IMAGE!r}: found the tuple {list(value)[:5]!r}, expected an image (set_dict_object).",
        )
    pixels = value.array if value.array.ndim == 3 else value.array[:, :, np.newaxis]
    params, channels = classifier.params, classifier.channels
    expected = f"width {params.image_width}, height {params.image_height}, {channels} channels, float32"
    height, width, depth = pixels.shape
    found = f"width {width}, height {height}, {depth} channels, {pixels.dtype}"
    if (height, width, depth) != (params.image_height, params.image_width, channels) or pixels.dtype != np.float32:
        image = classifier.image
        if image is not None and None in (image.height, image.width):
            expected += " (the file leaves the size open: set 'image_dimensions' to work with another one)"
        raise HOperatorError(
            H_ERR_DL_INPUT_WRONG_VALUES,
            f"Sample {number}, {IMAGE!r}: found {found}; expected {expected}. Preprocess the image to that form.",
        )
    if not np.isfinite(pixels).all():
        row, column, channel = np.argwhere(~np.isfinite(pixels))[0]
        raise HOperatorError(
            H_ERR_DL_INPUT_WRONG_VALUES,
            f"Sample {number}, {IMAGE!r}: found {pixels[row, column, channel]} at row {row}, column {column}, channel "
            f"{channel}; expected finite numbers, usually {params.image_range_min:g} to {params.image_range_max:g}.",
        )
    return pixels


def labels(samples: Sequence[Dictionary], classifier: Classifier) -> npt.NDArray[np.int64]:
    """Return the class index of each sample as int64 [N]; all −1 if no sample has a label.

    Raises HOperatorError 7783 (only some have one), 7790 (no integer), 7791 (not exactly one), 7793 (unknown id).
    """
    result = np.full(len(samples), -1, np.int64)
    with_label = [LABEL in sample.entries for sample in samples]
    if not any(with_label):
        return result
    positions = {class_id: position for position, class_id in enumerate(classifier.params.class_ids)}
    for number, sample in enumerate(samples):
        if not with_label[number]:
            raise HOperatorError(
                H_ERR_DL_INPUTS_MISSING,
                f"Sample {number} has no {LABEL!r} but sample {with_label.index(True)} has one; give every sample of "
                "the batch a label, or none.",
            )
        result[number] = _label(sample, number, positions)
    return result


def _label(sample: Dictionary, number: int, positions: dict[int, int]) -> int:
    value = sample.entries[LABEL]
    what = f"Sample {number}, {LABEL!r}"
    if isinstance(value, HObject):
        raise HOperatorError(H_ERR_DL_INPUT_WRONG_TYPE, f"{what}: found an image, expected one integer class id.")
    if len(value) != 1:
        raise HOperatorError(
            H_ERR_DL_INPUT_WRONG_VALUES, f"{what}: found {len(value)} values, expected one integer class id."
        )
    (class_id,) = value
    if not isinstance(class_id, int):
        raise HOperatorError(H_ERR_DL_INPUT_WRONG_TYPE, f"{what}: found {class_id!r}, expected one integer class id.")
    if class_id not in positions:
        ids = list(positions)
        shown = f"{ids[:10]} and {len(ids) - 10} more" if len(ids) > 12 else f"{ids}"
        raise HOperatorError(
            H_ERR_DL_CLASS_IDS_INVALID, f"{what}: found {class_id}; the class ids of the model are {shown}."
        )
    return positions[class_id]
