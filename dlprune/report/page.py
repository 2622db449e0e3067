"""The report as one HTML page that needs no network and no other file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from . import charts
from .content import LayerReport, Pair, Report, Test
from .style import ACCURACY_SPAN, SCRIPT, STYLE

#: More classes are no readable matrix: then the most frequent mistakes are listed.
_MATRIX_CLASSES = 24
_MISTAKES = 20
#: A run that takes less of the time than this is a gain.
_FASTER = 0.97
#: The page lets no browser fetch anything.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_LEGEND = (
    '<div class="legend"><span><i class="kept"></i>kept</span><span><i class="removed"></i>removed</span>'
    '<span><i class="fixed"></i>fixed, can never leave</span></div>'
)


def as_html(report: Report) -> str:
    """Return the whole page."""
    title = f"Pruning of {report.name}" if report.name else "Pruning report"
    sections = [
        _head(report, title),
        _layers(report.layers),
        _network(report.layers),
        _scores(report.layers),
        _history(report),
        _curve(report),
        _confusion(report.measures.test),
        _table(report.layers),
        _repeat(report),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{escape(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head><body>\n'
        + "\n".join(one for one in sections if one)
        + f"\n<script>{SCRIPT}</script></body></html>\n"
    )


def _head(report: Report, title: str) -> str:
    measures, test = report.measures, report.measures.test
    images = "1 image" if measures.latency_batch == 1 else f"batch of {measures.latency_batch}"
    cards = [
        _card("kernels", "kernels", report.kernels, _count),
        _card("parameters", "parameters", report.parameters, _count),
        _card("macs", "multiply-accumulates per image", report.macs, _count),
        _card("file_size", "file size", measures.file_size, _bytes),
        _card("latency", f"latency, {images}", measures.latency, _milliseconds),
    ]
    if test is not None:
        cards.append(_card("accuracy", f"accuracy on {test.image_num:,} images", test.accuracy, _percent, points=True))
    results = report.results
    images_scored = results["scored_image_num"]
    scored = f"scored on {images_scored:,} images" if images_scored else "scored by their weights alone"
    text = (
        f"{results['pruned_kernel_num']:,} of {results['prunable_kernel_num']:,} removable kernels "
        f"({results['pruned_percentage']:.2f} %) were removed, {scored}."
    )
    if results["pruned_feature_num"]:
        text += f" So were {results['pruned_feature_num']:,} features of dense layers."
    if test is not None:
        text += f" Both models decide alike on {100 * test.agreement:.2f} % of the test images."
    time = measures.latency
    if time.before and time.after and time.after > _FASTER * time.before and report.macs.after != report.macs.before:
        text += (
            " The pruned model is no faster where this was measured: processors compute channels in blocks. "
            "'kernel_multiple' 'auto' (--multiple auto) leaves numbers that suit them."
        )
    return f'<header><h1>{escape(title)}</h1><p>{text}</p></header><div class="cards">{"".join(cards)}</div>'


def _card(key: str, name: str, pair: Pair, show: Callable[[float], str], points: bool = False) -> str:
    if pair.before is None or pair.after is None:
        shown = '<b>–</b><span class="was">not measured</span>'
    else:
        before, after = (show(one) for one in (pair.before, pair.after))
        if points:
            change = f"{100 * (pair.after - pair.before):+.2f}\N{NO-BREAK SPACE}points"
        else:
            change = f"{100 * (pair.after / pair.before - 1):+.1f}\N{NO-BREAK SPACE}%" if pair.before else "–"
        values = f'data-before="{pair.before!r}" data-after="{pair.after!r}"'
        shown = f'<b {values}>{after}</b><span class="was">before {before} · {change}</span>'
    return f'<div class="card" id="card-{key}"><span class="name">{escape(name)}</span>{shown}</div>'


def _layers(layers: Sequence[LayerReport]) -> str:
    colours = charts.group_colours(layers)
    widest = max((layer.kept + layer.removed + layer.fixed for layer in layers), default=1)
    bars = "".join(charts.layer_bar(layer, widest, colours.get(layer.group, "")) for layer in layers)
    return (
        f'<h2>Kernels of each convolution</h2>{_LEGEND}<p class="dim">In graph order. Letters name groups: kernels of '
        "convolutions with the same letter and a coloured frame leave together.</p>"
        f'<section id="layers">{bars}</section>'
    )


def _network(layers: Sequence[LayerReport]) -> str:
    colours = charts.group_colours(layers)
    text = "Arcs join convolutions whose kernels leave together; the filled part of a box is what was removed."
    return (
        f'<h2>Coupled groups</h2><p class="dim">{text} Boxes filled with grey cannot lose kernels; '
        f"numbers as in the table below.</p>"
        f'<div class="scroll">{charts.network(layers, colours)}</div>'
    )


def _scores(layers: Sequence[LayerReport]) -> str:
    scored = [layer for layer in layers if layer.scores]
    if not scored:
        return '<h2>Scores</h2><p class="dim">There are no scores in the pruning data.</p>'
    axis = charts.ScoreAxis([score for layer in scored for score in layer.scores])
    strips = "".join(
        f'<div class="layer" title="{escape(f"{one.name}: scores {min(one.scores):.4g} to {max(one.scores):.4g}")}">'
        f'<div class="name">{one.number}. {escape(one.name)}</div>{charts.strip(one, axis)}'
        f'<div class="sum">median {charts.plain(float(np.median(one.scores)))}</div></div>'
        for one in scored
    )
    return (
        f"<h2>Scores</h2>{_LEGEND}{charts.histogram(scored, axis)}"
        f'<h3>Each convolution, on the same axis</h3><section id="strips">{strips}</section>'
    )


_STEP_HEADS = {
    "kernel_num": "kernels gone",
    "feature_num": "features gone",
    "target_reached": "target reached",
    "least_squares": "least squares",
    "bias": "bias",
    "seconds": "seconds",
    "kept": "kept",
    "epochs": "epochs trained",
    "train_accuracy": "accuracy in training, %",
    "validation_accuracy": "accuracy that decided, %",
}
_STEP_NOTES = {
    "step": "“Least squares” and “bias” count the layers that were refitted so in that step.",
    "round": "Each round scores, removes kernels, refits and trains. The epoch is kept that decides best on "
    "images that are not trained with.",
}


def _history(report: Report) -> str:
    steps = report.history
    if not steps:
        return ""
    keys = [key for key in _STEP_HEADS if key in steps[0]]
    word = "round" if "epochs" in keys else "step"
    rows = "".join(
        f'<tr><td class="num">{i}</td>'
        + "".join(f'<td class="num">{escape(_cell(step.get(key)))}</td>' for key in keys)
        + "</tr>"
        for i, step in enumerate(steps, 1)
    )
    points = [(0.0, 0.0), *((float(i), float(step["kernel_num"])) for i, step in enumerate(steps, 1))]
    labels = (word, "kernels gone")
    drawn = charts.line("history", f"Kernels gone after each {word}", points, labels, (0.0, points[-1][1] or 1.0))
    return (
        f'<h2>{word.capitalize()}s</h2>{drawn}<div class="scroll"><table id="steps"><thead><tr>'
        + "".join(f'<th class="num">{head}</th>' for head in (word, *(_STEP_HEADS[key] for key in keys)))
        + f'</tr></thead><tbody>{rows}</tbody></table></div><p class="dim">{_STEP_NOTES[word]}</p>'
    )


def _curve(report: Report) -> str:
    if not report.curve:
        return ""
    points = [(x, 100 * y) for x, y in report.curve]
    drawn = charts.line(
        "curve",
        "Accuracy against percentage",
        points,
        ("percent of the removable kernels removed", "accuracy in %"),
        (0.0, 100.0),
        ACCURACY_SPAN,
    )
    return f"<h2>Accuracy against percentage</h2>{drawn}"


def _confusion(test: Test | None) -> str:
    if test is None or test.confusion is None:
        return ""
    before, after = test.confusion
    if len(test.class_names) <= _MATRIX_CLASSES:
        shown = charts.confusion(before, test.class_names, "Before") + charts.confusion(
            after, test.class_names, "After"
        )
        return f'<h2>Confusion</h2><section class="pair" id="confusion">{shown}</section>'
    wrong = np.maximum(before, after)
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MISTAKES]
    rows = "".join(
        f'<tr><td class="long">{escape(test.class_names[i])}</td><td class="long">{escape(test.class_names[j])}</td>'
        f'<td class="num">{before[i, j]}</td><td class="num">{after[i, j]}</td></tr>'
        for i, j in zip(*np.unravel_index(order, wrong.shape), strict=True)
        if wrong[i, j]
    )
    return (
        f'<h2>Confusion</h2><p class="dim">The most frequent mistakes among {len(test.class_names)} classes.</p>'
        '<div class="scroll" id="confusion"><table><thead><tr><th>is</th><th>taken for</th><th class="num">before</th>'
        f'<th class="num">after</th></tr></thead><tbody>{rows}</tbody></table></div>'
    )


_HEADS = (
    ("#", True),
    ("convolution", False),
    ("operator", False),
    ("group", False),
    ("kernels", True),
    ("after", True),
    ("removed", True),
    ("kept", True),
    ("fixed", True),
    ("parameters", True),
    ("after", True),
    ("MACs", True),
    ("after", True),
    ("why fixed", False),
)


def _table(layers: Sequence[LayerReport]) -> str:
    heads = "".join(
        f'<th scope="col" class="{"num" if number else "text"}"><button type="button">{head}</button></th>'
        for head, number in _HEADS
    )
    return (
        '<h2>Table</h2><p class="dim">Click a heading to sort.</p><div class="scroll">'
        f'<table class="sortable" id="table"><thead><tr>{heads}</tr></thead><tbody>'
        f"{''.join(_row(layer) for layer in layers)}</tbody></table></div>"
    )


def _row(layer: LayerReport) -> str:
    kernels, parameters, macs = layer.kernels, layer.parameters, layer.macs
    numbers = (kernels.before, kernels.after, layer.removed, layer.kept, layer.fixed)
    costs = (parameters.before, parameters.after, macs.before, macs.after)
    return (
        f'<tr><td class="num">{layer.number}</td><td class="long">{escape(layer.name)}</td>'
        f"<td>{escape(layer.operator)}</td><td>{escape(layer.group) or '–'}</td>"
        + "".join(
            f'<td class="num" data-value="{-1 if one is None else one!r}">{"–" if one is None else f"{one:,.0f}"}</td>'
            for one in (*numbers, *costs)
        )
        + f'<td class="why">{escape(layer.reason)}</td></tr>'
    )


def _repeat(report: Report) -> str:
    settings = "".join(
        f'<tr><td>{escape(name)}</td><td class="long">{escape(_cell(value))}</td></tr>'
        for name, value in report.settings.items()
    )
    return (
        f'<h2>To repeat it</h2><pre id="command">{escape(report.command)}</pre><h3>All parameters</h3>'
        f'<table id="settings"><thead><tr><th>parameter</th><th>value</th></tr></thead>'
        f"<tbody>{settings}</tbody></table>"
    )


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value)) or "–"
    return str(value)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _bytes(value: float) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:,.2f} {unit}"
    return f"{value:,.0f} bytes"


def _milliseconds(value: float) -> str:
    return f"{1000 * value:.3g} ms" if value < 0.1 else f"{1000 * value:,.0f} ms"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"
