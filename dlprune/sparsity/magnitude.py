"""What a 'dl_pruning' handle of mode 'magnitude' holds: recipe, masks, thresholds, and where training stands."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ..analysis import analysis_of, signature
from ..classifier import Classifier
from ..errors import (
    H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM,
    H_ERR_DL_PRUNING_UNSUPPORTED_BY_CNN,
    H_ERR_DL_PRUNING_WRONG_DATA,
    HOperatorError,
)
from ..hparams import NAMES, HParams
from ..parameters import choice, count, number, one, text
from ..payload import Payload
from ..pruningdata import PruningData
from ..training.buffers import Array, Snapshot
from ..training.trainer import Trainer, trainer_of
from ..tuples import Element, HTuple
from .masks import Mask
from .recipe import Recipe, share_of_zeros
from .strip import Stripped, sparse_copy, zero_share
from .weights import SparseWeight, prunable_weights

MODE: Final = "magnitude"
KIND: Final = "magnitude"
#: What set knows besides the hyperparameters.
_OPTIONS: Final = frozenset({"mode", "percentage", "global_step", "remove_empty_kernels"})


class MagnitudeData(Payload):
    """Recipe, masks and thresholds by weight, and the steps that the model has been trained.

    It follows the trainer of the model that it was last used with; `architecture` keeps what is known of convolutions.
    """

    def __init__(self, recipe: Recipe, weights: tuple[SparseWeight, ...], architecture: PruningData) -> None:
        self.recipe = recipe
        self.weights = weights
        self.architecture = architecture
        self.treatments = recipe.treatments(weights)
        self.masks: dict[str, Mask] = {}
        self.thresholds: dict[str, float] = {}
        self.last_update: int | None = None
        self.remove_empty_kernels = "false"
        self.lock = threading.RLock()
        self._trainer: Trainer | None = None
        self._start = 0  # step of the trainer at which …
        self._base = 0  # … this was the global step
        self._solver: Snapshot | None = None  # of a run that is resumed

    @classmethod
    def of(cls, classifier: Classifier, recipe: Recipe) -> MagnitudeData:
        """Return fresh data for a classifier. Raises HOperatorError 7981 if it has no weight to prune."""
        trainer_of(classifier)  # separates merged vectors, which changes names
        weights = prunable_weights(classifier)
        if not weights:
            raise HOperatorError(
                H_ERR_DL_PRUNING_UNSUPPORTED_BY_CNN,
                "This model has no weight that magnitude pruning takes: constant weights of Conv, ConvTranspose, Gemm "
                "or MatMul, without depthwise kernels.",
            )
        data = cls(recipe, weights, PruningData.of(analysis_of(classifier)))
        data.attach(classifier)
        return data

    # --- parameters ---------------------------------------------------------------------------------------------------

    @classmethod
    def recipe_of(cls, settings: Mapping[str, HTuple]) -> Recipe:
        """Return the recipe of hyperparameters. Raises HOperatorError 7911, 7914, 1203, 1403."""
        return Recipe.of_hparams(HParams().changed(settings))

    def set(self, name: str, values: HTuple) -> None:
        """Set a hyperparameter or an option. Raises HOperatorError 7911, 7914, 1203; then nothing has changed."""
        with self.lock:
            if name == "mode":
                self._require_mode(text(name, one(name, values)))
            elif name == "global_step":
                self._base, self._start = count(name, values, 0), self._trained()
            elif name == "remove_empty_kernels":
                self.remove_empty_kernels = choice("false", "true")(name, values)
            elif name == "percentage":
                self._change({"target_sparsity": (number(0, 100, below=True)(name, values) / 100,)})
            elif name in NAMES:
                self._change({name: values})
            else:
                known = ", ".join(repr(n) for n in sorted(_OPTIONS | NAMES))
                what = "can only be read" if name in _READERS else "is not known in mode 'magnitude'"
                raise HOperatorError(
                    H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM, f"The parameter {name!r} {what}; settable are {known}."
                )

    def _require_mode(self, mode: str) -> None:
        if mode != MODE:
            raise HOperatorError(
                H_ERR_DL_PRUNING_WRONG_DATA,
                f"Pruning data of mode 'magnitude' cannot change to mode {mode!r}; create new pruning data.",
            )

    def _change(self, values: Mapping[str, HTuple]) -> None:
        """Take over other hyperparameters."""
        if self.recipe.hparams is None:
            raise HOperatorError(
                H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM,
                f"{next(iter(values))!r} cannot be set: this pruning data follows the schedule that "
                "prune_low_magnitude was given.",
            )
        recipe = Recipe.of_hparams(self.recipe.hparams.changed(values))
        self.treatments = recipe.treatments(self.weights)
        self.recipe = recipe

    def get(self, name: str) -> list[Element]:
        """Return the values of a parameter or result. Raises HOperatorError 7911."""
        with self.lock:
            if name in _READERS:
                return _READERS[name](self)
            if self.recipe.hparams is not None and name in NAMES:
                return list(self.recipe.hparams.values()[name])
            if name in _ARCHITECTURE:
                return self.architecture.get(name)
        known = ", ".join(repr(n) for n in sorted({*_READERS, *_ARCHITECTURE, *NAMES}))
        raise HOperatorError(
            H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM,
            f"The parameter {name!r} is not known in mode 'magnitude'; possible are {known}.",
        )

    def layer_info(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per convolution, see get_dl_pruning_layer_info."""
        return self.architecture.layer_info()

    @property
    def global_step(self) -> int:
        """Training steps of the model since this data was created, or what it was set to and the steps since."""
        return self._base + self._trained() - self._start

    def _trained(self) -> int:
        return 0 if self._trainer is None else self._trainer.step_count

    def sparsity_of(self, name: str) -> float:
        """Return the share of a weight that its mask zeroes."""
        return share_of_zeros(self.masks[name]) if name in self.masks else 0.0

    # --- work ---------------------------------------------------------------------------------------------------------

    def update(self, classifier: Classifier) -> bool:
        """Update the masks if the schedule says so, and zero the weights; tell whether it did.

        Raises HOperatorError 7980 if the model does not fit.
        """
        with classifier.lock, self.lock:
            self.attach(classifier)
            assert self._trainer is not None
            step = self.global_step
            if not self.recipe.schedule.due(step, self.last_update):
                return False
            values = self._trainer.snapshot().weights
            masks: dict[str, Mask] = {}
            thresholds: dict[str, float] = {}
            for weight in self.weights:
                name = weight.name
                previous = self.thresholds.get(name, 0.0)
                found = self.recipe.mask(values[name], weight, self.treatments[name], step, previous)
                masks[name], thresholds[name] = found.mask, found.threshold
            self._trainer.set_masks(_factors(masks))
            self.masks, self.thresholds, self.last_update = masks, thresholds, step
            return True

    def attach(self, classifier: Classifier) -> None:
        """Follow the training of a model from now on; masks found so far hold for it.

        Raises HOperatorError 7980 if the model has other weights and brings no masks along.
        """
        with classifier.lock, self.lock:
            trainer = trainer_of(classifier)
            if trainer is self._trainer:
                return
            if not self._fits(classifier):
                self._follow(classifier, trainer)
            self._base, self._start = self.global_step, trainer.step_count
            self._trainer = trainer
            if self._solver is not None and trainer.step_count == 0:
                now = trainer.snapshot()
                if {n: a.shape for n, a in now.weights.items()} == {
                    n: a.shape for n, a in self._solver.weights.items()
                }:
                    solver = self._solver
                    trainer.restore(replace(now, solver=solver.solver, states=solver.states, steps=solver.steps))
            self._solver = None
            if self.masks:
                trainer.set_masks(_factors(self.masks))

    def _fits(self, classifier: Classifier) -> bool:
        initializers = classifier.model.graph.initializers
        for weight in self.weights:
            value = initializers.get(weight.name)
            tensor = None if value is None else value.const_value
            if tensor is None or tuple(tensor.shape.numpy()) != weight.view.shape:
                return False
        return True

    def _follow(self, classifier: Classifier, trainer: Trainer) -> None:
        """Go over to a model that kernels have left since: its masks came through the surgery with its weights."""
        weights = prunable_weights(classifier)
        masks = trainer.masks
        if not weights or {weight.name for weight in weights} != set(masks):
            raise self._misfit()
        treatments = self.recipe.treatments(weights)
        self.architecture = PruningData.of(analysis_of(classifier))
        self.weights, self.treatments = weights, treatments
        self.masks = {name: mask > 0 for name, mask in masks.items()}
        self.thresholds = {name: value for name, value in self.thresholds.items() if name in masks}

    def _misfit(self) -> HOperatorError:
        return HOperatorError(
            H_ERR_DL_PRUNING_WRONG_DATA,
            f"The pruning data was created for a model whose {len(self.weights)} pruned weights have other names or "
            "shapes than those of this model. Create new pruning data for it.",
        )

    def generate(self, classifier: Classifier) -> Classifier:
        """Return the sparse copy of a model, see gen_dl_pruned_model. Raises HOperatorError 7980, 7912."""
        with classifier.lock, self.lock:
            if not self._fits(classifier):
                self._follow(classifier, trainer_of(classifier))
            copy: Stripped = sparse_copy(
                classifier, self.weights, self.masks, remove_empty=self.remove_empty_kernels == "true"
            )
            if signature(classifier.model) != self.architecture.signature:
                self.architecture = PruningData.of(analysis_of(classifier))
            self.architecture.finish(copy.gone, 100.0 * zero_share(copy.classifier))
            return copy.classifier

    # --- bytes --------------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Return everything, also the solver's memory, as an .npz file without pickled objects."""
        with self.lock:
            snapshot = self._solver if self._trainer is None else self._trainer.snapshot()
            arrays: dict[str, Any] = {"architecture": np.frombuffer(self.architecture.to_bytes(), np.uint8)}
            head: dict[str, Any] = {
                "kind": KIND,
                "recipe": self.recipe.to_json(),
                "weights": [weight.to_json() for weight in self.weights],
                "masked": list(self.masks),
                "thresholds": self.thresholds,
                "last_update": self.last_update,
                "global_step": self.global_step,
                "remove_empty_kernels": self.remove_empty_kernels,
            }
            for i, mask in enumerate(self.masks.values()):
                arrays[f"mask{i}"] = np.packbits(mask)
            if snapshot is not None:
                names = list(snapshot.weights)
                head["solver"] = {
                    "name": snapshot.solver,
                    "steps": snapshot.steps,
                    "shapes": {name: list(snapshot.weights[name].shape) for name in names},
                    "states": {kind: list(states) for kind, states in snapshot.states.items()},
                }
                for kind, states in snapshot.states.items():
                    arrays |= {f"state/{kind}/{i}": array for i, array in enumerate(states.values())}
            stream = io.BytesIO()
            np.savez_compressed(stream, head=np.array(json.dumps(head)), **arrays)
            return stream.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> MagnitudeData:
        """Return the data that to_bytes wrote; any exception means that the bytes are damaged."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            head = json.loads(str(arrays["head"]))
            weights = tuple(SparseWeight.from_json(one_weight) for one_weight in head["weights"])
            architecture = PruningData.from_bytes(arrays["architecture"].tobytes())
            found = cls(Recipe.from_json(head["recipe"]), weights, architecture)
            shapes = {weight.name: weight.view.shape for weight in weights}
            for i, name in enumerate(head["masked"]):
                size = int(np.prod(shapes[name]))
                found.masks[name] = np.unpackbits(arrays[f"mask{i}"], count=size).astype(np.bool_).reshape(shapes[name])
            found.thresholds = {str(name): float(value) for name, value in head["thresholds"].items()}
            found.last_update = head["last_update"]
            found._base = int(head["global_step"])
            found.set("remove_empty_kernels", (head["remove_empty_kernels"],))
            solver = head.get("solver")
            if solver is not None:
                states: dict[str, dict[str, Array]] = {
                    kind: {name: arrays[f"state/{kind}/{i}"] for i, name in enumerate(names)}
                    for kind, names in solver["states"].items()
                }
                nothing: dict[str, Array] = {
                    name: np.broadcast_to(np.float32(0), shape) for name, shape in solver["shapes"].items()
                }
                found._solver = Snapshot(solver["name"], nothing, states, steps=solver["steps"])
        return found


def _factors(masks: Mapping[str, Mask]) -> dict[str, Array]:
    return {name: mask.astype(np.float32) for name, mask in masks.items()}


_READERS: Final[dict[str, Callable[[MagnitudeData], list[Element]]]] = {
    "mode": lambda data: [MODE],
    "percentage": lambda data: [100 * data.recipe.schedule.target],
    "global_step": lambda data: [data.global_step],
    "sparsity": lambda data: [data.recipe.schedule.sparsity(data.global_step)],
    "weight_names": lambda data: [weight.name for weight in data.weights],
    "weight_sparsity": lambda data: [data.sparsity_of(weight.name) for weight in data.weights],
    "thresholds": lambda data: [data.thresholds.get(weight.name, 0.0) for weight in data.weights],
    "last_mask_update_step": lambda data: [data.last_update or 0],
    "remove_empty_kernels": lambda data: [data.remove_empty_kernels],
}
_ARCHITECTURE: Final = frozenset(
    {
        "prunable_conv_num",
        "prunable_conv_layer_name",
        "prunable_kernel_num",
        "pruned_kernel_num",
        "pruned_percentage",
        "pruned_feature_num",
        "target_reached",
    }
)
