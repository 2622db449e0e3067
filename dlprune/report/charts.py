"""The figures of the page as inline SVG and HTML; every name in them is escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from .content import Integers, LayerReport
from .style import KEPT, PALETTE, REMOVED

_BINS = 36
_TICKS = 8
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 250, 84, 48, 14
_RIGHT = 34
#: A largest score so many times the median one asks for a scale of powers of ten.
_SKEWED = 10.0


def plain(value: float) -> str:
    """Return a number for an axis or a label: few digits, no exponent where it is readable without."""
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.1e}"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}"


def layer_bar(layer: LayerReport, widest: int, colour: str) -> str:
    """Return one line: name, a bar as long as the layer has kernels, and how many left."""
    total = layer.kept + layer.removed + layer.fixed
    parts = [("kept", layer.kept, "kept"), ("removed", layer.removed, "removed"), ("fixed", layer.fixed, "fixed")]
    why = f"; fixed, because {layer.reason}" if layer.reason else ""
    tip = escape(f"{layer.name}: {', '.join(f'{count} {word}' for word, count, _ in parts if count)}{why}")
    spans = "".join(
        f'<span class="{kind}" style="width:{100 * count / total:.3f}%"></span>' for _, count, kind in parts if count
    )
    return (
        f'<div class="layer" title="{tip}"><div class="name">{tag(layer, colour)}{escape(layer.name)}</div>'
        f'<div class="bar" role="img" aria-label="{tip}" style="width:{100 * total / max(widest, 1):.2f}%">{spans}'
        f'</div><div class="sum">{total} → {total - layer.removed}</div></div>'
    )


def tag(layer: LayerReport, colour: str) -> str:
    """Return the small box with the letter of a layer's group, framed in its colour if the group has several."""
    if not layer.group:
        return '<span class="tag" title="no kernel can leave">–</span>'
    style = f' style="border-color:{colour}"' if layer.coupled else ""
    return f'<span class="tag"{style}>{escape(layer.group)}</span>'


def group_colours(layers: Sequence[LayerReport]) -> dict[str, str]:
    """Return a colour for each group of several layers; they repeat, which is why there are letters too."""
    labels = dict.fromkeys(layer.group for layer in layers if layer.coupled)
    return {label: PALETTE[i % len(PALETTE)] for i, label in enumerate(labels)}


def network(layers: Sequence[LayerReport], colours: Mapping[str, str]) -> str:
    """Return the convolutions in graph order as boxes, those of one group joined by arcs of the group's colour."""
    step, size = 40, 26
    arcs = _arcs(layers)
    top = 12 + max((_arc_height(a, b) for _, a, b in arcs), default=0)
    width = max(step * len(layers) + 20, 120)
    parts = [f'<line x1="10" y1="{top + size / 2}" x2="{width - 10}" y2="{top + size / 2}" stroke="#888"/>']
    for label, a, b in arcs:
        x, y, peak = 10 + step * a + step / 2, 10 + step * b + step / 2, top - _arc_height(a, b) * 4 / 3
        parts.append(
            f'<path d="M{x} {top}C{x} {peak:.1f} {y} {peak:.1f} {y} {top}" fill="none" '
            f'stroke="{colours[label]}" stroke-width="3"><title>group {escape(label)}</title></path>'
        )
    for i, layer in enumerate(layers):
        x, colour = 10 + step * i + (step - size) / 2, colours.get(layer.group, "#888")
        share = layer.removed / max(layer.kept + layer.removed + layer.fixed, 1)
        tip = escape(f"{layer.number}. {layer.name}: {100 * share:.0f} % of its kernels removed")
        fill = "#ddd" if layer.reason else "#fff"
        parts.append(
            f'<g><title>{tip}</title><rect x="{x}" y="{top}" width="{size}" height="{size}" rx="4" fill="{fill}" '
            f'stroke="{colour}" stroke-width="3"/><rect x="{x + 3}" y="{top + 3 + (size - 6) * (1 - share):.1f}" '
            f'width="{size - 6}" height="{(size - 6) * share:.1f}" fill="{REMOVED}"/>'
            f'<text x="{x + size / 2}" y="{top + size + 16}" text-anchor="middle">{layer.number}</text></g>'
        )
    return (
        f'<svg id="network" width="{width}" height="{top + 50}" viewBox="0 0 {width} {top + 50}" '
        f'role="img" '
        f'aria-label="The convolutions in graph order; arcs join those whose kernels leave together">'
        f"{''.join(parts)}</svg>"
    )


