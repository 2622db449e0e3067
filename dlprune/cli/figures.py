"""The figures by which models are compared: kernels, parameters, multiply-accumulates, file size, latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..classifier import Classifier
from ..cost import Cost, Latency, cost_of, file_size, latency
from ..evaluation import Evaluation
from ..summary import trainable_parameters
from .output import Output, change, milliseconds, number, percent


@dataclass(frozen=True)
class Figures:
    """What is known of two models side by side."""

    costs: tuple[Cost, Cost]
    trainable: tuple[int, int]
    file_sizes: tuple[int, int]
    latency: Latency | None
    batch: tuple[int, int]
    evaluation: Evaluation | None

    @property
    def accuracies(self) -> tuple[float | None, float | None]:
        """Accuracy of both, None where no labelled images were given."""
        first, last = self.evaluation.accuracies if self.evaluation is not None else (None, None)
        return first, last

    @property
    def agreement(self) -> float | None:
        """Share of images on which both decide alike."""
        return None if self.evaluation is None else self.evaluation.agreement


def compare_figures(
    classifiers: Sequence[Classifier], paths: Sequence[Path], runs: int | None, evaluation: Evaluation | None
) -> Figures:
    """Measure two classifiers; `runs` 0 leaves the latency out, None lets the clock decide."""
    first, second = classifiers
    return Figures(
        (cost_of(first), cost_of(second)),
        (trainable_parameters(first.model), trainable_parameters(second.model)),
        (file_size(paths[0]), file_size(paths[1])),
        None if runs == 0 else latency(classifiers, runs=runs),
        (_batch(first), _batch(second)),
        evaluation,
    )


def _batch(classifier: Classifier) -> int:
    return (classifier.image.batch if classifier.image is not None else None) or 1


def figures_table(output: Output, figures: Figures, names: tuple[str, str]) -> None:
    """Print one line per figure."""
    before, after = figures.costs
    rows: list[tuple[str, object, object, str]] = [
        ("kernels", before.kernels, after.kernels, change(before.kernels, after.kernels)),
        ("parameters", before.parameters, after.parameters, change(before.parameters, after.parameters)),
        ("of these trainable", *figures.trainable, change(*figures.trainable)),
        ("multiply-accumulates per image", before.macs, after.macs, change(before.macs, after.macs)),
        ("file size in bytes", *figures.file_sizes, change(*figures.file_sizes)),
    ]
    if figures.latency is not None:
        seconds = figures.latency.seconds
        title = "latency, 1 image" if figures.batch == (1, 1) else f"latency, batch of {figures.batch[0]}"
        rows.append((title, milliseconds(seconds[0]), milliseconds(seconds[1]), change(seconds[0], seconds[1])))
    if figures.evaluation is not None:
        first, last = figures.accuracies
        points = "–" if first is None or last is None else f"{100 * (last - first):+.2f} points"
        rows.append(
            (f"accuracy on {number(len(figures.evaluation.indices))} images", percent(first), percent(last), points)
        )
        rows.append(("decide alike", None, percent(figures.agreement), ""))
    output.table("Models", ["figure", f" {names[0]}", f" {names[1]}", " change"], rows)


def layers_table(output: Output, figures: Figures, names: tuple[str, str]) -> None:
    """Print one line per layer with weights: kernels, parameters and multiply-accumulates of both models."""
    second = {layer.name: layer for layer in figures.costs[1].layers}
    rows: list[tuple[object, ...]] = []
    for layer in figures.costs[0].layers:
        other = second.get(layer.name)
        rows.append(
            (
                layer.name,
                layer.op_type,
                layer.kernels,
                other and other.kernels,
                layer.parameters,
                other and other.parameters,
                round(layer.macs),
                other and round(other.macs),
            )
        )
    a, b = names
    output.table(
        "Layers",
        ["layer", "operator", f" kernels {a}", f" {b}", f" parameters {a}", f" {b}", f" MACs {a}", f" {b}"],
        rows,
    )


def figures_json(figures: Figures, names: tuple[str, str]) -> dict[str, Any]:
    """Return the figures for --json, each under the names of both models."""
    result: dict[str, Any] = {
        "kernels": _pair(names, [cost.kernels for cost in figures.costs]),
        "parameters": _pair(names, [cost.parameters for cost in figures.costs]),
        "trainable_parameters": _pair(names, figures.trainable),
        "macs": _pair(names, [cost.macs for cost in figures.costs]),
        "file_size": _pair(names, figures.file_sizes),
        "accuracy": _pair(names, figures.accuracies),
        "agreement": figures.agreement,
        "test_images": 0 if figures.evaluation is None else len(figures.evaluation.indices),
    }
    if figures.latency is not None:
        result["latency_ms"] = _pair(names, [1000 * seconds for seconds in figures.latency.seconds])
        result["latency_ratio"] = figures.latency.ratio
        result["latency_runs"] = figures.latency.runs
        result["latency_batch"] = _pair(names, figures.batch)
    second = {layer.name: layer for layer in figures.costs[1].layers}
    result["layers"] = [
        {
            "name": layer.name,
            "operator": layer.op_type,
            **{
                key: _pair(names, [getattr(layer, key), getattr(second.get(layer.name), key, None)])
                for key in ("kernels", "parameters", "macs")
            },
        }
        for layer in figures.costs[0].layers
    ]
    return result


def _pair(names: tuple[str, str], values: Sequence[object]) -> dict[str, object]:
    return dict(zip(names, values, strict=True))
