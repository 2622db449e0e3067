"""What trains one classifier: its weights live in ONNX Runtime and return to the graph when somebody reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from ..gradients import GradientError
from ..lift import LiftError
from ..weights import running_statistics, trainable_weights, unshare
from .blocked import block_size
from .buffers import Array, Bank, Snapshot, fetch, pack, place, unpack
from .graph import TrainGraph, TrainGraphError, build
from .recipe import STATES, Rates, Recipe
from .runner import Runner

if TYPE_CHECKING:
    from ..classifier import Classifier

#: Sessions that are kept for recipes used in turn (the last batch of an epoch is often smaller).
_RUNNERS = 3


class NotFiniteError(Exception):
    """Loss or gradient of a step is NaN or infinite; the weights are as before the step."""


@dataclass(frozen=True)
class _State:
    """The bank that holds the present weights, steps of the present solver, running statistics, steps in all."""

    bank: int
    steps: int
    statistics: Mapping[str, Array]
    step_count: int


@dataclass(frozen=True)
class StepResult:
    """What one step showed, with the weights before it.

    Attributes:
        total_loss: mean loss of the samples plus the weight prior.
        loss: of every sample, float32 [N].
        logits: float32 [N, K].
    """

    total_loss: float
    loss: Array
    logits: Array


class Trainer:
    """Trains one classifier, step by step; get it by `trainer_of`.

    Weights and solver states stay in ONNX Runtime between steps. `ahead` tells that the graph's weights are older;
    `store` brings them up to date (Classifier does that when its graph is read).
    """

    def __init__(self, model: ir.Model) -> None:
        """Prepare training of `model`, in which merged vectors are separated in place."""
        unshare(model)
        # What the banks do not hold: weights that are not trained, and their states.
        self._snapshot = Snapshot("sgd", _arrays(model), statistics=_statistics(model))
        self._shapes = {name: array.shape for name, array in self._snapshot.weights.items()}
        self._banks: tuple[Bank, Bank] | None = None
        self._trained: frozenset[str] = frozenset()  # names in the banks
        self._mask_values: dict[str, ort.OrtValue] = {}
        self._masked: frozenset[str] = frozenset()
        # What a step changes: exchanged in one assignment, so that an interrupt never leaves half a step.
        self._state = _State(0, 0, dict(self._snapshot.statistics), 0)
        self._stored = self._state
        self._runners: dict[Recipe, Runner] = {}

    @property
    def step_count(self) -> int:
        """Steps taken on this classifier since it was read or made (or what `restore` was told)."""
        return self._state.step_count

    @property
    def ahead(self) -> bool:
        """Whether the graph's weights are older than these."""
        return self._state is not self._stored

    # --- steps --------------------------------------------------------------------------------------------------------

    def step(
        self,
        classifier: Classifier,
        recipe: Recipe,
        rates: Rates,
        images: Array,
        labels: NDArray[np.int64],
        teacher: Array | None = None,
    ) -> StepResult:
        """Take one step; if anything is raised, the weights are as before.

        Args:
            classifier: whose weights these are.
            recipe: what kind of step.
            rates: its numbers.
            images: float32 [batch · parts, …] in the model's layout.
            labels: int64 [batch · parts], class index.
            teacher: float32 [batch · parts, K], logits of a teacher.

        Raises:
            NotFiniteError: the loss or the gradient is NaN or infinite.
            GradientError, LiftError, TrainGraphError: the model cannot be trained so.
        """
        runner = self._runner(classifier, replace(recipe, masked=self._masked - recipe.frozen))
        state = self._state
        prior = self._prior(runner.graph, rates, state.bank)
        outcome = runner.run(images, labels, teacher, rates, state.bank, state.steps + 1)
        loss = float(outcome.loss.astype(np.float64).mean()) + prior
        if not np.isfinite(loss) or not np.isfinite(outcome.norm):
            what = "loss" if not np.isfinite(loss) else "gradient"
            raise NotFiniteError(f"the {what} of this batch is not a finite number")
        statistics = self._new_statistics(runner.graph, outcome.statistics, rates.batchnorm_momentum)
        self._state = _State(1 - state.bank, state.steps + 1, statistics, state.step_count + 1)
        return StepResult(loss, outcome.loss, outcome.logits)

    def _prior(self, graph: TrainGraph, rates: Rates, source: int) -> float:
        """Return α/2·Σ w² over the trained kernels."""
        if not rates.weight_prior or self._banks is None:
            return 0.0
        total = 0.0
        for name in graph.kernels:
            flat = self._banks[source].weights[name].numpy()
            total += float(np.dot(flat, flat))
        return rates.weight_prior / 2 * total

    def _new_statistics(self, graph: TrainGraph, rows: list[Array], momentum: float) -> Mapping[str, Array]:
        """Return the running statistics after the parts of a step."""
        if not rows:
            return self._state.statistics
        new = dict(self._state.statistics)
        old_share, share = np.float32(momentum), np.float32(1 - momentum)
        for row in rows:
            start = 0
            for one in graph.normalizations:
                mean, variance = row[start : start + 2 * one.channels].reshape(2, one.channels)
                start += 2 * one.channels
                unbiased = variance * np.float32(one.count / (one.count - 1))
                for name, value in ((one.mean, mean), (one.variance, unbiased)):
                    if name is not None:
                        new[name] = new[name] * old_share + value.reshape(new[name].shape) * share
        return new

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _runner(self, classifier: Classifier, recipe: Recipe) -> Runner:
        found = self._runners.pop(recipe, None)
        if found is None:
            block = block_size()
            try:
                found = self._new_runner(classifier, recipe, block)
            except (GradientError, LiftError, TrainGraphError):
                raise
            except Exception:  # ONNX Runtime raises many classes; internal operators are the first to suspect
                if not block:
                    raise
                found = self._new_runner(classifier, recipe, 0)
            while len(self._runners) >= _RUNNERS:
                self._runners.pop(next(iter(self._runners)))
        self._runners[recipe] = found
        return found

    def _new_runner(self, classifier: Classifier, recipe: Recipe, block: int) -> Runner:
        graph = build(classifier.model, classifier.input_name, classifier.output_name, recipe, block)
        self._use_banks(frozenset(graph.shapes), recipe.solver)
        assert self._banks is not None
        return Runner(graph, self._banks, self._mask_values)

    def _use_banks(self, names: frozenset[str], solver: str) -> None:
        """Make sure that the banks hold these weights and the states of this solver."""
        if self._banks is not None and names == self._trained and solver == self._snapshot.solver:
            return
        snapshot = self.snapshot()
        if snapshot.solver != solver:
            snapshot = replace(snapshot, solver=solver, states={}, steps=0)
        self._load(snapshot, names)

    def _load(self, snapshot: Snapshot, names: frozenset[str]) -> None:
        weights = {name: snapshot.weights[name] for name in sorted(names)}
        states = {
            kind: {
                name: snapshot.states.get(kind, {}).get(name, np.zeros(array.shape, np.float32))
                for name, array in weights.items()
            }
            for kind in STATES[snapshot.solver]
        }
        self._runners.clear()
        self._banks = Bank(weights, states), Bank(weights, states)
        self._trained = names
        self._snapshot = _without(snapshot, names)
        self._state = replace(self._state, bank=0, steps=snapshot.steps)

    # --- in and out ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return a copy of all weights, solver states and statistics."""
        state = self._state
        weights = dict(self._snapshot.weights)
        states = {kind: dict(arrays) for kind, arrays in self._snapshot.states.items()}
        if self._banks is not None:
            held = self._banks[state.bank]
            weights |= held.fetch_weights()
            for kind, arrays in held.fetch_states().items():
                states.setdefault(kind, {}).update(arrays)
        return Snapshot(self._snapshot.solver, weights, states, dict(state.statistics), state.steps)

    def restore(self, snapshot: Snapshot, step_count: int | None = None) -> None:
        """Go back to a snapshot of the same classifier. Raises KeyError or ValueError if it is of another one."""
        statistics = {name: array.shape for name, array in self._state.statistics.items()}
        for kind, shapes, arrays in (
            ("weights", self._shapes, snapshot.weights),
            ("statistics", statistics, snapshot.statistics),
        ):
            if shapes != {name: array.shape for name, array in arrays.items()}:
                raise ValueError(f"the {kind} are those of another model")
        self._snapshot = snapshot
        self._runners.clear()
        self._banks = None
        self._trained = frozenset()
        count = self.step_count if step_count is None else step_count
        self._state = _State(0, snapshot.steps, dict(snapshot.statistics), count)

    def store(self, model: ir.Model) -> None:
        """Write the present weights into the graph; tensors are replaced, never changed (copies may share them)."""
        state = self._state
        new: dict[str, Array] = dict(self._snapshot.weights)
        if self._banks is not None:
            new |= self._banks[state.bank].fetch_weights()
        new |= state.statistics
        initializers = model.graph.initializers
        for name, array in new.items():
            old = initializers[name].const_value
            assert old is not None
            initializers[name].const_value = ir.tensor(array.astype(old.dtype.numpy()), dtype=old.dtype, name=name)
        self._stored = state

    # --- masks --------------------------------------------------------------------------------------------------------

    @property
    def masks(self) -> dict[str, Array]:
        """Masks by name of the weight."""
        return {
            name: unpack(fetch(self._mask_values[name]).astype(np.float32), self._shapes[name])
            for name in sorted(self._masked)
        }

    def set_masks(self, masks: Mapping[str, Array]) -> None:
        """Multiply weights by masks, now and after every step.

        Args:
            masks: by name of the weight, of its shape, 0 or 1; weights that are not named have none any more.

        Raises:
            KeyError, ValueError: no such weight, or a mask of another shape.
        """
        for name, mask in masks.items():
            shape = self._shapes[name]
            if mask.shape != shape:
                raise ValueError(f"the mask of {name!r} has shape {mask.shape}, the weight {shape}")
        weights = dict(self._snapshot.weights)
        for name, mask in masks.items():
            factor = mask.astype(np.float32)
            packed = pack(factor)
            if self._banks is not None and name in self._trained:
                held = self._banks[self._state.bank].weights[name]
                held.update_inplace(fetch(held).astype(np.float32) * packed)
            else:
                weights[name] = weights[name] * factor
            if name in self._mask_values:  # sessions are bound to it
                self._mask_values[name].update_inplace(np.ascontiguousarray(packed))
            else:
                self._mask_values[name] = place(packed)
        self._masked = frozenset(masks)
        self._snapshot = replace(self._snapshot, weights=weights)
        self._state = replace(self._state)  # another object: the graph has to be brought up to date


def _without(snapshot: Snapshot, names: frozenset[str]) -> Snapshot:
    """Return a snapshot without the weights that are in the banks."""
    return replace(
        snapshot,
        weights={name: array for name, array in snapshot.weights.items() if name not in names},
        states={
            kind: {name: array for name, array in arrays.items() if name not in names}
            for kind, arrays in snapshot.states.items()
        },
    )


def _arrays(model: ir.Model) -> dict[str, Array]:
    return {value.name or "": _float32(value) for value in trainable_weights(model)}


def _statistics(model: ir.Model) -> dict[str, Array]:
    return {value.name or "": _float32(value) for value in running_statistics(model)}


def _float32(value: ir.Value) -> Array:
    assert value.const_value is not None
    return value.const_value.numpy().astype(np.float32, copy=False)


def trainer_of(classifier: Classifier) -> Trainer:
    """Return the trainer of a classifier, made at the first call."""
    with classifier.lock:
        if classifier.trainer is None:
            model = classifier.model
            trainer = Trainer(model)
            classifier.weights_changed()  # separated vectors have new names
            classifier.trainer = trainer
        return classifier.trainer
