"""The procedures that make samples of images and bring them into the form that a model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

import numpy as np

from ..dictionary import Dictionary, create_dict, from_python_dict, set_dict_object, unwrap_dict
from ..errors import (
    H_ERR_DICT_KEY,
    H_ERR_DL_INPUT_WRONG_TYPE,
    H_ERR_DL_INPUT_WRONG_VALUES,
    H_ERR_DL_INPUTS_MISSING,
    H_ERR_WIPV1,
    HOperatorError,
    HTupleConversionError,
)
from ..handle import HHandle
from ..image import HObject, as_object, himage_from_numpy_array
from ..model import unwrap_model
from ..parameters import bad_value, choice, count, number
from ..preprocessing import CHANNEL_ORDERS, FITS, ImageForm, Preprocessing, PreprocessingError, preprocessing_of
from ..samples import IMAGE, read_samples
from ..tuples import HTuple, TupleLike, to_int, to_number, to_str, to_tuple
from .settings import Check, numbers, read_settings, switch, tuple_of

_NORMALIZATIONS: Final = ("none", "first_channel", "all_channels", "constant_values")
_DOMAINS: Final = ("full_domain", "crop_domain", "keep_domain", "ignore_domain")
#: Means and deviations of 'constant_values' unless given: those of ImageNet's colour images, as in HALCON.
_MEANS: Final = (123.675, 116.28, 103.53)
_DEVIATIONS: Final = (58.395, 57.12, 57.375)
_RANGE: Final = (-127.0, 128.0)

#: Generic parameters: HALCON's first, then ours, which are fields of Preprocessing.
_CHECKS: Final[dict[str, Check]] = {
    "mean_values_normalization": numbers,
    "deviation_values_normalization": numbers,
    "check_params": lambda name, values: int(switch(name, values)),
    "fit": choice(*FITS),
    "resize": lambda name, values: count(name, values, 0),
    "pad_value": number(0),
    "channel_order": choice(*CHANNEL_ORDERS),
    "mean": numbers,
    "std": numbers,
    "white": number(0),
}
_OURS: Final = tuple(field.name for field in fields(Preprocessing) if field.name in _CHECKS)


def gen_dl_samples_from_images(images: HObject | Sequence[HObject]) -> list[HHandle]:
    """Make one sample of each image, to be preprocessed and applied.

    Parameters: `images` (HObject or NumPy array, or a sequence of them, such as read_image returns for several files).
    Returns a list of 'dict' handles with 'image'. Raises HInteropError if something is no image.
    Source: HALCON procedure gen_dl_samples_from_images.

    Example:
        >>> import dlprune as ha
        >>> import numpy as np
        >>> samples = ha.gen_dl_samples_from_images([np.zeros((8, 8), np.uint8)] * 2)
        >>> ha.get_dict_object(samples[1], "image")
        HObject(image 8×8, 1 channel, uint8)
    """
    found = [as_object(one) for one in (images if isinstance(images, (list, tuple)) else [images])]
    samples = []
    for image in found:
        samples.append(create_dict())
        set_dict_object(image, samples[-1], IMAGE)
    return samples


def create_dl_preprocess_param(
    dlmodel_type: str,
    image_width: int,
    image_height: int,
    image_num_channels: int,
    image_range_min: TupleLike,
    image_range_max: TupleLike,
    normalization_type: str,
    domain_handling: str,
    ignore_class_ids: TupleLike,
    set_background_id: TupleLike,
    class_ids_background: TupleLike,
    gen_param: HHandle | Sequence[HHandle],
) -> HHandle:
    """Collect the parameters of preprocess_dl_samples in a dictionary.

    HALCON's documentation says little of the numbers; this is what is done here. Images get the size (bilinear,
    smoothed where they shrink), are normalised, and get the channels (colour to grey by 0.299, 0.587, 0.114; grey is
    repeated). The normalisation, by 'normalization_type':
    'none': black … white become image_range_min … image_range_max; white is 255 for 8 bits, 65535 for 16 (HALCON scales
    only 'byte' images); floating-point images count as preprocessed.
    'first_channel', 'all_channels': instead of black and white, the darkest and lightest value of the first channel, or
    of each channel by itself; an image of one value becomes image_range_min.
    'constant_values': (grey value − mean) ÷ deviation per channel, grey values 0…255.

    Parameters: `dlmodel_type` ('classification'); `image_width`, `image_height`, `image_num_channels` (int ≥ 1);
    `image_range_min`, `image_range_max` (numbers, or [] for −127 and 128); `normalization_type`; `domain_handling`
    ('full_domain', 'crop_domain', 'keep_domain', 'ignore_domain': all the same, images have no smaller domain here);
    `ignore_class_ids`, `set_background_id`, `class_ids_background` (for segmentation: give []); `gen_param` ([] or
    dict: 'mean_values_normalization', 'deviation_values_normalization' (numbers of 'constant_values', one or one per
    channel; default those of ImageNet, for one channel their mean), 'check_params' (changes nothing);
    beyond HALCON 'fit' ('stretch', 'crop', 'pad', 'pad-end', 'line'), 'resize', 'pad_value', 'channel_order' ('rgb',
    'bgr'), 'mean', 'std', 'white', as explained in dlprune.preprocessing.Preprocessing).
    Returns a 'dict' handle with an entry per parameter; entries may be changed afterwards and are checked again at use.
    Raises HOperatorError 1200/1300/1400 + number of the parameter, 7911/7914 (generic parameter).
    Source: HALCON procedure create_dl_preprocess_param.

    Example:
        >>> import dlprune as ha
        >>> param = ha.create_dl_preprocess_param(
        ...     "classification", 16, 16, 1, [], [], "none", "full_domain", [], [], [], []
        ... )
        >>> ha.get_dict_tuple(param, "image_range_min")
        [-127.0]
    """
    low, high = (
        to_number(value, name, index) if to_tuple(value, name) else default
        for value, name, index, default in (
            (image_range_min, "image_range_min", 5, _RANGE[0]),
            (image_range_max, "image_range_max", 6, _RANGE[1]),
        )
    )
    _refuse_segmentation(
        9,
        ignore_class_ids=ignore_class_ids,
        set_background_id=set_background_id,
        class_ids_background=class_ids_background,
    )
    entries: dict[str, Any] = {
        "model_type": _one_of(dlmodel_type, "dlmodel_type", 1, ("classification",)),
        "image_width": _size(image_width, "image_width", 2),
        "image_height": _size(image_height, "image_height", 3),
        "image_num_channels": _size(image_num_channels, "image_num_channels", 4),
        "image_range_min": float(low),
        "image_range_max": float(high),
        "normalization_type": _one_of(normalization_type, "normalization_type", 7, _NORMALIZATIONS),
        "domain_handling": _one_of(domain_handling, "domain_handling", 8, _DOMAINS),
        "ignore_class_ids": [],
        "set_background_id": [],
        "class_ids_background": [],
        **read_settings(gen_param, 12, _CHECKS),
    }
    handle = from_python_dict(entries)
    read_preprocess_param(handle, 12)
    return handle


def create_dl_preprocess_param_from_model(
    dlmodel_handle: HHandle,
    normalization_type: str,
    domain_handling: str,
    set_background_id: TupleLike,
    class_ids_background: TupleLike,
    gen_param: HHandle | Sequence[HHandle],
) -> HHandle:
    """Collect the parameters of preprocess_dl_samples that fit a model; see create_dl_preprocess_param.

    Size, channels and range are the model's. What the command line has stored with the model about preprocessing (how
    images are fitted, mean and deviation, order of the channels) is taken over with 'normalization_type' 'none', as far
    as `gen_param` says nothing else (beyond HALCON).

    Parameters: `dlmodel_handle` ('dl_model' with an image input), the others as in create_dl_preprocess_param.
    Returns a 'dict' handle. Raises HOperatorError 7912 (no image input), 7788 (image size open), and the codes of
    create_dl_preprocess_param with the numbers of this procedure's parameters.
    Source: HALCON procedure create_dl_preprocess_param_from_model.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> param = ha.create_dl_preprocess_param_from_model(model, "none", "full_domain", [], [], [])
        >>> ha.get_dict_tuple(param, "image_width")
        [16]
    """
    classifier = unwrap_model(dlmodel_handle, 1)
    form = ImageForm.of(classifier)
    name = _one_of(normalization_type, "normalization_type", 2, _NORMALIZATIONS)
    given = read_settings(gen_param, 6, _CHECKS)
    stored: dict[str, Any] = {}
    if name == "none":
        stored = {key: value for key, value in asdict(preprocessing_of(classifier)).items() if key in _OURS}
        stored = {key: value for key, value in stored.items() if value != getattr(Preprocessing(), key)}
    domain = _one_of(domain_handling, "domain_handling", 3, _DOMAINS)
    _refuse_segmentation(4, set_background_id=set_background_id, class_ids_background=class_ids_background)
    return create_dl_preprocess_param(
        "classification",
        form.width,
        form.height,
        form.channels,
        form.low,
        form.high,
        name,
        domain,
        [],
        [],
        [],
        from_python_dict({**stored, **given}),
    )


def preprocess_dl_samples(dlsample_batch: Sequence[HHandle], dlpreprocess_param: HHandle) -> None:
    """Bring the images of samples into the form that a model takes; the samples are changed in place.

    Parameters: `dlsample_batch` ('dict' handles with 'image'; Python dicts cannot be changed through a call, make
    handles of them with from_python_dict); `dlpreprocess_param` ('dict', see create_dl_preprocess_param).
    Raises HOperatorError 7783/7790/7791 (image missing, no image, not convertible; the sample is named, and none has
    changed), 2894/7914 (an entry of the parameters is missing or impossible), 2404/2454 (handles).
    Source: HALCON procedure preprocess_dl_samples.

    Example:
        >>> import dlprune as ha
        >>> import numpy as np
        >>> samples = ha.gen_dl_samples_from_images(np.full((20, 20, 3), 255, np.uint8))
        >>> size = (8, 8, 1)
        >>> param = ha.create_dl_preprocess_param(
        ...     "classification", *size, -127, 128, "none", "full_domain", [], [], [], []
        ... )
        >>> ha.preprocess_dl_samples(samples, param)
        >>> image = ha.get_dict_object(samples[0], "image")
        >>> image, float(ha.himage_as_numpy_array(image)[0, 0])
        (HObject(image 8×8, 1 channel, float32), 128.0)
    """
    batch = [dlsample_batch] if isinstance(dlsample_batch, Mapping) else dlsample_batch
    if isinstance(batch, (list, tuple)) and any(isinstance(one, Mapping) for one in batch):
        raise HTupleConversionError(
            "dlsample_batch holds a Python dict; the samples are changed in place, so make handles of them with "
            "from_python_dict."
        )
    samples = read_samples(dlsample_batch, 1)
    form, preprocessing = read_preprocess_param(dlpreprocess_param, 2)
    done = [_preprocessed(sample, i, form, preprocessing) for i, sample in enumerate(samples)]
    for sample, image in zip(samples, done, strict=True):
        sample.entries[IMAGE] = image


def _preprocessed(sample: Dictionary, number: int, form: ImageForm, preprocessing: Preprocessing) -> HObject:
    image = sample.entries.get(IMAGE)
    if image is None:
        raise HOperatorError(
            H_ERR_DL_INPUTS_MISSING, f"Sample {number} has no {IMAGE!r}; store one with set_dict_object."
        )
    if not isinstance(image, HObject):
        raise HOperatorError(H_ERR_DL_INPUT_WRONG_TYPE, f"Sample {number}, {IMAGE!r}: a tuple, no image.")
    try:
        return himage_from_numpy_array(np.asarray(preprocessing.bring(image.array, form), np.float32))
    except PreprocessingError as error:
        raise HOperatorError(H_ERR_DL_INPUT_WRONG_VALUES, f"Sample {number}, {IMAGE!r}: {error}") from None


def read_preprocess_param(handle: object, index: int) -> tuple[ImageForm, Preprocessing]:
    """Return what a dictionary of create_dl_preprocess_param says.

    Raises HOperatorError 2894 (entry missing), 7914, 1203, 1403 (impossible entry), 2404/2454 (handle).
    """
    entries = unwrap_dict(handle, index).entries

    def read(name: str, check: Check) -> Any:
        if name not in entries:
            raise HOperatorError(
                H_ERR_DICT_KEY, f"The preprocessing parameters have no {name!r}; see create_dl_preprocess_param."
            )
        return check(name, tuple_of(name, entries[name]))

    choice("classification")("model_type", tuple_of("model_type", entries.get("model_type", ())))
    width, height, channels = (read(f"image_{name}", count) for name in ("width", "height", "num_channels"))
    low, high = (read(f"image_range_{name}", number()) for name in ("min", "max"))
    if not low < high:
        raise bad_value("image_range_min", low, f"it must be below 'image_range_max', which is {high:g}")
    kind = read("normalization_type", choice(*_NORMALIZATIONS))
    ours = {name: read(name, _CHECKS[name]) for name in _OURS if name in entries}
    if kind == "constant_values":
        low, high = 0.0, 255.0
        ours |= {
            "mean": _per_channel("mean_values_normalization", entries, _MEANS, channels),
            "std": _per_channel("deviation_values_normalization", entries, _DEVIATIONS, channels),
        }
    elif kind != "none":
        ours["stretch"] = kind.replace("_", "-")
    try:
        preprocessing = Preprocessing(**ours)
        preprocessing.check_channels(channels)
    except PreprocessingError as error:
        raise bad_value("preprocessing", ours, str(error).rstrip(".")) from None
    return ImageForm(height, width, channels, low, high), preprocessing


def _per_channel(
    name: str, entries: Mapping[str | int, HTuple | HObject], default: tuple[float, ...], channels: int
) -> tuple[float, ...]:
    if name in entries:
        return numbers(name, tuple_of(name, entries[name]))
    if channels == 3:
        return default
    if channels == 1:
        return (sum(default) / len(default),)
    raise HOperatorError(
        H_ERR_DICT_KEY, f"'constant_values' needs {name!r} for {channels} channels (known for 1 and 3 only)."
    )


def _refuse_segmentation(first_index: int, **parameters: TupleLike) -> None:
    """Raise HOperatorError 1300 + number of the parameter if one has values."""
    for index, (name, values) in enumerate(parameters.items(), first_index):
        if to_tuple(values, name):
            raise HOperatorError(H_ERR_WIPV1 + index - 1, f"{name} is for segmentation models; give [].")


def _one_of(value: object, name: str, index: int, possible: Sequence[str]) -> str:
    text = to_str(value, name, index)
    if text not in possible:
        raise HOperatorError(
            H_ERR_WIPV1 + index - 1, f"{name} is {text!r}; possible are {', '.join(repr(one) for one in possible)}."
        )
    return text


def _size(value: object, name: str, index: int) -> int:
    found = to_int(value, name, index)
    if found < 1:
        raise HOperatorError(H_ERR_WIPV1 + index - 1, f"{name} is {found}; at least 1 is needed.")
    return found
