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
        to_data = (left == DATA) | (right == DATA)
        loose = np.maximum(left, right)[to_data]
        self._merge(left[~to_data], right[~to_data])
        self.hold(loose[loose != DATA], reason)

    def _merge(self, left: Ids, right: Ids) -> None:
        merged = []
        while (differ := left != right).any():
            # Each round hangs every greater root under the least that it meets; what that forgets comes up again.
            high = np.maximum(left, right)[differ]
            np.minimum.at(self._parent, high, np.minimum(left, right)[differ])
            merged.append(high)
            left, right = self.find(left[differ]), self.find(right[differ])
        for root in np.unique(np.concatenate(merged)).tolist() if merged else ():
            if root in self._reason:
                self._reason.setdefault(int(self.find(np.array([root]))[0]), self._reason.pop(root))

    def hold(self, ids: Ids, reason: str) -> None:
        """Declare that these ids' sets may not leave; the first reason given is kept."""
        for root in np.unique(self.find(ids.reshape(-1))).tolist():
            self._reason.setdefault(root, reason)

    def held(self, ids: Ids) -> NDArray[np.bool_]:
        """Tell for each id whether its set is held."""
        roots = self.find(ids)
        return np.isin(roots, np.fromiter(self._reason, dtype=np.int64))

    def reason(self, identity: int) -> str:
        """Return why an id may not leave, '' if it may."""
        return self._reason.get(int(self.find(np.array([identity]))[0]), "")
