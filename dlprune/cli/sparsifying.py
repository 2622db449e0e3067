"""The work of `sparsify`: train while weights become zero, write, compare, print."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

import dlprune as ha

from .. import files
from ..hparams import block_entries
from ..imagefiles import ImagesError
from ..model import unwrap_model
from ..sparsity import ConstantSparsity, compressed_size, prune_low_magnitude
from ..sparsity.operators import magnitude_of
from ..training.checkpoint import CheckpointError
from ..training.data import ArrayData
from ..training.evaluation import quality
from ..training.finetune import Plan
from ..training.finetune import Progress as Step
from .advice import advise_on_chance
from .options import SparsityOptions, TrainingOptions
from .output import Output
from .setup import Work
from .sparse import Point, picture, points_table, reached_sparsity
from .training import plan_of, prepared_work, train


@dataclass(frozen=True)
class SparsifyJob:
    """What is to become sparse, how, and where the result goes."""

    work: Work
    options: SparsityOptions
    training: TrainingOptions
    epochs: int
    seed: int
    distill: bool
    out: Path
    plot: Path | None
    checkpoint: Path
    resume: bool


@dataclass
class _Sparsity:
    """Pruning data that follow a training, and what is noted on the way; kept in the training's checkpoints."""

    model: ha.HHandle
    pruning: ha.HHandle
    held_out: ArrayData | None
    points: list[Point] = field(default_factory=list)

    def after_step(self, step: Step) -> None:
        """Update the masks if they are due, and note where things stand."""
        previous = self._last_update()
        ha.update_dl_pruning_masks(self.model, self.pruning)
        at_end = step.step == step.steps
        if not at_end and self._last_update() == previous:
            return
        thresholds = tuple(float(str(one)) for one in ha.get_dl_pruning_param(self.pruning, "thresholds"))
        wanted = float(str(ha.get_dl_pruning_param_s(self.pruning, "sparsity")))
        accuracy = None
        if at_end and self.held_out is not None:
            accuracy = quality(unwrap_model(self.model, 1), self.held_out).accuracy
        done = (step.epoch - 1) * step.steps + step.step
        self.points.append(Point(done, wanted, reached_sparsity(self.pruning), thresholds, step.loss, accuracy))

    def _last_update(self) -> object:
        return ha.get_dl_pruning_param_s(self.pruning, "last_mask_update_step")

    def _recipe(self) -> str:
        return json.dumps(magnitude_of(self.pruning, 2).recipe.to_json())

    def save(self) -> bytes:
        """See Companion."""
        entries = {
            "pruning": self.pruning,
            "points": json.dumps([dataclasses.asdict(point) for point in self.points]),
        }
        return ha.serialized_item_as_bytes(ha.serialize_handle(ha.from_python_dict(entries)))

    def load(self, state: bytes) -> None:
        """See Companion."""
        recipe = self._recipe()
        try:
            found = ha.as_python_dict_s(ha.deserialize_handle(ha.serialized_item_from_bytes(state)))
            points = [Point(**{**one, "thresholds": tuple(one["thresholds"])}) for one in json.loads(found["points"])]
        except (ha.HError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"it was not left by dlprune sparsify ({error})") from None
        before, self.pruning = self.pruning, found["pruning"]
        if self._recipe() != recipe:
            self.pruning = before
            raise CheckpointError("it belongs to other work; different are: the options of sparsity")
        magnitude_of(self.pruning, 2).attach(unwrap_model(self.model, 1))
        self.points[:] = points


def run(job: SparsifyJob, output: Output) -> None:
    """Do the job and print the result. Raises HError, StoppedError, typer.BadParameter."""
    work = job.work
    plan = plan_of(job.training, work.classifier, job.epochs, job.seed)
    steps = len(work.indices) // (plan.batch * plan.parts) * plan.epochs
    pruning = _pruning(job, plan, steps)
    teacher = work.classifier.clone() if job.distill else None
    with prepared_work(work, output) as (training, held_out):
        before = None if held_out is None else quality(work.classifier, held_out).accuracy
        sparsity = _Sparsity(work.model, pruning, held_out)
        train(
            work.classifier,
            plan,
            training,
            None,
            output,
            teacher=teacher,
            checkpoint=job.checkpoint,
            resume=job.resume,
            after_step=sparsity.after_step,
            companion=sparsity,
        )
    pruning, points = sparsity.pruning, sparsity.points
    ha.set_dl_pruning_param(pruning, "remove_empty_kernels", "true" if job.options.remove_empty_kernels else "false")
    sparse = ha.gen_dl_pruned_model(work.model, pruning)
    unwrap_model(sparse, 1).write(str(job.out), sparse=job.options.sparse_storage)
    job.checkpoint.unlink(missing_ok=True)
    if job.plot is not None:
        names = [str(name) for name in ha.get_dl_pruning_param(pruning, "weight_names")]
        title = f"{work.file.name}: sparsity {points[-1].wanted:g}"
        files.replace(job.plot, picture(points, names, title).encode())
    work.tell_skipped(output)
    if held_out is not None:
        classes = work.classifier.class_num
        advise_on_chance(before, len(held_out.labels), classes, output, "Before training the model")
    _print(job, pruning, points, (steps, len(training.labels)), (before, points[-1].accuracy), output)


