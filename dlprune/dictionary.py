"""Dictionaries behind handles: each key holds either a tuple or an image object."""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from . import files
from .errors import (
    H_ERR_DICT_INVALID_INDEX,
    H_ERR_DICT_KEY,
    H_ERR_FILE_WR,
    H_ERR_FNF,
    H_ERR_HANDLE_CYCLES,
    H_ERR_NO_SERIALIZED_ITEM,
    H_ERR_WIPN1,
    H_ERR_WIPT1,
    H_ERR_WIPV1,
    H_ERR_WT_CTRL_EXPECTED,
    H_ERR_WT_ICONIC_EXPECTED,
    HError,
    HOperatorError,
    HTupleConversionError,
)
from .handle import HHandle, new_handle, unwrap
from .image import HObject, ImageArray, as_object, himage_from_numpy_array
from .serialization import decode, encode, encode_content, register_serializer
from .tuples import (
    Element,
    HTuple,
    TupleLike,
    no_generic_parameters,
    scalar,
    to_file_name,
    to_int,
    to_str,
    to_tuple,
)

Key: TypeAlias = str | int

_FORMAT: Final = "dlprune-dict"
_VERSION: Final = 1


class Dictionary:
    """What a handle of type 'dict' refers to; tuples are never changed in place, so readers need no lock."""

    __slots__ = ("entries",)

    def __init__(self, entries: Mapping[Key, HTuple | HObject] | None = None) -> None:
        self.entries: dict[Key, HTuple | HObject] = dict(entries or {})


def unwrap_dict(handle: object, index: int) -> Dictionary:
    """Return the dictionary behind a handle; errors as in `unwrap`."""
    return unwrap(handle, "dict", Dictionary, index)


def _keys(key: object, index: int) -> list[Key]:
    keys: list[Key] = []
    for one in to_tuple(key, "key"):
        if not isinstance(one, (str, int)):
            raise HOperatorError(H_ERR_WIPT1 + index - 1, f"key is {one!r}; a string or an integer is needed.")
        keys.append(one)
    return keys


def _key(key: object, index: int) -> Key:
    keys = _keys(key, index)
    if len(keys) != 1:
        raise HOperatorError(H_ERR_WIPN1 + index - 1, f"key has {len(keys)} values; exactly one is needed.")
    return keys[0]


def _lookup(dictionary: Dictionary, key: Key) -> HTuple | HObject:
    try:
        return dictionary.entries[key]
    except KeyError:
        known = ", ".join(repr(one) for one in list(dictionary.entries)[:20]) or "none"
        raise HOperatorError(H_ERR_DICT_KEY, f"There is no key {key!r}; the dictionary has: {known}.") from None


def _lookup_tuple(dictionary: Dictionary, key: Key) -> HTuple:
    value = _lookup(dictionary, key)
    if isinstance(value, HObject):
        raise HOperatorError(H_ERR_WT_CTRL_EXPECTED, f"Key {key!r} holds {value!r}; read it with get_dict_object.")
    return value


def create_dict() -> HHandle:
    """Create an empty dictionary.

    Returns a handle of type 'dict'. Source: HALCON operator create_dict.

    Example:
        >>> create_dict()
        HHandle('dict')
    """
    return new_handle("dict", Dictionary())


def copy_dict(dict_handle: HHandle, gen_param_name: TupleLike, gen_param_value: TupleLike) -> HHandle:
    """Copy a dictionary; handles in it (e.g. nested dictionaries) are shared with the original.

    Parameters: `dict_handle` ('dict'); `gen_param_name`, `gen_param_value` (no generic parameters exist: give []).
    Returns a handle of type 'dict'. Raises HOperatorError 1302 for a generic parameter, 2404/2454 for an unsuitable
    handle. Source: HALCON operator copy_dict.

    Example:
        >>> as_python_dict_s(copy_dict(from_python_dict({"a": 1}), [], []))
        {'a': 1}
    """
    dictionary = unwrap_dict(dict_handle, 1)
    no_generic_parameters(gen_param_name, gen_param_value, 2)
    return new_handle("dict", Dictionary(dictionary.entries))


def set_dict_tuple(dict_handle: HHandle, key: Key, tuple: TupleLike) -> None:
    """Store a tuple under a key, replacing what was there.

    Parameters: `dict_handle` ('dict'), `key` (str or int), `tuple` (int, float, str, HHandle or a sequence of them; a
    handle is stored as a reference). Raises HTupleConversionError for a value that is no tuple, HOperatorError
    1202/1402 for an unsuitable key, 2404/2454 for an unsuitable handle. Source: HALCON operator set_dict_tuple.

    Example:
        >>> d = create_dict()
        >>> set_dict_tuple(d, "a", [1, 2.5, "x"])
        >>> get_dict_tuple(d, "a")
        [1, 2.5, 'x']
    """
    dictionary = unwrap_dict(dict_handle, 1)
    dictionary.entries[_key(key, 2)] = to_tuple(tuple, "tuple")


