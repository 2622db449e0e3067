"""`dlprune compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import BatchSize, ImageOptions, ModelOptions, OutputOptions, Runs

_File = Annotated[Path, typer.Argument(metavar="A", help="Classifier, an .onnx file.", show_default=False)]
_Other = Annotated[Path, typer.Argument(metavar="B", help="The one to compare it with.", show_default=False)]


def compare(
    a: _File,
    b: _Other,
    model_options: ModelOptions,
    image_options: ImageOptions,
    output_options: OutputOptions,
    images: Annotated[
        Path | None,
        typer.Option(
            "--images",
            metavar="DIR|NPZ|LIST",
            help="Images on which both decide, as in `dlprune prune`; classes are not needed.",
            rich_help_panel="Images",
            show_default=False,
        ),
    ] = None,
    batch_size: BatchSize = None,
    runs: Runs = None,
) -> None:
    """Compare two classifiers: layers, parameters, multiply-accumulates, size, latency, and decisions on images.

    Each model prepares the images as its own metadata say, unless an option says otherwise for both. The latency is
    the median of runs in turn.

    Examples:

        dlprune compare model.onnx smaller.onnx

        dlprune compare model.onnx smaller.onnx --images photos/ --json
    """
    from dlprune.evaluation import Contestant, evaluate

    from ..figures import compare_figures, figures_json, figures_table, layers_table
    from ..output import Output
    from ..setup import open_data, open_model, set_preprocessing, tell_skipped

    output = Output(output_options)
    contestants = []
    for path in (a, b):
        _, classifier = open_model(path, model_options, batch_size)
        classifier.require_classification(f"dlprune compare {path}")
        contestants.append(Contestant(classifier, set_preprocessing(classifier, image_options)))
    found = None
    if images is not None:
        data = open_data(images, contestants[0].classifier, image_options.skip_bad, output)
        with output.progress("Testing", len(data)) as advance:
            found = evaluate(contestants, data, progress=advance)
        tell_skipped(data, output)
    figures = compare_figures([one.classifier for one in contestants], (a, b), runs, found)
    layers_table(output, figures, ("A", "B"))
    figures_table(output, figures, ("A", "B"))
    output.line(f"A: {a}")
    output.line(f"B: {b}")
    output.json({"files": {"a": str(a), "b": str(b)}, **figures_json(figures, ("a", "b"))})
