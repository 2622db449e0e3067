"""The work that `prune` and `demo` share: score, remove, write, read again, compare, print."""

from __future__ import annotations

import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

import dlprune as ha
from dlprune.classifier import Classifier
from dlprune.evaluation import Contestant, Evaluation, LabelledImages, evaluate
from dlprune.model import unwrap_model
from dlprune.preprocessing import Preprocessing
from dlprune.pruning import scored_data
from dlprune.report.content import Measures, Pair, gather, test_of
from dlprune.report.files import write_report
from dlprune.report.plots import write_plots

from .figures import Figures, compare_figures, figures_json, figures_table, layers_table
from .output import Output
from .scoring import ScoringState, ScoringTask, interrupted, score
from .setup import tell_skipped

_NAMES: Final = ("before", "after")
_RESULTS: Final = ("prunable_conv_num", "prunable_kernel_num", "pruned_kernel_num", "pruned_percentage")


@dataclass(frozen=True)
class PruningJob:
    """What is to be pruned, with which images, and where the result (and a report) goes.

    `mode` and `settings` are parameters of create_dl_pruning; `test` and `test_indices` tell which images show the
    accuracy.
    """

    model_file: Path
    model: ha.HHandle
    preprocessing: Preprocessing
    data: LabelledImages
    indices: list[int]
    test: LabelledImages
    test_indices: list[int]
    mode: str
    settings: dict[str, str | float]
    out: Path
    state_file: Path | None = None
    resume: Path | None = None
    runs: int | None = None
    report: Path | None = None
    plots: Path | None = None


def run(job: PruningJob, output: Output) -> None:
    """Do the job and print the result. Raises HError, StoppedError, typer.BadParameter."""
    task = ScoringTask(job.model, job.preprocessing, job.data, job.indices)
    pruning = ha.create_dl_pruning(job.model, job.mode, ha.from_python_dict(job.settings))
    state = ScoringState(pruning)
    if job.resume is not None:
        state = ScoringState.read(job.resume, task.fingerprint())
        output.note(f"Going on after {state.position} of {len(job.indices)} images.")
        for name, value in job.settings.items():
            ha.set_dl_pruning_param(state.pruning, name, value)
    score(task, state, job.state_file, output)
    try:
        with output.working("Removing kernels"):
            pruned = ha.gen_dl_pruned_model(job.model, state.pruning)
    except KeyboardInterrupt:
        raise interrupted(task, state, job.state_file, signal.SIGINT) from None
    ha.write_dl_model(pruned, str(job.out))
    if job.state_file is not None:
        job.state_file.unlink(missing_ok=True)
    written = ha.read_dl_model(str(job.out))  # what counts is what is in the file
    classifiers = (unwrap_model(job.model, 1), unwrap_model(written, 1))
    evaluation = _evaluation(job, written, output)
    with output.working("Measuring"):
        figures = compare_figures(classifiers, (job.model_file, job.out), job.runs, evaluation)
    tell_skipped(job.data, output)
    if job.test is not job.data:
        tell_skipped(job.test, output)
    if job.report is not None or job.plots is not None:
        _report(job, state, classifiers, figures, output)
    _print(job, state, figures, output)


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
    report = gather(data, *classifiers, measures, name=job.model_file.name, command=command)
    if job.report is not None:
        write_report(report, job.report)
        output.note(f"Report: {job.report}")
    if job.plots is not None:
        for path in write_plots(report, job.plots):
            output.note(f"Figure: {path}")


def _evaluation(job: PruningJob, written: ha.HHandle, output: Output) -> Evaluation | None:
    if not job.test_indices:
        return None
    contestants = [Contestant(unwrap_model(model, 1), job.preprocessing) for model in (job.model, written)]
    with output.progress("Testing", len(job.test_indices)) as advance:
        return evaluate(contestants, job.test, job.test_indices, advance)


def _print(job: PruningJob, state: ScoringState, figures: Figures, output: Output) -> None:
    results = {name: ha.get_dl_pruning_param_s(state.pruning, name) for name in _RESULTS}
    layers_table(output, figures, _NAMES)
    figures_table(output, figures, _NAMES)
    output.line(f"{state.images} images scored in {state.batches} batches; written: {job.out}")
    for name, value in results.items():
        output.line(f"{name}: {value:.2f}" if isinstance(value, float) else f"{name}: {value}")
    for name, accuracy in zip(_NAMES, figures.accuracies, strict=True):
        output.line(f"accuracy {name}: {'unknown' if accuracy is None else f'{accuracy:.4f}'}")
    output.json(
        {
            "model": str(job.model_file),
            "out": str(job.out),
            **results,
            "scored_images": state.images,
            "scored_batches": state.batches,
            **figures_json(figures, _NAMES),
            "mode": job.mode,
            "settings": job.settings,
            "preprocessing": job.preprocessing.to_json(),
            "skipped": {one.name: one.reason for one in [*job.data.skipped.values(), *job.test.skipped.values()]},
        }
    )
