"""One sweep in topological order: every mixing consumer that lost inputs is refitted on what it gets now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..facts import Facts
from ..structure import Consumer, Structure
from .behind import before, bias_place, rising
from .reference import Reference, Target, fit_order, gather
from .ridge import Fit, Moments, moments, refit
from .rows import Regression
from .stages import Stages
from .storage import store, value_of

Array = NDArray[np.float32]
Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]
Method = Literal["least_squares", "bias", "none"]


@dataclass(frozen=True)
class Gram:
    """Second moments of what one group of a consumer reads, averaged over taps, and of its weights.

    Attributes:
        units: unit of each channel of the group, int64 [C].
        inputs: covariance of the channels, float64 [C, C].
        weights: sum over outputs and taps of products of weights, float64 [C, C].
        scale: one over the summed variance of the consumer's original outputs.
    """

    units: NDArray[np.int64]
    inputs: Matrix
    weights: Matrix
    scale: float


@dataclass
class Outcome:
    """What a sweep leaves behind: Grams for the choice that follows, and how many consumers were fitted how."""

    grams: list[Gram] = field(default_factory=list)
    methods: Counter[str] = field(default_factory=Counter)


class Sweep:
    """Refit the consumers of a pruned network, in place.

    Args:
        model: the pruned network; its weights are replaced, never written to.
        facts: its facts.
        structure: its units, numbered as in the original.
        kept: for each weighted consumer, by output name: which of its original outputs are left (None = all).
        lost: output names of the consumers that have lost inputs since the original.
        reference: what the original computes.
    """

    def __init__(
        self,
        model: ir.Model,
        facts: Facts,
        facts_batch: int,
        structure: Structure,
        kept: dict[str, Mask | None],
        lost: set[str],
        reference: Reference,
    ) -> None:
        self._model = model
        self._facts = facts
        self._facts_batch = facts_batch
        self._structure = structure
        self._kept = kept
        self._lost = lost
        self._reference = reference

    def run(
        self,
        feeds: tuple[str, Array],
        batch: int,
        method: Method,
        *,
        with_grams: bool,
        reestimate: bool = False,
        progress: Callable[[float], None] = lambda _: None,
    ) -> Outcome:
        """Run all calibration images through the network once, refitting on the way.

        Args:
            feeds: name of the image input, and the calibration images float32 [n, …].
            batch: images per run.
            method: how consumers that lost inputs are refitted.
            with_grams: whether to return second moments of what every consumer reads.
            reestimate: whether a BatchNormalization right behind a refitted consumer gets the mean and the variance
                that it sees now.
            progress: called with the share done.
        """
        nodes = {node.outputs[0].name or "": node for node in self._model.graph}
        order = fit_order(self._model)
        consumers = sorted(
            (c for c in self._structure.consumers if c.output in self._reference.targets),
            key=lambda c: order[nodes[c.output]],
        )
        refitted = {c.output for c in consumers if c.output in self._lost and method != "none"}
        wanted = {c.input for c in consumers if with_grams or c.output in refitted}
        wanted |= {s.other for name, s in self._reference.shortcuts.items() if name in refitted}
        stages = Stages(self._model, self._facts, wanted, feeds, batch)
        readers = Counter(c.input for c in consumers if with_grams or c.output in refitted)
        outcome = Outcome()
        for index, consumer in enumerate(consumers):
            progress(index / len(consumers))
            if not with_grams and consumer.output not in refitted:
                continue
            node, target = nodes[consumer.output], self._reference.targets[consumer.output]
            regression = Regression(node, self._facts, self._facts_batch)
            rows, fits = self._inputs(stages, consumer, regression, target), []
            if consumer.output in refitted:
                wish, level = self._wish(stages, consumer, regression, target)
                assert not stages.has_run(node), consumer.output
                fits = self._fit(node, regression, rows, (wish, level), target.positions.shape[1], method)
                outcome.methods.update(fit.method for fit in fits)
                if reestimate:
                    self._reestimate(node, rows, fits)
            if with_grams:
                outcome.grams.extend(self._grams(node, regression, rows, fits, consumer, target))
            readers[consumer.input] -= 1
            if not readers[consumer.input]:
                stages.release(consumer.input)
        return outcome

    def _inputs(self, stages: Stages, consumer: Consumer, regression: Regression, target: Target) -> Array:
        parts, start = [], 0
        for data, count in stages.tensor(consumer.input):
            parts.append(regression.inputs(data, stages.batch, target.positions[start : start + count]))
            start += count
        return np.concatenate(parts).astype(np.float32, copy=False)

    def _wish(
        self, stages: Stages, consumer: Consumer, regression: Regression, target: Target
    ) -> tuple[Array, Array | None]:
        """Return what the consumer should give, and the level at or below which it does not matter how much.

        That is its original outputs, or what makes the sum behind it right again.
        """
        kept = self._kept[consumer.output]
        chosen = slice(None) if kept is None else kept
        outputs = target.outputs[:, chosen]
        shortcut = self._reference.shortcuts.get(consumer.output)
        if shortcut is None or target.total is None:
            return outputs, None if target.level is None else target.level[chosen]
        nodes = {node.outputs[0].name: node for node in self._model.graph}
        chain = tuple(nodes[link.outputs[0].name] for link in shortcut.chain)
        other = gather(stages, shortcut.other, regression, target.positions)
        wish = before(self._facts, chain, target.total[:, chosen] - other)
        known = ~np.isnan(wish)
        level = None
        if shortcut.level is not None:
            level = before(self._facts, chain, np.float32(shortcut.level) - other)
            level = np.where(rising(self._facts, chain) & known, level, -np.inf).astype(np.float32)
        return np.where(known, wish, outputs), level

    def _fit(
        self,
        node: ir.Node,
        regression: Regression,
        rows: Array,
        wish: tuple[Array, Array | None],
        per_image: int,
        method: Method,
    ) -> list[Fit]:
        stored = value_of(self._facts, node.inputs[1])
        weight = regression.weight(stored)
        bias_at = bias_place(node, self._facts)
        wishes, levels = (
            None if array is None else array.reshape(*array.shape[:-1], regression.groups, -1) for array in wish
        )
        assert wishes is not None
        fits = []
        for group in range(regression.groups):
            given = wishes[:, group]
            if method == "bias":
                shift = given.mean(axis=0, dtype=np.float64) - weight[group] @ rows[:, group].mean(
                    axis=0, dtype=np.float64
                )
                fits.append(Fit(weight[group], shift if bias_at is not None else np.zeros(len(shift)), "bias"))
            else:
                level = None if levels is None else levels[..., group, :]
                fits.append(refit(rows[:, group], given, weight[group], per_image, level, centred=bias_at is not None))
        store(
            self._model, self._facts, node, 1, regression.weight_array(np.stack([fit.weight for fit in fits]), stored)
        )
        if bias_at is not None:
            bias = np.concatenate([fit.bias for fit in fits])
            self._store_bias(bias_at, node, bias)
        return fits

    def _reestimate(self, node: ir.Node, rows: Array, fits: list[Fit]) -> None:
        uses = list(node.outputs[0].uses())
        if len(uses) != 1 or uses[0].node.op_type != "BatchNormalization" or uses[0].idx != 0:
            return
        outputs = np.concatenate([rows[:, group] @ fit.weight.T + fit.bias for group, fit in enumerate(fits)], axis=1)
        for index, statistics in ((3, outputs.mean(axis=0)), (4, outputs.var(axis=0))):
            dtype = value_of(self._facts, uses[0].node.inputs[index]).dtype
            store(self._model, self._facts, uses[0].node, index, statistics.astype(dtype))

    def _store_bias(self, place: tuple[ir.Node, int], node: ir.Node, bias: Matrix) -> None:
        target, index = place
        if target is node and node.op_type == "Gemm" and "beta" in node.attributes:
            node.attributes.pop("beta")
        dtype = value_of(self._facts, node.inputs[1]).dtype
        array = bias.astype(dtype)
        if target is not node:
            array = array.reshape(value_of(self._facts, target.inputs[index]).shape)
        store(self._model, self._facts, target, index, array)

    def _grams(
        self, node: ir.Node, regression: Regression, rows: Array, fits: list[Fit], consumer: Consumer, target: Target
    ) -> list[Gram]:
        weight = regression.weight(value_of(self._facts, node.inputs[1]))
        units = consumer.units.reshape(regression.groups, -1)
        grams = []
        for group in range(regression.groups):
            own, channels = _folded(units[group])
            taps = (channels[:, :, None] * regression.tap_num + np.arange(regression.tap_num)).reshape(len(own), -1)
            known = fits[group].moments if fits else None
            inputs = over_taps(rows[:, group], taps) if known is None else folded_moments(known, taps)
            stacked = weight[group][:, taps.T].reshape(-1, len(own))
            grams.append(Gram(own, inputs, stacked.T @ stacked, target.weight))
        return grams


def _folded(units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return one unit per channel, and the channel's columns: a flattened map holds several columns of each unit.

    Columns of one unit count as taps of one channel, int64 [C, T], where every unit has equally many of them.
    """
    own, counts = np.unique(units, return_counts=True)
    if len(np.unique(counts)) > 1:
        return units, np.arange(len(units))[:, None]
    return own, np.argsort(units, kind="stable").reshape(len(own), -1)


def over_taps(rows: Array, taps: NDArray[np.int64]) -> Matrix:
    """Return the covariance of channels over rows and taps [C, C]; `taps` are the columns of each, int64 [C, T]."""
    return moments(rows[:, taps.T].reshape(-1, len(taps)))[1]


def folded_moments(columns: Moments, taps: NDArray[np.int64]) -> Matrix:
    """Return the same from mean and covariance of the columns: what varies at each tap, and between the taps."""
    mean, covariance = columns
    between = mean[taps] - mean[taps].mean(axis=1, keepdims=True)
    within = sum(covariance[np.ix_(tap, tap)] for tap in taps.T)
    folded: Matrix = (within + between @ between.T) / taps.shape[1]
    return folded
