"""What a handle of type 'dict' refers to: each key holds either a tuple or an image object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from ..handle import unwrap
from ..image import HObject
from ..tuples import HTuple

Key: TypeAlias = str | int


class Dictionary:
    """What a handle of type 'dict' refers to; tuples are never changed in place, so readers need no lock."""

    __slots__ = ("entries",)

    def __init__(self, entries: Mapping[Key, HTuple | HObject] | None = None) -> None:
        self.entries: dict[Key, HTuple | HObject] = dict(entries or {})


def unwrap_dict(handle: object, index: int) -> Dictionary:
    """Return the dictionary behind a handle; errors as in `unwrap`."""
    return unwrap(handle, "dict", Dictionary, index)
