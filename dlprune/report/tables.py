"""The numbers of a report for machines: one JSON object, and one CSV line per convolution."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from .content import Pair, Report

_COLUMNS = (
    "number",
    "name",
    "operator",
    "group",
    "kernels_before",
    "kernels_after",
    "kept",
    "removed",
    "fixed",
    "reason",
    "parameters_before",
    "parameters_after",
    "macs_before",
    "macs_after",
)


def as_json(report: Report) -> str:
    """Return the report as a JSON object; times in seconds, accuracies 0…1, null where nothing was measured."""
    measures, test = report.measures, report.measures.test
    figures: dict[str, Any] = {
        "kernels": _pair(report.kernels),
        "parameters": _pair(report.parameters),
        "macs": _pair(report.macs),
        "file_size": _pair(measures.file_size),
        "latency": _pair(measures.latency),
        "latency_batch": measures.latency_batch,
        "accuracy": _pair(test.accuracy if test is not None else Pair(None, None)),
        "agreement": None if test is None else test.agreement,
        "test_image_num": 0 if test is None else test.image_num,
    }
    confusion = None
    if test is not None and test.confusion is not None:
        before, after = (table.tolist() for table in test.confusion)
        confusion = {"class_names": list(test.class_names), "before": before, "after": after}
    return json.dumps(
        {
            "model": report.name,
            "figures": figures,
            "results": dict(report.results),
            "settings": dict(report.settings),
            "layers": [
                {
                    "number": layer.number,
                    "name": layer.name,
                    "operator": layer.operator,
                    "group": layer.group,
                    "kernels": _pair(layer.kernels),
                    "kept": layer.kept,
                    "removed": layer.removed,
                    "fixed": layer.fixed,
                    "reason": layer.reason,
                    "parameters": _pair(layer.parameters),
                    "macs": _pair(layer.macs),
                    "scores": list(layer.scores),
                    "gone": list(layer.gone),
                }
                for layer in report.layers
            ],
            "history": [dict(step) for step in report.history],
            "curve": [{"percentage": x, "accuracy": y} for x, y in report.curve],
            "confusion": confusion,
            "command": report.command,
        },
        indent=1,
        ensure_ascii=False,
    )


def as_csv(report: Report) -> str:
    """Return one line per convolution, with a head."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for layer in report.layers:
        pairs = [figure for pair in (layer.parameters, layer.macs) for figure in (pair.before, pair.after)]
        own = (layer.kernels.before, layer.kernels.after, layer.kept, layer.removed, layer.fixed, layer.reason)
        writer.writerow([layer.number, layer.name, layer.operator, layer.group, *own, *pairs])
    return stream.getvalue()


def _pair(pair: Pair) -> dict[str, float | None]:
    return {"before": pair.before, "after": pair.after}
