"""The state of a training run in a file, from which it goes on as if it had never stopped."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .. import files
from .buffers import Array, Snapshot
from .evaluation import Quality

_VERSION = 1


class CheckpointError(Exception):
    """A file is no checkpoint, or one of other work; the message says what differs."""


class Companion(Protocol):
    """Work that goes along with a training run and is kept in its checkpoints."""

    def save(self) -> bytes:
        """Return the state after an epoch."""
        ...

    def load(self, state: bytes) -> None:
        """Take over a state, once weights and steps have been; CheckpointError if it belongs to other work."""
        ...


@dataclass(frozen=True)
class EpochReport:
    """What an epoch came to; epoch 0 is the model before training.

    Attributes:
        epoch: number, from 1 on.
        learning_rate: of its last step.
        loss: mean total loss of its steps.
        accuracy: share of its (changed) training images that were decided rightly, each just before its step.
        validation: loss and accuracy on the validation images, None without any.
    """

    epoch: int
    learning_rate: float
    loss: float
    accuracy: float
    validation: Quality | None


@dataclass(frozen=True)
class Best:
    """The best model so far: its epoch, quality, weights and statistics."""

    epoch: int
    quality: Quality
    weights: Mapping[str, Array]
    statistics: Mapping[str, Array]


@dataclass(frozen=True)
class Checkpoint:
    """A training run after some epoch.

    Attributes:
        task: what the run is: settings, digest of model and data; compared on resuming.
        step_count: steps of the trainer.
        snapshot: weights, solver states, statistics.
        reports: of all epochs so far.
        best: the best model so far, None without validation.
        companion: what goes along with the training, see Companion.
    """

    task: Mapping[str, Any]
    step_count: int
    snapshot: Snapshot
    reports: tuple[EpochReport, ...]
    best: Best | None
    companion: bytes = b""

    def write(self, path: Path) -> None:
        """Write it in one step. Raises OSError."""
        arrays: dict[str, Array] = {}
        _put(arrays, "weights", self.snapshot.weights)
        _put(arrays, "statistics", self.snapshot.statistics)
        for kind, states in self.snapshot.states.items():
            _put(arrays, f"state/{kind}", states)
        head: dict[str, Any] = {
            "version": _VERSION,
            "task": dict(self.task),
            "step_count": self.step_count,
            "solver": self.snapshot.solver,
            "steps": self.snapshot.steps,
            "states": sorted(self.snapshot.states),
            "reports": [asdict(report) for report in self.reports],
        }
        if self.best is not None:
            head["best"] = {"epoch": self.best.epoch, "quality": asdict(self.best.quality)}
            _put(arrays, "best weights", self.best.weights)
            _put(arrays, "best statistics", self.best.statistics)
        arrays["companion"] = np.frombuffer(self.companion, np.uint8)
        stream = io.BytesIO()
        np.savez(stream, head=np.array(json.dumps(head)), **arrays)  # type: ignore[arg-type]
        files.replace(path, stream.getvalue())

    @classmethod
    def read(cls, path: Path, task: Mapping[str, Any]) -> Checkpoint:
        """Read the checkpoint of a task. Raises CheckpointError, OSError."""
        data = path.read_bytes()
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                head = json.loads(str(archive["head"]))
                arrays: dict[str, Array] = {name: archive[name] for name in archive.files if name != "head"}
            known = head["task"]
            version = head["version"]
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile, TypeError) as error:
            raise CheckpointError(f"it is no checkpoint of dlprune, or was damaged ({error})") from None
        if version != _VERSION:
            raise CheckpointError(f"it was written by another version of dlprune (format {version}, not {_VERSION})")
        differing = [name for name in task if known.get(name) != task[name]]
        if differing:
            details = ", ".join(f"{name} ({_short(known.get(name))}, not {_short(task[name])})" for name in differing)
            raise CheckpointError(f"it belongs to other work; different are: {details}")
        best = head.get("best")
        return cls(
            task=known,
            step_count=head["step_count"],
            snapshot=Snapshot(
                solver=head["solver"],
                weights=_get(arrays, "weights"),
                states={kind: _get(arrays, f"state/{kind}") for kind in head["states"]},
                statistics=_get(arrays, "statistics"),
                steps=head["steps"],
            ),
            reports=tuple(
                EpochReport(**{**report, "validation": _quality(report["validation"])}) for report in head["reports"]
            ),
            best=None
            if best is None
            else Best(
                best["epoch"],
                Quality(**best["quality"]),
                _get(arrays, "best weights"),
                _get(arrays, "best statistics"),
            ),
            companion=arrays["companion"].tobytes() if "companion" in arrays else b"",
        )


def _put(arrays: dict[str, Array], group: str, values: Mapping[str, Array]) -> None:
    """Store arrays under a number each: names of weights may hold anything, names in archives not."""
    names = np.array(json.dumps(list(values)))
    arrays[f"{group}/names"] = names
    arrays.update({f"{group}/{number}": array for number, array in enumerate(values.values())})


def _get(arrays: Mapping[str, Array], group: str) -> dict[str, Array]:
    names = json.loads(str(arrays[f"{group}/names"]))
    return {name: arrays[f"{group}/{number}"] for number, name in enumerate(names)}


def _quality(value: Mapping[str, float] | None) -> Quality | None:
    return None if value is None else Quality(**value)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:20] + " …"
