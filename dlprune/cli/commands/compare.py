"""`dlprune compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import BatchSize, ImageOptions, ModelOptions, OutputOptions, Runs

if TYPE_CHECKING:  # takes longer to import than the rest of the command line
    from ...classifier import Classifier

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

    Each model prepares the images as its own metadata say, or, where it has none, as those of the other; an option
    says otherwise for both. The latency is the median of runs in turn.

    Examples:

        dlprune compare model.onnx smaller.onnx

        dlprune compare model.onnx smaller.onnx --images photos/ --json
    """
    from ...evaluation import Contestant, evaluate
    from ..advice import advise_on_chance
    from ..figures import compare_figures, figures_json, figures_table, layers_table
    from ..output import Output
    from ..setup import adopt_settings, open_data, open_model, set_preprocessing, tell_assumed_size, tell_skipped

    output = Output(output_options)
    classifiers = []
    for path in (a, b):
        _, classifier = open_model(path, model_options, batch_size)
        classifier.require_classification(f"dlprune compare {path}")
        classifiers.append(classifier)
    for name, other, one, told in zip("AB", "BA", classifiers, reversed(classifiers), strict=True):
        if told.has_metadata and not one.has_metadata:
            output.note(f"The file of {name} does not say how images are prepared; what that of {other} says is taken.")
            adopt_settings(one, told)
    _require_comparable(*classifiers)
    tell_assumed_size(classifiers[0], output)
    contestants = [Contestant(one, set_preprocessing(one, image_options)) for one in classifiers]
    found = None
    if images is not None:
        data = open_data(images, classifiers[0], image_options.skip_bad, output)
        with output.progress("Testing", len(data)) as advance:
            found = evaluate(contestants, data, progress=advance)
        tell_skipped(data, output)
        for name, accuracy in zip("AB", found.accuracies, strict=True):
            advise_on_chance(accuracy, len(found.indices), classifiers[0].class_num, output, name)
    figures = compare_figures(classifiers, (a, b), runs, found)
    layers_table(output, figures, ("A", "B"))
    figures_table(output, figures, ("A", "B"))
    output.line(f"A: {a}")
    output.line(f"B: {b}")
    output.json({"files": {"a": str(a), "b": str(b)}, **figures_json(figures, ("a", "b"))})


def _require_comparable(first: Classifier, second: Classifier) -> None:
    """Raise HError if two models do not do the same job."""
    from ...errors import HError

    if first.class_num != second.class_num:
        raise HError(
            f"A tells {first.class_num} classes apart and B {second.class_num}; only models of the same classes can be "
            "compared."
        )
    sizes = [(one.params.image_width, one.params.image_height, one.channels) for one in (first, second)]
    if sizes[0] != sizes[1]:
        a, b = ("x".join(map(str, size)) for size in sizes)
        raise HError(
            f"A takes images of {a} (width x height x channels) and B of {b}; only models of the same input can be "
            "compared. Where a file leaves the size open, --size sets it."
        )
