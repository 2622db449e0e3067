"""What commands print: notes and tables for people, or one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .options import OutputOptions

#: Width of tables where no terminal tells one: nothing should be cut off in a log.
_LOG_WIDTH: Final = 160


class _Console(Console):
    """A console that leaves it to the caller what happens when nobody reads on."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Output:
    """Prints notes to stderr and results to stdout, as far as the options want them.

    With --json stderr is kept free for an error, and notes become part of the result.
    """

    def __init__(self, options: OutputOptions) -> None:
        self.options = options
        self.results = not options.quiet and not options.json
        self.notes: list[str] = []
        self.console = _Console(highlight=False, width=None if sys.stdout.isatty() else _LOG_WIDTH)

    def note(self, text: str) -> None:
        """Tell what is going on."""
        if self.options.json:
            self.notes.append(text)
        elif not self.options.quiet:
            typer.echo(text, err=True)

    def line(self, text: str = "") -> None:
        """Print one line of the result."""
        if self.results:
            typer.echo(text)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table; columns whose title begins with a blank are aligned to the right."""
        if not self.results:
            return
        table = Table(title=title, title_justify="left", title_style="bold")
        for column in columns:
            table.add_column(column.strip(), justify="right" if column.startswith(" ") else "left", overflow="fold")
        for row in rows:
            table.add_row(*(number(cell) for cell in row))
        self.console.print(table, markup=False)

    def json(self, result: dict[str, Any]) -> None:
        """Print the result, and the notes, as JSON if that was asked for."""
        if self.options.json and not self.options.quiet:
            typer.echo(json.dumps({**result, "notes": self.notes}, indent=2, ensure_ascii=False))

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a progress bar on a terminal; yields a function that takes the number of steps just done."""
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=self.options.quiet or not sys.stderr.isatty(),
        ) as bar:
            task = bar.add_task(title, total=total)
            yield lambda steps: bar.advance(task, steps)

    @contextmanager
    def working(self, title: str) -> Iterator[None]:
        """Show on a terminal that something goes on whose length is not known."""
        if self.options.quiet or not sys.stderr.isatty():
            yield
            return
        with Console(stderr=True).status(title):
            yield


def number(value: object) -> str:
    """Return a table cell: integers with separators for thousands, unknown values as a dash."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def percent(value: float | None) -> str | None:
    """Return a share as percent with two decimals, None if unknown."""
    return None if value is None else f"{100 * value:.2f} %"


def change(before: float, after: float) -> str:
    """Return how much less (or more) a figure has become."""
    return "–" if not before else f"{100 * (after / before - 1):+.1f} %"


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds with three significant digits."""
    value = 1000 * seconds
    return f"{value:.3f} ms" if value < 10 else f"{value:.1f} ms"
