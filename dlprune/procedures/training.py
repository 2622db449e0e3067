"""The procedures that train a classifier on a dataset."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..classifier import Classifier
from ..dictionary import from_python_dict, unwrap_dict, write_dict
from ..errors import (
    H_ERR_DICT_KEY,
    H_ERR_DL_INPUTS_MISSING,
    H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
    H_ERR_WIPN1,
    H_ERR_WIPV1,
    HOperatorError,
)
from ..guard import guarded
from ..handle import HHandle
from ..model import unwrap_model, write_dl_model
from ..parameters import PLAIN, bad_value, choice, count, integer, number, one, text
from ..training.augmentation import Augmentation
from ..training.finetune import Plan, finetune
from ..training.operators import batch_and_parts
from ..tuples import HTuple, TupleLike, to_int, to_strings, to_tuple
from .dataset import Dataset, DatasetImages
from .evaluation import measure
from .settings import Check, numbers, read_settings, switch

#: Model parameters that may change in the course of a training.
_CHANGEABLE: Final = ("learning_rate", "momentum", "weight_prior")
#: What tells one epoch's shuffling from another's.
_SEED_STEP: Final = 1_000_003


def _integers(name: str, values: HTuple) -> tuple[int, ...]:
    return tuple(integer(name, value) for value in values)


def _off(name: str, values: HTuple) -> None:
    """Check a kind of augmentation that there is none of here."""
    for value in values:
        if value not in (0, "off", "false"):
            raise bad_value(name, value, "this change of images is not built in; leave it out, or set it to 0 or 'off'")


_CHANGE: Final[dict[str, Check]] = {
    "model_param": choice(*_CHANGEABLE),
    "initial_value": lambda name, values: values,
    "epochs": _integers,
    "values": numbers,
}
_SERIALIZE: Final[dict[str, Check]] = {
    "type": choice("best", "final", "epoch"),
    "basename": lambda name, values: text(name, one(name, values)),
    "epochs": _integers,
}
_AUGMENT: Final[dict[str, Check]] = {
    "augmentation_percentage": number(0, 100),
    "mirror": choice("off", "c"),
    "brightness_variation": number(0),
    "crop_percentage": lambda name, values: (
        100.0 if one(name, values) == "off" else number(0, 100, above=True)(name, values)
    ),
    "shift": number(0, 1),
    **dict.fromkeys(
        (
            "brightness_variation_spot",
            "contrast_variation",
            "saturation_variation",
            "rotate",
            "rotate_range",
            "crop_pixel",
            "ignore_direction",
        ),
        _off,
    ),
}


def create_dl_train_param(
    dlmodel_handle: HHandle,
    num_epochs: int,
    evaluation_interval_epochs: TupleLike,
    enable_display: TupleLike,
    random_seed: TupleLike,
    gen_param_name: TupleLike,
    gen_param_value: object,
) -> HHandle:
    """Collect the parameters of train_dl_model in a dictionary.

    Parameters: `dlmodel_handle` (type 'classification'); `num_epochs` (int ≥ 1); `evaluation_interval_epochs` (int ≥ 1:
    after every so many epochs, and after the last one, the samples of the split 'validation' are evaluated; [] =
    never); `enable_display` ('true', 'false', 1, 0: a line is printed per evaluation; HALCON opens a window);
    `random_seed` (int ≥ 0; [] = 42); `gen_param_name`, `gen_param_value` (as many names as values, or []; a value may
    be a Python dict as well):
    'change' (may occur several times): dict with 'model_param' ('learning_rate', 'momentum' or 'weight_prior'),
    'initial_value', and 'epochs' with 'values': from these epochs on, counted from 0, these values hold.
    'serialize' (may occur several times): dict with 'type': 'best' (whenever the validation error is lower than ever),
    'final', or 'epoch' (after each of 'epochs', counted from 1); and 'basename': the model is written to
    basename.onnx ('epoch': basename_3.onnx), what is known of it to basename_info.hdict. Without 'serialize' no file is
    written (HALCON then writes model_best and model_final).
    'augment': dict with 'augmentation_percentage' (share of the images that are changed, 0…100, default 100), 'mirror'
    ('off', 'c': left and right), 'brightness_variation' (grey values), 'crop_percentage' (what is kept at least, in
    percent of width and height), and 'shift' (share of the size, beyond HALCON). HALCON's other changes are not built
    in.
    'evaluate_before_train' ('true', 'false').
    Returns a 'dict' handle. Raises HOperatorError 1200/1300/1400 + number of the parameter, 7911/7914 (generic
    parameter), 7912 (model). Source: HALCON procedure create_dl_train_param.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> change = {"model_param": "learning_rate", "initial_value": 0.001, "epochs": [5], "values": [0.0001]}
        >>> param = ha.create_dl_train_param(model, 10, 1, "false", 42, "change", change)
        >>> ha.get_dict_tuple(param, "num_epochs")
        [10]
    """
    unwrap_model(dlmodel_handle, 1).require_classification("create_dl_train_param")
    epochs = to_int(num_epochs, "num_epochs", 2)
    interval = list(to_tuple(evaluation_interval_epochs, "evaluation_interval_epochs"))
    display = to_tuple(enable_display, "enable_display")
    seed = to_int(random_seed, "random_seed", 5) if to_tuple(random_seed, "random_seed") else 42
    for index, wrong, what in (
        (2, epochs < 1, f"num_epochs is {epochs}; at least 1 is needed"),
        (4, display not in (("true",), ("false",), (1,), (0,)), "enable_display must be 'true' or 'false'"),
        (5, seed < 0, f"random_seed is {seed}; at least 0 is needed"),
    ):
        if wrong:
            raise HOperatorError(H_ERR_WIPV1 + index - 1, f"{what}.")
    if interval and to_int(interval, "evaluation_interval_epochs", 3) < 1:
        raise HOperatorError(H_ERR_WIPV1 + 2, f"evaluation_interval_epochs is {interval[0]}; at least 1 is needed.")
    names = to_strings(gen_param_name, "gen_param_name", 6)
    given = gen_param_value if isinstance(gen_param_value, (list, tuple)) else [gen_param_value]
    if len(names) != len(given):
        raise HOperatorError(H_ERR_WIPN1 + 6, f"{len(names)} names but {len(given)} values were given.")
    entries: dict[str, Any] = {
        "num_epochs": epochs,
        "evaluation_interval_epochs": interval,
        "enable_display": int(display in (("true",), (1,))),
        "random_seed": seed,
    }
    for name, value in zip(names, given, strict=True):
        handle = from_python_dict(value) if isinstance(value, Mapping) else value
        if name in ("change", "serialize"):
            entries.setdefault(name, []).append(handle)
        else:
            entries[name] = handle
    param = from_python_dict(entries)
    TrainParam.of(param, 7)
    return param


@dataclass(frozen=True)
class Change:
    """Values of a model parameter over the epochs."""

    model_param: str
    initial_value: HTuple = ()
    epochs: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    def at(self, epoch: int) -> HTuple:
        """Return the value from an epoch on, counted from 0; () = as it was."""
        begun = [value for begin, value in zip(self.epochs, self.values, strict=True) if begin <= epoch]
        return (begun[-1],) if begun else self.initial_value


@dataclass(frozen=True)
class Serialization:
    """When a model is written, and the beginning of the file's name."""

    type: str
    basename: str
    epochs: tuple[int, ...] = ()