def _arcs(layers: Sequence[LayerReport]) -> list[tuple[str, int, int]]:
    """Return group and both places of each pair of neighbours in a group."""
    places: dict[str, list[int]] = {}
    for i, layer in enumerate(layers):
        if layer.coupled:
            places.setdefault(layer.group, []).append(i)
    return [(label, a, b) for label, members in places.items() for a, b in pairwise(members)]


def _arc_height(first: int, last: int) -> int:
    return min(14 + 7 * (last - first), 80)


class ScoreAxis:
    """Bins that all scores share: decades where the scores are positive and far apart, else equal steps."""

    def __init__(self, scores: Sequence[float]) -> None:
        values = np.array(scores, np.float64)
        positive = values[values > 0]
        self.is_log = bool(len(positive) and values.min() >= 0 and positive.max() > _SKEWED * np.median(positive))
        shown = self._place(positive if self.is_log else values)
        low, high = float(shown.min()), float(shown.max())
        self.edges = np.linspace(low, high if high > low else low + 1.0, _BINS + 1)

    def _place(self, values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.log10(np.maximum(values, 1e-300)) if self.is_log else values

    def counts(self, scores: Sequence[float]) -> list[int]:
        """Return how many scores lie in each bin; what is below (zeros on a scale of decades) is in the first."""
        places = np.clip(self._place(np.array(scores, np.float64)), self.edges[0], self.edges[-1])
        return [int(one) for one in np.histogram(places, self.edges)[0]]

    def value(self, share: float) -> float:
        """Return the score at a share of the axis."""
        place = float(self.edges[0] + share * (self.edges[-1] - self.edges[0]))
        return 10.0**place if self.is_log else place


def histogram(layers: Sequence[LayerReport], axis: ScoreAxis) -> str:
    """Return the distribution of all scores, removed kernels on top of kept ones."""
    kept, removed = _split(layers, axis)
    most = max(a + b for a, b in zip(kept, removed, strict=True)) or 1
    up, wide = _HEIGHT - _BOTTOM - _TOP, (_across(1) - _across(0)) / _BINS
    ticks = [(i / 4, plain(axis.value(i / 4))) for i in range(5)]
    parts = [_frame(ticks, (f"score ({'powers of ten' if axis.is_log else 'linear'})", "kernels"), 0, most)]
    for i, (a, b) in enumerate(zip(kept, removed, strict=True)):
        x, base = _LEFT + i * wide, _HEIGHT - _BOTTOM
        for count, colour, word, below in ((a, KEPT, "kept", 0), (b, REMOVED, "removed", a)):
            if count:
                tall = up * count / most
                parts.append(
                    f'<rect x="{x + 0.5:.1f}" y="{base - up * below / most - tall:.1f}" width="{wide - 1:.1f}" '
                    f'height="{tall:.1f}" fill="{colour}"><title>{count} {word}, score about '
                    f"{plain(axis.value((i + 0.5) / _BINS))}</title></rect>"
                )
    return _svg("scores", "Distribution of the scores of all kernels that can leave", parts)


def strip(layer: LayerReport, axis: ScoreAxis) -> str:
    """Return the distribution of one layer's scores on the same axis, without text, as wide as there is room."""
    kept, removed = _split([layer], axis)
    most = max(a + b for a, b in zip(kept, removed, strict=True)) or 1
    parts = ['<line x1="0" y1="28" x2="360" y2="28" stroke="#bbb"/>']
    for i, (a, b) in enumerate(zip(kept, removed, strict=True)):
        for count, colour, below in ((a, KEPT, 0), (b, REMOVED, a)):
            if count:
                y = 28 - 26 * (below + count) / most
                parts.append(
                    f'<rect x="{10 * i}" y="{y:.1f}" width="9" height="{26 * count / most:.1f}" fill="{colour}"/>'
                )
    return f'<svg class="strip" viewBox="0 0 360 28" preserveAspectRatio="none">{"".join(parts)}</svg>'


def _split(layers: Sequence[LayerReport], axis: ScoreAxis) -> tuple[list[int], list[int]]:
    pairs = [pair for layer in layers for pair in zip(layer.scores, layer.gone, strict=True)]
    return axis.counts([s for s, gone in pairs if not gone]), axis.counts([s for s, gone in pairs if gone])


def line(
    name: str,
    title: str,
    points: Sequence[tuple[float, float]],
    labels: tuple[str, str],
    limits: tuple[float, float] = (-math.inf, math.inf),
    least: float = 0.0,
) -> str:
    """Return measured points joined by a line; values are in the points' hover text as well.

    `labels` are those of x and y; the y axis ends within `limits` and is at least `least` long, so that a trifle does
    not look like a fall.
    """
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right = min(xs), max(xs)
    pad = 0.1 * (max(ys) - min(ys)) or max(abs(max(ys)) * 0.05, 1e-9)
    high = min(max(ys) + pad, limits[1])
    low, wide = max(min(min(ys) - pad, high - least), limits[0]), (right - left) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return _across((x - left) / wide), _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * (y - low) / (high - low)

    ends = [place(x, y) for x, y in points]
    # The points' own places where there is room for them, else five equal steps.
    shares = [(x - left) / wide for x in xs] if len(xs) <= _TICKS else [i / 4 for i in range(5)]
    parts = [_frame([(share, plain(left + share * wide)) for share in shares], labels, low, high)]
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in ends)
    parts.append(f'<polyline points="{drawn}" fill="none" stroke="{KEPT}" stroke-width="2"/>')
    for (x, y), (across, up) in zip(points, ends, strict=True):
        parts.append(
            f'<circle cx="{across:.1f}" cy="{up:.1f}" r="4.5" fill="{KEPT}"><title>{escape(labels[0])} {plain(x)}: '
            f"{escape(labels[1])} {y:.6g}</title></circle>"
        )
    return _svg(name, title, parts)


