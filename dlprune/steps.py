"""Pruning in steps: choose a few units, remove them, refit what is left, look again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from .analysis import Analysis, analysis_of
from .classifier import Classifier
from .compensation.reference import Reference, look_up
from .compensation.stages import batches
from .compensation.sweep import Gram, Method, Outcome, Sweep
from .criteria import Criterion, Network, Tally
from .facts import gather_facts
from .ledger import CountLedger
from .reconstruction import choose_by_reconstruction
from .selection import Limits, Mask, Room
from .structure import FIXED, Structure
from .surgery import remove_units

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
Progress = Callable[[str, float], None]

#: Images per run where the batch is free.
_BATCH = 16


@dataclass(frozen=True)
class Plan:
    """What is wanted: kernels in all, kernels per step, and how they are chosen and made up for.

    Attributes:
        budget: kernels that may leave at most.
        step: kernels per step.
        cap: share of its kernels that a group may lose, 0…1.
        selection: 'reconstruction' or 'score'.
        normalization: see selection_values; used with 'score'.
        compensation: 'least_squares', 'bias' or 'none'.
    """

    budget: int
    step: int
    cap: float
    selection: str
    normalization: str
    compensation: Method


@dataclass(frozen=True)
class Pruned:
    """The pruned graph, the units that left, and how many consumers were refitted by which method in the last sweep."""

    model: ir.Model
    gone: Mask
    methods: Counter[str]


class Stepper:
    """Prunes one classifier on its calibration images.

    Args:
        classifier: the original; it is not touched.
        images: calibration images, float32 [n, …] in the model's layout.
        labels: int64 [n], −1 = none.
        criterion: what scores the units.
        tally: what it has found on all images that were scored; the first step uses it.
        progress: called with the name of what is done and the share done of it.
    """

    def __init__(
        self,
        classifier: Classifier,
        images: Images,
        labels: Labels,
        criterion: Criterion,
        tally: Tally,
        progress: Progress = lambda _name, _share: None,
    ) -> None:
        self._classifier = classifier
        self._analysis: Analysis = analysis_of(classifier)
        self._images, self._criterion, self._tally = images, criterion, tally
        self._progress = progress
        image = classifier.image
        assert image is not None
        self._batch = image.batch or min(_BATCH, len(images))
        self._labels = np.where(labels < 0, self._decisions(), labels) if (labels < 0).any() else labels
        shape = self._analysis.facts.shape(classifier.input_name)
        assert shape is not None
        self._facts_batch = shape[0]

    def run(self, plan: Plan) -> Pruned:
        """Prune by a plan.

        Raises:
            SurgeryError: the graph cannot be cut.
            GradientError, LiftError, ScoreGraphError: a later step cannot be scored.
        """
        original = self._analysis.structure
        gone = np.zeros(original.unit_num, np.bool_)
        if plan.compensation == "none" and plan.selection == "score":
            chosen = self._choose(original, self._tally, [], plan, plan.budget)
            return Pruned(self._cut(self._classifier.model, original, chosen), chosen, Counter())
        reference = self._reference()
        model, structure, tally = self._classifier.model, original, self._tally
        outcome = self._sweep(model, structure, gone, reference, plan, first=True)
        steps = max(math.ceil(plan.budget / max(plan.step, 1)), 1)
        for step in range(steps):
            self._progress("prune", step / steps)
            budget = math.floor(plan.budget * (step + 1) / steps + 1e-9) - int(original.kernels[gone].sum())
            if step:
                tally = self._rescore(model, structure)
            chosen = self._choose(structure, tally, outcome.grams, plan, budget)
            if not chosen.any():
                continue
            model = self._cut(model, structure, chosen)
            gone = gone | chosen
            structure = structure.without(chosen)
            outcome = self._sweep(model, structure, gone, reference, plan, last=step == steps - 1)
        self._progress("prune", 1.0)
        return Pruned(model, gone, outcome.methods)

    def _decisions(self) -> Labels:
        """Return the original's own decisions: the targets of images without a label, also once kernels have gone."""
        parts = [self._classifier.logits(part) for part in batches(self._images, self._batch)]
        decisions: Labels = np.concatenate(parts)[: len(self._images)].argmax(axis=1)
        return decisions

    def _choose(self, structure: Structure, tally: Tally, grams: list[Gram], plan: Plan, budget: int) -> Mask:
        if plan.selection == "reconstruction":
            room = Room(structure, CountLedger(structure), (budget, 0), Limits(plan.cap))
            return choose_by_reconstruction(room, self._criterion.scores(tally), grams)
        return self._criterion.choose(structure, tally, budget, plan.cap, plan.normalization)

    def _cut(self, model: ir.Model, structure: Structure, chosen: Mask) -> ir.Model:
        shapes = {self._classifier.input_name: self._shape(self._facts_batch)}
        facts = gather_facts(model, shapes)
        return remove_units(model, facts, structure, chosen, self._analysis.other_shapes)

    def _shape(self, batch: int) -> tuple[int, ...]:
        return self._classifier.input_shape(batch)

    def _feeds(self) -> tuple[str, Images]:
        return self._classifier.input_name, self._images

    def _reference(self) -> Reference:
        return look_up(
            self._classifier.model,
            self._analysis.facts,
            self._analysis.structure,
            self._feeds(),
            self._batch,
            self._facts_batch,
        )

    def _sweep(
        self,
        model: ir.Model,
        structure: Structure,
        gone: Mask,
        reference: Reference,
        plan: Plan,
        *,
        first: bool = False,
        last: bool = False,
    ) -> Outcome:
        facts = gather_facts(model, {self._classifier.input_name: self._shape(self._facts_batch)})
        original = self._analysis.structure
        kept: dict[str, Mask | None] = {}
        lost: set[str] = set()
        for consumer in original.consumers:
            found = original.kept(consumer.output, gone)
            kept[consumer.output] = None if found is None else found[1]
            if np.any((consumer.units != FIXED) & gone[consumer.units]):
                lost.add(consumer.output)
        sweep = Sweep(model, facts, self._facts_batch, structure, kept, lost, reference)
        with_grams = plan.selection == "reconstruction" and not last
        method: Method = "none" if first else plan.compensation
        if method == "none" and not with_grams:
            return Outcome()
        return sweep.run(self._feeds(), self._batch, method, with_grams=with_grams)

    def _rescore(self, model: ir.Model, structure: Structure) -> Tally:
        """Score a pruned network on the calibration images."""
        network = Network(self._classifier.with_model(model), structure, self._batch)
        return self._criterion.measure(network, self._images, self._labels)