@dataclass(frozen=True)
class TrainParam:
    """What a dictionary of create_dl_train_param says."""

    epochs: int
    interval: int | None
    display: bool
    seed: int
    changes: tuple[Change, ...]
    serializations: tuple[Serialization, ...]
    augment: dict[str, Any]
    evaluate_first: bool

    @classmethod
    def of(cls, handle: object, index: int) -> TrainParam:
        """Read and check a dictionary. Raises HOperatorError 7911, 7914, 1203, 1403, 2894, 2404/2454."""
        checks: dict[str, Check] = {
            "num_epochs": count,
            "evaluation_interval_epochs": lambda name, values: count(name, values) if values else None,
            "enable_display": switch,
            "random_seed": lambda name, values: count(name, values, 0),
            "change": lambda name, values: tuple(_change(value, index) for value in values),
            "serialize": lambda name, values: tuple(_serialization(value, index) for value in values),
            "augment": lambda name, values: read_settings(one(name, values), index, _AUGMENT),
            "evaluate_before_train": switch,
        }
        unwrap_dict(handle, index)
        found = read_settings(handle, index, checks)
        if "num_epochs" not in found:
            raise HOperatorError(H_ERR_DICT_KEY, "'num_epochs' is missing; see create_dl_train_param.")
        return cls(
            found["num_epochs"],
            found.get("evaluation_interval_epochs"),
            found.get("enable_display", False),
            found.get("random_seed", 42),
            found.get("change", ()),
            found.get("serialize", ()),
            found.get("augment", {}),
            found.get("evaluate_before_train", False),
        )

    def augmentation(self, value_range: float) -> Augmentation:
        """Return the changes of images; `value_range` is the distance of black and white."""
        augment = self.augment
        return Augmentation(
            flip=augment.get("mirror", "off") == "c",
            shift=augment.get("shift", 0.0),
            crop=1.0 - augment.get("crop_percentage", 100.0) / 100.0,
            brightness=augment.get("brightness_variation", 0.0) / 255.0,
            value_range=value_range,
            share=augment.get("augmentation_percentage", 100.0) / 100.0 if augment else 0.0,
        )