def _pruning(job: SparsifyJob, plan: Plan, steps: int) -> ha.HHandle:
    """Return fresh pruning data. Raises HOperatorError, ImagesError, typer.BadParameter."""
    options = job.options
    if not steps:
        raise ImagesError(
            f"{len(job.work.indices)} images are left to train with; one step needs {plan.batch * plan.parts}."
        )
    begin = options.begin
    last = options.end if options.end is not None else max(begin + 1, steps * 3 // 4)
    every = options.frequency if options.frequency is not None else max((last - begin) // 20, 1)
    if last > steps:
        raise typer.BadParameter(f"There are {steps} steps in all; give more --epochs.", param_hint="--end")
    first = max(begin, every)
    if first > steps or first + (steps - first) // every * every < last:
        raise typer.BadParameter(
            f"With an update every {every} steps none comes between step {last}, where the target is reached, and the "
            f"last one, {steps}; give a smaller --frequency or --end.",
            param_hint="--frequency",
        )
    if options.m_by_n:
        zeros, of = _zeros_of(options)
        schedule = ConstantSparsity(zeros / of, begin, steps, every)
        return prune_low_magnitude(job.work.model, schedule, sparsity_m_by_n=(zeros, of))
    ((_, (height, width)),) = block_entries("--block", (f"block:{options.block}",))
    hparams = ha.get_pruning_hparams()
    for name, value in {
        "begin_pruning_step": begin,
        "pruning_frequency": every,
        "initial_sparsity": options.initial_sparsity,
        "target_sparsity": options.target_sparsity,
        "sparsity_function_begin_step": begin,
        "sparsity_function_end_step": last,
        "sparsity_function_exponent": options.exponent,
        "block_height": height,
        "block_width": width,
        "block_pooling_function": options.pooling,
        "weight_sparsity_map": options.weight_map,
        "block_dims_map": options.block_map,
    }.items():
        ha.set_dict_tuple(hparams, name, value)
    return ha.create_dl_pruning(job.work.model, "magnitude", hparams)


def _zeros_of(options: SparsityOptions) -> tuple[int, int]:
    """Return the two numbers of --m-by-n. Raises typer.BadParameter."""
    zeros, _, of = options.m_by_n.partition(":")
    if not (zeros.isdecimal() and of.isdecimal() and 0 < int(zeros) < int(of)):
        raise typer.BadParameter(
            f"{options.m_by_n!r} is not of the form M:N with 0 < M < N, such as 2:4.", param_hint="--m-by-n"
        )
    default = SparsityOptions()
    others = [
        name
        for name in ("target_sparsity", "initial_sparsity", "exponent", "block", "weight_map", "block_map")
        if getattr(options, name) != getattr(default, name)
    ]
    if others:
        names = ", ".join("--" + name.replace("_", "-") for name in others)
        raise typer.BadParameter(
            f"It decides alone which weights become zero; leave out {names}.", param_hint="--m-by-n"
        )
    return int(zeros), int(of)


def _print(
    job: SparsifyJob,
    pruning: ha.HHandle,
    points: Sequence[Point],
    numbers: tuple[int, int],
    accuracies: tuple[float | None, float | None],
    output: Output,
) -> None:
    steps, images = numbers
    names = [str(name) for name in ha.get_dl_pruning_param(pruning, "weight_names")]
    shares = [float(str(share)) for share in ha.get_dl_pruning_param(pruning, "weight_sparsity")]
    sizes = [compressed_size(job.work.file), compressed_size(job.out)]
    kernels = ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num")
    points_table(points, output)
    output.table(
        "Weights",
        ["weight", " zeros", " threshold"],
        [
            (name, f"{100 * share:.2f} %", f"{threshold:.4g}")
            for name, share, threshold in zip(names, shares, points[-1].thresholds, strict=True)
        ],
    )
    output.line(f"{images} images trained with in {steps} steps; written: {job.out}")
    output.line(f"zeros: {100 * points[-1].reached:.2f} %; kernels removed: {kernels}")
    for name, size in zip(("before", "after"), sizes, strict=True):
        output.line(f"bytes {name}: {size.plain} plain, {size.gzip} gzip, {size.zip} zip")
    for name, accuracy in zip(("before", "after"), accuracies, strict=True):
        if accuracy is not None:
            output.line(f"accuracy {name}: {accuracy:.4f}")
    result: dict[str, Any] = {
        "model": str(job.work.file),
        "out": str(job.out),
        "steps": steps,
        "trained_images": images,
        "sparsity": points[-1].reached,
        "weights": dict(zip(names, shares, strict=True)),
        "pruned_kernel_num": kernels,
        "bytes": {name: dataclasses.asdict(size) for name, size in zip(("before", "after"), sizes, strict=True)},
        "accuracy": dict(zip(("before", "after"), accuracies, strict=True)),
        "history": [dataclasses.asdict(point) for point in points],
        "options": dataclasses.asdict(job.options),
        "preprocessing": job.work.preprocessing.entries(),
        "skipped": job.work.skipped,
    }
    output.json(result)
