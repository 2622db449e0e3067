"""Pruning in rounds with training in between: score, remove, refit, train, and again, up to the percentage wanted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import files
from ..analysis import signature
from ..classifier import Classifier
from ..dictionary import create_dict, set_dict_tuple
from ..errors import H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE, HOperatorError
from ..fit import scored_data
from ..handle import new_handle
from ..imagescores import add_images
from ..pruning import create_dl_pruning
from ..pruningdata import PruningData
from ..removal import generate
from ..tuples import TupleLike
from .data import LabelledData
from .finetune import Plan, Progress, Result, digest_weights, finetune

#: Images per run of the scoring where the model leaves the batch size open and was not told a larger one.
_BATCH = 16
_STATE = "rounds.json"

#: Called with the round (from 1 on), and what is done: 'score' or 'prune' with the share done, or a step of training.
Report = Callable[[int, str, float | Progress], object]


@dataclass(frozen=True)
class Rounds:
    """What is to be done.

    Attributes:
        percentage: share of the removable kernels of the original that may have left in the end.
        rounds: in how many rounds; each removes the same number.
        plan: training after each round.
        distill: whether training also imitates the original.
        mode: of create_dl_pruning.
        settings: further parameters of set_dl_pruning_param.
    """

    percentage: float
    rounds: int
    plan: Plan
    distill: bool = True
    mode: str = "oracle"
    settings: Mapping[str, TupleLike] = field(default_factory=dict)


@dataclass(frozen=True)
class Round:
    """What a round came to.

    Attributes:
        number: from 1 on.
        pruned_kernel_num, pruned_percentage: what has left so far.
        training: see finetune_dl_model.
        accuracy_pruned, accuracy: before and after the training, on images that nothing else depends on, 0…1; None
            where nobody asked.
    """

    number: int
    pruned_kernel_num: int
    pruned_percentage: float
    training: Mapping[str, Any]
    accuracy_pruned: float | None = None
    accuracy: float | None = None

    def entry(self) -> dict[str, Any]:
        """Return it as a plain dictionary."""
        return {
            "round": self.number,
            "pruned_kernel_num": self.pruned_kernel_num,
            "pruned_percentage": self.pruned_percentage,
            **{
                name: getattr(self, name) for name in ("accuracy_pruned", "accuracy") if getattr(self, name) is not None
            },
            **self.training,
        }


def run_rounds(
    original: Classifier,
    task: Rounds,
    training: LabelledData,
    validation: LabelledData | None = None,
    *,
    folder: Path | None = None,
    resume: bool = False,
    report: Report = lambda _round, _what, _done: None,
    judge: Callable[[Classifier], float | None] = lambda _classifier: None,
) -> tuple[Classifier, list[Round]]:
    """Prune a classifier in rounds and train it after each; the original is not changed.

    Args:
        original: the classifier.
        task: what is to be done.
        training: images to score and to train with.
        validation: images that decide which epoch of each training is kept.
        folder: where the state is kept; made if need be.
        resume: go on from what is in the folder.
        report: called as things go on.
        judge: returns the accuracy that is noted of each round, before and after its training.

    Raises:
        HOperatorError: as the pruning operators and finetune; 7914 if the folder holds the state of other work.
    """
    return _Run(original, task, training, validation, folder, report, judge).go(resume)


def is_state(folder: Path) -> bool:
    """Tell whether a folder holds the state of rounds."""
    return (folder / _STATE).is_file()


class _Run:
    def __init__(
        self,
        original: Classifier,
        task: Rounds,
        training: LabelledData,
        validation: LabelledData | None,
        folder: Path | None,
        report: Report,
        judge: Callable[[Classifier], float | None],
    ) -> None:
        self._original, self._task = original, task
        self._training, self._validation = training, validation
        self._folder, self._report, self._judge = folder, report, judge
        target = task.settings.get("target", "kernels")
        if task.rounds > 1 and target not in ("kernels", ["kernels"], ("kernels",)):
            raise _bad("target", "several rounds are only possible for a share of the kernels ('kernels')")
        self._total = self._new_data(original, 0.0).prunable_kernel_num
        self._done: list[Round] = []

    def go(self, resume: bool) -> tuple[Classifier, list[Round]]:
        """Run all rounds."""
        classifier = self._load() if resume else None
        if classifier is None:
            classifier = self._original.clone()
            self._begin()
        while len(self._done) < self._task.rounds:
            classifier = self._round(classifier, len(self._done) + 1)
        return classifier, self._done

    def _round(self, classifier: Classifier, number: int) -> Classifier:
        """Prune and train once; what was pruned already before an interruption is read."""
        pruned_file = self._file(number, "pruned.onnx")
        removed = self._done[-1].pruned_kernel_num if self._done else 0
        if pruned_file is not None and pruned_file.exists():
            pruned = Classifier.read(str(pruned_file))
            removed = int(pruned.params.meta_data.pop(_REMOVED))
        else:
            pruned, gone = self._prune(classifier, number, removed)
            removed += gone
            if pruned_file is not None:
                pruned.params.meta_data[_REMOVED] = str(removed)
                pruned.write(str(pruned_file))
                pruned.params.meta_data.pop(_REMOVED)
        before = self._judge(pruned)
        found = self._train(pruned, number)
        percentage = 100.0 * removed / max(self._total, 1)
        self._done.append(Round(number, removed, percentage, found.entries(), before, self._judge(pruned)))
        tuned_file = self._file(number, "tuned.onnx")
        if tuned_file is not None:
            pruned.write(str(tuned_file))
            self._save()
            self._forget(keep=tuned_file)
        return pruned

    def _prune(self, classifier: Classifier, number: int, removed: int) -> tuple[Classifier, int]:
        task = self._task
        percentage = task.percentage
        if task.rounds > 1:
            goal = math.floor(self._total * task.percentage / 100 * number / task.rounds + 1e-9)
            left = self._new_data(classifier, 0.0).prunable_kernel_num
            percentage = 100.0 * max(goal - removed, 0) / max(left, 1)
        data = self._new_data(classifier, percentage)
        self._score(classifier, data, number)
        pruned, _ = generate(classifier, data, lambda what, share: self._report(number, what, share))
        return pruned, data.pruned_kernel_num

    def _new_data(self, classifier: Classifier, percentage: float) -> PruningData:
        parameters = create_dict()
        for name, value in {**self._task.settings, "percentage": percentage}.items():
            set_dict_tuple(parameters, name, value)
        return scored_data(create_dl_pruning(new_handle("dl_model", classifier), self._task.mode, parameters), 2)

    def _score(self, classifier: Classifier, data: PruningData, number: int) -> None:
        labels = self._training.labels
        fixed = classifier.image.batch if classifier.image is not None else None
        size = fixed or min(max(classifier.params.batch_size, _BATCH), len(labels))
        for start in range(0, len(labels), size):
            count = min(size, len(labels) - start)
            chosen = [start + min(i, count - 1) for i in range(size)]  # the last batch repeats its last image
            add_images(classifier, data, self._training.images(chosen), labels[chosen], count)
            self._report(number, "score", (start + count) / len(labels))

    def _train(self, classifier: Classifier, number: int) -> Result:
        checkpoint = self._file(number, "ckpt")
        return finetune(
            classifier,
            dataclasses.replace(self._task.plan, seed=self._task.plan.seed + number - 1),
            self._training,
            self._validation,
            teacher=self._original if self._task.distill else None,
            progress=lambda step: self._report(number, "train", step),
            checkpoint=checkpoint,
            resume=checkpoint is not None and checkpoint.exists(),
        )

    # --- state --------------------------------------------------------------------------------------------------------

    def _file(self, number: int, name: str) -> Path | None:
        return None if self._folder is None else self._folder / f"round{number}.{name}"

    def _describe(self) -> dict[str, Any]:
        """Return what the result depends on, in the form that JSON gives back."""
        task = dataclasses.replace(self._task, settings=dict(sorted(self._task.settings.items())))
        return {
            "architecture": signature(self._original.model)[:16],
            "weights": digest_weights(self._original),
            "settings": hashlib.sha256(repr(task).encode()).hexdigest()[:16],
            "training images": len(self._training.labels),
            "labels": hashlib.sha256(np.ascontiguousarray(self._training.labels).tobytes()).hexdigest()[:16],
        }

    def _begin(self) -> None:
        """Make a folder in which nothing of earlier work is left that could be taken for ours."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._forget()
        except OSError as error:
            raise _bad("checkpoint", f"{str(self._folder)!r} cannot be made: {error.strerror or error}") from None
        self._save()

    def _forget(self, keep: Path | None = None) -> None:
        assert self._folder is not None
        for pattern in ("round*.pruned.onnx", "round*.tuned.onnx", "round*.ckpt"):
            for path in self._folder.glob(pattern):
                if path != keep:
                    path.unlink(missing_ok=True)

    def _save(self) -> None:
        assert self._folder is not None
        state = {"task": self._describe(), "rounds": [asdict(one) for one in self._done]}
        try:
            files.replace(self._folder / _STATE, json.dumps(state).encode())
        except OSError as error:
            raise _bad("checkpoint", f"{str(self._folder)!r} cannot be written: {error.strerror or error}") from None

    def _load(self) -> Classifier | None:
        """Return the classifier after the last round that was finished, None if there is no state."""
        if self._folder is None:
            raise _bad("resume", "'checkpoint' must name the folder to go on from")
        path = self._folder / _STATE
        if not path.exists():
            return None
        try:
            state = json.loads(path.read_bytes())
            known, rounds = state["task"], [Round(**one) for one in state["rounds"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _bad("checkpoint", f"{str(path)!r} cannot be used ({error})") from None
        task = self._describe()
        differing = [name for name in task if known.get(name) != task[name]]
        if differing:
            raise _bad("checkpoint", f"{str(path)!r} belongs to other work; different are: {', '.join(differing)}")
        self._done = rounds
        tuned = self._file(len(rounds), "tuned.onnx")
        return self._original.clone() if not rounds else Classifier.read(str(tuned))


#: Entry of 'meta_data' in which a pruned model waits for its training: kernels that have left so far.
_REMOVED = "pruned_kernel_num"


def _bad(name: str, reason: str) -> HOperatorError:
    return HOperatorError(H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE, f"{name!r}: {reason}.")
