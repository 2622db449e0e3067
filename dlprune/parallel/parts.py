"""Labelled images cut into parts that travel to workers: as file names where there are files, else as pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ..evaluation import LabelledImages
from ..imagefiles import ClassLabel, ImageFiles, Images, Pixels, Unreadable

#: Images per part, at least; it has whole batches.
_IMAGES: Final = 64


@dataclass(frozen=True)
class Part:
    """Some images of a larger set, and where they stand in it."""

    indices: Sequence[int]
    data: LabelledImages


@dataclass(frozen=True)
class PixelImages:
    """Images in memory, each of its own size."""

    pixels: Sequence[Pixels | Unreadable]
    names: Sequence[str]
    classes: Sequence[ClassLabel] | None = None

    def read(self, indices: Sequence[int]) -> Iterator[Pixels | Unreadable]:
        """See Images.read."""
        return (self.pixels[index] for index in indices)


def parts(data: LabelledImages, indices: Sequence[int], batch: int) -> Iterator[Part]:
    """Cut the images of ascending `indices` into parts of whole batches; pixels are read when a part is taken."""
    size = -(-_IMAGES // batch) * batch
    images, names = data.images, data.images.names
    # An archive can only be read from front to back, by one process: by the one that cuts.
    stream = iter(()) if isinstance(images, ImageFiles) else images.read(indices)
    for first in range(0, len(indices), size):
        some = indices[first : first + size]
        called = [names[index] for index in some]
        cut: Images
        if isinstance(images, ImageFiles):
            cut = ImageFiles([images.paths[index].absolute() for index in some], called, None)
        else:
            cut = PixelImages(list(islice(stream, len(some))), called)
        yield Part(some, LabelledImages(cut, data.class_ids[list(some)], data.skip_bad))
