"""`prune` with training: rounds of scoring, removing and training, then the same comparison as without."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import dlprune as ha
from dlprune.classifier import Classifier
from dlprune.evaluation import Contestant, Evaluation, evaluate
from dlprune.imagefiles import stratified_part
from dlprune.model import unwrap_model
from dlprune.training.data import Subset
from dlprune.training.finetune import Progress as Step
from dlprune.training.rounds import Round, Rounds, run_rounds

from .exits import StoppedError, StopSignal
from .figures import Figures, compare_figures, figures_json, figures_table, layers_table
from .job import PruningJob
from .output import Output, percent
from .setup import tell_skipped
from .training import prepared
from .trainoptions import TrainingOptions

_NAMES = ("before", "after")
#: Share of the images that decide which epoch of a training is kept.
_JUDGING = 0.1


@dataclass(frozen=True)
class Tuning:
    """Training that goes with pruning."""

    epochs: int
    rounds: int
    distill: bool
    options: TrainingOptions
    seed: int


def run_tuned(job: PruningJob, tuning: Tuning, output: Output) -> None:
    """Do the job and print the result. Raises HError, StoppedError."""
    classifier = unwrap_model(job.model, 1)
    settings = dict(job.settings)
    percentage = float(settings.pop("percentage"))
    task = Rounds(
        percentage=percentage,
        rounds=tuning.rounds,
        plan=tuning.options.plan(classifier, tuning.epochs, tuning.seed),
        distill=tuning.distill,
        mode=job.mode,
        settings=settings,
    )
    folder = job.resume or job.out.with_name(job.out.name + ".rounds")
    with prepared(classifier, job.preprocessing, job.data, job.indices, "Reading", output) as data:
        judging = stratified_part(data.labels, _JUDGING, tuning.seed)
        training = Subset(data, (~judging).nonzero()[0].tolist())
        validation = Subset(data, judging.nonzero()[0].tolist()) if judging.any() else None
        pruned, rounds = _rounds(classifier, task, training, validation, folder, job, output)
    pruned.write(str(job.out))
    _remove(folder)
    written = ha.read_dl_model(str(job.out))  # what counts is what is in the file
    evaluation = _evaluation(job, written, output)
    with output.working("Measuring"):
        classifiers = (classifier, unwrap_model(written, 1))
        figures = compare_figures(classifiers, (job.model_file, job.out), job.runs, evaluation)
    tell_skipped(job.data, output)
    if job.test is not job.data:
        tell_skipped(job.test, output)
    _print(job, rounds, figures, len(job.indices), output)


def _rounds(
    classifier: Classifier,
    task: Rounds,
    training: Subset,
    validation: Subset | None,
    folder: Path,
    job: PruningJob,
    output: Output,
) -> tuple[Classifier, list[Round]]:
    """Run the rounds with a progress bar; Ctrl-C stops where the state is on disk."""
    terminal = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    quiet = output.options.quiet or not terminal.is_terminal
    with StopSignal() as stop, Progress(*columns, console=terminal, disable=quiet) as bar:
        shown = bar.add_task("Scoring", total=1.0)

        def report(number: int, what: str, done: float | Step) -> None:
            text = f"Round {number}/{task.rounds}: "
            if isinstance(done, Step):
                text += f"epoch {done.epoch}/{done.epochs}, loss {done.loss:.4f}, accuracy {percent(done.accuracy)}"
                done = ((done.epoch - 1) * done.steps + done.step) / (done.epochs * done.steps)
            else:
                text += {"score": "scoring", "prune": "removing kernels"}.get(what, what)
            bar.update(shown, description=text, completed=done)
            if stop.received is not None:
                raise StoppedError(
                    f"Interrupted in round {number}; the state is in {str(folder)!r}. Go on with the same command and "
                    f"--resume {folder}",
                    stop.received,
                )

        return run_rounds(
            classifier,
            task,
            training,
            validation,
            folder=folder,
            resume=job.resume is not None,
            report=report,
        )


def _remove(folder: Path) -> None:
    """Remove the state; other files in the folder stay, and the folder with them."""
    for path in [*folder.glob("round*.*"), folder / "rounds.json"]:
        path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _evaluation(job: PruningJob, written: ha.HHandle, output: Output) -> Evaluation | None:
    if not job.test_indices:
        return None
    contestants = [Contestant(unwrap_model(model, 1), job.preprocessing) for model in (job.model, written)]
    with output.progress("Testing", len(job.test_indices)) as advance:
        return evaluate(contestants, job.test, job.test_indices, advance)


def _print(job: PruningJob, rounds: list[Round], figures: Figures, images: int, output: Output) -> None:
    last = rounds[-1]
    layers_table(output, figures, _NAMES)
    columns = ["round", " kernels removed", " percentage", " epochs", " accuracy in training", " accuracy judging"]
    output.table("Rounds", columns, [_row(one) for one in rounds])
    figures_table(output, figures, _NAMES)
    output.line(f"{images} images scored and trained with; written: {job.out}")
    output.line(f"pruned_kernel_num: {last.pruned_kernel_num}")
    output.line(f"pruned_percentage: {last.pruned_percentage:.2f}")
    for name, accuracy in zip(_NAMES, figures.accuracies, strict=True):
        output.line(f"accuracy {name}: {'unknown' if accuracy is None else f'{accuracy:.4f}'}")
    output.json(
        {
            "model": str(job.model_file),
            "out": str(job.out),
            "pruned_kernel_num": last.pruned_kernel_num,
            "pruned_percentage": last.pruned_percentage,
            "rounds": [one.entry() for one in rounds],
            "trained_images": images,
            **figures_json(figures, _NAMES),
            "mode": job.mode,
            "settings": job.settings,
            "preprocessing": job.preprocessing.to_json(),
            "skipped": {one.name: one.reason for one in [*job.data.skipped.values(), *job.test.skipped.values()]},
        }
    )


def _row(one: Round) -> tuple[Any, ...]:
    trained: list[float] = one.training["train_accuracy"]
    judged: list[float] = one.training.get("validation_accuracy", [])
    return (
        one.number,
        one.pruned_kernel_num,
        f"{one.pruned_percentage:.2f}",
        one.training["epochs"],
        percent(trained[-1]) if trained else "",
        percent(judged[one.training["best_epoch"]]) if judged else "",
    )
