"""Serialized items: handles as bytes and back, in a format of our own that never runs code.

An item is `MAGIC, uint32 length of the type, type, uint64 length of the content, uint32 CRC-32, content`, numbers
little-endian. Each module registers the types it owns with `register_serializer`.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from .errors import (
    H_ERR_END_OF_FILE,
    H_ERR_HANDLE_CLEARED,
    H_ERR_HANDLE_CYCLES,
    H_ERR_HANDLE_NOSER,
    H_ERR_HANDLE_NULL,
    H_ERR_NO_SERIALIZED_ITEM,
    H_ERR_WIPT1,
    HError,
    HOperatorError,
)
from .handle import HHandle, new_handle, unwrap

MAGIC: Final = b"\x89dlprune\r\n\x1a\n"
_HEAD: Final = struct.Struct("<QI")


@dataclass(frozen=True)
class SerializedItem:
    """What a handle of type 'serialized_item' refers to."""

    data: bytes


@dataclass(frozen=True)
class _Serializer:
    kind: type[Any]
    to_bytes: Callable[[Any], bytes]
    from_bytes: Callable[[bytes], Any]


_serializers: dict[str, _Serializer] = {}
# Modules that register a type but are only imported when needed.
_LATE: Final = {"dl_model": "dlprune.model", "dl_pruning": "dlprune.pruning"}
# Objects being written right now, to find dictionaries that contain each other.
_open_objects: ContextVar[frozenset[int]] = ContextVar("_open_objects", default=frozenset())


def register_serializer(
    sem_type: str, kind: type[Any], to_bytes: Callable[[Any], bytes], from_bytes: Callable[[bytes], Any]
) -> None:
    """Teach serialize_handle a semantic type: its Python class and the two conversions."""
    _serializers[sem_type] = _Serializer(kind, to_bytes, from_bytes)


def encode_content(handle: HHandle) -> bytes:
    """Return the object behind `handle` as bytes without the frame around it; errors as in serialize_handle."""
    if not handle.valid:
        code = H_ERR_HANDLE_NULL if handle._native is None else H_ERR_HANDLE_CLEARED
        raise HOperatorError(code, f"{handle!r} cannot be serialized because nothing is behind it.")
    sem_type = handle.sem_type
    if sem_type not in _serializers and sem_type in _LATE:
        importlib.import_module(_LATE[sem_type])
    serializer = _serializers.get(sem_type)
    if serializer is None:
        known = ", ".join(sorted(_serializers))
        raise HOperatorError(H_ERR_HANDLE_NOSER, f"A handle of type {sem_type!r} was given; possible are: {known}.")
    payload = unwrap(handle, sem_type, serializer.kind, 1)
    if id(payload) in _open_objects.get():
        raise HOperatorError(H_ERR_HANDLE_CYCLES, "A dictionary contains itself, directly or through others.")
    token = _open_objects.set(_open_objects.get() | {id(payload)})
    try:
        return serializer.to_bytes(payload)
    finally:
        _open_objects.reset(token)


def encode(handle: HHandle) -> bytes:
    """Return the object behind `handle` as bytes that `decode` understands; errors as in serialize_handle."""
    content = encode_content(handle)
    name = handle.sem_type.encode()
    return b"".join((MAGIC, struct.pack("<I", len(name)), name, _HEAD.pack(len(content), zlib.crc32(content)), content))


def decode(data: bytes) -> HHandle:
    """Return a new handle to the object in `data`; errors as in deserialize_handle."""
    if not data.startswith(MAGIC):
        code = H_ERR_END_OF_FILE if MAGIC.startswith(data) else H_ERR_NO_SERIALIZED_ITEM
        raise HOperatorError(code, f"The {len(data)} bytes do not begin like an item that dlprune wrote.")
    rest = memoryview(data)[len(MAGIC) :]
    if len(rest) < 4:
        raise _truncated(len(data))
    (name_length,) = struct.unpack_from("<I", rest)
    if name_length > 256:
        raise HOperatorError(H_ERR_NO_SERIALIZED_ITEM, "The type in the item is damaged.")
    start = 4 + name_length + _HEAD.size
    if len(rest) < start:
        raise _truncated(len(data))
    sem_type = bytes(rest[4 : 4 + name_length]).decode(errors="replace")
    length, checksum = _HEAD.unpack_from(rest, 4 + name_length)
    if len(rest) - start < length:
        raise _truncated(len(data))
    content = bytes(rest[start : start + length])
    if len(rest) - start > length or zlib.crc32(content) != checksum:
        raise HOperatorError(H_ERR_NO_SERIALIZED_ITEM, "The content of the item is damaged (its check sum differs).")
    if sem_type not in _serializers and sem_type in _LATE:
        importlib.import_module(_LATE[sem_type])
    serializer = _serializers.get(sem_type)
    if serializer is None:
        raise HOperatorError(H_ERR_NO_SERIALIZED_ITEM, f"The item holds the unknown type {sem_type!r}.")
    try:
        payload = serializer.from_bytes(content)
    except HError:
        raise
    except Exception as error:
        raise HOperatorError(
            H_ERR_NO_SERIALIZED_ITEM, f"The item holds no valid object of type {sem_type!r} ({error})."
        ) from error
    return new_handle(sem_type, payload)


def _truncated(length: int) -> HOperatorError:
    return HOperatorError(H_ERR_END_OF_FILE, f"The item ends after {length} bytes; write or transfer it again.")


def serialize_handle(handle: HHandle) -> HHandle:
    """Write the object behind a handle into a serialized item.

    Parameters: `handle` (of type 'dict', 'dl_model' or 'dl_pruning'; dictionaries with everything in them).
    Returns a handle of type 'serialized_item'. Raises HOperatorError 1201 (no handle), 2453/2454 (empty/cleared),
    2455 (type cannot be serialized), 2456 (dictionary contains itself). Source: HALCON operator serialize_handle.

    Example:
        >>> import dlprune as ha
        >>> item = serialize_handle(ha.from_python_dict({"a": 1}))
        >>> ha.as_python_dict_s(deserialize_handle(item))
        {'a': 1}
    """
    if not isinstance(handle, HHandle):
        raise HOperatorError(H_ERR_WIPT1, f"{handle!r} is no handle.")
    return new_handle("serialized_item", SerializedItem(encode(handle)))


def deserialize_handle(serialized_item_handle: HHandle) -> HHandle:
    """Make a new object from a serialized item.

    Parameters: `serialized_item_handle` (of type 'serialized_item'). Returns a handle of the type that was serialized.
    Raises HOperatorError 9580 (no valid item), 9581 (truncated), 2404 and 2454 for an unsuitable handle.
    Source: HALCON operator deserialize_handle.

    Example: see serialize_handle.
    """
    return decode(unwrap(serialized_item_handle, "serialized_item", SerializedItem, 1).data)


def serialized_item_as_bytes(serialized_item_handle: HHandle) -> bytes:
    """Return the bytes of a serialized item, to store or send them (not in HALCON, where it takes a file or pointer).

    Parameters: `serialized_item_handle` (of type 'serialized_item'). Returns bytes that
    serialized_item_from_bytes takes. Raises HOperatorError 2404 or 2454 for an unsuitable handle.

    Example:
        >>> import dlprune as ha
        >>> data = serialized_item_as_bytes(serialize_handle(ha.create_dict()))
        >>> deserialize_handle(serialized_item_from_bytes(data))
        HHandle('dict')
    """
    return unwrap(serialized_item_handle, "serialized_item", SerializedItem, 1).data


def serialized_item_from_bytes(data: bytes) -> HHandle:
    """Return a serialized item made of `data`, which is only checked when it is deserialized (not in HALCON).

    Parameters: `data` (bytes). Returns a handle of type 'serialized_item'. Raises HOperatorError 1201 for other types.

    Example: see serialized_item_as_bytes.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise HOperatorError(H_ERR_WIPT1, f"data is {type(data).__name__}; bytes are needed.")
    return new_handle("serialized_item", SerializedItem(bytes(data)))
