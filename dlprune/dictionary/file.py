"""Dictionaries in files and serialized items: JSON in which every value says what it is."""

from __future__ import annotations

import base64
import json
import math
import os
from pathlib import Path
from typing import Any, Final

import numpy as np

from .. import files
from ..errors import H_ERR_FILE_WR, H_ERR_FNF, H_ERR_NO_SERIALIZED_ITEM, HError, HOperatorError
from ..handle import HHandle, new_handle
from ..image import HObject, himage_from_numpy_array
from ..serialization import decode, encode, encode_content, register_serializer
from ..tuples import Element, HTuple, TupleLike, no_generic_parameters, to_file_name, to_tuple
from .entries import Dictionary, Key, unwrap_dict

_FORMAT: Final = "dlprune-dict"
_VERSION: Final = 1


def _pack(dictionary: Dictionary) -> bytes:
    """Return the dictionary as JSON in which every value says what it is; pixels and other handles are base64."""
    entries = [[key, _pack_value(value)] for key, value in list(dictionary.entries.items())]
    return json.dumps({"format": _FORMAT, "version": _VERSION, "entries": entries}, ensure_ascii=False).encode()


def _pack_value(value: HTuple | HObject) -> Any:
    if isinstance(value, HObject):
        little = value.array.astype(value.array.dtype.newbyteorder("<"), copy=False)
        data = base64.b64encode(little.tobytes()).decode()
        return {"image": {"dtype": str(value.array.dtype), "shape": list(value.array.shape), "data": data}}
    return {"tuple": [_pack_element(one) for one in value]}


def _pack_element(element: Element) -> Any:
    if isinstance(element, HHandle):
        return {"handle": base64.b64encode(encode(element)).decode()}
    if isinstance(element, float) and not math.isfinite(element):
        return {"float": str(element)}
    return element


def _unpack(data: bytes) -> Dictionary:
    """Invert _pack; any exception means that `data` is no such dictionary."""
    content = json.loads(data)
    if content["format"] != _FORMAT:
        raise ValueError(f"unknown format {content['format']!r}")
    if content["version"] != _VERSION:
        raise ValueError(f"format version {content['version']!r} is not known to this release of dlprune")
    entries: dict[Key, HTuple | HObject] = {}
    for key, value in content["entries"]:
        if isinstance(key, bool) or not isinstance(key, (str, int)):
            raise ValueError(f"{key!r} is no key")
        entries[key] = _unpack_value(value)
    return Dictionary(entries)


def _unpack_value(value: Any) -> HTuple | HObject:
    if "image" not in value:
        return to_tuple([_unpack_element(one) for one in value["tuple"]])
    image = value["image"]
    dtype = np.dtype(image["dtype"])
    if dtype.kind not in "iuf":
        raise ValueError(f"an image cannot have the type {dtype}")
    data = base64.b64decode(image["data"], validate=True)
    return himage_from_numpy_array(np.frombuffer(data, dtype.newbyteorder("<")).reshape(image["shape"]))


def _unpack_element(element: Any) -> Element:
    if not isinstance(element, dict):
        return to_tuple(element)[0]
    return decode(base64.b64decode(element["handle"])) if "handle" in element else float(element["float"])


register_serializer("dict", Dictionary, _pack, _unpack)


def write_dict(
    dict_handle: HHandle, file_name: str | os.PathLike[str], gen_param_name: TupleLike, gen_param_value: TupleLike
) -> None:
    """Write a dictionary with everything in it (images, nested dictionaries, models) to a file.

    The file holds JSON in a format of dlprune; HALCON cannot read it. An existing file is replaced in one step.

    Parameters: `dict_handle` ('dict'), `file_name` (str or path); `gen_param_name`, `gen_param_value` (none exist: give
    []). Raises HOperatorError 3142 (cannot be written), 1303 (a generic parameter), 2455 (a handle in it cannot be
    serialized), 2456 (dictionary contains itself). Source: HALCON operator write_dict.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "a.hdict")
        >>> write_dict(from_python_dict({"a": 1}), path, [], [])
        >>> as_python_dict_s(read_dict(path, [], []))
        {'a': 1}
    """
    unwrap_dict(dict_handle, 1)
    path = Path(to_file_name(file_name, "file_name", 2))
    no_generic_parameters(gen_param_name, gen_param_value, 3)
    data = encode_content(dict_handle)
    try:
        files.replace(path, data)
    except (OSError, ValueError) as error:
        raise HOperatorError(H_ERR_FILE_WR, f"{os.fspath(path)!r} cannot be written: {error}.") from None


def read_dict(file_name: str | os.PathLike[str], gen_param_name: TupleLike, gen_param_value: TupleLike) -> HHandle:
    """Read a dictionary that write_dict wrote.

    Parameters: `file_name` (str or path); `gen_param_name`, `gen_param_value` (no generic parameters exist: give []).
    Returns a handle of type 'dict'. Raises HOperatorError 5200 (no such file), 9580 (another format, e.g. HALCON's
    own, or damaged), 1302 (a generic parameter). Source: HALCON operator read_dict.

    Example: see write_dict.
    """
    path = to_file_name(file_name, "file_name", 1)
    no_generic_parameters(gen_param_name, gen_param_value, 2)
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise HOperatorError(H_ERR_FNF, f"{path!r} cannot be read: {error}.") from None
    if data[:1] != b"{":
        raise HOperatorError(
            H_ERR_NO_SERIALIZED_ITEM,
            f"{path!r} was not written by dlprune. HALCON's own .hdict files have a closed format; in HALCON, "
            "convert the dictionary with dict_to_json and read it here with json_to_dict.",
        )
    try:
        return new_handle("dict", _unpack(data))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, HError) as error:
        raise HOperatorError(H_ERR_NO_SERIALIZED_ITEM, f"{path!r} holds no valid dictionary ({error}).") from None
