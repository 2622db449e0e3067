"""The channel axis of a tensor: which axis, and which id stands at each of its positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..shapes import Shape
from .units import DATA, ChannelSets, Ids


@dataclass(frozen=True)
class Channels:
    """Channel ids of one tensor: they vary along `axis` only.

    `axis` is None for a tensor that carries plain data; `ids` is then empty.
    """

    shape: Shape
    axis: int | None
    ids: Ids

    @staticmethod
    def plain(shape: Shape) -> Channels:
        """Return the channels of a tensor that carries plain data."""
        return Channels(shape, None, np.zeros(0, dtype=np.int64))

    def reshaped(self, shape: Shape, axis: int | None = None) -> Channels:
        """Return the same ids on a tensor of another shape, by default on the same axis."""
        return Channels(shape, self.axis if axis is None else axis, self.ids)

    def array(self) -> Ids:
        """Return the id of every element, as a read-only view that takes no memory."""
        if self.axis is None:
            return np.broadcast_to(np.int64(DATA), self.shape)
        view = [1] * len(self.shape)
        view[self.axis] = len(self.ids)
        return np.broadcast_to(self.ids.reshape(view), self.shape)


def compact(array: Ids) -> Ids:
    """Shrink to one element every axis along which an id array is a broadcast view."""
    index = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)
    return array[index]


def settle(sets: ChannelSets, array: Ids, shape: Shape, where: str) -> Channels:
    """Turn the ids of every element into one channel axis.

    Ids that vary along several axes are coupled along all of them but one, so that what survives is always
    rectangular; the axis that leaves the most sets free is kept.

    Args:
        sets: the disjoint sets to couple in.
        array: ids, broadcastable to `shape`.
        shape: the tensor's shape.
        where: the operator, for the reason of what gets held.
    """
    ids = sets.find(compact(np.broadcast_to(array, shape)))
    varying = [axis for axis in range(ids.ndim) if ids.shape[axis] > 1 and np.any(ids != ids.take([0], axis))]
    if not varying:
        if ids.size and int(ids.flat[0]) != DATA:
            sets.hold(ids.reshape(-1)[:1], f"it fills every channel of the output of {where}")
        return Channels.plain(shape)
    best = max(varying, key=lambda axis: free_sets(sets, _rows(ids, axis))) if len(varying) > 1 else varying[0]
    rows = _rows(ids, best)
    if rows.shape[1] > 1:
        first = np.repeat(rows[:, :1], rows.shape[1] - 1, axis=1)
        sets.unite(first, rows[:, 1:], f"{where} mixes it with other data")
    vector = np.ascontiguousarray(rows[:, 0])
    return Channels(shape, best, np.broadcast_to(vector, (shape[best],)).copy())


def _rows(ids: Ids, axis: int) -> Ids:
    return np.moveaxis(ids, axis, 0).reshape(ids.shape[axis], -1)


def free_sets(sets: ChannelSets, rows: Ids) -> int:
    """Count the sets that stay free if the ids of each row are coupled; a lone set can never leave and counts as 0."""
    rows = sets.find(rows)
    trial = ChannelSets()
    positions = trial.fresh(len(rows))
    order = np.argsort(rows, axis=None, kind="stable")
    members, owners = rows.reshape(-1)[order], np.repeat(positions, rows.shape[1])[order]
    same = members[1:] == members[:-1]
    trial.unite(owners[:-1][same], owners[1:][same], "")
    trial.hold(positions[sets.held(rows).any(axis=1)], "held")
    roots = np.unique(trial.find(positions))
    free = int(np.count_nonzero(~trial.held(roots)))
    return free if len(roots) > 1 else 0
