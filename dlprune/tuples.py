"""How Python values become control parameters (HALCON tuples), and the operators on such tuples.

A control parameter is an int, float, str or HHandle, or a sized iterable of them. NumPy scalars and one-dimensional
arrays are accepted as well; bool, None and nesting are not, because HALCON has no such values.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import TypeAlias

import numpy as np

from .errors import H_ERR_WIPN1, H_ERR_WIPT1, H_ERR_WIPV1, HOperatorError, HTupleConversionError
from .handle import HHandle

Element: TypeAlias = int | float | str | HHandle
HTuple: TypeAlias = tuple[Element, ...]
TupleLike: TypeAlias = Element | Sequence[Element]

_INT_RANGE = (-(2**63), 2**63 - 1)


def _element(value: object, what: str) -> Element | None:
    """Return `value` as a tuple element, or None if it is no scalar."""
    if isinstance(value, (bool, np.bool_)):
        raise HTupleConversionError(
            f"{what} holds the bool {value!r}; use 0 or 1, or the string that the operator names."
        )
    if isinstance(value, (int, np.integer)):
        number = int(value)
        if not _INT_RANGE[0] <= number <= _INT_RANGE[1]:
            raise HTupleConversionError(f"{what} holds the integer {number}, which does not fit into 64 bits.")
        return number
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, str):
        return str(value)
    return value if isinstance(value, HHandle) else None


def to_tuple(value: object, what: str = "The value") -> HTuple:
    """Convert a control parameter to a tuple of Python ints, floats, strings and handles.

    Parameters: `value` (scalar or sized iterable of scalars), `what` (the parameter's name, for the message).
    Raises HTupleConversionError for bool, None, nested or unsized values and any other type.
    """
    single = _element(value, what)
    if single is not None:
        return (single,)
    if isinstance(value, np.ndarray):
        if value.ndim > 1:
            raise HTupleConversionError(
                f"{what} is an array of shape {value.shape}; at most one dimension is possible."
            )
        value = np.atleast_1d(value).tolist() if value.dtype.kind in "biufU" else list(np.atleast_1d(value))
    if (
        value is None
        or isinstance(value, (bytes, bytearray, Mapping))
        or not (isinstance(value, Iterable) and isinstance(value, Sized))
    ):
        raise HTupleConversionError(
            f"{what} is {type(value).__name__}; int, float, str, HHandle or a sequence of them is needed."
        )
    elements: list[Element] = []
    for item in value:
        element = _element(item, what)
        if element is None:
            raise HTupleConversionError(
                f"{what} holds {type(item).__name__} at position {len(elements)}; "
                "only int, float, str and HHandle can be elements, and nesting is not possible."
            )
        elements.append(element)
    return tuple(elements)


def _one(value: object, name: str, index: int) -> Element:
    elements = to_tuple(value, name)
    if len(elements) != 1:
        raise HOperatorError(H_ERR_WIPN1 + index - 1, f"{name} has {len(elements)} values; exactly one is needed.")
    return elements[0]


def to_str(value: object, name: str, index: int) -> str:
    """Convert a control parameter that must be one string; `index` is its position, counted from 1.

    Raises HTupleConversionError (impossible value), HOperatorError 1200 + index (wrong type), 1400 + index (number).
    """
    element = _one(value, name, index)
    if not isinstance(element, str):
        raise HOperatorError(H_ERR_WIPT1 + index - 1, f"{name} is {element!r}; a string is needed.")
    return element


def to_file_name(value: object, name: str, index: int) -> str:
    """Convert a control parameter that must name one file: a string, or (beyond HALCON) a path object; see to_str."""
    return to_str(os.fspath(value) if isinstance(value, os.PathLike) else value, name, index)


def to_int(value: object, name: str, index: int) -> int:
    """Convert a control parameter that must be one integer (a float with an integral value is one); see to_str."""
    element = _one(value, name, index)
    if isinstance(element, float) and element.is_integer():
        return int(element)
    if not isinstance(element, int):
        raise HOperatorError(H_ERR_WIPT1 + index - 1, f"{name} is {element!r}; an integer is needed.")
    return element


def to_number(value: object, name: str, index: int) -> int | float:
    """Convert a control parameter that must be one number; see to_str."""
    element = _one(value, name, index)
    if not isinstance(element, (int, float)):
        raise HOperatorError(H_ERR_WIPT1 + index - 1, f"{name} is {element!r}; a number is needed.")
    return element


def to_handles(value: object, name: str, index: int) -> list[HHandle]:
    """Convert a control parameter that must hold handles only (any number of them); see to_str."""
    handles: list[HHandle] = []
    for position, element in enumerate(to_tuple(value, name)):
        if not isinstance(element, HHandle):
            raise HOperatorError(
                H_ERR_WIPT1 + index - 1, f"{name} holds {element!r} at position {position}; a handle is needed."
            )
        handles.append(element)
    return handles


def to_strings(value: object, name: str, index: int) -> list[str]:
    """Convert a control parameter that must hold strings only (any number of them); see to_str."""
    strings: list[str] = []
    for position, element in enumerate(to_tuple(value, name)):
        if not isinstance(element, str):
            raise HOperatorError(
                H_ERR_WIPT1 + index - 1, f"{name} holds {element!r} at position {position}; a string is needed."
            )
        strings.append(element)
    return strings


def no_generic_parameters(gen_param_name: object, gen_param_value: object, index: int) -> None:
    """Check that an operator without generic parameters got none; `index` is the position of gen_param_name."""
    names, values = to_tuple(gen_param_name, "gen_param_name"), to_tuple(gen_param_value, "gen_param_value")
    if names:
        raise HOperatorError(
            H_ERR_WIPV1 + index - 1, f"gen_param_name is {list(names)!r}; this operator knows none, give []."
        )
    if values:
        raise HOperatorError(H_ERR_WIPN1 + index, f"gen_param_value has {len(values)} values but there is no name.")


def scalar(values: Sequence[Element], what: str) -> Element:
    """Return the only value of an output, for the `_s` twins. Raises HTupleConversionError for 0 or several values."""
    if len(values) != 1:
        raise HTupleConversionError(
            f"{what} has {len(values)} values, so it is no scalar; call the operator without '_s' to get the list."
        )
    return values[0]


def clear_handle(handle: HHandle | Sequence[HHandle]) -> None:
    """Empty the objects behind one or several handles; using such a handle afterwards raises error 2454.

    Parameters: `handle` (HHandle or a sequence of them; cleared and empty ones are passed over).
    Raises HOperatorError 1201 if a value is no handle. Source: HALCON operator clear_handle.

    Example:
        >>> import dlprune as ha
        >>> h = ha.create_dict()
        >>> ha.clear_handle(h)
        >>> h
        HHandle('dict', cleared)
    """
    for one in to_handles(handle, "handle", 1):
        one.clear()


def tuple_is_valid_handle(handle: TupleLike) -> list[int]:
    """Tell for each element whether it is a handle that can be used (1) or not (0).

    Parameters: `handle` (any tuple; elements that are no handles count as 0). Returns a list of 0 and 1.
    Source: HALCON operator tuple_is_valid_handle.

    Example:
        >>> import dlprune as ha
        >>> ha.tuple_is_valid_handle([ha.create_dict(), 1])
        [1, 0]
    """
    return [int(isinstance(one, HHandle) and one.valid) for one in to_tuple(handle, "handle")]


def tuple_is_valid_handle_s(handle: TupleLike) -> int:
    """Return tuple_is_valid_handle as a scalar; raises HTupleConversionError unless there is exactly one value.

    Example:
        >>> tuple_is_valid_handle_s(HHandle())
        0
    """
    value = scalar(tuple_is_valid_handle(handle), "The result of tuple_is_valid_handle")
    assert isinstance(value, int)
    return value


def tuple_sem_type(t: TupleLike) -> str:
    """Return the semantic type of a tuple.

    Parameters: `t` (any tuple). Returns 'integer', 'real', 'string', the type of the handles ('dict', 'dl_model', …;
    'handle' if invalid), 'mixed' if the elements differ, 'any' for an empty tuple.
    Source: HALCON operator tuple_sem_type.

    Example:
        >>> tuple_sem_type([1, 2]), tuple_sem_type([1, "a"])
        ('integer', 'mixed')
    """
    names = {_sem_type(element) for element in to_tuple(t, "t")}
    return "any" if not names else names.pop() if len(names) == 1 else "mixed"


def _sem_type(element: Element) -> str:
    if isinstance(element, HHandle):
        return element.sem_type
    return "integer" if isinstance(element, int) else "real" if isinstance(element, float) else "string"