def _change(value: object, index: int) -> Change:
    found = read_settings(value, index, _CHANGE)
    if "model_param" not in found:
        raise HOperatorError(H_ERR_DICT_KEY, "'change' needs a 'model_param'.")
    change = Change(**found)
    if len(change.epochs) != len(change.values) or list(change.epochs) != sorted(change.epochs):
        raise bad_value("epochs", list(change.epochs), "ascending epochs are needed, as many as 'values'")
    for value in (*change.initial_value, *change.values):
        PLAIN[change.model_param](change.model_param, (value,))
    return change


def _serialization(value: object, index: int) -> Serialization:
    found = read_settings(value, index, _SERIALIZE)
    missing = [name for name in ("type", "basename") if name not in found]
    if missing:
        raise HOperatorError(H_ERR_DICT_KEY, f"'serialize' needs a {missing[0]!r}.")
    return Serialization(**found)


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def train_dl_model(
    dldataset: HHandle, dlmodel_handle: HHandle, train_param: HHandle, start_epoch: int
) -> tuple[list[HHandle], list[HHandle], list[HHandle]]:
    """Train a classifier for some epochs on the samples of the split 'train', in place.

    The steps are those of train_dl_model_batch with the model's solver parameters ('solver_type', 'learning_rate', …).
    The learning rate is constant but for 'change'; finetune_dl_model has schedules, distillation and checkpoints. A
    step takes 'batch_size' × 'batch_size_multiplier' images (32 if both are 1 and the file fixes nothing); images are
    shuffled in each epoch, those that fill no batch are left out of it. At the end the model is as after the last
    epoch; the best one is in the file of the strategy 'best'. Everything follows from the seed. On KeyboardInterrupt
    the model is as after the last step.

    Parameters: `dldataset` (with splits, see split_dl_dataset; images as in evaluate_dl_model); `dlmodel_handle` (type
    'classification'; changed in place); `train_param` (see create_dl_train_param); `start_epoch` (int ≥ 0: so many
    epochs are done already; the rest goes on as it would have, with the solver's memory if the handle is the same).

    Returns three lists of 'dict' handles (HALCON does not say what its dictionaries hold; this is ours). Results, one
    per epoch: 'epoch' (from 1 on), 'total_loss' (mean of its steps), 'accuracy' (of its training images). Infos, one
    per epoch: 'epoch', 'num_epochs', 'num_iterations_per_epoch', 'learning_rate', 'momentum', 'weight_prior',
    'time_elapsed' (seconds since the start). Evaluation infos, one per evaluation: 'epoch', 'split', 'result' (see
    evaluate_dl_model), 'best' (1 if no earlier one had a lower or the same 'top1_error').

    Raises HOperatorError 7783 (no samples in 'train', or in 'validation' where they are evaluated; no class), 1304
    (start_epoch), 7800 (fewer images than a step needs), 7803/3142 (files), and those of train_dl_model_batch,
    evaluate_dl_model and create_dl_train_param. Source: HALCON procedure train_dl_model.

    Example:
        >>> import os, tempfile
        >>> import dlprune as ha
        >>> from dlprune.demo import demo_images
        >>> folder = tempfile.mkdtemp()
        >>> images, labels = demo_images()
        >>> for i in range(40):
        ...     ha.write_image(images[i], "png", 0, os.path.join(folder, f"digit{labels[i]}-{i}"))
        >>> dataset = ha.read_dl_dataset_classification(folder, "file_name_remove_index")
        >>> ha.split_dl_dataset(dataset, 60, 20, [])
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> ha.set_dl_model_param(model, "batch_size", 10)
        >>> ha.set_dl_model_param(model, "learning_rate", 0.00001)
        >>> param = ha.create_dl_train_param(model, 2, 1, "false", 42, [], [])
        >>> results, infos, evaluations = ha.train_dl_model(dataset, model, param, 0)
        >>> [ha.get_dict_tuple_s(one, "epoch") for one in evaluations]
        [1, 2]
    """
    dataset = Dataset.of(dldataset, 1)
    classifier = unwrap_model(dlmodel_handle, 2)
    classifier.require_classification("train_dl_model")
    param = TrainParam.of(train_param, 3)
    start = to_int(start_epoch, "start_epoch", 4)
    if start < 0:
        raise HOperatorError(H_ERR_WIPV1 + 3, f"start_epoch is {start}; at least 0 is needed.")
    evaluating = param.interval is not None or param.evaluate_first
    return _Training(
        classifier,
        dlmodel_handle,
        param,
        _split(dataset, "train", dlmodel_handle, classifier),
        _split(dataset, "validation", dlmodel_handle, classifier) if evaluating else None,
    ).run(start)


