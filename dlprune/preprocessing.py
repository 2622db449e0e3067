"""From the pixels of an image file to the numbers that a classifier takes."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from .classifier import Array, Classifier
from .errors import HError
from .imagefiles import pillow_image

Pixels: TypeAlias = npt.NDArray[Any]
Fit: TypeAlias = Literal["stretch", "crop", "pad", "pad-end", "line"]
ChannelOrder: TypeAlias = Literal["rgb", "bgr"]
Stretch: TypeAlias = Literal["none", "first-channel", "all-channels"]

FITS: Final[tuple[Fit, ...]] = get_args(Fit)
CHANNEL_ORDERS: Final[tuple[ChannelOrder, ...]] = get_args(ChannelOrder)
STRETCHES: Final[tuple[Stretch, ...]] = get_args(Stretch)
#: Entry of the model parameter 'meta_data' that keeps the preprocessing with the model.
META_DATA_KEY: Final = "preprocessing"
# Grey from red, green and blue (ITU-R 601), as cameras and Pillow compute it.
_LUMA: Final = np.array([0.299, 0.587, 0.114], np.float32)


class PreprocessingError(HError):
    """An image cannot be brought into the form that the classifier needs."""


@dataclass(frozen=True)
class ImageForm:
    """The form that an image is brought to: its size in pixels, and the numbers that black and white become."""

    height: int
    width: int
    channels: int
    low: float
    high: float

    @classmethod
    def of(cls, classifier: Classifier) -> ImageForm:
        """Return the form that a classifier takes. Raises HOperatorError 7788 or 7912."""
        classifier.input_shape()  # raises where the size is still open
        params = classifier.params
        return cls(
            params.image_height, params.image_width, classifier.channels, params.image_range_min, params.image_range_max
        )


@dataclass(frozen=True)
class Preprocessing:
    """How pixels become the input of a classifier.

    Grey values 0…white are mapped linearly to the model parameters image_range_min…image_range_max; then `mean` is
    subtracted and the result divided by `std`, per channel in the order that the model sees.

    Attributes:
        fit: how the image gets the size of the input: 'stretch' (scaled, whatever its proportions), 'crop' (scaled,
            then cut around its centre), 'pad' (scaled to fit in, centred), 'pad-end' (the same, at the upper left),
            'line' (scaled to the full height, squeezed where that is too wide, padded on the right: for lines of text).
        resize: with 'crop', what the shorter side is scaled to first, in pixels; 0 = just enough.
        pad_value: grey value 0…white around a padded image.
        channel_order: order of the colour channels that the model was trained with.
        mean, std: one number, or one per channel; empty = not used.
        white: grey value that becomes image_range_max; 0 = by pixel type: 255 or 65535, and floating-point pixels count
            as preprocessed already.
        stretch: 'first-channel' or 'all-channels': instead of 0 and white, the darkest and the lightest value of the
            first channel (or of each channel) become image_range_min and image_range_max; 'none' = not.
    """

    fit: Fit = "stretch"
    resize: int = 0
    pad_value: float = 0.0
    channel_order: ChannelOrder = "rgb"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    white: float = 0.0
    stretch: Stretch = "none"

    def __post_init__(self) -> None:
        if self.fit not in FITS:
            raise PreprocessingError(f"fit {self.fit!r} is not known; possible are {', '.join(FITS)}.")
        if self.channel_order not in CHANNEL_ORDERS:
            raise PreprocessingError(
                f"The channel order {self.channel_order!r} is not known; possible are {', '.join(CHANNEL_ORDERS)}."
            )
        if self.stretch not in STRETCHES:
            raise PreprocessingError(f"stretch {self.stretch!r} is not known; possible are {', '.join(STRETCHES)}.")
        if any(value <= 0 for value in self.std):
            raise PreprocessingError(f"std {list(self.std)} must be above 0.")
        if self.resize < 0 or self.white < 0:
            raise PreprocessingError("Neither resize nor white can be negative.")

    def check(self, classifier: Classifier) -> None:
        """Raise PreprocessingError if mean or std do not fit the channels of a classifier."""
        self.check_channels(classifier.channels)

    def check_channels(self, channels: int) -> None:
        """Raise PreprocessingError if mean or std do not fit a number of channels."""
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (0, 1, channels):
                raise PreprocessingError(
                    f"{name} has {len(values)} values; 1 or, one per channel, {channels} are needed."
                )

    def apply(self, pixels: Pixels, classifier: Classifier) -> Array:
        """Return an image (H×W or H×W×C; integers or floats) as float32 [height, width, channels] for a classifier.

        Raises PreprocessingError (channels that cannot be converted, pixel type), HOperatorError 7788 or 7912.
        """
        return self.bring(pixels, ImageForm.of(classifier))

    def bring(self, pixels: Pixels, form: ImageForm) -> Array:
        """Return an image as float32 [height, width, channels] in a form. Raises PreprocessingError; see apply."""
        self.check_channels(form.channels)
        image = pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels
        if image.ndim != 3 or 0 in image.shape:
            raise PreprocessingError(f"An image of height × width (× channels) is needed, not {pixels.shape}.")
        if image.dtype == np.bool_:
            image = image * np.uint8(255)
        white = self.white or _white(image.dtype)
        image = self._resized(image, (form.height, form.width), white)
        if self.stretch != "none":
            image, white = _stretched(image, self.stretch), 1.0
        image = _with_channels(image, form.channels)
        if self.channel_order == "bgr" and form.channels == 3:
            image = image[:, :, ::-1]
        result: Array = image.astype(np.float32)
        if white:
            result = result * np.float32((form.high - form.low) / white) + np.float32(form.low)
        if self.mean:
            np.subtract(result, np.array(self.mean, np.float32), out=result)
        if self.std:
            np.divide(result, np.array(self.std, np.float32), out=result)
        return np.ascontiguousarray(result)

    def _resized(self, image: Pixels, size: tuple[int, int], white: float) -> Pixels:
        height, width = image.shape[:2]
        if self.fit == "stretch":
            return resize(image, size)
        if self.fit == "crop":
            factor = max(size[0] / height, size[1] / width)
            if self.resize:
                factor = max(factor, self.resize / min(height, width))
            scaled = resize(image, (max(round(height * factor), size[0]), max(round(width * factor), size[1])))
            top, left = (round((scaled.shape[axis] - size[axis]) / 2) for axis in (0, 1))
            return scaled[top : top + size[0], left : left + size[1]]
        factor = min(size[0] / height, size[1] / width)
        inner = (min(max(round(height * factor), 1), size[0]), min(max(round(width * factor), 1), size[1]))
        if self.fit == "line":
            inner = (size[0], min(-(-size[0] * width // height), size[1]))
        top, left = ((size[axis] - inner[axis]) // 2 if self.fit == "pad" else 0 for axis in (0, 1))
        # A pad value between two grey levels is kept, so that 127.5 becomes exactly the middle of the range.
        dtype = image.dtype if float(self.pad_value).is_integer() else np.float32
        padded = np.full((*size, image.shape[2]), self.pad_value if white else 0, dtype)
        padded[top : top + inner[0], left : left + inner[1]] = resize(image, inner)
        return padded

    def entries(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults."""
        default = Preprocessing()
        return {name: value for name, value in dataclasses.asdict(self).items() if value != getattr(default, name)}

    def to_json(self) -> str:
        """Return the settings that differ from the defaults as JSON, for the model's meta data."""
        return json.dumps(self.entries())


