"""Sessions of one training graph, bound to the banks that hold the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from ..staticsession import static_session
from . import solver
from .buffers import Array, Bank, empty, fetch, place
from .graph import IMAGES, LABELS, LOGITS, LOSS, STATISTICS, TEACHER, TrainGraph
from .recipe import Rates


@dataclass(frozen=True)
class Outcome:
    """What one step came to, before anybody decides to keep it.

    Attributes:
        loss: of every sample, float32 [N].
        logits: float32 [N, K].
        norm: squared length of what the solver is given; not finite where a gradient is not.
        statistics: per part, mean and variance of the batch for all BatchNormalizations, in one row.
    """

    loss: Array
    logits: Array
    norm: float
    statistics: list[Array]


class Runner:
    """Runs steps of one graph between two banks."""

    def __init__(self, graph: TrainGraph, banks: tuple[Bank, Bank], masks: Mapping[str, ort.OrtValue]) -> None:
        self.graph = graph
        self._banks = banks
        self._masks = masks
        self._session = _session(graph.model)
        self._step_session = None if graph.step is None else _session(graph.step)
        names, recipe = graph.names, graph.recipe
        shapes = graph.shapes
        self._images = empty(recipe.shape)
        self._labels = empty((recipe.batch,), np.int64)
        self._teacher = empty((recipe.batch, graph.classes))
        self._scalars = {name: place(np.zeros((), np.float32)) for name in graph.scalars | graph.step_scalars}
        self._loss = empty((recipe.batch,))
        self._logits = empty((recipe.batch, graph.classes))
        self._norms = {name: empty(()) for name in shapes}
        self._statistics = empty((sum(2 * one.channels for one in graph.normalizations),))
        self._totals: list[dict[str, ort.OrtValue]] = []
        if recipe.parts > 1:  # the first part adds to zeros, the others write the second and third in turn
            self._totals = [
                {name: place(np.zeros(math.prod(s), np.float32)) for name, s in shapes.items()} for _ in range(3)
            ]
        self._names = names
        self._bindings: dict[tuple[str, int, int, int], ort.IOBinding] = {}

    def run(
        self, images: Array, labels: NDArray[np.int64], teacher: Array | None, rates: Rates, source: int, step: int
    ) -> Outcome:
        """Read bank `source` and write the other one; images [N, …], labels [N], teacher's logits [N, K]."""
        recipe = self.graph.recipe
        self._feed(rates, step)
        losses, logits, statistics = [], [], []
        total = 0
        for part in range(recipe.parts):
            rows = slice(part * recipe.batch, (part + 1) * recipe.batch)
            self._images.update_inplace(np.ascontiguousarray(images[rows], np.float32))
            self._labels.update_inplace(np.ascontiguousarray(labels[rows], np.int64))
            if teacher is not None:
                self._teacher.update_inplace(np.ascontiguousarray(teacher[rows], np.float32))
            following = 0 if recipe.parts == 1 else 2 if total == 1 else 1
            self._session.run_with_iobinding(self._binding("part", source, total, following))
            total = following
            losses.append(fetch(self._loss))
            logits.append(fetch(self._logits))
            if self.graph.normalizations:
                statistics.append(fetch(self._statistics))
        if self._step_session is not None:
            self._step_session.run_with_iobinding(self._binding("step", source, total, total))
        return Outcome(
            np.concatenate(losses).astype(np.float32),
            np.concatenate(logits).astype(np.float32),
            sum(float(fetch(norm)) for norm in self._norms.values()),
            [row.astype(np.float32) for row in statistics],
        )

    def _feed(self, rates: Rates, step: int) -> None:
        recipe = self.graph.recipe
        values = solver.scalars(recipe.solver, rates, step)
        values |= {"prior": rates.weight_prior * solver.factor(recipe.solver, rates), "zero": 0.0}
        values |= {"temperature": rates.temperature, "share": rates.distillation}
        for name, held in self._scalars.items():
            held.update_inplace(np.array(values[name], np.float32))

    def _binding(self, what: str, source: int, total: int, following: int) -> ort.IOBinding:
        """Return what connects a session to its tensors; each way is built once."""
        key = (what, source, total, following)
        if key not in self._bindings:
            build = self._bind_part if what == "part" else self._bind_step
            self._bindings[key] = build(source, total, following)
        return self._bindings[key]

    def _bind_part(self, source: int, total: int, following: int) -> ort.IOBinding:
        graph, names = self.graph, self._names
        inputs = {names.of(IMAGES): self._images, names.of(LABELS): self._labels}
        inputs |= {names.of(name): self._scalars[name] for name in graph.scalars}
        inputs |= {name: self._banks[source].weights[name] for name in graph.shapes}
        outputs = {names.of(LOSS): self._loss, names.of(LOGITS): self._logits}
        if graph.recipe.distilled:
            inputs[names.of(TEACHER)] = self._teacher
        if graph.normalizations:
            outputs[names.of(STATISTICS)] = self._statistics
        if graph.step is None:
            self._add_step(inputs, outputs, source)
        else:
            inputs |= {names.total(name): self._totals[total][name] for name in graph.shapes}
            outputs |= {names.new_total(name): self._totals[following][name] for name in graph.shapes}
        return _bound(self._session, inputs, outputs)

    def _bind_step(self, source: int, total: int, following: int) -> ort.IOBinding:
        graph, names = self.graph, self._names
        inputs = {names.of(name): self._scalars[name] for name in graph.step_scalars}
        inputs |= {name: self._banks[source].weights[name] for name in graph.shapes}
        inputs |= {names.total(name): self._totals[total][name] for name in graph.shapes}
        outputs: dict[str, ort.OrtValue] = {}
        self._add_step(inputs, outputs, source)
        assert self._step_session is not None
        return _bound(self._step_session, inputs, outputs)

    def _add_step(self, inputs: dict[str, ort.OrtValue], outputs: dict[str, ort.OrtValue], source: int) -> None:
        names, old, new = self._names, self._banks[source], self._banks[1 - source]
        for name in self.graph.shapes:
            outputs[names.norm(name)] = self._norms[name]
            outputs[names.new(name)] = new.weights[name]
            if name in self.graph.recipe.masked:
                inputs[names.mask(name)] = self._masks[name]
            for kind in old.states:
                inputs[names.state(kind, name)] = old.states[kind][name]
                outputs[names.new_state(kind, name)] = new.states[kind][name]


def _session(model: ir.Model) -> ort.InferenceSession:
    return static_session(model, 0, planned_memory=False, spinning=True)


def _bound(
    session: ort.InferenceSession, inputs: Mapping[str, ort.OrtValue], outputs: Mapping[str, ort.OrtValue]
) -> ort.IOBinding:
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    for name, value in outputs.items():
        binding.bind_ortvalue_output(name, value)
    return binding
