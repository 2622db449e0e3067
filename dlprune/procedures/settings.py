"""Generic parameters of procedures: dictionaries whose keys and values are checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from ..dictionary import Dictionary, from_python_dict, unwrap_dict
from ..errors import H_ERR_WIPT3, H_ERR_WT_CTRL_EXPECTED, HOperatorError
from ..image import HObject
from ..parameters import bad_value, one, unknown_parameter
from ..tuples import HTuple

Check: TypeAlias = Callable[[str, HTuple], Any]


def read_settings(gen_param: object, index: int, checks: Mapping[str, Check]) -> dict[str, Any]:
    """Return the checked values of generic parameters that were given.

    Parameters: `gen_param` ('dict' handle, or a Python dict, or [] for none), `index` (its position among the control
    parameters), `checks` (what is known, and the check that turns the tuple into a value).
    Raises HOperatorError 7911 (unknown name), 2460 (an image), those of the checks, 1200 + index or 2404 (no dict).
    """
    if isinstance(gen_param, Mapping):
        gen_param = from_python_dict(gen_param)
    if isinstance(gen_param, (list, tuple)) and not gen_param:
        return {}
    return {name: checks[name](name, values) for name, values in _entries(unwrap_dict(gen_param, index), checks)}


def _entries(dictionary: Dictionary, known: Mapping[str, Check]) -> Iterator[tuple[str, HTuple]]:
    for name, values in dictionary.entries.items():
        if not isinstance(name, str) or name not in known:
            raise unknown_parameter(str(name), frozenset(known))
        yield name, tuple_of(name, values)


def tuple_of(name: str | int, values: HTuple | HObject) -> HTuple:
    """Return the tuple in an entry of a dictionary. Raises HOperatorError 2460 if it is an image."""
    if isinstance(values, HObject):
        raise HOperatorError(H_ERR_WT_CTRL_EXPECTED, f"{name!r} holds an image; a tuple is needed.")
    return values


_SWITCH: Final[dict[object, bool]] = {"true": True, "false": False, 1: True, 0: False}


def switch(name: str, values: HTuple) -> bool:
    """Check a parameter that is on or off: 'true', 'false', 1 or 0."""
    value = one(name, values)
    if value not in _SWITCH:
        raise bad_value(name, value, "possible are 'true' and 'false'")
    return _SWITCH[value]


def numbers(name: str, values: HTuple) -> tuple[float, ...]:
    """Check a parameter of any count of numbers."""
    for value in values:
        if not isinstance(value, (int, float)):
            raise HOperatorError(H_ERR_WIPT3, f"{name!r} needs numbers, not {value!r}.")
    return tuple(float(value) for value in values if isinstance(value, (int, float)))
