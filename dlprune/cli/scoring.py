"""Scoring kernels with images from files: batches, progress, and a state from which interrupted work goes on."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

import dlprune as ha

from .. import files
from ..classifier import Array
from ..evaluation import LabelledImages
from ..imagefiles import UNLABELLED, ImagesError, Pixels
from ..model import unwrap_model
from ..preprocessing import Preprocessing
from .exits import StoppedError, StopSignal
from .output import Output

#: Seconds between two states; where writing one takes long, a twentieth of the time may go into it.
_SAVE_EVERY: Final = 60.0
_SAVE_SHARE: Final = 0.05


@dataclass(frozen=True)
class ScoringTask:
    """What is to be scored.

    Attributes:
        model: handle of the model.
        preprocessing: of the images.
        data: the images, of which those of `indices` (ascending) are scored.
        state_file: where the state of unfinished work is kept, None = nowhere.
        title: what the progress bar says.
        advice: how to go on after an interruption.
    """

    model: ha.HHandle
    preprocessing: Preprocessing
    data: LabelledImages
    indices: Sequence[int]
    state_file: Path | None = None
    title: str = "Scoring"
    advice: str = "the same command"

    def fingerprint(self) -> str:
        """Return a digest of everything that the scores depend on."""
        classifier = unwrap_model(self.model, 1)
        params = classifier.params
        digest = hashlib.sha256()
        settings = [
            classifier.input_shape(),
            [params.image_range_min, params.image_range_max, params.class_output, params.class_ids],
            self.preprocessing.to_json(),
            [self.data.images.names[index] for index in self.indices],
            self.data.class_ids[list(self.indices)].tolist(),
        ]
        digest.update(json.dumps(settings).encode())
        for graph in classifier.model.graphs():
            for value in graph.initializers.values():
                if value.const_value is not None:
                    digest.update(value.const_value.tobytes())
        return digest.hexdigest()


@dataclass
class ScoringState:
    """How far scoring has come: images used up of the task's indices, batches added to the pruning handle."""

    pruning: ha.HHandle
    position: int = 0
    batches: int = 0
    images: int = 0

    def write(self, path: Path, fingerprint: str) -> None:
        """Write the state in one step. Raises HError if the place cannot be written to."""
        entries = {
            "pruning": self.pruning,
            "position": self.position,
            "batches": self.batches,
            "images": self.images,
            "fingerprint": fingerprint,
        }
        item = ha.serialize_handle(ha.from_python_dict(entries))
        try:
            files.replace(path, ha.serialized_item_as_bytes(item))
        except OSError as error:
            raise ha.HError(f"The state cannot be written to {str(path)!r}: {error}.") from None

    @classmethod
    def read(cls, path: Path, fingerprint: str, hint: str = "--resume") -> ScoringState:
        """Read a state. Raises typer.BadParameter if it is none, or of other work than `fingerprint` tells."""
        try:
            handle = ha.deserialize_handle(ha.serialized_item_from_bytes(path.read_bytes()))
            found = ha.as_python_dict_s(handle)
            state = cls(found["pruning"], found["position"], found["batches"], found["images"])
            known = found["fingerprint"]
        except OSError as error:
            raise typer.BadParameter(f"{str(path)!r} cannot be read: {error.strerror}.", param_hint=hint) from None
        except (ha.HError, KeyError, TypeError):
            raise typer.BadParameter(
                f"{str(path)!r} is no state that interrupted scoring left.", param_hint=hint
            ) from None
        if known != fingerprint:
            raise typer.BadParameter(
                f"{str(path)!r} belongs to other work: model, images, preprocessing, batch size, --holdout and --seed "
                "must be the same.",
                param_hint=hint,
            )
        return state


def score(task: ScoringTask, state: ScoringState, output: Output) -> None:
    """Add the scores of the task's images to the pruning handle of `state`, from where it stands.

    Where the file fixes the batch size, images that do not fill a batch are left out (and where not even one batch is
    full, images are repeated); otherwise the last batch is smaller. On Ctrl-C or SIGTERM, and every minute, the state
    goes to the task's file.

    Raises StoppedError, ImagesError, HError.
    """
    classifier = unwrap_model(task.model, 1)
    size = classifier.params.batch_size
    fixed = classifier.image is not None and classifier.image.batch is not None
    remaining = task.indices[state.position :]
    fingerprint = task.fingerprint() if task.state_file is not None else ""
    next_save = time.monotonic() + _SAVE_EVERY
    batch: list[ha.HHandle] = []

    def prepare(pixels: Pixels) -> tuple[Array, ...]:
        return (task.preprocessing.apply(pixels, classifier),)

    def add(samples: list[ha.HHandle]) -> None:
        ha.add_dl_pruning_batch(task.model, state.pruning, samples)
        state.batches += 1
        state.images += len(samples)

    with StopSignal() as stop, output.progress(task.title, len(task.indices)) as advance:
        advance(state.position)
        position = {index: i for i, index in enumerate(task.indices)}
        for index, (image,) in task.data.prepared(remaining, prepare):
            batch.append(_sample(image, int(task.data.class_ids[index])))
            if len(batch) == size:
                add(batch)
                advance(position[index] + 1 - state.position)
                state.position = position[index] + 1
                batch = []
                start = time.monotonic()
                if task.state_file is not None and start > next_save:
                    state.write(task.state_file, fingerprint)
                    end = time.monotonic()
                    next_save = end + max(_SAVE_EVERY, (end - start) / _SAVE_SHARE)
            if stop.received is not None:
                raise interrupted(task, state, stop.received)
        if batch and not fixed:
            ha.set_dl_model_param(task.model, "batch_size", len(batch))
            add(batch)
            ha.set_dl_model_param(task.model, "batch_size", size)
        elif batch and not state.batches:
            number = len(batch)
            add([batch[i % number] for i in range(size)])
            state.images = number
            output.note(f"The model takes {size} images at once and there are {number}; some were used repeatedly.")
        elif batch:
            output.note(f"{len(batch)} images do not fill a batch of {size}, which the model fixes; they are left out.")
        advance(len(task.indices) - state.position)
        state.position = len(task.indices)
    if not state.batches:
        raise ImagesError("There is no readable image to score.")


def _sample(image: Array, class_id: int) -> ha.HHandle:
    entries: dict[str, object] = {"image": ha.himage_from_numpy_array(image)}
    if class_id != UNLABELLED:
        entries["image_label_id"] = class_id
    return ha.from_python_dict(entries)


def interrupted(task: ScoringTask, state: ScoringState, signal_number: int) -> StoppedError:
    """Write the state, if there is a place for it, and return the exception that tells how to go on."""
    if task.state_file is None:
        return StoppedError("Interrupted; nothing was written.", signal_number)
    state.write(task.state_file, task.fingerprint())
    return StoppedError(
        f"Interrupted after {state.position} of {len(task.indices)} images; the scores so far are in "
        f"{str(task.state_file)!r}. Go on with {task.advice}",
        signal_number,
    )
