"""Prune image classifiers in ONNX files with the operators of MVTec HALCON."""

from dlprune import errors
from dlprune.dictionary import (
    as_python_dict,
    as_python_dict_s,
    copy_dict,
    create_dict,
    dict_to_json,
    from_python_dict,
    get_dict_object,
    get_dict_param,
    get_dict_param_s,
    get_dict_tuple,
    get_dict_tuple_s,
    json_to_dict,
    read_dict,
    remove_dict_key,
    set_dict_object,
    set_dict_tuple,
    set_dict_tuple_at,
    write_dict,
)
from dlprune.errors import HError, HInteropError, HOperatorError, HTupleConversionError, get_error_text
from dlprune.handle import HHandle
from dlprune.image import HObject, himage_as_numpy_array, himage_from_numpy_array
from dlprune.serialization import (
    deserialize_handle,
    serialize_handle,
    serialized_item_as_bytes,
    serialized_item_from_bytes,
)
from dlprune.tuples import clear_handle, tuple_is_valid_handle, tuple_is_valid_handle_s, tuple_sem_type

__version__ = "0.1.0"

__all__ = [
    # Errors
    "HError",
    "HInteropError",
    "HOperatorError",
    "HTupleConversionError",
    "errors",
    "get_error_text",
    # Handles and tuples
    "HHandle",
    "clear_handle",
    "deserialize_handle",
    "serialize_handle",
    "serialized_item_as_bytes",
    "serialized_item_from_bytes",
    "tuple_is_valid_handle",
    "tuple_is_valid_handle_s",
    "tuple_sem_type",
    # Images
    "HObject",
    "himage_as_numpy_array",
    "himage_from_numpy_array",
    # Dictionaries
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
    "write_dict",
]
