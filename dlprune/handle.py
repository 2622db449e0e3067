"""Handles: small tokens that stand for the objects operators work on (dictionaries, models, pruning data)."""

from __future__ import annotations

from typing import TypeVar

from .errors import (
    H_ERR_HANDLE_CLEARED,
    H_ERR_HANDLE_NULL,
    H_ERR_WIPT1,
    H_ERR_WRONG_HANDLE_TYPE,
    HOperatorError,
)

_T = TypeVar("_T")


class _Native:
    """What all handles to one object share; clearing empties it for every one of them."""

    __slots__ = ("__weakref__", "payload", "sem_type")

    def __init__(self, sem_type: str, payload: object) -> None:
        self.sem_type = sem_type
        self.payload: object | None = payload


class HHandle:
    """A reference to an object of the library, e.g. a dictionary ('dict') or a model ('dl_model').

    Handles come from operators; `HHandle()` makes an empty one. Two handles are equal if they refer to the same
    object. The object is freed with its last handle, or emptied at once by clear_handle.

    Example:
        >>> import dlprune as ha
        >>> ha.create_dict()
        HHandle('dict')
    """

    __slots__ = ("__weakref__", "_native")

    def __init__(self) -> None:
        self._native: _Native | None = None

    @property
    def sem_type(self) -> str:
        """The semantic type, e.g. 'dict', 'dl_model', 'dl_pruning'; 'handle' if empty or cleared."""
        native = self._native
        return "handle" if native is None or native.payload is None else native.sem_type

    @property
    def valid(self) -> bool:
        """Whether the handle refers to an object that has not been cleared."""
        return self._native is not None and self._native.payload is not None

    def clear(self) -> None:
        """Empty the object; every handle to it becomes invalid. Does nothing if that has happened before."""
        if self._native is not None:
            self._native.payload = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HHandle):
            return NotImplemented
        return self is other or (self._native is not None and self._native is other._native)

    def __hash__(self) -> int:
        return id(self) if self._native is None else id(self._native)

    def __repr__(self) -> str:
        if self._native is None:
            return "HHandle()"
        return f"HHandle({self._native.sem_type!r}{'' if self.valid else ', cleared'})"

    def __copy__(self) -> HHandle:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> HHandle:
        return self

    def __reduce__(self) -> str:
        raise TypeError("A handle cannot be pickled; use serialize_handle and serialized_item_as_bytes.")


def new_handle(sem_type: str, payload: object) -> HHandle:
    """Return the first handle to `payload`."""
    handle = HHandle()
    handle._native = _Native(sem_type, payload)
    return handle


def unwrap(handle: object, sem_type: str, kind: type[_T], index: int) -> _T:
    """Return the object behind a handle.

    Parameters: `handle` (what the caller of the operator gave: an HHandle or a sequence of one), `sem_type` (the
    type the operator needs), `kind` (the Python class of that type), `index` (the parameter's position, from 1).
    Raises HOperatorError: 1200 + index if it is no handle, 2453 if empty, 2454 if cleared, 2404 if of another type.
    """
    if isinstance(handle, (list, tuple)) and len(handle) == 1:
        handle = handle[0]
    if not isinstance(handle, HHandle):
        raise HOperatorError(
            H_ERR_WIPT1 + index - 1,
            f"{handle!r} is no handle; give a handle of type {sem_type!r} for parameter {index}.",
        )
    native = handle._native
    if native is None:
        raise HOperatorError(H_ERR_HANDLE_NULL, f"Parameter {index} is an empty handle; {sem_type!r} is needed.")
    payload = native.payload
    if payload is None:
        raise HOperatorError(
            H_ERR_HANDLE_CLEARED,
            f"Parameter {index} is a handle of type {native.sem_type!r} that was cleared; create or read it again.",
        )
    if native.sem_type != sem_type or not isinstance(payload, kind):
        raise HOperatorError(
            H_ERR_WRONG_HANDLE_TYPE,
            f"Parameter {index} is a handle of type {native.sem_type!r}; a handle of type {sem_type!r} is needed.",
        )
    return payload