def get_dict_tuple(dict_handle: HHandle, key: Key) -> list[Element]:
    """Return the tuple under a key as a list.

    Parameters: `dict_handle` ('dict'), `key` (str or int). Raises HOperatorError 2894 (no such key), 2460 (the key
    holds an image), 1202/1402 (unsuitable key), 2404/2454 (unsuitable handle). Source: HALCON operator get_dict_tuple.

    Example: see set_dict_tuple.
    """
    return list(_lookup_tuple(unwrap_dict(dict_handle, 1), _key(key, 2)))


def get_dict_tuple_s(dict_handle: HHandle, key: Key) -> Element:
    """Return the only value under a key; raises HTupleConversionError unless there is exactly one (see get_dict_tuple).

    Example:
        >>> get_dict_tuple_s(from_python_dict({"a": 1}), "a")
        1
    """
    return scalar(get_dict_tuple(dict_handle, key), f"The tuple under {key!r}")


def set_dict_tuple_at(dict_handle: HHandle, key: Key, index: TupleLike, value: TupleLike) -> None:
    """Replace elements of a tuple in a dictionary.

    Parameters: `dict_handle` ('dict'); `key` (str or int); `index` (int or several, from 0; the length of the tuple
    appends an element); `value` (one value for all indices, or one per index). Raises HOperatorError 2894 (no such
    key), 2897 (index outside), 1203 (no integers), 1404 (number of values). Source: HALCON operator set_dict_tuple_at.

    Example:
        >>> d = from_python_dict({"a": [1, 2]})
        >>> set_dict_tuple_at(d, "a", 1, 5)
        >>> get_dict_tuple(d, "a")
        [1, 5]
    """
    dictionary, name = unwrap_dict(dict_handle, 1), _key(key, 2)
    elements = list(_lookup_tuple(dictionary, name))
    positions = [to_int(one, "index", 3) for one in to_tuple(index, "index")]
    values = to_tuple(value, "value")
    if len(values) == 1:
        values *= len(positions)
    if len(values) != len(positions):
        raise HOperatorError(H_ERR_WIPN1 + 3, f"There are {len(positions)} indices but {len(values)} values.")
    for position, new in zip(positions, values, strict=True):
        if not 0 <= position <= len(elements):
            raise HOperatorError(
                H_ERR_DICT_INVALID_INDEX,
                f"Index {position} was given; possible are 0 to {len(elements)} for key {name!r}.",
            )
        elements[position : position + 1] = [new]
    dictionary.entries[name] = (*elements,)


def remove_dict_key(dict_handle: HHandle, key: Key | Sequence[Key]) -> None:
    """Remove one or several keys.

    Parameters: `dict_handle` ('dict'), `key` (str, int or a sequence of them). Raises HOperatorError 2894 if one of
    them is missing (then none is removed), 1202 (unsuitable key). Source: HALCON operator remove_dict_key.

    Example:
        >>> d = from_python_dict({"a": 1, "b": 2})
        >>> remove_dict_key(d, "a")
        >>> get_dict_param(d, "keys", [])
        ['b']
    """
    dictionary, keys = unwrap_dict(dict_handle, 1), _keys(key, 2)
    for one in keys:
        _lookup(dictionary, one)
    for one in keys:
        dictionary.entries.pop(one, None)


def set_dict_object(object: HObject | ImageArray, dict_handle: HHandle, key: Key) -> None:
    """Store an image under a key; note that the image comes first.

    Parameters: `object` (HObject, or a NumPy array H×W or H×W×C as for himage_from_numpy_array, which is copied);
    `dict_handle` ('dict'); `key` (str or int). Raises HInteropError if `object` is no image, HOperatorError 1202/1402
    for an unsuitable key, 2404/2454 for an unsuitable handle. Source: HALCON operator set_dict_object.

    Example:
        >>> import numpy as np
        >>> d = create_dict()
        >>> set_dict_object(np.zeros((4, 6), np.float32), d, "image")
        >>> get_dict_object(d, "image")
        HObject(image 6×4, 1 channel, float32)
    """
    dictionary = unwrap_dict(dict_handle, 1)
    dictionary.entries[_key(key, 2)] = as_object(object)


