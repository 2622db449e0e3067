"""The operators that create, read and change dictionaries."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import (
    H_ERR_DICT_INVALID_INDEX,
    H_ERR_DICT_KEY,
    H_ERR_WIPN1,
    H_ERR_WIPT1,
    H_ERR_WIPV1,
    H_ERR_WT_CTRL_EXPECTED,
    H_ERR_WT_ICONIC_EXPECTED,
    HOperatorError,
)
from ..handle import HHandle, new_handle
from ..image import HObject, ImageArray, as_object
from ..tuples import Element, HTuple, TupleLike, no_generic_parameters, scalar, to_int, to_str, to_tuple
from .entries import Dictionary, Key, unwrap_dict


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
