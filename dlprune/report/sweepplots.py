"""The pictures of a sweep: accuracy against percentage, and against what each model costs; needs the extra `plots`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..sweep.run import COSTS, Point
from .plots import new_figure, write_figure
from .style import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLES: Final = {"macs": "multiply-accumulates", "latency": "latency", "file_size": "file size"}
_MARKERS: Final = "osD^vP"
_OPTIMAL: Final = "#1b1f24"
#: What is worse than the best by more points lies below the picture: it would press all others together.
_SHOWN: Final = 12.0


def write_sweep_plots(points: Sequence[Point], folder: Path) -> list[Path]:
    """Write accuracy.png and pareto.png, if accuracies are known, into a folder and return the files.

    Raises HError (no matplotlib), HOperatorError 3142 (a file or the folder cannot be written).
    """
    if not any(point.accuracy is not None for point in points[1:]):
        return []
    figures = {"accuracy": _accuracy(points), "pareto": _pareto(points)}
    return [write_figure(figure, folder / f"{name}.png") for name, figure in figures.items()]


def _lines(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Return the points with an accuracy by criterion and target, without the original."""
    lines: dict[str, list[Point]] = {}
    for point in points:
        if point.mode and point.accuracy is not None:
            lines.setdefault(point.label, []).append(point)
    return lines


def _percent(share: float | None) -> float:
    return float("nan") if share is None else 100.0 * share


def _limit(axes: Axes, points: Sequence[Point]) -> None:
    """Leave ruined models out of the picture, and say how many."""
    accuracies = [100.0 * point.accuracy for point in points if point.accuracy is not None]
    bottom = max(accuracies) - _SHOWN
    below = sum(accuracy < bottom for accuracy in accuracies)
    if below:
        axes.set_ylim(bottom, max(accuracies) + _SHOWN / 10)
        text = f"{below} {'model lies' if below == 1 else 'models lie'} below"
        axes.text(0.5, 0.01, text, transform=axes.transAxes, ha="center", va="bottom", fontsize=8)


def _accuracy(points: Sequence[Point]) -> Figure:
    figure, (axes,) = new_figure(7, 4)
    original = _percent(points[0].accuracy)
    for i, (label, line) in enumerate(_lines(points).items()):
        ordered = sorted(line, key=lambda point: point.pruned_percentage)
        axes.plot(
            [0.0, *(point.pruned_percentage for point in ordered)],
            [original, *(_percent(point.accuracy) for point in ordered)],
            color=PALETTE[i % len(PALETTE)],
            marker=_MARKERS[i % len(_MARKERS)],
            label=label,
        )
    axes.axhline(original, color="#888888", linewidth=1, linestyle="--")
    axes.set_xlabel("kernels removed, in percent of the removable ones")
    axes.set_ylabel("accuracy in %")
    axes.grid(alpha=0.3)
    _limit(axes, points)
    axes.legend()
    return figure


def _pareto(points: Sequence[Point]) -> Figure:
    """Draw a panel per cost, in percent of the original's; what nothing else beats is joined by a line."""
    costs = [cost for cost in COSTS if all(getattr(point, cost) for point in points)]
    figure, panels = new_figure(4.2 * len(costs), 4.2, columns=len(costs))
    for cost, axes in zip(costs, panels, strict=True):
        base = float(getattr(points[0], cost))
        best = sorted((point for point in points if cost in point.optimal), key=lambda point: getattr(point, cost))
        axes.plot(
            [100 * getattr(point, cost) / base for point in best],
            [_percent(point.accuracy) for point in best],
            color=_OPTIMAL,
            linewidth=1,
            marker="o",
            markersize=12,
            markerfacecolor="none",
            label="nothing is better",
        )
        axes.plot(100.0, _percent(points[0].accuracy), "*", color=_OPTIMAL, markersize=10, label="original")
        for i, (label, line) in enumerate(_lines(points).items()):
            axes.plot(
                [100 * getattr(point, cost) / base for point in line],
                [_percent(point.accuracy) for point in line],
                _MARKERS[i % len(_MARKERS)],
                color=PALETTE[i % len(PALETTE)],
                label=label,
            )
        _limit(axes, points)
        for point in best:
            if point.mode:
                place = (100 * getattr(point, cost) / base, _percent(point.accuracy))
                text = f"{point.percentage:g} %"
                axes.annotate(text, place, (-7, 6), textcoords="offset points", ha="right", fontsize=8)
        axes.set_xlabel(f"{_TITLES[cost]}, in percent of the original's")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy in %")
    panels[0].legend(fontsize=8)
    return figure
