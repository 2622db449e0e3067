"""A bounded sample of the scored images, kept for compensation: the same whatever the order of batches or threads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
_BEYOND: Final = "g"  # no hexadecimal digit


@dataclass
class Calibration:
    """The images with the smallest content hashes seen so far, with their labels (−1 = none).

    Memory: `limit` images in single precision at most.
    """

    limit: int
    _items: dict[str, tuple[Images, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, images: Images, labels: Labels) -> None:
        """Offer some images, float32 [N, …], with labels int64 [N]; equal images are kept once."""
        for image, label in zip(images, labels, strict=True):
            digest = hashlib.blake2b(np.ascontiguousarray(image).tobytes(), digest_size=16).hexdigest()
            if digest < self.bound:
                self._items[digest] = (image.copy(), int(label))  # a view would keep the whole batch in memory
                self._shrink()

    @property
    def bound(self) -> str:
        """Digests from here on are of no use any more; beyond all digests while there is room."""
        return _BEYOND if len(self._items) < self.limit else max(self._items)

    def restrict(self, bound: str) -> None:
        """Forget the images whose digest is not below `bound`."""
        self._items = {digest: item for digest, item in self._items.items() if digest < bound}

    def merge(self, other: Calibration) -> None:
        """Take over the images of another sample."""
        self._items.update(other._items)
        self._shrink()

    def copy(self) -> Calibration:
        """Return an independent sample of the same images."""
        return Calibration(self.limit, dict(self._items))

    def resize(self, limit: int) -> None:
        """Change the number of images that are kept; more can only come from batches that are still to be added."""
        self.limit = limit
        self._shrink()

    def _shrink(self) -> None:
        while len(self._items) > self.limit:
            del self._items[max(self._items)]

    def arrays(self) -> tuple[Images, Labels]:
        """Return images float32 [K, …] and labels int64 [K], ordered by hash."""
        items = [self._items[digest] for digest in sorted(self._items)]
        return np.stack([image for image, _ in items]), np.array([label for _, label in items], np.int64)
