"""Dictionaries behind handles: each key holds either a tuple or an image object."""

from .entries import Dictionary, Key, unwrap_dict
from .file import read_dict, write_dict
from .json import dict_to_json, json_to_dict
from .operators import (
    copy_dict,
    create_dict,
    get_dict_object,
    get_dict_param,
    get_dict_param_s,
    get_dict_tuple,
    get_dict_tuple_s,
    remove_dict_key,
    set_dict_object,
    set_dict_tuple,
    set_dict_tuple_at,
)
from .python import as_python_dict, as_python_dict_s, from_python_dict

__all__ = [
    "Dictionary",
    "Key",
    "as_python_dict",
    "as_python_dict_s",
    "copy_dict",
    "create_dict",
    "dict_to_json",
    "from_python_dict",
    "get_dict_object",
    "get_dict_param",
    "get_dict_param_s",
    "get_dict_tuple",
    "get_dict_tuple_s",
    "json_to_dict",
    "read_dict",
    "remove_dict_key",
    "set_dict_object",
    "set_dict_tuple",
    "set_dict_tuple_at",
    "unwrap_dict",
    "write_dict",
]