def get_dict_object(dict_handle: HHandle, key: Key) -> HObject:
    """Return the image object under a key.

    Parameters: `dict_handle` ('dict'), `key` (str or int). Raises HOperatorError 2894 (no such key), 2461 (the key
    holds a tuple), 1202/1402 (unsuitable key), 2404/2454 (unsuitable handle). Source: HALCON operator get_dict_object.

    Example: see set_dict_object.
    """
    name = _key(key, 2)
    value = _lookup(unwrap_dict(dict_handle, 1), name)
    if not isinstance(value, HObject):
        raise HOperatorError(H_ERR_WT_ICONIC_EXPECTED, f"Key {name!r} holds a tuple; read it with get_dict_tuple.")
    return value


def get_dict_param(dict_handle: HHandle, gen_param_name: str, key: TupleLike) -> list[Element]:
    """Return information about a dictionary.

    Parameters: `dict_handle` ('dict'); `gen_param_name`: 'keys' (all keys in the order of insertion; give [] as key),
    'key_exists' (1 or 0 for each key) or 'key_data_type' ('tuple' or 'object' for each key); `key` (any number).
    Raises HOperatorError 1302 (unknown name), 1403 (a key with 'keys'), 2894 (missing key with 'key_data_type').
    Source: HALCON operator get_dict_param.

    Example:
        >>> get_dict_param(from_python_dict({"a": 1}), "key_exists", ["a", "b"])
        [1, 0]
    """
    dictionary, name, keys = unwrap_dict(dict_handle, 1), to_str(gen_param_name, "gen_param_name", 2), _keys(key, 3)
    if name == "keys":
        if keys:
            raise HOperatorError(H_ERR_WIPN1 + 2, "'keys' lists all keys; give [] as key.")
        return list(dictionary.entries)
    if name == "key_exists":
        return [int(one in dictionary.entries) for one in keys]
    if name == "key_data_type":
        return ["object" if isinstance(_lookup(dictionary, one), HObject) else "tuple" for one in keys]
    raise HOperatorError(
        H_ERR_WIPV1 + 1, f"{name!r} is unknown; possible are 'keys', 'key_exists' and 'key_data_type'."
    )


def get_dict_param_s(dict_handle: HHandle, gen_param_name: str, key: TupleLike) -> Element:
    """Return the only value of get_dict_param; raises HTupleConversionError unless there is exactly one.

    Example:
        >>> get_dict_param_s(from_python_dict({"a": 1}), "key_data_type", "a")
        'tuple'
    """
    return scalar(get_dict_param(dict_handle, gen_param_name, key), f"The result for {gen_param_name!r}")


# --- Python dictionaries ---------------------------------------------------------------------------------------------


def from_python_dict(d: Mapping[Any, Any]) -> HHandle:
    """Make a dictionary from a Python dict.

    Parameters: `d` (keys str or int; values scalars, sequences of scalars, HObject or NumPy arrays of two or
    three dimensions (images), or dicts and sequences of dicts, which become nested dictionaries).
    Returns a handle of type 'dict'. Raises HTupleConversionError or HInteropError for values that fit none of these.
    Source: HALCON/Python function from_python_dict.

    Example:
        >>> as_python_dict_s(from_python_dict({"a": [1, 2], "b": {"c": "x"}}))
        {'a': [1, 2], 'b': {'c': 'x'}}
    """
    return _from_mapping(d, ())


def _from_mapping(mapping: object, outer: tuple[int, ...]) -> HHandle:
    if not isinstance(mapping, Mapping):
        raise HTupleConversionError(f"A Python dict is needed, not {type(mapping).__name__}.")
    if id(mapping) in outer:
        raise HTupleConversionError("The Python dict contains itself.")
    entries: dict[Key, HTuple | HObject] = {}
    for key, value in mapping.items():
        if isinstance(key, bool) or not isinstance(key, (str, int)):
            raise HTupleConversionError(f"The key {key!r} is {type(key).__name__}; str or int is needed.")
        entries[key] = _from_value(value, f"The value of {key!r}", (*outer, id(mapping)))
    return new_handle("dict", Dictionary(entries))


def _from_value(value: object, what: str, outer: tuple[int, ...]) -> HTuple | HObject:
    if isinstance(value, HObject):
        return value
    if isinstance(value, np.ndarray) and value.ndim > 1:
        return himage_from_numpy_array(value)
    if isinstance(value, Mapping):
        return (_from_mapping(value, outer),)
    if isinstance(value, (list, tuple)):
        value = [_from_mapping(one, outer) if isinstance(one, Mapping) else one for one in value]
    return to_tuple(value, what)


