"""What every handle of type 'dl_pruning' can do, whatever family of modes it belongs to."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any, Final

from .handle import HHandle, unwrap
from .tuples import Element, HTuple

SEM_TYPE: Final = "dl_pruning"


class Payload(ABC):
    """Parameters and state behind a handle of type 'dl_pruning'; it knows an architecture, but owns no model.

    Attributes:
        lock: held while the state changes.
    """

    lock: threading.RLock  # type: ignore[valid-type, unused-ignore]

    @abstractmethod
    def set(self, name: str, values: HTuple) -> None:
        """Set a parameter. Raises HOperatorError; then nothing has changed."""

    @abstractmethod
    def get(self, name: str) -> list[Element]:
        """Return the values of a parameter or result. Raises HOperatorError 7911."""

    @abstractmethod
    def layer_info(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per convolution, see get_dl_pruning_layer_info."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Return everything as an .npz file whose 'head' tells the class in 'kind'."""


def payload_of(handle: HHandle, index: int) -> Payload:
    """Return what is behind a handle of type 'dl_pruning'; errors as in `unwrap`."""
    return unwrap(handle, SEM_TYPE, Payload, index)  # type: ignore[type-abstract]