def preprocessing_of(classifier: Classifier) -> Preprocessing:
    """Return the preprocessing stored in a model's meta data, or the default.

    Raises PreprocessingError if the entry is damaged.
    """
    stored = classifier.params.meta_data.get(META_DATA_KEY)
    if stored is None:
        return Preprocessing()
    try:
        values: dict[str, Any] = json.loads(stored)
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return Preprocessing(**values)
    except (ValueError, TypeError, AttributeError) as error:
        raise PreprocessingError(
            f"The entry {META_DATA_KEY!r} in the meta data of the model is damaged ({error}): {stored[:200]!r}."
        ) from None


def store_preprocessing(classifier: Classifier, preprocessing: Preprocessing) -> None:
    """Keep the preprocessing in a model's meta data, where write_dl_model puts it into the file."""
    if preprocessing == Preprocessing():
        classifier.params.meta_data.pop(META_DATA_KEY, None)
    else:
        classifier.params.meta_data[META_DATA_KEY] = preprocessing.to_json()


def _white(dtype: np.dtype[Any]) -> float:
    if dtype.kind == "f":
        return 0.0
    if dtype.kind not in "iu":
        raise PreprocessingError(f"Pixels of type {dtype} cannot be used; integers and floats can.")
    return 255.0 if dtype.itemsize == 1 else 65535.0


def _stretched(image: Pixels, stretch: Stretch) -> Array:
    """Return an image whose darkest value is 0 and whose lightest is 1; one of a single value becomes 0."""
    values: Array = image.astype(np.float32)
    decisive = values[:, :, :1] if stretch == "first-channel" else values
    dark = decisive.min(axis=(0, 1))
    span = decisive.max(axis=(0, 1)) - dark
    result: Array = (values - dark) / np.where(span > 0, span, np.float32(1))
    return result


def _with_channels(image: Pixels, channels: int) -> Pixels:
    """Turn grey into colour or colour into grey; an alpha channel is dropped."""
    found = image.shape[2]
    if found == channels:
        return image
    if found in (2, 4):  # grey + alpha, colour + alpha
        return _with_channels(image[:, :, : found - 1], channels)
    if found == 1:
        return np.repeat(image, channels, axis=2)
    if found == 3 and channels == 1:
        return (image.astype(np.float32) @ _LUMA)[:, :, np.newaxis]
    raise PreprocessingError(f"An image with {found} channels cannot become one with {channels}.")


def resize(image: Pixels, size: tuple[int, int]) -> Pixels:
    """Scale an image [H, W, C] to (height, width), bilinear and smoothed where it shrinks.

    8-bit pixels stay 8-bit (as in most training programs), others become float32.
    """
    if image.shape[:2] == size:
        return image
    pillow = pillow_image("Scaling images")  # only where sizes differ
    target = (size[1], size[0])
    planes = [p if p.dtype == np.uint8 else p.astype(np.float32) for p in np.moveaxis(image, 2, 0)]
    scaled = [np.asarray(pillow.fromarray(p).resize(target, pillow.Resampling.BILINEAR)) for p in planes]
    return np.stack(scaled, axis=2)
