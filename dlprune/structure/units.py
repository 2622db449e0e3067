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
        self._held: NDArray[np.bool_] = np.ones(1, dtype=np.bool_)  # whether there is a reason, by representative
        self._reason: dict[int, str] = {DATA: "it is the network's input data"}

    def __len__(self) -> int:
        return len(self._parent)

    def fresh(self, count: int) -> Ids:
        """Return `count` new ids, each a set of its own."""
        ids = np.arange(len(self._parent), len(self._parent) + count, dtype=np.int64)
        self._parent = np.concatenate([self._parent, ids])
        self._held = np.concatenate([self._held, np.zeros(count, dtype=np.bool_)])
        return ids

    def find(self, ids: Ids) -> Ids:
        """Return the representative (smallest id) of each id's set."""
        roots = self._parent[ids]
        above = self._parent[roots]
        if (above == roots).all():
            return roots
        while True:
            roots, above = above, self._parent[above]
            if (above == roots).all():
                break
        self._parent[ids] = roots
        return roots

    def unite(self, first: Ids, second: Ids, reason: str) -> None:
        """Couple two equally long id arrays position by position; `reason` holds what is coupled to data."""
        left, right = self.find(first.reshape(-1)), self.find(second.reshape(-1))
        to_data = np.minimum(left, right) == DATA
        if to_data.any():
            loose = np.maximum(left, right)[to_data]
            self._merge(left[~to_data], right[~to_data])
            self.hold(loose[loose != DATA], reason)
        else:
            self._merge(left, right)

    def _merge(self, left: Ids, right: Ids) -> None:
        lost = [np.zeros(0, dtype=np.int64)]  # held sets that have come under another one
        while (differ := left != right).any():
            # Each round hangs every greater root under the least that it meets; what that forgets comes up again.
            high = np.maximum(left, right)[differ]
            np.minimum.at(self._parent, high, np.minimum(left, right)[differ])
            lost.append(high[self._held[high]])
            left, right = self.find(left[differ]), self.find(right[differ])
        for root in sorted(set(np.concatenate(lost).tolist())):
            self.hold(np.array([root]), self._reason.pop(root))

    def hold(self, ids: Ids, reason: str) -> None:
        """Declare that these ids' sets may not leave; the first reason given is kept."""
        roots = self.find(ids.reshape(-1))
        for root in set(roots[~self._held[roots]].tolist()):
            self._held[root] = True
            self._reason[root] = reason

    def held(self, ids: Ids) -> NDArray[np.bool_]:
        """Tell for each id whether its set is held."""
        return self._held[self.find(ids)]

    def reason(self, identity: int) -> str:
        """Return why an id may not leave, '' if it may."""
        return self._reason.get(int(self.find(np.array([identity]))[0]), "")
