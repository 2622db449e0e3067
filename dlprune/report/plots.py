"""The figures of a report as PNG files, for slides and documents; needs the extra `plots`."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import files
from ..errors import H_ERR_FILE_WR, HError, HOperatorError
from .charts import ScoreAxis
from .content import Report
from .style import ACCURACY_SPAN, FIXED_COLOUR, KEPT, REMOVED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 150
_CLASSES = 24
#: From this share on a cell is so dark that its number is white.
_DARK = 0.5


def require_matplotlib() -> None:
    """Raise HError that tells how to install matplotlib, if it is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise HError("Figures need the extra 'plots'. Install it with: pip install 'dlprune[plots]'")


def write_plots(report: Report, folder: Path) -> list[Path]:
    """Write layers.png and, where there is something to show, scores.png, steps.png, accuracy.png and confusion.png.

    Returns the files. Raises HError (no matplotlib), HOperatorError 3142 (a file or the folder cannot be written).
    """
    require_matplotlib()
    test = report.measures.test
    wanted: list[tuple[str, bool, Callable[[Report], Figure]]] = [
        ("layers", True, _layers),
        ("scores", any(layer.scores for layer in report.layers), _scores),
        ("steps", bool(report.history), _steps),
        ("accuracy", bool(report.curve), _accuracy),
        (
            "confusion",
            test is not None and test.confusion is not None and len(test.class_names) <= _CLASSES,
            _confusion,
        ),
    ]
    written = []
    for name, is_there, draw in wanted:
        if not is_there:
            continue
        written.append(write_figure(draw(report), folder / f"{name}.png"))
    return written


def write_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as a PNG file, in a folder that is made if need be, and return the path.

    Raises HOperatorError 3142.
    """
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, stream.getvalue())
    except (OSError, ValueError) as error:
        raise HOperatorError(H_ERR_FILE_WR, f"{str(path)!r} cannot be written: {error}.") from None
    return path


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Return an empty figure that belongs to no window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, [figure.add_subplot(1, columns, i + 1) for i in range(columns)]


def names_at(axis: Any, names: list[str], **options: Any) -> None:
    """Put names at 0, 1, …; a dollar in a name is a dollar, no formula."""
    axis.set_ticks(range(len(names)), names, **options)
    for label in axis.get_ticklabels():
        label.set_parse_math(False)


def _layers(report: Report) -> Figure:
    layers = report.layers
    figure, (axes,) = new_figure(8, min(1.2 + 0.22 * len(layers), 60))
    start = np.zeros(len(layers))
    parts = (("kept", KEPT, ""), ("removed", REMOVED, "///"), ("fixed", FIXED_COLOUR, ""))
    for name, colour, hatch in parts:
        counts = np.array([getattr(layer, name) for layer in layers])
        axes.barh(range(len(layers)), counts, left=start, color=colour, hatch=hatch, edgecolor="white", label=name)
        start += counts
    names_at(axes.yaxis, [layer.name for layer in layers], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("kernels")
    axes.legend()
    return figure


def _scores(report: Report) -> Figure:
    pairs = [pair for layer in report.layers for pair in zip(layer.scores, layer.gone, strict=True)]
    figure, (axes,) = new_figure(7, 3.5)
    parts = [[score for score, gone in pairs if gone is which] for which in (False, True)]
    axis = ScoreAxis([score for score, _ in pairs])
    if axis.is_log:
        axes.set_xscale("log")
    # As on the page: on a scale of decades what is below it, zeros above all, is in the first bin.
    edges = 10.0**axis.edges if axis.is_log else axis.edges
    parts = [np.clip(part, edges[0], edges[-1]).tolist() for part in parts]
    axes.hist(parts, bins=edges.tolist(), stacked=True, color=[KEPT, REMOVED], label=["kept", "removed"])
    axes.set_xlabel("score")
    axes.set_ylabel("kernels")
    axes.legend()
    return figure


def _steps(report: Report) -> Figure:
    figure, (axes,) = new_figure(7, 3.5)
    axes.plot([0, *(step["kernel_num"] for step in report.history)], color=KEPT, marker="o")
    axes.set_xticks(range(len(report.history) + 1))
    axes.set_xlabel("step")
    axes.set_ylabel("kernels gone")
    return figure


def _accuracy(report: Report) -> Figure:
    figure, (axes,) = new_figure(7, 3.5)
    axes.plot([x for x, _ in report.curve], [100 * y for _, y in report.curve], color=KEPT, marker="o")
    axes.set_xlabel("percent of the removable kernels removed")
    axes.set_ylabel("accuracy in %")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, high - ACCURACY_SPAN), high)
    axes.grid(alpha=0.3)
    return figure


def _confusion(report: Report) -> Figure:
    test = report.measures.test
    assert test is not None
    assert test.confusion is not None
    size = 2.0 + 0.3 * len(test.class_names)
    figure, both = new_figure(2 * size, size + 0.6, columns=2)
    for axes, table, title in zip(both, test.confusion, ("before", "after"), strict=True):
        shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for (i, j), count in np.ndenumerate(table):
            if count:
                axes.text(
                    j, i, str(count), ha="center", va="center", color="white" if shares[i, j] > _DARK else "black"
                )
        names_at(axes.xaxis, list(test.class_names), rotation=90)
        names_at(axes.yaxis, list(test.class_names))
        axes.set_title(title)
        axes.set_xlabel("taken for")
        axes.set_ylabel("is")
    return figure
