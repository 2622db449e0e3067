"""Exit codes, and interruptions that leave things tidy."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Final

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
#: What shells expect of a program that a signal ended: this plus the number of the signal.
_SIGNAL_BASE: Final = 128


class StoppedError(Exception):
    """The user (or the system) asked to stop; the message says what was kept and how to go on."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = _SIGNAL_BASE + signal_number


class StopSignal:
    """While active, Ctrl-C and SIGTERM only set `received`, so that work stops between two steps; a second one kills.

    Outside the main thread nothing is changed: only the main thread gets signals.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
