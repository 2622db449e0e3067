"""The work that `prune` and `demo` share: score, remove, write; then read again, compare, print."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import dlprune as ha

from ..classifier import Classifier
from ..errors import H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED
from ..evaluation import Contestant, Evaluation, evaluate
from ..fit import scored_data
from ..guard import guarded
from ..model import unwrap_model
from ..pruningdata import PruningData
from ..removal import generate
from .advice import advise_on_chance, advise_on_speed
from .figures import Figures, compare_figures, figures_json, figures_table, layers_table
from .options import ReportOptions
from .output import Output
from .reporting import AccuracyWatch, Curve, write_reports
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
    report: ReportOptions = field(default_factory=ReportOptions)


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
        pruned, curve = _remove(job, scored_data(state.pruning, 1), output)
    except KeyboardInterrupt:
        raise interrupted(task, state, signal.SIGINT) from None
    pruned.write(str(job.out))
    if job.state_file is not None:
        job.state_file.unlink(missing_ok=True)
    classifiers, figures = compare(job, output)
    work.tell_skipped(output)
    write_reports(job.report, work, scored_data(state.pruning, 1), classifiers, figures, curve, output)
    dense = ha.get_dl_pruning_param_s(state.pruning, "prunable_feature_num")
    names = (*_RESULTS, *(_DENSE_RESULTS if dense else ()))
    results = {name: ha.get_dl_pruning_param_s(state.pruning, name) for name in names}
    layers_table(output, figures, NAMES)
    advise(job, figures, output)
    tell_figures(job, results, f"{state.images} images scored in {state.batches} batches", figures, output)
    scored = {"scored_images": state.images, "scored_batches": state.batches}
    output.json(entries(job, {**results, **scored}, figures))


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def _remove(job: PruningJob, data: PruningData, output: Output) -> tuple[Classifier, Curve]:
    """Do what gen_dl_pruned_model does; where a report is wanted measure the accuracy after each step as well."""
    watch = AccuracyWatch(job.work, data.prunable_kernel_num)
    with output.progress("Removing kernels", 100) as advance, data.lock:
        told = 0

        def tell(_name: str, share: float) -> None:
            nonlocal told
            advance(round(100 * share) - told)
            told = round(100 * share)

        pruned, _ = generate(job.work.classifier, data, tell, watch if job.report.is_wanted else None)
    return pruned, watch.points


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


def advise(job: PruningJob, figures: Figures, output: Output) -> None:
    """Say what looks wrong."""
    images = 0 if figures.evaluation is None else len(figures.evaluation.indices)
    advise_on_chance(figures.accuracies[0], images, job.work.classifier.class_num, output, "The original")
    advise_on_speed(figures, job.settings["kernel_multiple"], output)


def tell_figures(
    job: PruningJob,
    results: Mapping[str, Any],
    what: str,
    figures: Figures,
    output: Output,
    untrained: float | None = None,
) -> None:
    """Print the comparison, and results and accuracies in lines of their own at the end.

    `untrained` is the accuracy of the pruned model before it was trained, if it was.
    """
    figures_table(output, figures, NAMES)
    output.line(f"{what}; written: {job.out}")
    for name, value in results.items():
        output.line(f"{name}: {value:.2f}" if isinstance(value, float) else f"{name}: {value}")
    accuracies = dict(zip(NAMES, figures.accuracies, strict=True))
    if untrained is not None:
        accuracies = {"before": accuracies["before"], "pruned": untrained, "after": accuracies["after"]}
    for name, accuracy in accuracies.items():
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
