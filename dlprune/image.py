"""Image objects and their exchange with NumPy arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import HInteropError

ImageArray: TypeAlias = npt.NDArray[Any]

# Only types that HALCON images can have; float64 is refused rather than rounded behind the user's back.
_DTYPES = tuple(np.dtype(name) for name in ("uint8", "int8", "uint16", "int16", "int32", "float32"))


class HObject:
    """One image, made by himage_from_numpy_array; it never changes.

    Example:
        >>> import numpy as np
        >>> himage_from_numpy_array(np.zeros((4, 6, 3), np.float32))
        HObject(image 6×4, 3 channels, float32)
    """

    __slots__ = ("__weakref__", "_array")

    def __init__(self, array: ImageArray) -> None:
        self._array = array

    @property
    def array(self) -> ImageArray:
        """The pixels, read-only: H×W for one channel, else H×W×C."""
        return self._array

    def __repr__(self) -> str:
        height, width = self._array.shape[:2]
        channels = self._array.shape[2] if self._array.ndim == 3 else 1
        plural = "" if channels == 1 else "s"
        return f"HObject(image {width}×{height}, {channels} channel{plural}, {self._array.dtype})"


def himage_from_numpy_array(a: ImageArray) -> HObject:
    """Make an image object from a NumPy array; the pixels are copied.

    Parameters: `a` of shape H×W or H×W×C and type uint8, int8, uint16, int16, int32 or float32. H×W×1 becomes a
    single-channel image, which is read back as H×W. Returns the image object.
    Raises HInteropError for any other shape or type. Source: HALCON/Python function himage_from_numpy_array.

    Example:
        >>> import numpy as np
        >>> himage_from_numpy_array(np.zeros((2, 3), np.uint8))
        HObject(image 3×2, 1 channel, uint8)
    """
    if not isinstance(a, np.ndarray):
        raise HInteropError(f"An image needs a NumPy array, not {type(a).__name__}.")
    array: ImageArray = a
    if array.ndim not in (2, 3) or array.size == 0:
        raise HInteropError(
            f"An image needs an array of shape H×W or H×W×C, not empty; this one has shape {array.shape}."
        )
    dtype = array.dtype.newbyteorder("=")
    if dtype not in _DTYPES:
        hint = " Convert it with a.astype(numpy.float32)." if array.dtype.kind == "f" else ""
        names = ", ".join(str(one) for one in _DTYPES)
        raise HInteropError(f"An image cannot have the type {array.dtype}; possible are {names}.{hint}")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    copy: ImageArray = np.array(array, dtype=dtype, order="C", copy=True, subok=False)
    copy.flags.writeable = False
    return HObject(copy)


def himage_as_numpy_array(obj: HObject) -> ImageArray:
    """Return the pixels of an image object as a new array of shape H×W or H×W×C.

    Parameters: `obj` (HObject). Returns a writable deep copy. Raises HInteropError if `obj` is no image object.
    Source: HALCON/Python function himage_as_numpy_array.

    Example:
        >>> import numpy as np
        >>> himage_as_numpy_array(himage_from_numpy_array(np.eye(2, dtype=np.uint8))).tolist()
        [[1, 0], [0, 1]]
    """
    if not isinstance(obj, HObject):
        raise HInteropError(f"An image object (HObject) is needed, not {type(obj).__name__}.")
    return obj.array.copy()


def as_object(value: object) -> HObject:
    """Return an image object for an HObject or an array, for operators that take either."""
    if isinstance(value, HObject):
        return value
    if isinstance(value, np.ndarray):
        return himage_from_numpy_array(value)
    raise HInteropError(f"An image is needed (HObject or NumPy array H×W or H×W×C), not {type(value).__name__}.")
