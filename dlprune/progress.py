"""Telling how far long work has come."""

from __future__ import annotations

from collections.abc import Callable

#: Takes the name of what is done and the share done of it.
Progress = Callable[[str, float], object]


def within(progress: Callable[[float], None], number: int, count: int, share: float) -> None:
    """Tell the progress of one of several equal parts."""
    progress((number + share) / count)
