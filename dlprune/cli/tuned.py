"""`prune` with training: rounds of scoring, removing and training, then the same comparison as without."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import dlprune as ha

from ..classifier import Classifier
from ..fit import scored_data
from ..imagefiles import stratified_part
from ..training.data import Subset
from ..training.finetune import Progress as Step
from ..training.rounds import Round, Rounds, is_state, run_rounds
from .exits import StoppedError, StopSignal
from .figures import layers_table
from .job import NAMES, PruningJob, advise, compare, entries, tell_figures
from .options import TrainingOptions
from .output import Output, percent
from .reporting import accuracy_on, write_reports
from .training import plan_of, prepared, require_classes

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
    if job.resume is not None and not is_state(job.resume):
        raise typer.BadParameter(
            f"{str(job.resume)!r} is no folder that interrupted rounds left.", param_hint="--resume"
        )
    work, settings = job.work, dict(job.settings)
    classifier = work.classifier
    percentage = float(settings.pop("percentage"))
    task = Rounds(
        percentage=percentage,
        rounds=tuning.rounds,
        plan=plan_of(tuning.options, classifier, tuning.epochs, tuning.seed),
        distill=tuning.distill,
        mode=job.mode,
        settings=settings,
    )
    folder = job.resume or job.out.with_name(job.out.name + ".rounds")
    require_classes(work.data, work.indices)
    with prepared(classifier, work.preprocessing, work.data, work.indices, "Reading", output) as data:
        judging = stratified_part(data.labels, _JUDGING, tuning.seed)
        training = Subset(data, (~judging).nonzero()[0].tolist())
        validation = Subset(data, judging.nonzero()[0].tolist()) if judging.any() else None
        pruned, rounds = _rounds(classifier, task, training, validation, folder, job, output)
    pruned.write(str(job.out))
    _remove(folder)
    classifiers, figures = compare(job, output)
    work.tell_skipped(output)
    last, images = rounds[-1], len(work.indices)
    results = {"pruned_kernel_num": last.pruned_kernel_num, "pruned_percentage": last.pruned_percentage}
    if job.report.is_wanted:
        fresh = scored_data(ha.create_dl_pruning(work.model, job.mode, ha.from_python_dict(dict(job.settings))), 1)
        curve = [(one.pruned_percentage, one.accuracy) for one in rounds[:-1] if one.accuracy is not None]
        told = [_entry(one, images) for one in rounds]
        write_reports(job.report, work, fresh, classifiers, figures, curve, output, told)
    layers_table(output, figures, NAMES)
    columns = [
        "round",
        " kernels removed",
        " percentage",
        " accuracy",
        " epochs",
        " in training",
        " judging",
        " trained",
    ]
    output.table("Rounds", columns, [_row(one) for one in rounds])
    advise(job, figures, output)
    tell_figures(job, results, f"{images} images scored and trained with", figures, output, last.accuracy_pruned)
    trained = {"rounds": [one.entry() for one in rounds], "trained_images": images}
    output.json(entries(job, {**results, **trained}, figures))


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
            judge=lambda pruned: accuracy_on(job.work, pruned),
        )


def _remove(folder: Path) -> None:
    """Remove the state; other files in the folder stay, and the folder with them."""
    for path in [*folder.glob("round*.*"), folder / "rounds.json"]:
        path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _entry(one: Round, images: int) -> dict[str, Any]:
    """Return a round for the report."""
    training = one.training
    judged: list[float] = training.get("validation_accuracy", [])
    return {
        "kernel_num": one.pruned_kernel_num,
        "target_reached": one.pruned_percentage,
        "epochs": training["epochs"],
        "train_accuracy": 100 * training["train_accuracy"][-1] if training["train_accuracy"] else "–",
        "validation_accuracy": 100 * judged[training["best_epoch"]] if judged else "–",
        "images": images,
    }


def _row(one: Round) -> tuple[Any, ...]:
    trained: list[float] = one.training["train_accuracy"]
    judged: list[float] = one.training.get("validation_accuracy", [])
    return (
        one.number,
        one.pruned_kernel_num,
        f"{one.pruned_percentage:.2f}",
        percent(one.accuracy_pruned),
        one.training["epochs"],
        percent(trained[-1]) if trained else "",
        percent(judged[one.training["best_epoch"]]) if judged else "",
        percent(one.accuracy),
    )
