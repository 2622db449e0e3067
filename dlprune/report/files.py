"""Writing a report: the page, and its numbers beside it."""

from __future__ import annotations

from pathlib import Path

from .. import files
from ..errors import H_ERR_FILE_WR, HOperatorError
from .content import Report
from .page import as_html
from .tables import as_csv, as_json

SUFFIXES = (".html", ".htm")


def report_path(file_name: str) -> Path:
    """Return where a page goes. Raises HOperatorError 3142 for another ending, a folder, or a missing folder."""
    path = Path(file_name)
    if path.suffix.lower() not in SUFFIXES or "\0" in file_name:
        raise _unwritable(file_name, "a report is a file whose name ends in .html; the numbers go beside it")
    if path.is_dir():
        raise _unwritable(file_name, "it is a folder; give the name of a file")
    if not path.absolute().parent.is_dir():
        raise _unwritable(file_name, f"there is no folder {str(path.parent)!r}; make it first")
    return path


def write_report(report: Report, path: Path) -> None:
    """Write page, JSON and CSV, each in one step, the page last. Raises HOperatorError 3142."""
    texts = ((".json", as_json(report)), (".csv", as_csv(report)), (path.suffix, as_html(report)))
    for suffix, text in texts:
        target = path.with_suffix(suffix)
        try:
            # A name may hold half a surrogate pair, which no file can.
            files.replace(target, text.encode("utf-8", "replace"))
        except (OSError, ValueError) as error:
            raise _unwritable(str(target), str(error)) from None


def _unwritable(name: str, why: str) -> HOperatorError:
    return HOperatorError(H_ERR_FILE_WR, f"{name!r} cannot be written: {why}.")
