"""What every command begins with: a model and images, as the options ask for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

import numpy as np
import typer

import dlprune as ha
from dlprune.classifier import Classifier
from dlprune.evaluation import LabelledImages
from dlprune.imagefiles import match_classes, open_images
from dlprune.model import unwrap_model
from dlprune.preprocessing import Preprocessing, preprocessing_of, store_preprocessing

from .options import ImageOptions, ModelOptions
from .output import Output

_BATCH_SIZE: Final = 16


def open_model(path: Path, options: ModelOptions, batch_size: int | None = None) -> tuple[ha.HHandle, Classifier]:
    """Read a model and set what the options say; a batch that the file leaves open gets `batch_size` images.

    Returns the model, and what is behind its handle.
    Raises HError for what the operators refuse, typer.BadParameter for options that cannot be understood.
    """
    model = ha.read_dl_model(str(path))
    if options.size:
        width, height = _size(options.size)
        ha.set_dl_model_param(model, "image_width", width)
        ha.set_dl_model_param(model, "image_height", height)
    if options.class_output:
        ha.set_dl_model_param(model, "class_output", options.class_output)
    if options.class_names:
        ha.set_dl_model_param(model, "class_names", [name.strip() for name in options.class_names.split(",")])
    classifier = unwrap_model(model, 1)
    image = classifier.image
    if batch_size is not None or (image is not None and image.batch is None):
        ha.set_dl_model_param(model, "batch_size", batch_size or _BATCH_SIZE)
    return model, classifier


def set_preprocessing(classifier: Classifier, options: ImageOptions) -> Preprocessing:
    """Return the preprocessing that the model's metadata and the options tell, and store it with the model."""
    if options.range is not None:
        low, high = options.range
        if not low < high:
            raise typer.BadParameter(f"{low:g} is not below {high:g}.", param_hint="--range")
        classifier.set("image_range_min", (low,))
        classifier.set("image_range_max", (high,))
    given: dict[str, Any] = {
        "fit": options.fit,
        "resize": options.resize,
        "pad_value": options.pad_value,
        "channel_order": options.channel_order,
        "white": options.white,
        "mean": _numbers(options.mean, "--mean") or None,
        "std": _numbers(options.std, "--std") or None,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    preprocessing = dataclasses.replace(preprocessing_of(classifier), **changes)
    preprocessing.check(classifier)
    store_preprocessing(classifier, preprocessing)
    return preprocessing


def open_data(path: Path, classifier: Classifier, skip_bad: bool, output: Output) -> LabelledImages:
    """Find the images of an --images option and their classes, and tell how the classes were found."""
    images = open_images(path)
    params = classifier.params
    match = match_classes(images.classes, params.class_ids, params.class_names, len(images.names))
    output.note(f"{len(images.names)} images in {path}; {match.how}.")
    return LabelledImages(images, match.ids, skip_bad)


def tell_skipped(data: LabelledImages, output: Output) -> None:
    """Say which images were left out."""
    if data.skipped:
        names = [f"  {one.name}: {one.reason}" for one in data.skipped.values()]
        shown = names[:20] + ([f"  … and {len(names) - 20} more"] if len(names) > 20 else [])
        output.note(f"Skipped {len(names)} images that cannot be read:\n" + "\n".join(shown))


def labels_known(data: LabelledImages) -> bool:
    """Tell whether the images have classes."""
    return bool(np.all(data.class_ids >= 0))


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.lower().partition("x")
    if not (width.isdigit() and height.isdigit()):
        raise typer.BadParameter(f"{text!r} is no size such as 192x48.", param_hint="--size")
    return int(width), int(height)


def _numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        return tuple(float(one) for one in text.split(",")) if text else ()
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no list of numbers such as 0.485,0.456,0.406.", param_hint=option
        ) from None
