"""Working on the next items while the present one is being used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

#: How often a waiting thread looks whether anybody still wants its items, in seconds.
_LOOK = 0.1


def ahead(items: Iterable[T], most: int) -> Iterator[T]:
    """Yield the items of an iterable that a thread of its own runs through, at most `most` ahead of their use.

    What the iterable raises is raised here, after the items before. Who stops taking items stops the thread.

    Example:
        >>> list(ahead(range(3), 2))
        [0, 1, 2]
    """
    waiting: queue.Queue[tuple[bool, T | BaseException | None]] = queue.Queue(most)
    unwanted = threading.Event()

    def put(is_item: bool, value: T | BaseException | None) -> None:
        while not unwanted.is_set():
            try:
                waiting.put((is_item, value), timeout=_LOOK)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put(True, item)
                if unwanted.is_set():
                    return
            put(False, None)
        except BaseException as error:
            put(False, error)

    thread = threading.Thread(target=work, name="dlprune-ahead", daemon=True)
    thread.start()
    try:
        while True:
            is_item, value = waiting.get()
            if is_item:
                yield value  # type: ignore[misc]
            elif isinstance(value, BaseException):
                raise value
            else:
                return
    finally:
        unwanted.set()
        thread.join()