def _across(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _frame(ticks: Sequence[tuple[float, str]], labels: tuple[str, str], low: float, high: float) -> str:
    """Return axes: `ticks` are shares of the x axis and their texts; three numbers stand along y."""
    base = _HEIGHT - _BOTTOM
    parts = [f'<path d="M{_LEFT} {_TOP}V{base}H{_across(1):.0f}" fill="none" stroke="#888"/>']
    parts += [
        f'<text x="{_across(share):.0f}" y="{base + 18}" text-anchor="middle">{text}</text>' for share, text in ticks
    ]
    for share in (0.0, 0.5, 1.0):
        y, value = base - share * (base - _TOP), low + share * (high - low)
        shown = f"{value:.4g}" if abs(high) < 1000 else plain(round(value))
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 5:.0f}" text-anchor="end">{shown}</text>')
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_across(1):.0f}" stroke="#e5e8eb"/>')
    middle = (_TOP + base) / 2
    parts.append(f'<text x="{_across(0.5):.0f}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(labels[0])}</text>')
    turned = f'transform="rotate(-90 16 {middle})"'
    parts.append(f'<text x="16" y="{middle}" text-anchor="middle" {turned}>{escape(labels[1])}</text>')
    return "".join(parts)


def _svg(name: str, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg id="{name}" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def confusion(table: Integers, names: Sequence[str], caption: str) -> str:
    """Return a confusion matrix; right decisions are blue, wrong ones orange, the darker the more of their class."""
    heads = "".join(f'<th scope="col" class="num">{escape(name)}</th>' for name in names)
    rows = []
    for i, (name, row) in enumerate(zip(names, table.tolist(), strict=True)):
        most = max(sum(row), 1)
        cells = "".join(
            f'<td style="background:{_shade(i == j, count / most)}">{count or ""}</td>' for j, count in enumerate(row)
        )
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    return (
        f'<div><h3>{escape(caption)}</h3><div class="scroll"><table class="confusion"><thead><tr><th>is ↓ taken for →'
        f"</th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></div>"
    )


def _shade(right: bool, share: float) -> str:
    """Return a tint that black text stays readable on."""
    if not share:
        return "#f4f6f8"
    red, green, blue = (86, 180, 233) if right else (230, 159, 0)
    strength = 0.25 + 0.75 * math.sqrt(min(share, 1.0))
    return "#" + "".join(f"{round(255 - strength * (255 - one)):02x}" for one in (red, green, blue))
