"""What every command begins with: a model and images, as the options ask for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import typer

import dlprune as ha

from ..classifier import Classifier
from ..evaluation import LabelledImages
from ..imagefiles import ImagesError, match_classes, open_images, stratified_part
from ..model import unwrap_model
from ..preprocessing import Preprocessing, preprocessing_of, store_preprocessing
from .options import ImageOptions, ModelOptions, WorkOptions
from .output import Output

_BATCH_SIZE: Final = 16


@dataclass(frozen=True)
class Work:
    """A model and its images.

    Attributes:
        file: where the model came from.
        model: its handle.
        preprocessing: from pixels to the model's numbers.
        data: images, of which `indices` (ascending) are worked with.
        test: images, of which `test_indices` (ascending) show the accuracy; often the same as `data`.
    """

    file: Path
    model: ha.HHandle
    preprocessing: Preprocessing
    data: LabelledImages
    indices: list[int]
    test: LabelledImages
    test_indices: list[int]

    @property
    def classifier(self) -> Classifier:
        """What is behind the handle."""
        return unwrap_model(self.model, 1)

    @property
    def skipped(self) -> dict[str, str]:
        """Images that were left out so far, and why."""
        return {one.name: one.reason for one in [*self.data.skipped.values(), *self.test.skipped.values()]}

    def tell_skipped(self, output: Output) -> None:
        """Say which images were left out."""
        tell_skipped(self.data, output)
        if self.test is not self.data:
            tell_skipped(self.test, output)


def open_work(
    command: str,
    model: Path,
    images: Path,
    options: WorkOptions,
    output: Output,
) -> Work:
    """Read a model, find its images and hold some of them out.

    Raises HError for what the operators refuse, ImagesError, typer.BadParameter.
    """
    handle, classifier = open_model(model, options, options.batch_size)
    classifier.require_classification(command)
    tell_assumed_size(classifier, output)
    preprocessing = set_preprocessing(classifier, options)
    data = test = open_data(images, classifier, options.skip_bad, output)
    share, seed = options.holdout / 100, options.seed
    if options.test_images is not None:
        test, share = open_data(options.test_images, classifier, options.skip_bad, output), 0.0
    held_out = stratified_part(data.class_ids, share, seed)
    chosen, most = ~held_out, options.max_images
    if most is not None and most < chosen.sum():
        chosen[chosen] = stratified_part(data.class_ids[chosen], most / chosen.sum(), seed + 1)
    if not chosen.any():
        raise ImagesError("No images are left to work with; give more images or a smaller --holdout.")
    test_indices = held_out.nonzero()[0].tolist() if test is data else list(range(len(test)))
    return Work(model, handle, preprocessing, data, chosen.nonzero()[0].tolist(), test, test_indices)


def require_place(path: Path | None, option: str, *taken: Path | None) -> None:
    """Raise typer.BadParameter unless a file can be written there without replacing one of those `taken`."""
    if path is None:
        return
    if any(one is not None and path.resolve() == one.resolve() for one in taken):
        raise typer.BadParameter(f"{str(path)!r} itself would be replaced; give another name.", param_hint=option)
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"There is no folder {str(path.parent)!r}.", param_hint=option)
    if path.is_dir():
        raise typer.BadParameter(f"{str(path)!r} is a folder; give the name of a file.", param_hint=option)


def require_state(path: Path | None) -> None:
    """Raise typer.BadParameter if there is nothing to go on from."""
    if path is not None and not path.exists():
        raise typer.BadParameter(
            f"There is no {str(path)!r}. An interrupted run names its state in its last line; without one leave the "
            "option out.",
            param_hint="--resume",
        )


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


def tell_assumed_size(classifier: Classifier, output: Output) -> None:
    """Say what image size is worked with where neither the file nor an option tells one."""
    if classifier.size_assumed:
        size = f"{classifier.params.image_width}x{classifier.params.image_height}"
        output.note(
            f"The file leaves the image size open; {size} is assumed, and multiply-accumulates hold for it. "
            "--size WIDTHxHEIGHT sets another one."
        )


def adopt_settings(classifier: Classifier, other: Classifier) -> None:
    """Give a model whose file tells nothing of its images the size, grey-value range and preparation of another one."""
    if classifier.size_assumed:
        classifier.set("image_width", (other.params.image_width,))
        classifier.set("image_height", (other.params.image_height,))
    classifier.set("image_range_min", (other.params.image_range_min,))
    classifier.set("image_range_max", (other.params.image_range_max,))
    store_preprocessing(classifier, preprocessing_of(other))


def set_preprocessing(classifier: Classifier, options: ImageOptions) -> Preprocessing:
    """Return the preprocessing that the model's metadata and the options tell, and store it with the model."""
    if options.range is not None:
        low, high = options.range
        if not low < high:
            raise typer.BadParameter(f"{low:g} is not below {high:g}.", param_hint="--range")
        classifier.set("image_range_min", (low,))
        classifier.set("image_range_max", (high,))
    if options.white is not None and not options.white > 0:
        raise typer.BadParameter(f"The grey value of white is above 0, not {options.white:g}.", param_hint="--white")
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
