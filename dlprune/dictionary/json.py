"""Dictionaries from and to JSON text."""

from __future__ import annotations

import json
from typing import Any

from ..errors import H_ERR_WIPV1, HOperatorError, HTupleConversionError
from ..handle import HHandle
from ..tuples import TupleLike, no_generic_parameters, to_str
from .python import as_python_dict_s, from_python_dict


def dict_to_json(dict_handle: HHandle, gen_param_name: TupleLike, gen_param_value: TupleLike) -> str:
    """Return a dictionary as JSON text: tuples of one value as that value, others as arrays, dictionaries nested.

    Parameters: `dict_handle` ('dict'); `gen_param_name`, `gen_param_value` (no generic parameters exist: give []).
    Raises HOperatorError 1301 if it holds an image, another handle or a number that JSON lacks (NaN, infinity), 1302
    for a generic parameter, 2456 if a dictionary contains itself. Source: HALCON operator dict_to_json.

    Example:
        >>> dict_to_json(from_python_dict({"a": 1, "b": ["x", 2.5]}), [], [])
        '{"a": 1, "b": ["x", 2.5]}'
    """
    content = as_python_dict_s(dict_handle)
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
