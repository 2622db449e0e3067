"""Which channels can only leave together: a disjoint-set of channel ids, and why some may not leave."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

#: The id of a position that never leaves: image data, or a tensor whose channels are not tracked.
DATA = 0


class ChannelSets:
    """Disjoint sets of channel ids; a set is either free to leave as a whole or held by a reason."""

    def __init__(self) -> None:
        self._parent: Ids = np.zeros(1, dtype=np.int64)
        self._reason: dict[int, str] = {DATA: "it is the network's input data"}

    def __len__(self) -> int:
        return len(self._parent)

    def fresh(self, count: int) -> Ids:
        """Return `count` new ids, each a set of its own."""
        ids = np.arange(len(self._parent), len(self._parent) + count, dtype=np.int64)
        self._parent = np.concatenate([self._parent, ids])
        return ids

    def find(self, ids: Ids) -> Ids:
        """Return the representative (smallest id) of each id's set."""
        roots = self._parent[ids]
        while True:
            above = self._parent[roots]
            if np.array_equal(above, roots):
                break
            roots = above
        self._parent[ids] = roots
        return roots

    def unite(self, first: Ids, second: Ids, reason: str) -> None:
        """Couple two equally long id arrays position by position; `reason` holds what is coupled to data."""
        left, right = self.find(first.reshape(-1)), self.find(second.reshape(-1))
        differ = left != right
        if not differ.any():
            return
        for a, b in np.unique(np.stack([left[differ], right[differ]], axis=1), axis=0):
            self._unite_pair(int(a), int(b), reason)

    def _unite_pair(self, a: int, b: int, reason: str) -> None:
        a, b = int(self.find(np.array([a]))[0]), int(self.find(np.array([b]))[0])
        if a == b:
            return
        if DATA in (a, b):
            self._reason.setdefault(max(a, b), reason)
            return
        low, high = min(a, b), max(a, b)
        self._parent[high] = low
        if high in self._reason:
            self._reason.setdefault(low, self._reason.pop(high))

    def hold(self, ids: Ids, reason: str) -> None:
        """Declare that these ids' sets may not leave; the first reason given is kept."""
        for root in np.unique(self.find(ids.reshape(-1))):
            self._reason.setdefault(int(root), reason)

    def held(self, ids: Ids) -> NDArray[np.bool_]:
        """Tell for each id whether its set is held."""
        roots = self.find(ids)
        return np.isin(roots, np.fromiter(self._reason, dtype=np.int64))

    def reason(self, identity: int) -> str:
        """Return why an id may not leave, '' if it may."""
        return self._reason.get(int(self.find(np.array([identity]))[0]), "")
