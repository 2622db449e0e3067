"""Training while weights become sparse: what is noted on the way, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

import dlprune as ha

from .output import Output, percent


@dataclass(frozen=True)
class Point:
    """The state at a step.

    Attributes:
        step: training steps so far.
        wanted: sparsity that the schedule asks for, 0…1.
        reached: share of zeros that the masks hold, 0…1.
        thresholds: by weight, in the order of 'weight_names'.
        loss: mean training loss of the epoch so far.
        accuracy: on held-out images, None where it was not measured.
    """

    step: int
    wanted: float
    reached: float
    thresholds: tuple[float, ...]
    loss: float
    accuracy: float | None = None


def reached_sparsity(pruning: ha.HHandle) -> float:
    """Return the share of zeros over all weights that have masks."""
    from ..sparsity import get_masks

    masks = get_masks(pruning).values()
    return 1.0 - sum(int(mask.sum()) for mask in masks) / max(sum(mask.size for mask in masks), 1) if masks else 0.0


def points_table(points: Sequence[Point], output: Output) -> None:
    """Print a row per point that has an accuracy, i.e. per epoch; per update where there is none."""
    rows = [point for point in points if point.accuracy is not None] or list(points)
    output.table(
        "Steps",
        ["step", " wanted sparsity", " zeros", " highest threshold", " loss", " accuracy held out"],
        [
            (
                point.step,
                percent(point.wanted),
                percent(point.reached),
                f"{max(point.thresholds, default=0.0):.4g}",
                f"{point.loss:.4f}",
                percent(point.accuracy),
            )
            for point in rows
        ],
    )


_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 720, 160, 60, 30, 40
_COLOURS: Final = ("#1b6ca8", "#c8553d", "#2a9d5c", "#8e5ea2", "#b8860b", "#4c566a")


def picture(points: Sequence[Point], names: Sequence[str], title: str) -> str:
    """Return an SVG picture with sparsity, thresholds and accuracy over the steps, one below the other."""
    panels: list[tuple[str, list[tuple[str, list[tuple[int, float]]]]]] = [
        (
            "sparsity",
            [
                ("wanted", [(point.step, point.wanted) for point in points]),
                ("zeros", [(point.step, point.reached) for point in points]),
            ],
        ),
        (
            "thresholds",
            [
                (name, [(point.step, point.thresholds[i]) for point in points if point.thresholds])
                for i, name in enumerate(names)
            ],
        ),
        ("accuracy held out", [("", [(p.step, p.accuracy) for p in points if p.accuracy is not None])]),
    ]
    last = max((point.step for point in points), default=1) or 1
    height = _TOP + len(panels) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for number, (name, lines) in enumerate(panels):
        parts += _panel(name, lines, _TOP + number * (_HEIGHT + _GAP), last)
    return "\n".join([*parts, "</svg>\n"])


def _panel(name: str, lines: Sequence[tuple[str, list[tuple[int, float]]]], top: int, last: int) -> list[str]:
    width = _WIDTH - _LEFT - 20
    highest = max((value for _, line in lines for _, value in line), default=1.0) or 1.0
    bottom = top + _HEIGHT
    parts = [
        f'<rect x="{_LEFT}" y="{top}" width="{width}" height="{_HEIGHT}" fill="none" stroke="#999"/>',
        f'<text x="{_LEFT + 4}" y="{top + 14}">{escape(name)}</text>',
        f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{highest:.3g}</text>',
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{_LEFT + width}" y="{bottom + 14}" text-anchor="end">step {last}</text>',
    ]
    for i, (label, line) in enumerate(lines):
        places = " ".join(
            f"{_LEFT + width * step / last:.1f},{bottom - (_HEIGHT - 20) * value / highest:.1f}" for step, value in line
        )
        colour = _COLOURS[i % len(_COLOURS)]
        parts.append(
            f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5">'
            f"<title>{escape(label)}</title></polyline>"
        )
    return parts
