"""The operators that read and write image files."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, overload

import numpy as np

from . import files
from .errors import H_ERR_FILE_WR, H_ERR_FNF, H_ERR_WIPN1, H_ERR_WIPV1, HError, HInteropError, HOperatorError
from .image import HObject, as_object, himage_from_numpy_array
from .imagefiles import pillow_image, read_image_file
from .tuples import to_file_name, to_number, to_str

FileName = str | os.PathLike[str]

#: Per format: file name ending, and the pixel types that Pillow writes, each with its numbers of channels.
_FORMATS: Final[dict[str, tuple[str, dict[str, tuple[int, ...]]]]] = {
    "bmp": (".bmp", {"uint8": (1, 3)}),
    "jpeg": (".jpg", {"uint8": (1, 3)}),
    "png": (".png", {"uint8": (1, 3, 4), "uint16": (1,)}),
    "tiff": (".tif", {"uint8": (1, 3, 4), "uint16": (1,), "int32": (1,), "float32": (1,)}),
}
_JPEG_QUALITY: Final = 95


@overload
def read_image(file_name: FileName) -> HObject: ...
@overload
def read_image(file_name: list[FileName] | tuple[FileName, ...]) -> list[HObject]: ...
def read_image(file_name: FileName | list[FileName] | tuple[FileName, ...]) -> HObject | list[HObject]:
    """Read image files; needs the extra `images` (Pillow).

    Parameters: `file_name` (str or path, or a sequence of them; PNG, TIFF, JPEG, BMP and what else Pillow knows).
    Returns an image object of type uint8 ('byte'), uint16 ('uint2'), int32 ('int4') or float32 ('real') with one or
    three channels (palettes and other colour spaces become red, green, blue; transparency is dropped; only the first
    page is read).
    For a sequence a list of them, because an HObject holds one image here, and a tuple of images in HALCON.
    Raises HOperatorError 5200 (no such file), 1301 (no image, damaged), HTupleConversionError.
    Source: HALCON operator read_image.

    Example:
        >>> import os, tempfile
        >>> import numpy as np
        >>> path = os.path.join(tempfile.mkdtemp(), "ramp.png")
        >>> write_image(himage_from_numpy_array(np.eye(4, dtype=np.uint8)), "png", 0, path)
        >>> read_image(path)
        HObject(image 4×4, 1 channel, uint8)
    """
    if isinstance(file_name, (list, tuple)):
        return [_read(to_file_name(one, "file_name", 1)) for one in file_name]
    return _read(to_file_name(file_name, "file_name", 1))


def _read(path: str) -> HObject:
    try:
        return himage_from_numpy_array(read_image_file(path))
    except FileNotFoundError:
        raise HOperatorError(H_ERR_FNF, f"There is no file {path!r} (current folder: {os.getcwd()!r}).") from None
    except HInteropError as error:
        raise HOperatorError(H_ERR_WIPV1, f"{path!r}: {error}") from None
    except HError:
        raise
    except Exception as error:  # Pillow's decoders raise almost anything on damaged files
        raise HOperatorError(
            H_ERR_WIPV1, f"{path!r} cannot be read as an image: {error or type(error).__name__}."
        ) from None


def write_image(image: HObject, format: str, fill_color: float, file_name: FileName | Sequence[FileName]) -> None:
    """Write an image file in one step; needs the extra `images` (Pillow).

    Parameters: `image` (HObject, or a NumPy array as for himage_from_numpy_array); `format`: 'png' (uint8 with 1, 3 or
    4 channels, uint16 with 1), 'tiff' (the same, and int32 or float32 with 1), 'bmp' (uint8 with 1 or 3), 'jpeg' or
    'jpeg 80' (the same; the number is the quality, 1…100, 95 if none is given); `fill_color` (number; in HALCON the
    value of pixels outside of the domain; images are full here, so it changes nothing); `file_name` (str or path; a
    name without ending gets that of the format).
    Raises HOperatorError 1301 (unknown format, or one that cannot hold such pixels; write_dict holds all), 3142 (cannot
    be written), 1202 (no number), HInteropError (no image). Source: HALCON operator write_image.

    Example: see read_image.
    """
    pixels = as_object(image).array
    name, options = _format(to_str(format, "format", 1))
    to_number(fill_color, "fill_color", 2)
    if isinstance(file_name, (list, tuple)):
        if len(file_name) != 1:
            raise HOperatorError(H_ERR_WIPN1 + 2, f"{len(file_name)} file names were given for one image.")
        (file_name,) = file_name
    suffix, types = _FORMATS[name]
    path = Path(to_file_name(file_name, "file_name", 3))
    path = path if path.suffix else path.with_name(path.name + suffix)
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    if channels not in types.get(str(pixels.dtype), ()):
        possible = "; ".join(f"{dtype} with {_numbers(counts)}" for dtype, counts in types.items())
        raise HOperatorError(
            H_ERR_WIPV1,
            f"{name!r} files hold {possible}; this image is {pixels.dtype} with {channels} channel(s). Convert it, or "
            "keep it in a dictionary with write_dict.",
        )
    buffer = io.BytesIO()
    pillow_image("Writing images").fromarray(np.ascontiguousarray(pixels)).save(buffer, name.upper(), **options)
    try:
        files.replace(path, buffer.getvalue())
    except (OSError, ValueError) as error:
        raise HOperatorError(H_ERR_FILE_WR, f"{os.fspath(path)!r} cannot be written: {error}.") from None


def _numbers(counts: Sequence[int]) -> str:
    return " or ".join(str(one) for one in counts) + (" channel" if counts == (1,) else " channels")


def _format(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a format and Pillow's options for it."""
    name, *rest = text.split()
    if name == "jpeg" and len(rest) <= 1:
        quality = rest[0] if rest else str(_JPEG_QUALITY)
        if quality.isdigit() and 1 <= int(quality) <= 100:
            return name, {"quality": int(quality)}
    elif name in _FORMATS and not rest:
        return name, {}
    known = ", ".join(repr(one) for one in _FORMATS)
    raise HOperatorError(
        H_ERR_WIPV1, f"The format {text!r} is not known; possible are {known} and 'jpeg 1' … 'jpeg 100'."
    )