def as_python_dict(h: HHandle) -> dict[Key, Any]:
    """Return a dictionary as a Python dict whose tuples are lists.

    Parameters: `h` ('dict'). Image objects stay HObject; nested dictionaries become Python dicts in the
    list; other handles stay handles. Raises HOperatorError 2456 if a dictionary contains itself, 2404/2454 for an
    unsuitable handle. Source: HALCON/Python function as_python_dict.

    Example:
        >>> as_python_dict(from_python_dict({"a": 1, "b": [1, "x"]}))
        {'a': [1], 'b': [1, 'x']}
    """
    return _to_python(unwrap_dict(h, 1), list, ())


def as_python_dict_s(h: HHandle) -> dict[Key, Any]:
    """Return a dictionary as a Python dict; tuples of one value become that value, others lists (see as_python_dict).

    Example:
        >>> as_python_dict_s(from_python_dict({"a": 1, "b": [1, "x"], "c": []}))
        {'a': 1, 'b': [1, 'x'], 'c': []}
    """
    return _to_python(unwrap_dict(h, 1), _compact, ())


def _compact(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _to_python(dictionary: Dictionary, wrap: Callable[[list[Any]], Any], outer: tuple[int, ...]) -> dict[Key, Any]:
    if id(dictionary) in outer:
        raise HOperatorError(H_ERR_HANDLE_CYCLES, "A dictionary contains itself, directly or through others.")
    inner = (*outer, id(dictionary))
    return {
        key: value if isinstance(value, HObject) else wrap([_element_to_python(one, wrap, inner) for one in value])
        for key, value in list(dictionary.entries.items())
    }


def _element_to_python(element: Element, wrap: Callable[[list[Any]], Any], outer: tuple[int, ...]) -> Any:
    if isinstance(element, HHandle) and element.sem_type == "dict":
        return _to_python(unwrap_dict(element, 1), wrap, outer)
    return element


# --- JSON text -------------------------------------------------------------------------------------------------------


def dict_to_json(dict_handle: HHandle, gen_param_name: TupleLike, gen_param_value: TupleLike) -> str:
    """Return a dictionary as JSON text: tuples of one value as that value, others as arrays, dictionaries nested.

    Parameters: `dict_handle` ('dict'); `gen_param_name`, `gen_param_value` (no generic parameters exist: give []).
    Raises HOperatorError 1301 if it holds an image, another handle or a number that JSON lacks (NaN, infinity), 1302
    for a generic parameter, 2456 if a dictionary contains itself. Source: HALCON operator dict_to_json.

    Example:
        >>> dict_to_json(from_python_dict({"a": 1, "b": ["x", 2.5]}), [], [])
        '{"a": 1, "b": ["x", 2.5]}'
    """
    content = _to_python(unwrap_dict(dict_handle, 1), _compact, ())
    no_generic_parameters(gen_param_name, gen_param_value, 2)
    try:
        return json.dumps(content, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise HOperatorError(H_ERR_WIPV1, f"JSON cannot hold this dictionary ({error}); write_dict can.") from None


def json_to_dict(json_string: str, gen_param_name: TupleLike, gen_param_value: TupleLike) -> HHandle:
    """Make a dictionary from JSON text whose outermost value is an object.

    Parameters: `json_string` (true and false become 1 and 0, null becomes an empty tuple, objects become nested
    dictionaries); `gen_param_name`, `gen_param_value` (no generic parameters exist: give []). Returns a 'dict' handle.
    Raises HOperatorError 1301 for text that is no JSON object or holds arrays within arrays, 1302 for a generic
    parameter. Source: HALCON operator json_to_dict.

    Example:
        >>> get_dict_tuple(json_to_dict('{"a": [1, 2]}', [], []), "a")
        [1, 2]
    """
    text = to_str(json_string, "json_string", 1)
    no_generic_parameters(gen_param_name, gen_param_value, 2)
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise HTupleConversionError(f"the outermost value is {type(content).__name__}, not an object")
        return from_python_dict(_from_json(content))
    except (ValueError, HTupleConversionError, RecursionError) as error:
        raise HOperatorError(H_ERR_WIPV1, f"The text is no usable JSON object: {error}.") from None


def _from_json(value: Any) -> Any:
    if value is None:
        return []
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, dict):
        return {key: _from_json(one) for key, one in value.items()}
    if isinstance(value, list):
        return [one if isinstance(one, list) else _from_json(one) for one in value]
    return value


# --- Files and serialized items --------------------------------------------------------------------------------------


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
