"""The page and the figures that a command writes besides its result."""

from __future__ import annotations

from pathlib import Path

import typer

import dlprune as ha
from dlprune.report.files import report_path
from dlprune.report.plots import require_matplotlib

from .options import ReportOptions


def require_report_places(options: ReportOptions, *taken: Path | None) -> None:
    """Tell before the work, not after, if page or figures cannot be written, or would replace one of those `taken`.

    Raises typer.BadParameter, HError (no matplotlib).
    """
    if options.plots is not None:
        require_matplotlib()
        if options.plots.exists() and not options.plots.is_dir():
            raise typer.BadParameter(f"{str(options.plots)!r} is no folder.", param_hint="--plots")
    if options.report is None:
        return
    try:
        path = report_path(str(options.report))
    except ha.HOperatorError as error:
        raise typer.BadParameter(error.extended_error_message, param_hint="--report") from None
    written = {path.with_suffix(suffix).resolve() for suffix in (".json", ".csv", path.suffix)}
    for given in taken:
        if given is not None and given.resolve() in written:
            raise typer.BadParameter(f"{str(given)!r} would be replaced; give another name.", param_hint="--report")
