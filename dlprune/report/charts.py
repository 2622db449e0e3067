"""The figures of the page as inline SVG and HTML; every name in them is escaped."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from .content import Integers, LayerReport
from .style import KEPT, PALETTE, REMOVED

_BINS = 36
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 240, 56, 40, 12
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
    step, size, top = 40, 26, 110
    width = max(step * len(layers) + 20, 120)
    places: dict[str, list[int]] = {}
    for i, layer in enumerate(layers):
        if layer.coupled:
            places.setdefault(layer.group, []).append(i)
    parts = [f'<line x1="10" y1="{top + size / 2}" x2="{width - 10}" y2="{top + size / 2}" stroke="#888"/>']
    for label, members in places.items():
        for a, b in pairwise(members):
            x, y = 10 + step * a + step / 2, 10 + step * b + step / 2
            height = min(18 + 9 * (b - a), top - 8)
            parts.append(
                f'<path d="M{x} {top} C{x} {top - height} {y} {top - height} {y} {top}" fill="none" '
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
        f'<svg id="network" width="{width}" height="160" viewBox="0 0 {width} 160" style="max-width:none" role="img" '
        f'aria-label="The convolutions in graph order; arcs join those whose kernels leave together">'
        f"{''.join(parts)}</svg>"
    )


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
    across, up = _WIDTH - _LEFT - 10, _HEIGHT - _BOTTOM - _TOP
    wide = across / _BINS
    parts = [_frame(axis.value, f"score ({'powers of ten' if axis.is_log else 'linear'})", most, "kernels")]
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


def line(name: str, title: str, points: Sequence[tuple[float, float]], x_label: str, y_label: str) -> str:
    """Return measured points joined by a line; values are in the points' hover text as well."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low_x, high_x = min(xs), max(xs)
    low, high = min(ys), max(ys)
    pad = 0.08 * (high - low) or max(abs(high) * 0.05, 1e-9)
    low, high, wide = low - pad, high + pad, (high_x - low_x) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = _WIDTH - _LEFT - 24, _HEIGHT - _BOTTOM - _TOP
        return _LEFT + 8 + across * (x - low_x) / wide, _HEIGHT - _BOTTOM - up * (y - low) / (high - low)

    ends = [place(x, y) for x, y in points]
    parts = [_frame(lambda share: low_x + share * wide, x_label, high, y_label, low)]
    parts.append(
        f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in ends)}" fill="none" stroke="{KEPT}" '
        'stroke-width="2"/>'
    )
    for (x, y), (across, up) in zip(points, ends, strict=True):
        parts.append(
            f'<circle cx="{across:.1f}" cy="{up:.1f}" r="4.5" fill="{KEPT}"><title>{escape(x_label)} {plain(x)}: '
            f"{escape(y_label)} {y:.6g}</title></circle>"
        )
    return _svg(name, title, parts)


def _frame(x_value: Callable[[float], float], x_label: str, high: float, y_label: str, low: float = 0.0) -> str:
    """Return axes with five numbers along x and three along y."""
    base, right = _HEIGHT - _BOTTOM, _WIDTH - 10
    parts = [f'<path d="M{_LEFT} {_TOP}V{base}H{right}" fill="none" stroke="#888"/>']
    for i in range(5):
        x = _LEFT + i * (right - _LEFT) / 4
        anchor = "start" if i == 0 else "end" if i == 4 else "middle"
        parts.append(f'<text x="{x:.0f}" y="{base + 16}" text-anchor="{anchor}">{plain(x_value(i / 4))}</text>')
    for share in (0.0, 0.5, 1.0):
        y, value = base - share * (base - _TOP), low + share * (high - low)
        shown = f"{value:.4g}" if abs(high) < 1000 else plain(round(value))
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{shown}</text>')
    parts.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    middle = (_TOP + base) / 2
    parts.append(
        f'<text x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">{escape(y_label)}</text>'
    )
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
