"""Weights and solver states in ONNX Runtime's memory, twice: a step reads one bank and writes the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

Array = NDArray[np.float32]


def place(array: NDArray[np.generic]) -> ort.OrtValue:
    """Return a tensor of ONNX Runtime with a copy of an array."""
    value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), array.dtype.type)
    value.update_inplace(np.asarray(array, order="C"))
    return value


def empty(shape: Iterable[int], dtype: type[np.generic] = np.float32) -> ort.OrtValue:
    """Return a tensor of ONNX Runtime with any content."""
    return ort.OrtValue.ortvalue_from_shape_and_type(list(shape), dtype)


def is_channels_last(shape: Sequence[int]) -> bool:
    """Tell whether kernels [M, C, h, w] are kept as [M, h, w, C], the order in which they are used and their gradients
    come (ONNX Runtime takes long for such a transposition)."""
    return len(shape) >= 4


def pack(array: Array) -> Array:
    """Return a weight, or what belongs to its elements, in the flat order in which it is kept."""
    return (np.moveaxis(array, 1, -1) if is_channels_last(array.shape) else array).reshape(-1)


def unpack(flat: Array, shape: Sequence[int]) -> Array:
    """Return a weight in its shape."""
    if not is_channels_last(shape):
        return flat.reshape(shape)
    return np.ascontiguousarray(np.moveaxis(flat.reshape(shape[0], *shape[2:], shape[1]), -1, 1))


def fetch(value: ort.OrtValue) -> NDArray[np.generic]:
    """Return a copy of a tensor of ONNX Runtime (its own `numpy` may be a view)."""
    return np.array(value.numpy(), copy=True)


@dataclass(frozen=True)
class Snapshot:
    """Everything that a training run has changed, as arrays.

    Attributes:
        solver: whose states these are.
        weights: float32, by name.
        states: by kind ('velocity'; 'mean', 'square'), then by name of the weight; what is missing is zero.
        statistics: running mean and variance, float32, by name.
        steps: steps of this solver so far.
    """

    solver: str
    weights: Mapping[str, Array]
    states: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    statistics: Mapping[str, Array] = field(default_factory=dict)
    steps: int = 0


class Bank:
    """One set of weights and solver states, each flat (see `pack`)."""

    def __init__(self, weights: Mapping[str, Array], states: Mapping[str, Mapping[str, Array]]) -> None:
        self._shapes = {name: array.shape for name, array in weights.items()}
        self.weights = {name: place(pack(array)) for name, array in weights.items()}
        self.states = {
            kind: {name: place(pack(array)) for name, array in arrays.items()} for kind, arrays in states.items()
        }

    def fetch_weights(self) -> dict[str, Array]:
        """Return copies of the weights in their shapes."""
        return self._fetched(self.weights)

    def fetch_states(self) -> dict[str, dict[str, Array]]:
        """Return copies of the states, by kind and name."""
        return {kind: self._fetched(values) for kind, values in self.states.items()}

    def _fetched(self, values: Mapping[str, ort.OrtValue]) -> dict[str, Array]:
        return {name: unpack(fetch(value).astype(np.float32), self._shapes[name]) for name, value in values.items()}
