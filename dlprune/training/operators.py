"""The training operators."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..classifier import Classifier
from ..dictionary import from_python_dict
from ..errors import (
    H_ERR_DL_INPUT_WRONG_BS_WITH_MULTIPLIER,
    H_ERR_DL_INPUTS_MISSING,
    H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
    HOperatorError,
)
from ..guard import guarded
from ..handle import HHandle, new_handle
from ..model import unwrap_model
from ..parameters import bad_value, choice, count, number, unknown_parameter
from ..samples import LABEL, Batch, images, labels, read_samples
from ..tuples import HTuple, TupleLike, to_tuple
from .augmentation import Augmentation
from .data import SampleData
from .finetune import Plan, Progress
from .finetune import finetune as run_finetune
from .rounds import Report, Rounds, run_rounds
from .schedule import KINDS, Kind
from .steps import train_step

#: Parameters of finetune_dl_model that are no part of what a run is to do.
_NOT_IN_PLAN = frozenset(
    {"dlmodel_handle", "dlsamples", "dlsamples_validation", "teacher", "checkpoint", "resume", "progress"}
)
#: Images per step where neither caller nor model says anything.
_BATCH = 32


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def train_dl_model_batch(dlmodel_handle: HHandle, dlsample_batch: Sequence[HHandle]) -> HHandle:
    """Train a classifier by one step on one batch of samples.

    The loss is the mean cross-entropy of the samples (binary cross-entropy for a model that ends in a sigmoid) plus the
    weight prior α/2·Σ w² over kernels and matrices. 'sgd': v ← momentum·v − learning_rate·gradient, w ← w + v. 'adam':
    as published, with bias correction. BatchNormalization works with the statistics of the batch and updates the
    running ones, unless 'batchnorm_frozen' is 'true'; Dropout does nothing. Where the file has BatchNormalization
    folded into convolutions, plain weights and biases are trained; then use a learning rate that is about ten times
    smaller, and raise it slowly at the beginning. A model that has BatchNormalization behind its first convolution and
    takes images of −127…128 has tiny kernels there, which the default learning_rate 0.001 throws over in one step
    (with PyTorch's SGD as well): freeze them, e.g. 'frozen_weights' 'stem.conv.weight', or use 0.00001.

    The solver's memory (velocity, moments) stays with the handle, is not written to files, and is fresh in copies.
    Training runs on the CPU, whatever 'runtime' says.

    Parameters: `dlmodel_handle` (type 'classification'); `dlsample_batch` ('batch_size' × 'batch_size_multiplier' dicts
    with 'image' and 'image_label_id'). Relevant model parameters: 'learning_rate', 'momentum', 'weight_prior',
    'solver_type', 'adam_beta1', 'adam_beta2', 'adam_epsilon', 'batchnorm_momentum', 'batchnorm_frozen',
    'frozen_weights'.
    Returns a 'dict' handle with 'total_loss' (float, before the step). Raises HOperatorError 7800 (number of samples),
    7783/7790/7791/7793 (entries of a sample), 7912 (type 'generic', an operator without gradient, nothing to train,
    loss or gradient not finite; then nothing has changed), 7914 ('frozen_weights'), 2404/2454 (handle).
    Source: HALCON operator train_dl_model_batch.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> ha.set_dl_model_param(model, "batch_size", 16)
        >>> ha.set_dl_model_param(model, "learning_rate", 0.0001)
        >>> samples = ha.demo_samples()[:16]
        >>> first = ha.get_dict_tuple_s(ha.train_dl_model_batch(model, samples), "total_loss")
        >>> for _ in range(3):
        ...     last = ha.get_dict_tuple_s(ha.train_dl_model_batch(model, samples), "total_loss")
        >>> last < first
        True
    """
    classifier = unwrap_model(dlmodel_handle, 1)
    classifier.require_classification("train_dl_model_batch")
    batch = _read(dlsample_batch, classifier)
    result = train_step(classifier, batch.images, batch.labels)
    return from_python_dict({"total_loss": result.total_loss})


def _read(dlsample_batch: object, classifier: Classifier) -> Batch:
    samples = read_samples(dlsample_batch, 2)
    params = classifier.params
    expected = params.batch_size * params.batch_size_multiplier
    if len(samples) != expected:
        raise HOperatorError(
            H_ERR_DL_INPUT_WRONG_BS_WITH_MULTIPLIER,
            f"{len(samples)} samples were given; a step needs {expected}: 'batch_size' {params.batch_size} × "
            f"'batch_size_multiplier' {params.batch_size_multiplier}.",
        )
    found = labels(samples, classifier)
    if np.any(found < 0):
        raise HOperatorError(H_ERR_DL_INPUTS_MISSING, f"Sample 0 has no {LABEL!r}; training needs the class of each.")
    return Batch(images(samples, classifier), found)


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def finetune_dl_model(
    dlmodel_handle: HHandle,
    dlsamples: Sequence[HHandle],
    dlsamples_validation: Sequence[HHandle] = (),
    *,
    epochs: int = 10,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    schedule: str = "cosine",
    warmup_epochs: float = 1.0,
    milestones: Sequence[float] = (),
    seed: int = 0,
    flip: bool = False,
    shift: float = 0.0,
    crop: float = 0.0,
    brightness: float = 0.0,
    patience: int | None = None,
    teacher: HHandle | None = None,
    temperature: float = 4.0,
    distillation: float = 0.5,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Callable[[Progress], object] | None = None,
) -> HHandle:
    """Train a classifier for some epochs, in place: what brings a pruned model's accuracy back (beyond HALCON).

    The steps are those of train_dl_model_batch, with the model's solver parameters. Images are shuffled anew in every
    epoch; those that do not fill a batch are left out of it. With validation samples the model ends with the weights of
    the epoch that decided most of them rightly (where several did, the one with the lowest loss); the model before
    training takes part, so that it cannot get worse. Everything follows from `seed`: a run repeats exactly on the same
    machine, and so does one that was killed and resumed from its checkpoint. On KeyboardInterrupt the model is as
    after the last step.

    Parameters:
    `dlmodel_handle` (type 'classification'). `dlsamples`, `dlsamples_validation`: dicts with 'image' and
    'image_label_id'. `epochs` (≥ 0). `batch_size` (images per step; None: the model's 'batch_size' ×
    'batch_size_multiplier', and 32 if that is 1 and not fixed by the file). `learning_rate` (> 0, the highest one;
    None: the model's). `schedule`: 'cosine' (down to zero), 'step' (× 0.1 after the epochs in `milestones`, or at half
    and three quarters), 'constant'; before that it rises for `warmup_epochs` (≥ 0, may be a fraction). `seed` (≥ 0).
    Augmentation, off by default: `flip` (mirror left and right), `shift` (up to this share of the size, 0…1), `crop`
    (up to this share of the size is cut off, the rest enlarged, 0…1), `brightness` (up to ± this share of the image
    range is added). `patience` (≥ 1: stop after so many epochs without improvement). `teacher`: a model of the same
    classes and image size, e.g. the one before pruning, whose logits are imitated, softened by `temperature` (> 0),
    with the share `distillation` (0…1) of the loss. `checkpoint`: file that is written after every epoch; with `resume`
    the run goes on from it (from the beginning if there is no such file). `progress`: called after every step with a
    Progress (epoch, epochs, step, steps, loss, accuracy, learning_rate, validation).

    Returns a 'dict' handle: 'epochs' (done), 'best_epoch' (whose weights the model has; 0 = before training),
    'stopped_early' (0 or 1), and per epoch 'learning_rate', 'train_loss', 'train_accuracy'; with validation samples
    'validation_loss' and 'validation_accuracy', which begin with the model before training.

    Raises HOperatorError 7914 (a parameter; a checkpoint of other work), 7800 (fewer images than a step needs), and
    those of train_dl_model_batch.
    Source: in the manner of HALCON's procedure train_dl_model; distillation: Hinton, Vinyals, Dean, Distilling the
    Knowledge in a Neural Network, 2015.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> ha.set_dl_model_param(model, "solver_type", "adam")
        >>> samples = ha.demo_samples()
        >>> result = ha.finetune_dl_model(model, samples[:64], samples[64:96], epochs=1, batch_size=16)
        >>> len(ha.get_dict_tuple(result, "train_loss"))
        1
    """
    settings = {name: value for name, value in locals().items() if name not in _NOT_IN_PLAN}
    classifier = unwrap_model(dlmodel_handle, 1)
    classifier.require_classification("finetune_dl_model")
    validation = read_samples(dlsamples_validation, 3)
    path = None if checkpoint is None else Path(checkpoint)
    result = run_finetune(
        classifier,
        _plan(classifier, settings),
        SampleData(read_samples(dlsamples, 2), classifier, "dlsamples"),
        SampleData(validation, classifier, "dlsamples_validation") if validation else None,
        teacher=None if teacher is None else _teacher(teacher),
        progress=progress,
        checkpoint=path,
        resume=resume and (path is None or path.exists()),
    )
    return from_python_dict(result.entries())


def _plan(classifier: Classifier, settings: Mapping[str, Any]) -> Plan:
    """Return checked parameters of finetune_dl_model, with its defaults. Raises HOperatorError 7911, 7914."""
    defaults = {name: p.default for name, p in inspect.signature(finetune_dl_model).parameters.items()}
    for name in settings.keys() - (defaults.keys() - _NOT_IN_PLAN):
        raise unknown_parameter(name, frozenset(defaults) - _NOT_IN_PLAN)
    given = {**defaults, **settings}
    params = classifier.params
    batch, parts = batch_and_parts(classifier, given["batch_size"])
    rate = params.learning_rate if given["learning_rate"] is None else given["learning_rate"]
    return Plan(
        epochs=_count("epochs", given["epochs"], 0),
        batch=batch,
        parts=parts,
        learning_rate=_number("learning_rate", rate, number(0, above=True)),
        schedule=_schedule(given["schedule"]),
        warmup=_number("warmup_epochs", given["warmup_epochs"], number(0)),
        milestones=tuple(_number("milestones", epoch, number(0)) for epoch in given["milestones"]),
        seed=_count("seed", given["seed"], 0),
        augmentation=Augmentation(
            flip=bool(given["flip"]),
            shift=_number("shift", given["shift"], number(0, 1)),
            crop=_number("crop", given["crop"], number(0, 1, below=True)),
            brightness=_number("brightness", given["brightness"], number(0)),
            value_range=float(params.image_range_max - params.image_range_min),
        ),
        patience=None if given["patience"] is None else _count("patience", given["patience"], 1),
        temperature=_number("temperature", given["temperature"], number(0, above=True)),
        distillation=_number("distillation", given["distillation"], number(0, 1)),
    )


def prune_and_finetune_dl_model(
    dlmodel_handle: HHandle,
    dlsamples: Sequence[HHandle],
    percentage: float,
    dlsamples_validation: Sequence[HHandle] = (),
    *,
    rounds: int = 1,
    distill: bool = True,
    mode: str = "oracle",
    finetune: Mapping[str, Any] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Report | None = None,
    **settings: TupleLike,
) -> tuple[HHandle, list[dict[str, Any]]]:
    """Prune a model in rounds of score, remove, refit and fine-tune, up to a percentage (beyond HALCON).

    Each round removes the same number of kernels from what the round before has left, then trains as finetune_dl_model
    does. The solver and its numbers are the model's parameters ('solver_type', 'learning_rate', …).

    Parameters: `dlmodel_handle` (type 'classification'; not changed); `dlsamples` (dicts with 'image' and
    'image_label_id', to score and to train with); `percentage` (number in [0, 100]: share of the removable kernels
    that may leave in all); `dlsamples_validation` (decide which epoch of each training is kept); `rounds` (≥ 1; more
    than one only for the target 'kernels'); `distill` (whether training imitates the original's logits as well);
    `mode` and `settings` (as in prune_dl_model, e.g. compensation="bias"); `finetune` (parameters of finetune_dl_model
    by name, e.g. dict(epochs=5, flip=True)); `checkpoint` (folder in which the state is kept; with `resume` the call
    goes on from there, with the same result as without the interruption); `progress` (called with the number of the
    round and 'score' or 'prune' and the share done, or 'train' and a Progress).
    Returns the handle of the pruned and trained model, and a dict per round: 'round', 'pruned_kernel_num' and
    'pruned_percentage' so far, and what finetune_dl_model returns.
    Raises HOperatorError as prune_dl_model and finetune_dl_model do; 7911 (a name in `finetune`), 7914 if `checkpoint`
    belongs to other work.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> ha.set_dl_model_param(model, "solver_type", "adam")
        >>> samples = ha.demo_samples()
        >>> pruned, history = ha.prune_and_finetune_dl_model(
        ...     model, samples[:96], 30, samples[96:128], rounds=2, compensation="none", finetune={"epochs": 1}
        ... )
        >>> [round(entry["pruned_percentage"]) for entry in history]
        [15, 30]
    """
    classifier = unwrap_model(dlmodel_handle, 1)
    classifier.require_classification("prune_and_finetune_dl_model")
    validation = read_samples(dlsamples_validation, 4)
    task = Rounds(
        percentage=_number("percentage", percentage, number(0, 100)),
        rounds=_count("rounds", rounds, 1),
        plan=_plan(classifier, finetune or {}),
        distill=bool(distill),
        mode=mode,
        settings=settings,
    )
    pruned, done = run_rounds(
        classifier,
        task,
        SampleData(read_samples(dlsamples, 2), classifier, "dlsamples"),
        SampleData(validation, classifier, "dlsamples_validation") if validation else None,
        folder=None if checkpoint is None else Path(checkpoint),
        resume=resume,
        report=progress or (lambda _round, _what, _done: None),
    )
    return new_handle("dl_model", pruned), [one.entry() for one in done]


def batch_and_parts(classifier: Classifier, wanted: int | None) -> tuple[int, int]:
    """Return images per part and parts per step for so many images per step (None = what the model says).

    Raises HOperatorError 7914 if the file fixes the batch size and `wanted` is no multiple of it.
    """
    params = classifier.params
    fixed = classifier.image.batch if classifier.image is not None else None
    if wanted is None:
        if fixed is None and params.batch_size * params.batch_size_multiplier == 1:
            return _BATCH, 1
        return params.batch_size, params.batch_size_multiplier
    size = _count("batch_size", wanted, 1)
    if fixed is None:
        return size, 1
    if size % fixed:
        raise bad_value("batch_size", size, f"a multiple of {fixed} is needed, which the file fixes")
    return fixed, size // fixed


def _count(name: str, value: int, lowest: int) -> int:
    return count(name, to_tuple(value, name), lowest)


def _number(name: str, value: float, check: Callable[[str, HTuple], float]) -> float:
    return check(name, to_tuple(value, name))


def _schedule(name: str) -> Kind:
    chosen = choice(*KINDS)("schedule", to_tuple(name, "schedule"))
    return next(kind for kind in KINDS if kind == chosen)


def _teacher(handle: HHandle) -> Classifier:
    teacher = unwrap_model(handle, 4)
    teacher.require_classification("A teacher")
    return teacher
