"""Training over epochs: order, augmentation, learning rate, validation, distillation, checkpoints."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..analysis import signature
from ..classifier import Classifier
from ..errors import (
    H_ERR_DL_INPUT_WRONG_BS_WITH_MULTIPLIER,
    H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE,
    HOperatorError,
)
from .augmentation import Augmentation
from .checkpoint import Best, Checkpoint, CheckpointError, Companion, EpochReport
from .data import LabelledData
from .evaluation import Quality, logits_of, quality
from .schedule import Kind, Schedule
from .steps import rates_of, recipe_of, train_step
from .trainer import Trainer, trainer_of


@dataclass(frozen=True)
class Plan:
    """What a training run is to do.

    Attributes:
        epochs: passes over the training images.
        batch: images per step.
        parts: parts in which a step's images are worked off.
        learning_rate: the highest one.
        schedule: 'cosine', 'step' or 'constant'.
        warmup: epochs in which the learning rate rises; may be a fraction.
        milestones: epochs after which 'step' drops.
        seed: decides order and augmentation.
        augmentation: how images are changed.
        patience: stop after so many epochs without improvement on the validation images; None = never.
        temperature: softening of teacher and student.
        distillation: the teacher's share of the loss, 0…1.
    """

    epochs: int
    batch: int
    parts: int = 1
    learning_rate: float = 0.001
    schedule: Kind = "cosine"
    warmup: float = 1.0
    milestones: tuple[float, ...] = ()
    seed: int = 0
    augmentation: Augmentation = field(default_factory=Augmentation)
    patience: int | None = None
    temperature: float = 4.0
    distillation: float = 0.5


@dataclass(frozen=True)
class Progress:
    """Where a run stands, after a step.

    Attributes:
        epoch, epochs: number of the epoch, from 1 on, and how many there are.
        step, steps: the same within the epoch.
        loss, accuracy: mean over the epoch so far.
        learning_rate: of this step.
        validation: latest quality on the validation images, if any.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    accuracy: float
    learning_rate: float
    validation: Quality | None


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
        reports: one for the model before training, if there are validation images, and one per epoch.
        best_epoch: epoch whose weights the model has now.
        stopped: whether it ended early for lack of improvement.
    """

    reports: tuple[EpochReport, ...]
    best_epoch: int
    stopped: bool

    def entries(self) -> dict[str, Any]:
        """Return plain numbers and lists, see finetune_dl_model."""
        done = [report for report in self.reports if report.epoch > 0]
        entries: dict[str, Any] = {
            "epochs": len(done),
            "best_epoch": self.best_epoch,
            "stopped_early": int(self.stopped),
            "learning_rate": [report.learning_rate for report in done],
            "train_loss": [report.loss for report in done],
            "train_accuracy": [report.accuracy for report in done],
        }
        judged = [report.validation for report in self.reports if report.validation is not None]
        if judged:
            entries["validation_loss"] = [one.loss for one in judged]
            entries["validation_accuracy"] = [one.accuracy for one in judged]
        return entries


def finetune(
    classifier: Classifier,
    plan: Plan,
    training: LabelledData,
    validation: LabelledData | None = None,
    *,
    teacher: Classifier | None = None,
    progress: Callable[[Progress], object] | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    companion: Companion | None = None,
) -> Result:
    """Train a classifier in place; with validation images it ends with the weights of its best epoch.

    Args:
        classifier: what is trained.
        plan: what to do.
        training: training images.
        validation: images that decide which epoch was best; the model before training takes part.
        teacher: a classifier of the same classes whose logits are imitated as well.
        progress: called after every step.
        checkpoint: file that is written after every epoch.
        resume: go on from that file.
        companion: what is kept in that file as well.

    Raises:
        HOperatorError 7800: fewer images than a step needs.
        HOperatorError 7914: checkpoint of other work, or that cannot be read or written; a teacher of other classes.
        HOperatorError 7912: as train_dl_model_batch; epoch and step are named.
    """
    return _Run(classifier, plan, training, validation, teacher, progress, checkpoint, companion).go(resume)


class _Run:
    def __init__(
        self,
        classifier: Classifier,
        plan: Plan,
        training: LabelledData,
        validation: LabelledData | None,
        teacher: Classifier | None,
        progress: Callable[[Progress], object] | None,
        checkpoint: Path | None,
        companion: Companion | None,
    ) -> None:
        self._classifier, self._plan = classifier, plan
        self._companion = companion
        self._training, self._validation = training, validation
        self._progress, self._path = progress, checkpoint
        size = plan.batch * plan.parts
        self._steps = len(training.labels) // size
        if not self._steps:
            raise HOperatorError(
                H_ERR_DL_INPUT_WRONG_BS_WITH_MULTIPLIER,
                f"{len(training.labels)} training images were given; one step needs {size}. Give more images, or a "
                "smaller batch.",
            )
        if teacher is not None and teacher.class_num != classifier.class_num:
            raise _bad("teacher", f"it tells {teacher.class_num} classes apart, the model {classifier.class_num}")
        self._teacher = teacher.clone() if teacher is classifier else teacher
        warmup = math.ceil(plan.warmup * self._steps)
        milestones = [math.ceil(epoch * self._steps) for epoch in plan.milestones]
        total = plan.epochs * self._steps
        self._schedule = Schedule(plan.learning_rate, total, min(warmup, total), plan.schedule, milestones)
        self._trainer: Trainer = trainer_of(classifier)
        recipe = recipe_of(classifier, batch=plan.batch, parts=plan.parts)
        self._recipe = dataclasses.replace(recipe, distilled=teacher is not None)
        self._task = self._describe() if checkpoint is not None else {}
        self._reports: list[EpochReport] = []
        self._best: Best | None = None

    def _describe(self) -> dict[str, Any]:
        """Return everything that the result depends on, in the form that JSON gives back."""
        params = self._classifier.params
        settings: list[Any] = [dataclasses.asdict(self._plan), dataclasses.asdict(rates_of(self._classifier))]
        settings += [params.solver_type, params.batchnorm_frozen, list(params.frozen_weights)]
        return {
            "architecture": signature(self._classifier.model)[:16],
            "weights": digest_weights(self._classifier),
            "settings": hashlib.sha256(repr(settings).encode()).hexdigest()[:16],
            "training images": len(self._training.labels),
            "training labels": _digest(self._training.labels.tobytes()),
            "validation images": 0 if self._validation is None else len(self._validation.labels),
            "teacher": "" if self._teacher is None else digest_weights(self._teacher),
        }

    def go(self, resume: bool) -> Result:
        """Run all epochs."""
        if resume:
            self._load()
        elif self._validation is not None:
            self._judge(EpochReport(0, 0.0, 0.0, 0.0, quality(self._classifier, self._validation)))
        while not self._done():
            self._epoch(self._reports[-1].epoch + 1 if self._reports else 1)
            self._save()
        last = self._reports[-1].epoch if self._reports else 0
        if self._best is not None and self._best.epoch != last:
            snapshot = self._trainer.snapshot()
            self._trainer.restore(
                dataclasses.replace(
                    snapshot, weights=self._best.weights, statistics=self._best.statistics, states={}, steps=0
                )
            )
        return Result(tuple(self._reports), last if self._best is None else self._best.epoch, last < self._plan.epochs)

    def _done(self) -> bool:
        last = self._reports[-1].epoch if self._reports else 0
        patience = self._plan.patience
        early = patience is not None and self._best is not None and last - self._best.epoch >= patience
        return last >= self._plan.epochs or early

    def _judge(self, report: EpochReport) -> None:
        """Note an epoch, and its weights if it is the best so far."""
        self._reports.append(report)
        found = report.validation
        if found is not None and (self._best is None or found.better_than(self._best.quality)):
            snapshot = self._trainer.snapshot()
            self._best = Best(report.epoch, found, snapshot.weights, snapshot.statistics)

    def _epoch(self, epoch: int) -> None:
        plan, labels = self._plan, self._training.labels
        order = np.random.default_rng([plan.seed, epoch]).permutation(len(labels))
        size = plan.batch * plan.parts
        rates = dataclasses.replace(
            rates_of(self._classifier),
            temperature=plan.temperature,
            distillation=plan.distillation if self._teacher is not None else 0.0,
        )
        loss, right = 0.0, 0
        for step in range(self._steps):
            numbers = order[step * size : (step + 1) * size].tolist()
            images = plan.augmentation.apply(
                self._training.images(numbers), self._classifier.layout, plan.seed, epoch, numbers
            )
            rate = self._schedule.at((epoch - 1) * self._steps + step)
            result = train_step(
                self._classifier,
                images,
                labels[numbers],
                recipe=self._recipe,
                rates=dataclasses.replace(rates, learning_rate=rate),
                teacher=None if self._teacher is None else logits_of(self._teacher, images),
                what=f"Epoch {epoch}, step {step + 1}",
            )
            loss += result.total_loss
            right += int((result.logits.argmax(axis=1) == labels[numbers]).sum())
            if self._progress is not None:
                self._progress(
                    Progress(
                        epoch=epoch,
                        epochs=plan.epochs,
                        step=step + 1,
                        steps=self._steps,
                        loss=loss / (step + 1),
                        accuracy=right / ((step + 1) * size),
                        learning_rate=rate,
                        validation=self._reports[-1].validation if self._reports else None,
                    )
                )
        found = None if self._validation is None else quality(self._classifier, self._validation)
        self._judge(EpochReport(epoch, rate, loss / self._steps, right / (self._steps * size), found))

    # --- checkpoint ---------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        if self._path is None:
            return
        trainer = self._trainer
        along = b"" if self._companion is None else self._companion.save()
        state = Checkpoint(self._task, trainer.step_count, trainer.snapshot(), tuple(self._reports), self._best, along)
        try:
            state.write(self._path)
        except OSError as error:
            raise _bad("checkpoint", f"{str(self._path)!r} cannot be written: {error.strerror or error}") from None

    def _load(self) -> None:
        if self._path is None:
            raise _bad("resume", "'checkpoint' must name the file to go on from")
        task = dict(self._task)
        if self._trainer.step_count:  # the same handle again: its weights have changed since
            del task["weights"]
        try:
            state = Checkpoint.read(self._path, task)
            self._trainer.restore(state.snapshot, state.step_count)
            if self._companion is not None:
                self._companion.load(state.companion)
        except OSError as error:
            raise _bad("checkpoint", f"{str(self._path)!r} cannot be read: {error.strerror or error}") from None
        except (CheckpointError, ValueError, KeyError) as error:
            raise _bad("checkpoint", f"{str(self._path)!r} cannot be used: {error}") from None
        self._task = dict(state.task)
        self._reports, self._best = list(state.reports), state.best


def _bad(name: str, reason: str) -> HOperatorError:
    return HOperatorError(H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE, f"{name!r}: {reason}.")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def digest_weights(classifier: Classifier) -> str:
    """Return a digest of all weights and their names."""
    digest = hashlib.sha256()
    for name, value in sorted(classifier.model.graph.initializers.items()):
        if value.const_value is not None:
            digest.update(name.encode() + value.const_value.tobytes())
    return digest.hexdigest()[:16]