def _split(dataset: Dataset, name: str, handle: HHandle, classifier: Classifier) -> DatasetImages:
    numbers_of_split = dataset.in_split(name)
    if not numbers_of_split:
        raise HOperatorError(
            H_ERR_DL_INPUTS_MISSING, f"The dataset has no samples with 'split' {name!r}; see split_dl_dataset."
        )
    return DatasetImages(dataset, numbers_of_split, handle, classifier)


class _Training:
    """One run of train_dl_model."""

    def __init__(
        self,
        classifier: Classifier,
        handle: HHandle,
        param: TrainParam,
        training: DatasetImages,
        validation: DatasetImages | None,
    ) -> None:
        self._classifier, self._handle, self._param = classifier, handle, param
        self._training, self._validation = training, validation
        self._results: list[HHandle] = []
        self._infos: list[HHandle] = []
        self._evaluations: list[HHandle] = []
        self._lowest = float("inf")

    def run(self, start: int) -> tuple[list[HHandle], list[HHandle], list[HHandle]]:
        """Run the epochs from `start` on."""
        param, begin = self._param, time.perf_counter()
        if param.evaluate_first:
            self._evaluate(start)
        for epoch in range(start, param.epochs):
            self._set(epoch)
            self._train(epoch, begin)
            done = epoch + 1
            if param.interval is not None and (done % param.interval == 0 or done == param.epochs):
                self._evaluate(done)
            for plan in param.serializations:
                if plan.type == "epoch" and done in plan.epochs:
                    self._write(f"{plan.basename}_{done}", done)
        for plan in param.serializations:
            if plan.type == "final":
                self._write(plan.basename, max(param.epochs, start))
        return self._results, self._infos, self._evaluations

    def _set(self, epoch: int) -> None:
        for change in self._param.changes:
            value = change.at(epoch)
            if value:
                self._classifier.set(change.model_param, value)

    def _train(self, epoch: int, begin: float) -> None:
        params = self._classifier.params
        batch, parts = batch_and_parts(self._classifier, None)
        plan = Plan(
            epochs=1,
            batch=batch,
            parts=parts,
            learning_rate=params.learning_rate,
            schedule="constant",
            warmup=0.0,
            seed=self._param.seed + _SEED_STEP * epoch,
            augmentation=self._param.augmentation(params.image_range_max - params.image_range_min),
        )
        (report,) = finetune(self._classifier, plan, self._training).reports
        self._results.append(
            from_python_dict({"epoch": epoch + 1, "total_loss": report.loss, "accuracy": report.accuracy})
        )
        self._infos.append(
            from_python_dict(
                {
                    "epoch": epoch + 1,
                    "num_epochs": self._param.epochs,
                    "num_iterations_per_epoch": len(self._training.labels) // (batch * parts),
                    **{name: getattr(params, name) for name in _CHANGEABLE},
                    "time_elapsed": time.perf_counter() - begin,
                }
            )
        )

    def _evaluate(self, epoch: int) -> None:
        assert self._validation is not None
        result = measure(self._classifier, self._validation)
        error = result["global"]["top1_error"]
        best = error < self._lowest
        self._lowest = min(error, self._lowest)
        self._evaluations.append(
            from_python_dict({"epoch": epoch, "split": "validation", "result": result, "best": int(best)})
        )
        if self._param.display:
            print(f"Epoch {epoch} of {self._param.epochs}: validation error {error:.4f}{' (best)' if best else ''}")
        if best:
            for plan in self._param.serializations:
                if plan.type == "best":
                    self._write(plan.basename, epoch)

    def _write(self, basename: str, epoch: int) -> None:
        write_dl_model(self._handle, f"{basename}.onnx")
        info: dict[str, Any] = {"epoch": epoch}
        if self._evaluations:
            info["evaluation"] = self._evaluations[-1]
        write_dict(from_python_dict(info), f"{basename}_info.hdict", [], [])
