"""The embedded classifier of handwritten digits and its images."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import numpy.typing as npt

from .dictionary import from_python_dict
from .handle import HHandle
from .image import himage_from_numpy_array

_DATA = files("dlprune") / "data"
#: Middle of HALCON's default image range −127…128: what grey value 127 becomes.
_OFFSET = 127


def demo_model_file() -> str:
    """Return the path of the embedded classifier: ten handwritten digits, grey images 16×16, range −127…128.

    Example:
        >>> import dlprune as ha
        >>> ha.get_dl_model_param(ha.read_dl_model(demo_model_file()), "image_dimensions")
        [16, 16, 1]
    """
    return str(_DATA / "digits.onnx")


def demo_images(part: str = "calibration") -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the embedded images, uint8 [N, 16, 16], and their class ids, int64 [N].

    Parameters: `part` ('calibration' or 'test', 600 images each). Raises KeyError for another part.

    Example:
        >>> demo_images("test")[0].shape
        (600, 16, 16)
    """
    with np.load(str(_DATA / "digits.npz")) as arrays:
        return arrays[f"{part}_images"], arrays[f"{part}_labels"].astype(np.int64)


def demo_samples(part: str = "calibration") -> list[HHandle]:
    """Return the embedded labelled images as sample dicts with 'image' and 'image_label_id'.

    Parameters: `part` ('calibration' or 'test', 600 images each). Raises KeyError for another part.

    Example:
        >>> len(demo_samples("test"))
        600
    """
    images, labels = demo_images(part)
    return [
        from_python_dict(
            {
                "image": himage_from_numpy_array(image.astype(np.float32) - _OFFSET),
                "image_label_id": int(label),
            }
        )
        for image, label in zip(images, labels, strict=True)
    ]
