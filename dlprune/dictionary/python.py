"""Dictionaries from and to Python's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import H_ERR_HANDLE_CYCLES, HOperatorError, HTupleConversionError
from ..handle import HHandle, new_handle
from ..image import HObject, himage_from_numpy_array
from ..tuples import Element, HTuple, to_tuple
from .entries import Dictionary, Key, unwrap_dict


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
