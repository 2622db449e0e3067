"""Training with images from files: prepared once, a progress bar, checkpoints from which interrupted work goes on."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..classifier import Classifier
from ..evaluation import LabelledImages, to_layout
from ..imagefiles import UNLABELLED, ImagesError
from ..preprocessing import Preprocessing
from ..training.augmentation import Augmentation
from ..training.checkpoint import Companion
from ..training.data import ArrayData
from ..training.finetune import Plan, Result, finetune
from ..training.finetune import Progress as Step
from ..training.operators import batch_and_parts
from .exits import StoppedError, StopSignal
from .options import TrainingOptions
from .output import Output, percent
from .setup import Work

#: Prepared images beyond this many bytes go into a temporary file.
_IN_MEMORY: Final = 1 << 30
_LEARNING_RATE: Final = 0.001


def plan_of(options: TrainingOptions, classifier: Classifier, epochs: int, seed: int) -> Plan:
    """Set the solver's parameters of a classifier and return what is to be done."""
    rate = _LEARNING_RATE if options.learning_rate is None else options.learning_rate
    classifier.set("solver_type", (options.solver,))
    classifier.set("learning_rate", (rate,))
    classifier.set("weight_prior", (options.weight_prior,))
    classifier.set("batchnorm_frozen", ("true" if options.freeze_statistics else "false",))
    classifier.set("frozen_weights", tuple(name.strip() for name in options.freeze.split(",") if name.strip()))
    params = classifier.params
    batch, parts = batch_and_parts(classifier, options.train_batch)
    return Plan(
        epochs=epochs,
        batch=batch,
        parts=parts,
        learning_rate=rate,
        schedule=options.schedule,
        warmup=options.warmup,
        seed=seed,
        augmentation=Augmentation(
            flip=options.flip,
            shift=options.shift / 100,
            crop=options.crop / 100,
            brightness=options.brightness / 100,
            value_range=params.image_range_max - params.image_range_min,
        ),
        patience=options.patience,
        temperature=options.temperature,
        distillation=options.distillation,
    )


@contextlib.contextmanager
def prepared(
    classifier: Classifier,
    preprocessing: Preprocessing,
    data: LabelledImages,
    indices: Sequence[int],
    title: str,
    output: Output,
) -> Iterator[ArrayData]:
    """Read, preprocess and yield some images (ascending indices); many are kept in a temporary file, not in memory.

    The label of an image without class is −1. Raises ImagesError: an image cannot be read.
    """
    positions = {class_id: position for position, class_id in enumerate(classifier.params.class_ids)}
    shape = (len(indices), *classifier.input_shape(1)[1:])
    with contextlib.ExitStack() as stack:
        if 4 * math.prod(shape) <= _IN_MEMORY:
            pixels = np.empty(shape, np.float32)
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dlprune-"))
            pixels = np.memmap(Path(folder) / "images", np.float32, "w+", shape=shape)
        labels: list[int] = []
        with output.progress(title, len(indices)) as advance:
            for index, (image,) in data.prepared(indices, lambda one: (preprocessing.apply(one, classifier),)):
                pixels[len(labels)] = to_layout(classifier, [image])[0]
                labels.append(positions.get(int(data.class_ids[index]), -1))
                advance(1)
        yield ArrayData(pixels[: len(labels)], np.array(labels, np.int64))


def require_classes(data: LabelledImages, indices: Sequence[int]) -> None:
    """Raise ImagesError if one of the images has no class."""
    if any(data.class_ids[index] == UNLABELLED for index in indices):
        raise ImagesError("Training needs the class of each image: one sub-folder per class, or labels.")


@contextlib.contextmanager
def prepared_work(work: Work, output: Output) -> Iterator[tuple[ArrayData, ArrayData | None]]:
    """Yield the images to train with and the held-out ones, None if there are none. Raises ImagesError."""
    parts = [("Reading", work.data, work.indices), ("Reading held-out images", work.test, work.test_indices)]
    for _, data, indices in parts:
        require_classes(data, indices)
    with contextlib.ExitStack() as stack:
        training, held_out = (
            stack.enter_context(prepared(work.classifier, work.preprocessing, data, indices, title, output))
            if indices
            else None
            for title, data, indices in parts
        )
        assert training is not None
        yield training, held_out


def train(
    classifier: Classifier,
    plan: Plan,
    training: ArrayData,
    validation: ArrayData | None,
    output: Output,
    *,
    teacher: Classifier | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    after_step: Callable[[Step], object] = lambda _step: None,
    companion: Companion | None = None,
) -> Result:
    """Train with a progress bar; Ctrl-C stops after a step. Raises StoppedError, HError."""
    terminal = Console(stderr=True)
    with (
        StopSignal() as stop,
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=terminal,
            disable=output.options.quiet or not terminal.is_terminal,
        ) as bar,
    ):
        task = bar.add_task("Training", total=None)

        def tell(step: Step) -> None:
            text = f"Epoch {step.epoch}/{step.epochs}: loss {step.loss:.4f}, accuracy {percent(step.accuracy)}"
            if step.validation is not None:
                text += f", held out {percent(step.validation.accuracy)}"
            done = (step.epoch - 1) * step.steps + step.step
            bar.update(task, description=text, completed=done, total=step.epochs * step.steps)
            after_step(step)
            if stop.received is not None:
                raise _stopped(step, checkpoint, stop.received)

        return finetune(
            classifier,
            plan,
            training,
            validation,
            teacher=teacher,
            progress=tell,
            checkpoint=checkpoint,
            resume=resume,
            companion=companion,
        )


def _stopped(step: Step, checkpoint: Path | None, number: int) -> StoppedError:
    if checkpoint is None or step.epoch == 1:
        return StoppedError(f"Interrupted in epoch {step.epoch}; nothing was written.", number)
    return StoppedError(
        f"Interrupted in epoch {step.epoch}; the state after epoch {step.epoch - 1} is in {str(checkpoint)!r}. "
        f"Go on with the same command and --resume {checkpoint}",
        number,
    )


def epochs_table(result: Result, output: Output) -> None:
    """Print a row per epoch."""
    rows = []
    for report in result.reports:
        trained = report.epoch > 0
        rows.append(
            (
                f"{report.epoch}{' *' if report.epoch == result.best_epoch else ''}",
                f"{report.learning_rate:.2e}" if trained else "",
                f"{report.loss:.4f}" if trained else "",
                percent(report.accuracy) if trained else "",
                "" if report.validation is None else f"{report.validation.loss:.4f}",
                "" if report.validation is None else percent(report.validation.accuracy),
            )
        )
    columns = ["epoch", " learning rate", " loss", " accuracy", " loss held out", " accuracy held out"]
    output.table("Epochs (* = kept)", columns, rows)
