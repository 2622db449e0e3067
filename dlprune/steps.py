"""Pruning in steps: choose a few units, remove them, refit what is left, look again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from .analysis import Analysis, analysis_of
from .classifier import Classifier
from .compensation.distillation import distil, divergence
from .compensation.joint import refit_jointly
from .compensation.reference import Reference, look_up
from .compensation.stages import batches
from .compensation.sweep import Method, Outcome, Sweep
from .cost import graph_cost
from .criteria import Criterion, Network, Tally
from .facts import Facts, gather_facts
from .gradients import GradientError
from .lift import LiftError
from .plan import Plan, Pruned, Step, Watch
from .progress import Progress, within
from .reconstruction import POWERS, choose_by_reconstruction
from .scoregraph import ScoreGraphError
from .selection import Limits, Mask, Room, dense_features
from .structure import FIXED
from .surgery import remove_units
from .targets import CostTarget, CountTarget, LatencyTarget, Net, Target
from .timing import block_width

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
Logits = NDArray[np.float32]

#: Images per run where the batch is free.
_BATCH = 16
#: A choice that turns out to save more than asked is made again with a smaller budget, so often.
_TRIES = 6
#: Where time is measured, so many steps more may follow to come closer to what was asked.
_MORE_STEPS = 3
#: The last steps take less and less, but this share of the first one at least.
_LEAST_STRIDE = 1 / 5
#: All choices are tried in each step, and all layers are refitted together at the end, if one look at all calibration
#: images takes no more multiply-accumulates.
_LITTLE_WORK = 5e10
#: Share of the progress that is left for that end.
_END = 0.1
#: A search for the most that can leave ends at this share of a step.
_FINEST = 1 / 8


@dataclass
class _State:
    """Where a walk stands; `tally` is None until the network has been scored, `finished` until that is worked out."""

    net: Net
    tally: Tally | None
    outcome: Outcome
    reached: float = 0.0
    finished: ir.Model | None = None


@dataclass
class _Walk:
    """One run of a plan."""

    plan: Plan
    target: Target
    reference: Reference | None
    history: list[Step] = field(default_factory=list)


def way(percentage: float, step: float) -> list[float]:
    """Return what has left after each step, up to `percentage`; a step takes `step` percent of what is left by then."""
    positions = [0.0]
    while positions[-1] < percentage - 1e-9:
        positions.append(positions[-1] + _stride(positions[-1], step))
    return [percentage * position / positions[-1] for position in positions[1:]] or [percentage]


def _stride(position: float, step: float) -> float:
    return step * max(1 - position / 100, _LEAST_STRIDE)


class Stepper:
    """Prunes one classifier on its calibration images.

    Args:
        classifier: the original; it is not touched.
        images: calibration images, float32 [n, …] in the model's layout.
        labels: int64 [n], −1 = none.
        criterion: what scores the units.
        tally: what it has found on all images that were scored; the first step uses it.
        progress: called with the name of what is done and the share done of it.
        held_out: images and labels that 'accuracy_drop' is measured on.
        watch: called after each step that is kept.
    """

    def __init__(
        self,
        classifier: Classifier,
        images: Images,
        labels: Labels,
        criterion: Criterion,
        tally: Tally,
        progress: Progress = lambda _name, _share: None,
        held_out: tuple[Images, Labels] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._classifier, self._watch = classifier, watch
        self._analysis: Analysis = analysis_of(classifier)
        self._images, self._criterion, self._tally = images, criterion, tally
        self._progress = progress
        self._told, self._share = 0.0, 1.0
        image = classifier.image
        assert image is not None
        self._batch = image.batch or min(_BATCH, len(images))
        self._labels = self._known(images, labels)
        self._held_out = None if held_out is None else (held_out[0], self._known(*held_out))
        shape = self._analysis.facts.shape(classifier.input_name)
        assert shape is not None
        self._facts_batch = shape[0]
        structure = self._analysis.structure
        nothing = np.zeros(structure.unit_num, np.bool_)
        self._original = Net(classifier.model, self._analysis.facts, structure, nothing)
        self._before: NDArray[np.float64] | None = None
        self._looked_up: Reference | None = None
        self._first_looks: dict[tuple[bool, str], Outcome] = {}

    def run(self, plan: Plan, *, more_follow: bool = False) -> Pruned:
        """Prune by a plan.

        Args:
            plan: what is wanted.
            more_follow: whether to keep the first look at the original for other plans with the same selection.

        Raises:
            SurgeryError: the graph cannot be cut.
            GradientError, LiftError, ScoreGraphError: a later step cannot be scored.
        """
        self._told, self._share = 0.0, 1 - _END if self._is_joint(plan) else 1.0
        walk = _Walk(plan, self._target(plan), None if plan.is_plain else self._reference())
        start = _State(self._original, self._tally, self._first_look(walk, more_follow))
        state = self._search(walk, start) if plan.target == "accuracy_drop" else self._walk(walk, start)
        found, reached = self._finished(walk, state, self._part(1.0, _END / self._share)), state.reached
        model = found
        if plan.distillation_steps and state.net.gone.any():
            pruned = self._classifier.with_model(found)
            model = distil(pruned, self._classifier, self._images, plan.distillation_steps)
            if plan.target == "accuracy_drop":
                lost = self._lost(model)
                # What was found is within the limit; what is behind it must be as well.
                fits = lost.max() <= plan.percentage + 1e-9
                model, reached = (model, float(lost[0])) if fits else (found, reached)
        self._progress("prune", 1.0)
        return Pruned(model, state.net.gone, reached, state.outcome.methods, tuple(walk.history))

    def _target(self, plan: Plan) -> Target:
        if plan.target in ("macs", "params"):
            return CostTarget(plan.target, self._original, self._facts_batch, plan.dense)
        if plan.target == "latency":
            return LatencyTarget(self._classifier, self._original, self._facts_batch, plan.dense)
        return CountTarget(self._original.structure, plan.limits.held, plan.dense)

    def _walk(self, walk: _Walk, state: _State) -> _State:
        """Go step by step to what was asked."""
        plan = walk.plan
        limits = [plan.percentage] if plan.is_plain else way(plan.percentage, plan.step)
        steps, is_measured = len(limits), walk.target.is_measured
        for step, limit in enumerate([*limits, *([plan.percentage] * _MORE_STEPS if is_measured else [])]):
            if step >= steps and limit - state.reached < walk.target.slack:
                break
            last = step == steps - 1 and not is_measured
            report = self._part(min(step, steps - 1) / steps, 1 / steps)
            found = self._advance(walk, state, limit, report, last=last)
            if found is not None:
                state = found
                self._show(walk, state)
        return state

    def _search(self, walk: _Walk, start: _State) -> _State:
        """Find the most that can leave before too much accuracy is lost: on until it is, then by halves."""
        plan, state = walk.plan, start
        position, step = 0.0, 50.0 if plan.is_plain else plan.step
        finest = step * (1 / 64 if plan.is_plain else _FINEST)
        while position < 100 and step >= finest:
            limit = min(position + (step if plan.is_plain else _stride(position, step)), 100.0)
            report = self._part(position / 100, (limit - position) / 100)
            # Plain removal does not depend on the way: all choices are made from the original.
            found = self._advance(walk, start if plan.is_plain else state, limit, report)
            if found is None:
                position = limit
                continue
            lost = self._lost(self._finished(walk, found))
            found.reached = float(lost[0])
            # A search finds networks that are lucky on few images: those of the refit are a second opinion.
            fits = bool(lost.max() <= plan.percentage + 1e-9)
            walk.history[-1] = replace(walk.history[-1], reached=found.reached, kept=fits)
            if fits:
                state, position = found, limit
                self._show(walk, state)
            else:
                step /= 2
        return state

    def _show(self, walk: _Walk, state: _State) -> None:
        if self._watch is not None:
            self._watch(walk.history[-1], self._finished(walk, state))

    def _is_joint(self, plan: Plan) -> bool:
        # New weights before a BatchNormalization would belie the statistics that it has just been given.
        wanted = self._costs_little and not plan.reestimate if plan.joint is None else plan.joint
        return wanted and plan.compensation == "least_squares"

    def _finished(self, walk: _Walk, state: _State, progress: Callable[[float], None] = lambda _: None) -> ir.Model:
        """Return a network after the refit of all its layers together, if that is wanted."""
        if state.finished is None:
            state.finished = model = state.net.model
            if walk.reference is not None and state.net.gone.any() and self._is_joint(walk.plan):
                try:
                    state.finished = refit_jointly(
                        self._classifier.with_model(model),
                        list(walk.reference.targets),
                        self._images,
                        self._aim,
                        self._batch,
                        self._miss,
                        progress,
                    )
                except (GradientError, LiftError, ScoreGraphError):
                    if walk.plan.joint:
                        raise
        return state.finished

    def _part(self, start: float, share: float) -> Callable[[float], None]:
        """Return a callback that tells the progress of a part of the whole, which never goes back."""

        def tell(done: float) -> None:
            self._told = max(self._told, self._share * (start + share * done))
            self._progress("prune", self._told)

        return tell

    def _lost(self, model: ir.Model) -> NDArray[np.float64]:
        """Return the points of accuracy that a network has lost on the held-out images, and on those of the refit."""
        if self._before is None:
            self._before = self._accuracies(self._classifier)
        return self._before - self._accuracies(self._classifier.with_model(model))

    def _accuracies(self, classifier: Classifier) -> NDArray[np.float64]:
        """Return the percentage of held-out images, and of those of the refit, that are decided as their labels say."""
        assert self._held_out is not None
        parts = (self._held_out, (self._images, self._labels))
        return np.array([100.0 * np.mean(self._decisions(classifier, images) == labels) for images, labels in parts])

    def _known(self, images: Images, labels: Labels) -> Labels:
        """Return the labels; where there is none the original's own decision, also once kernels have gone."""
        return np.where(labels < 0, self._decisions(self._classifier, images), labels) if (labels < 0).any() else labels

    def _decisions(self, classifier: Classifier, images: Images) -> Labels:
        decisions: Labels = self._logits(classifier, images).argmax(axis=1)
        return decisions

    def _logits(self, classifier: Classifier, images: Images) -> Logits:
        parts = [classifier.logits(part) for part in batches(images, self._batch)]
        return np.concatenate(parts)[: len(images)]

    def _advance(
        self, walk: _Walk, state: _State, limit: float, progress: Callable[[float], None], *, last: bool = False
    ) -> _State | None:
        """Remove units until `limit` percent have left and refit the others; None if nothing more can leave."""
        start = time.perf_counter()
        powers = POWERS[: self._choice_num(walk.plan)]
        best, least, seen = None, np.inf, list[Mask]()
        for number, power in enumerate(powers):
            progress(number / len(powers))
            found = self._removed(walk, state, limit, power)
            if found is None or any(np.array_equal(found[0].gone, gone) for gone in seen):
                continue
            seen.append(found[0].gone)
            refitted = self._refitted(walk, *found, last=last, progress=partial(within, progress, number, len(powers)))
            miss = self._miss(refitted.net.model) if len(powers) > 1 else 0.0
            if best is None or miss < least:
                best, least = refitted, miss
        if best is None:
            return None
        gone, structure = best.net.gone, self._original.structure
        kernels = int(structure.kernels[gone].sum())
        features = int(dense_features(structure.kernels, structure.features)[gone].sum())
        walk.history.append(Step(kernels, features, best.reached, best.outcome.methods, time.perf_counter() - start))
        return best

    def _choice_num(self, plan: Plan) -> int:
        if plan.selection != "reconstruction":
            return 1
        if plan.choices is not None:
            return plan.choices
        return len(POWERS) if self._costs_little else 1

    @cached_property
    def _costs_little(self) -> bool:
        cost = graph_cost(self._original.model, self._original.facts, self._facts_batch)
        return cost.macs * len(self._images) <= _LITTLE_WORK

    @cached_property
    def _aim(self) -> Logits:
        return self._logits(self._classifier, self._images)

    def _miss(self, model: ir.Model) -> float:
        """Return how far a network's decisions are from the original's, on the calibration images."""
        return divergence(self._logits(self._classifier.with_model(model), self._images), self._aim)

    def _refitted(
        self, walk: _Walk, net: Net, reached: float, *, last: bool, progress: Callable[[float], None]
    ) -> _State:
        outcome = self._sweep(walk, net, last=last, progress=progress)
        net = replace(net, facts=self._facts(net.model))  # the refit has put new weights in
        if isinstance(walk.target, CostTarget):
            reached = walk.target.reached(net)  # and new biases perhaps
        return _State(net, None, outcome, reached)

    def _removed(self, walk: _Walk, state: _State, limit: float, power: float) -> tuple[Net, float] | None:
        """Cut off what is chosen; what turns out to save more than asked is chosen again from less.

        Where a target is measured and its smallest step goes too far, that is taken if it comes nearer than staying.
        """
        target, share = walk.target, 1.0
        nearest, distance = None, limit - state.reached
        limits = self._limits(walk, limit)
        for _ in range(_TRIES):
            ledger, budgets = target.open(state.net, state.reached, limit)
            budgets = [budget * share for budget in budgets]
            room = Room(self._original.structure, ledger, budgets, limits, state.net.gone)
            chosen = self._choose(walk.plan, state, room, target, power)
            if not chosen.any():
                break
            net = self._cut(state.net, chosen)
            reached = target.reached(net)
            if reached <= limit + target.slack:
                return net, reached
            if target.is_measured and reached - limit < distance:
                nearest, distance = (net, reached), reached - limit
            share *= 0.98 * (limit - state.reached) / (reached - state.reached)
        return nearest

    def _limits(self, walk: _Walk, limit: float) -> Limits:
        plan, target = walk.plan, walk.target
        asked = limit if plan.target == "accuracy_drop" else plan.percentage
        cap = min((asked + 20.0) / 100, 1.0) if plan.cap is None else plan.cap
        limits = replace(plan.limits, cap=1.0 if asked == 100 else cap)
        if plan.target == "latency" and limits.multiple == 1:
            limits = replace(limits, multiple=block_width())  # anything else costs kernels and saves no time
        if asked == 100 and isinstance(target, CountTarget):
            # Who competes for the last place must be known from the first step on.
            stay = ~target.leaving(self._criterion.scores(self._tally))
            limits = replace(limits, held=stay if limits.held is None else limits.held | stay)
        return limits

    def _choose(self, plan: Plan, state: _State, room: Room, target: Target, power: float) -> Mask:
        if state.tally is None:
            state.tally = self._rescore(state.net)
        ranking = target.ranking(plan.percentage, plan.selection, plan.normalization)
        if plan.selection == "reconstruction":
            scores = self._criterion.scores(state.tally)
            return choose_by_reconstruction(room, scores, state.outcome.grams, ranking.prices, power)
        return self._criterion.choose(state.net.structure, state.tally, room, ranking)

    def _cut(self, net: Net, chosen: Mask) -> Net:
        model = remove_units(net.model, net.facts, net.structure, chosen, self._analysis.other_shapes)
        return Net(model, self._facts(model), net.structure.without(chosen), net.gone | chosen)

    def _facts(self, model: ir.Model) -> Facts:
        return gather_facts(model, {self._classifier.input_name: self._classifier.input_shape(self._facts_batch)})

    def _feeds(self) -> tuple[str, Images]:
        return self._classifier.input_name, self._images

    def _reference(self) -> Reference:
        """Return what the original computes; looked at once for all plans."""
        if self._looked_up is None:
            net = self._original
            feeds = self._feeds()
            self._looked_up = look_up(net.model, net.facts, net.structure, feeds, self._batch, self._facts_batch)
        return self._looked_up

    def _first_look(self, walk: _Walk, keep: bool) -> Outcome:
        """Return what the original's consumers read."""
        key = (walk.plan.is_plain, walk.plan.selection)
        found = self._first_looks.get(key) or self._sweep(walk, self._original, first=True)
        if keep:
            self._first_looks[key] = found
        return found

    def _sweep(
        self,
        walk: _Walk,
        net: Net,
        *,
        first: bool = False,
        last: bool = False,
        progress: Callable[[float], None] = lambda _: None,
    ) -> Outcome:
        """Refit what has lost inputs, in place, and look at what every consumer reads."""
        plan = walk.plan
        with_grams = plan.selection == "reconstruction" and not last
        method: Method = "none" if first else plan.compensation
        if walk.reference is None or (method == "none" and not with_grams):
            return Outcome()
        original = self._original.structure
        kept: dict[str, Mask | None] = {}
        lost: set[str] = set()
        for consumer in original.consumers:
            found = original.kept(consumer.output, net.gone)
            kept[consumer.output] = None if found is None else found[1]
            if np.any((consumer.units != FIXED) & net.gone[consumer.units]):
                lost.add(consumer.output)
        sweep = Sweep(net.model, net.facts, self._facts_batch, net.structure, kept, lost, walk.reference)
        return sweep.run(
            self._feeds(), self._batch, method, with_grams=with_grams, reestimate=plan.reestimate, progress=progress
        )

    def _rescore(self, net: Net) -> Tally:
        """Score a pruned network on the calibration images."""
        network = Network(self._classifier.with_model(net.model), net.structure, self._batch)
        return self._criterion.measure(network, self._images, self._labels)
