"""Random changes of training images: the same for the same seed, epoch and image, whatever the order of batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .buffers import Array


@dataclass(frozen=True)
class Augmentation:
    """What may be changed; all off by default.

    Attributes:
        flip: mirror left and right, with probability 1/2.
        shift: move by up to this share of width and height, 0…1; border pixels are repeated.
        crop: cut off up to this share of width and height and enlarge the rest (bilinear), 0…1.
        brightness: add a number of up to ± this share of `value_range`.
        value_range: distance of black and white in the model's images.
        share: of the images that are changed, 0…1.
    """

    flip: bool = False
    shift: float = 0.0
    crop: float = 0.0
    brightness: float = 0.0
    value_range: float = 255.0
    share: float = 1.0

    @property
    def active(self) -> bool:
        """Whether anything is changed at all."""
        return self.share > 0 and (self.flip or self.shift > 0 or self.crop > 0 or self.brightness > 0)

    def apply(self, images: Array, layout: str, seed: int, epoch: int, numbers: Sequence[int]) -> Array:
        """Return changed copies of images [N, …].

        Args:
            images: float32 in `layout` ('NCHW' or 'NHWC').
            layout: where the axes of height and width are.
            seed: of the run.
            epoch: number of the epoch.
            numbers: number of each image in the data set.
        """
        if not self.active:
            return images
        result = np.empty_like(images)
        for place, (image, number) in enumerate(zip(images, numbers, strict=True)):
            rng = np.random.default_rng([seed, epoch, number])
            plane = image if layout == "NHWC" else image.transpose(1, 2, 0)
            changed = self._change(plane, rng)
            result[place] = changed if layout == "NHWC" else changed.transpose(2, 0, 1)
        return result

    def _change(self, image: Array, rng: np.random.Generator) -> Array:
        """Return a changed image H×W×C."""
        mirrored, down, right, kept, top, left, light, chosen = rng.random(8)
        if chosen >= self.share:
            return image
        height, width = image.shape[:2]
        if self.flip and mirrored < 0.5:
            image = image[:, ::-1]
        rows, columns = np.arange(height, dtype=np.float64), np.arange(width, dtype=np.float64)
        if self.crop:
            scale = 1.0 - self.crop * kept
            # Pixel centres: a crop of `scale` × size pixels, placed anywhere, is spread over the whole image.
            rows = (rows + 0.5) * scale - 0.5 + top * height * (1.0 - scale)
            columns = (columns + 0.5) * scale - 0.5 + left * width * (1.0 - scale)
        if self.shift:
            rows = rows + np.rint((2.0 * down - 1.0) * self.shift * height)
            columns = columns + np.rint((2.0 * right - 1.0) * self.shift * width)
        if self.crop or self.shift:
            image = _sample(_sample(image, rows, 0), columns, 1)
        if self.brightness:
            image = image + np.float32((2.0 * light - 1.0) * self.brightness * self.value_range)
        return image


def _sample(image: Array, positions: np.ndarray, axis: int) -> Array:
    """Interpolate along an axis; beyond the border the border goes on."""
    last = image.shape[axis] - 1
    positions = np.clip(positions, 0, last)
    low = np.floor(positions).astype(np.intp)
    share = (positions - low).astype(np.float32)
    below: Array = image.take(low, axis=axis)
    if not share.any():
        return below
    above = image.take(np.minimum(low + 1, last), axis=axis)
    share = share.reshape([-1 if a == axis else 1 for a in range(image.ndim)])
    mixed: Array = below + (above - below) * share
    return mixed
