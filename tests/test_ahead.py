"""Working ahead: the same items in the same order, never too many, and no thread is left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from dlprune.ahead import ahead


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "dlprune-ahead"]


def test_items_come_in_order_and_only_a_few_ahead_of_their_use() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(50):
            made.append(number)
            yield number

    for used, item in enumerate(ahead(items(), 3)):
        assert item == used
        time.sleep(0.001)
        assert len(made) <= used + 1 + 3 + 1  # in use, waiting, and the one that finds no room
    assert len(made) == 50
    assert not names()


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("the second is bad")

    found = ahead(items(), 2)
    assert next(found) == 1
    with pytest.raises(ValueError, match="second"):
        next(found)
    assert not names()


def test_who_stops_taking_stops_the_work() -> None:
    found = ahead(iter(range(10**9)), 2)
    assert next(found) == 0
    found.close()  # type: ignore[attr-defined]
    assert not names()
