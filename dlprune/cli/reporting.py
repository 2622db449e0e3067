"""The page and the figures that a command writes besides its result."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import typer

import dlprune as ha

from ..classifier import Classifier
from ..evaluation import Contestant, evaluate
from ..plan import Step
from ..pruningdata import PruningData
from ..report.content import Measures, Pair, gather, test_of
from ..report.files import report_path, write_report
from ..report.plots import require_matplotlib, write_plots
from .figures import Figures
from .options import ReportOptions
from .output import Output
from .setup import Work

Curve = list[tuple[float, float]]


def require_report_places(options: ReportOptions, *taken: Path | None) -> None:
    """Tell before the work, not after, if page or figures cannot be written, or would replace one of those `taken`.

    Raises typer.BadParameter, HError (no matplotlib).
    """
    if options.plots is not None:
        require_matplotlib()
        if options.plots.exists() and not options.plots.is_dir():
            raise typer.BadParameter(f"{str(options.plots)!r} is no folder.", param_hint="--plots")
    if options.report is None:
        return
    try:
        path = report_path(str(options.report))
    except ha.HOperatorError as error:
        raise typer.BadParameter(error.extended_error_message, param_hint="--report") from None
    written = {path.with_suffix(suffix).resolve() for suffix in (".json", ".csv", path.suffix)}
    for given in taken:
        if given is not None and given.resolve() in written:
            raise typer.BadParameter(f"{str(given)!r} would be replaced; give another name.", param_hint="--report")


def accuracy_on(work: Work, classifier: Classifier) -> float | None:
    """Return the accuracy of a classifier on the test images, None where they are not labelled or none are there."""
    if not work.test_indices:
        return None
    return evaluate([Contestant(classifier, work.preprocessing)], work.test, work.test_indices).accuracies[0]


class AccuracyWatch:
    """Measures accuracy after every step of a removal but the last one, whose result is measured anyway."""

    def __init__(self, work: Work, prunable_kernel_num: int) -> None:
        self._work, self._prunable = work, prunable_kernel_num
        self._waiting: tuple[Step, ir.Model] | None = None
        self.points: Curve = []

    def __call__(self, step: Step, model: ir.Model) -> None:
        """See steps.Watch."""
        if self._waiting is not None:
            before, network = self._waiting
            accuracy = accuracy_on(self._work, self._work.classifier.with_model(network))
            if accuracy is not None:
                self.points.append((100.0 * before.kernel_num / max(self._prunable, 1), accuracy))
        self._waiting = step, model


def write_reports(
    options: ReportOptions,
    work: Work,
    data: PruningData,
    classifiers: tuple[Classifier, Classifier],
    figures: Figures,
    between: Curve,
    output: Output,
    rounds: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write page and figures, if wanted, with what has been measured already.

    `between` are points of the accuracy curve without the first and the last one, which `figures` know.
    """
    if options.report is None and options.plots is None:
        return
    ends = (0.0, _removed(data, rounds))
    curve = [(x, y) for x, y in zip(ends, figures.accuracies, strict=True) if y is not None]
    report = gather(
        data,
        *classifiers,
        _measures(classifiers[0], figures),
        name=work.file.name,
        curve=curve[:1] + between + curve[1:],
        command=_command(),
        rounds=rounds,
    )
    if options.report is not None:
        write_report(report, options.report)
        output.note(f"Report: {options.report}")
    if options.plots is not None:
        for path in write_plots(report, options.plots):
            output.note(f"Figure: {path}")


def _removed(data: PruningData, rounds: Sequence[Mapping[str, Any]]) -> float:
    gone = rounds[-1]["kernel_num"] if rounds else data.pruned_kernel_num
    return 100.0 * gone / max(data.prunable_kernel_num, 1)


def _measures(classifier: Classifier, figures: Figures) -> Measures:
    params, test = classifier.params, None
    if figures.evaluation is not None:
        position = {class_id: i for i, class_id in enumerate(params.class_ids)}
        found = figures.evaluation
        places = [np.array([position.get(one, -1) for one in row]) for row in (found.class_ids, *found.decisions)]
        test = test_of(places[0], places[1:], params.class_names)
    return Measures(
        file_size=Pair(*figures.file_sizes),
        latency=Pair(*(figures.latency.seconds if figures.latency is not None else (None, None))),
        latency_batch=figures.batch[0],
        test=test,
    )


def _command() -> str:
    """Return the command line, without going on from a state that is there no more."""
    words = list(sys.argv[1:])
    for i, word in enumerate(words):
        if word == "--resume":
            del words[i : i + 2]
            break
        if word.startswith("--resume="):
            del words[i]
            break
    return shlex.join(["dlprune", *words])
