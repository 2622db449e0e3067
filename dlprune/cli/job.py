"""The work that `prune` and `demo` share: score, remove, write; then read again, compare, print."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import dlprune as ha
from dlprune.classifier import Classifier
from dlprune.evaluation import Contestant, Evaluation, evaluate
from dlprune.model import unwrap_model
from dlprune.pruning import scored_data
from dlprune.report.content import Measures, Pair, gather, test_of
from dlprune.report.files import write_report
from dlprune.report.plots import write_plots

from .advice import advise_on_chance, advise_on_speed
from .figures import Figures, compare_figures, figures_json, figures_table, layers_table
from .output import Output
from .scoring import ScoringState, ScoringTask, interrupted, score
from .setup import Work

NAMES: Final = ("before", "after")
_RESULTS: Final = ("prunable_conv_num", "prunable_kernel_num", "pruned_kernel_num", "pruned_percentage")
_DENSE_RESULTS: Final = ("prunable_feature_num", "pruned_feature_num")


@dataclass(frozen=True)
class PruningJob:
    """What is to be pruned, and where the result (and a report) goes.

    `mode` and `settings` are parameters of create_dl_pruning.
    """

    work: Work
    mode: str
    settings: Mapping[str, str | float]
    out: Path
    state_file: Path | None = None
    resume: Path | None = None
    runs: int | None = None
    report: Path | None = None
    plots: Path | None = None


def run(job: PruningJob, output: Output) -> None:
    """Do the job and print the result. Raises HError, StoppedError, typer.BadParameter."""
    work = job.work
    advice = f"the same command and --resume {job.state_file}"
    task = ScoringTask(work.model, work.preprocessing, work.data, work.indices, job.state_file, advice=advice)
    pruning = ha.create_dl_pruning(work.model, job.mode, ha.from_python_dict(dict(job.settings)))
    state = ScoringState(pruning)
    if job.resume is not None:
        state = ScoringState.read(job.resume, task.fingerprint())
        output.note(f"Going on after {state.position} of {len(work.indices)} images.")
        for name, value in job.settings.items():
            ha.set_dl_pruning_param(state.pruning, name, value)
    score(task, state, output)
    try:
        with output.working("Removing kernels"):
            pruned = ha.gen_dl_pruned_model(work.model, state.pruning)
    except KeyboardInterrupt:
        raise interrupted(task, state, signal.SIGINT) from None
    ha.write_dl_model(pruned, str(job.out))
    if job.state_file is not None:
        job.state_file.unlink(missing_ok=True)
    classifiers, figures = compare(job, output)
    work.tell_skipped(output)
    if job.report is not None or job.plots is not None:
        _report(job, state, classifiers, figures, output)
    dense = ha.get_dl_pruning_param_s(state.pruning, "prunable_feature_num")
    names = (*_RESULTS, *(_DENSE_RESULTS if dense else ()))
    results = {name: ha.get_dl_pruning_param_s(state.pruning, name) for name in names}
    layers_table(output, figures, NAMES)
    advise(job, figures, output)
    tell_figures(job, results, f"{state.images} images scored in {state.batches} batches", figures, output)
    scored = {"scored_images": state.images, "scored_batches": state.batches}
    output.json(entries(job, {**results, **scored}, figures))


def compare(job: PruningJob, output: Output) -> tuple[tuple[Classifier, Classifier], Figures]:
    """Read what was written and compare it with the original: what counts is what is in the file."""
    work = job.work
    classifiers = (work.classifier, unwrap_model(ha.read_dl_model(str(job.out)), 1))
    evaluation = _evaluation(work, classifiers, output)
    with output.working("Measuring"):
        return classifiers, compare_figures(classifiers, (work.file, job.out), job.runs, evaluation)


def _evaluation(work: Work, classifiers: Sequence[Classifier], output: Output) -> Evaluation | None:
    if not work.test_indices:
        return None
    contestants = [Contestant(one, work.preprocessing) for one in classifiers]
    with output.progress("Testing", len(work.test_indices)) as advance:
        return evaluate(contestants, work.test, work.test_indices, advance)


def _report(
    job: PruningJob,
    state: ScoringState,
    classifiers: tuple[Classifier, Classifier],
    figures: Figures,
    output: Output,
) -> None:
    """Write page and figures, with what has been measured already."""
    params = classifiers[0].params
    test = None
    if figures.evaluation is not None:
        position = {class_id: i for i, class_id in enumerate(params.class_ids)}
        found = figures.evaluation
        places = [np.array([position.get(one, -1) for one in row]) for row in (found.class_ids, *found.decisions)]
        test = test_of(places[0], places[1:], params.class_names)
    measures = Measures(
        file_size=Pair(*figures.file_sizes),
        latency=Pair(*(figures.latency.seconds if figures.latency is not None else (None, None))),
        latency_batch=figures.batch[0],
        test=test,
    )
    command = shlex.join(["dlprune", *sys.argv[1:]])
    data = scored_data(state.pruning, 1)
    report = gather(data, *classifiers, measures, name=job.work.file.name, command=command)
    if job.report is not None:
        write_report(report, job.report)
        output.note(f"Report: {job.report}")
    if job.plots is not None:
        for path in write_plots(report, job.plots):
            output.note(f"Figure: {path}")


def advise(job: PruningJob, figures: Figures, output: Output) -> None:
    """Say what looks wrong."""
    images = 0 if figures.evaluation is None else len(figures.evaluation.indices)
    advise_on_chance(figures.accuracies[0], images, job.work.classifier.class_num, output, "The original")
    advise_on_speed(figures, job.settings["kernel_multiple"], output)


def tell_figures(job: PruningJob, results: Mapping[str, Any], what: str, figures: Figures, output: Output) -> None:
    """Print the comparison, and results and accuracies in lines of their own at the end."""
    figures_table(output, figures, NAMES)
    output.line(f"{what}; written: {job.out}")
    for name, value in results.items():
        output.line(f"{name}: {value:.2f}" if isinstance(value, float) else f"{name}: {value}")
    for name, accuracy in zip(NAMES, figures.accuracies, strict=True):
        output.line(f"accuracy {name}: {'unknown' if accuracy is None else f'{accuracy:.4f}'}")


def entries(job: PruningJob, results: Mapping[str, Any], figures: Figures) -> dict[str, Any]:
    """Return what --json prints."""
    return {
        "model": str(job.work.file),
        "out": str(job.out),
        **results,
        **figures_json(figures, NAMES),
        "mode": job.mode,
        "settings": dict(job.settings),
        "preprocessing": job.work.preprocessing.entries(),
        "skipped": job.work.skipped,
    }
