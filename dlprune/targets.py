"""What a percentage is a percentage of: kernels, multiply-accumulates, parameters or time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .classifier import Classifier
from .cost import Cost, graph_cost, latency
from .expenses import multiply_accumulate_terms, parameter_terms, widths_of
from .facts import Facts
from .ledger import CostOf, CountLedger, Ledger, Term
from .selection import Mask, Prices, Ranking, Scores, dense_features, removable
from .structure import FIXED, Structure
from .timing import time_layer

TARGETS = ("kernels", "macs", "params", "latency", "accuracy_drop")

#: Where the score alone decides: up to this share of the operations it is divided by the root of what a unit saves.
_ROOT_UP_TO = 40.0
#: Seconds that each of two networks is run to compare them.
_MEASURED = 0.5
#: Measured savings are so many times what the table says; beyond that it is noise.
_LEAST_TRUST, _MOST_TRUST = 0.25, 1.5


@dataclass(frozen=True)
class Net:
    """A network on its way: its graph, facts, remaining units, and the units that have left (original numbering)."""

    model: ir.Model
    facts: Facts
    structure: Structure
    gone: Mask


class Target(ABC):
    """A quantity of which so many percent are to go.

    Attributes:
        slack: percentage points that a result may be beyond what was asked.
        is_measured: whether it is a measurement, which comes in coarse steps and with noise.
    """

    slack: float = 1e-9
    is_measured: bool = False

    @abstractmethod
    def reached(self, net: Net) -> float:
        """Return what has gone of the quantity, in percent."""

    @abstractmethod
    def open(self, net: Net, reached: float, percentage: float) -> tuple[Ledger, list[float]]:
        """Return the ledger of a network as it is, and what may still go until so many percent have gone.

        Args:
            net: the network.
            reached: what has gone already, in percent.
            percentage: what may have gone then.
        """

    def ranking(self, percentage: float, selection: str, normalization: str) -> Ranking:
        """Return how scores turn into an order."""
        del percentage, selection
        return Ranking(normalization)


class CountTarget(Target):
    """Share of the removable kernels, and the same share of the removable features of dense layers if they may go.

    Args:
        structure: the original's units.
        held: units that stay.
        dense: whether features of dense layers may leave.
    """

    def __init__(self, structure: Structure, held: Mask | None, dense: bool) -> None:
        self._counts = [structure.kernels]
        if dense:
            self._counts.append(dense_features(structure.kernels, structure.features))
        self._dense, self._held = dense, held
        self._constraints = structure.constraints
        everything = self.leaving()
        self._most = [int(counts[everything].sum()) for counts in self._counts]

    def leaving(self, scores: Scores | None = None) -> Mask:
        """Return the units that 100 percent takes; of units of one size the one with the highest score stays."""
        found: Mask = np.zeros(len(self._counts[0]), np.bool_)
        for counts in self._counts:
            found |= removable(counts, self._constraints, self._held, scores, found)
        return found

    def reached(self, net: Net) -> float:
        """Return what has gone of the kernels; of the features where there are no kernels to remove."""
        for counts, most in zip(self._counts, self._most, strict=True):
            if most:
                return 100.0 * float(counts[net.gone].sum()) / most
        return 0.0

    def open(self, net: Net, reached: float, percentage: float) -> tuple[Ledger, list[float]]:
        """Return budgets in whole kernels and whole features."""
        del reached
        budgets = [
            math.floor(most * percentage / 100 + 1e-9) - float(counts[net.gone].sum())
            for counts, most in zip(self._counts, self._most, strict=True)
        ]
        return CountLedger(net.structure, self._dense), [*budgets, 0.0][:2]


class CostTarget(Target):
    """Share of a network's multiply-accumulates or parameters, counted on the graph.

    Args:
        name: 'macs' or 'params'.
        original: the network that the percentage is of.
        batch: images that the facts of all networks are worked out for.
        dense: whether features of dense layers may leave.
    """

    def __init__(self, name: str, original: Net, batch: int, dense: bool) -> None:
        self._of: Callable[[Cost], float] = (lambda c: c.macs) if name == "macs" else (lambda c: c.parameters)
        self._name, self._batch, self._dense = name, batch, dense
        self._total = self._amount(original)

    def _amount(self, net: Net) -> float:
        return self._of(graph_cost(net.model, net.facts, self._batch))

    def reached(self, net: Net) -> float:
        """Return what has gone, counted anew."""
        return 100.0 * (1.0 - self._amount(net) / self._total) if self._total else 0.0

    def open(self, net: Net, reached: float, percentage: float) -> tuple[Ledger, list[float]]:
        """Return the terms of all layers as they are now."""
        if self._name == "macs":
            found = multiply_accumulate_terms(net.model, net.facts, net.structure, self._batch)
            terms = [term for _, term in found]
        else:
            terms = list(parameter_terms(net.model, net.facts, net.structure))
        ledger = Ledger(terms, net.structure.unit_num)
        if not self._dense:
            ledger.close(net.structure.kernels == 0)
        return ledger, [self._total * (percentage - reached) / 100]

    def ranking(self, percentage: float, selection: str, normalization: str) -> Ranking:
        """Return the order that a study found best for operations; parameters are spent by kernels.

        Dividing a score by the parameters that it saves empties the layers that hold most of them.
        """
        if self._name == "params":
            return Ranking(normalization, Prices(by_kernels=True))
        return _by_operations(percentage, selection, normalization)


def _by_operations(percentage: float, selection: str, normalization: str) -> Ranking:
    if selection == "reconstruction":
        return Ranking(normalization)
    return Ranking("none", Prices(0.5)) if percentage <= _ROOT_UP_TO else Ranking("mean", Prices(by_kernels=True))


class LatencyTarget(Target):
    """Share of the time of a run, measured with ONNX Runtime on this machine.

    What units save is taken from a table of the times of single layers at several widths. What a network really saves
    is measured by running it and the original in turn; the ratio of both corrects the table on the way.

    Args:
        classifier: the original.
        original: the same as a network.
        batch: images that the facts of all networks are worked out for.
        dense: whether features of dense layers may leave.
    """

    slack = 2.0
    is_measured = True

    def __init__(self, classifier: Classifier, original: Net, batch: int, dense: bool) -> None:
        self._classifier, self._dense = classifier, dense
        fixed = classifier.image.batch if classifier.image is not None else None
        self._times: dict[str, CostOf] = {}
        for node, _ in multiply_accumulate_terms(original.model, original.facts, original.structure, batch):
            widths = widths_of(node, original.facts, original.structure)
            free = (bool((widths.reads != FIXED).any()), bool((widths.makes != FIXED).any()))
            if any(free) and widths.own:
                whole = not len(widths.reads)
                times = time_layer(original.model, node, original.facts, (batch, fixed or 1), free, whole)
                self._times[node.outputs[0].name or ""] = times
        self._total = self._table(original).total
        # Until something has been measured, layers count for their share in the time of a run.
        self._trust = min(self._total / latency([classifier], _MEASURED).seconds[0], 1.0)

    def _table(self, net: Net) -> Ledger:
        terms = []
        for node in net.model.graph:
            times = self._times.get(node.outputs[0].name or "") if node.outputs else None
            if times is not None:
                widths = widths_of(node, net.facts, net.structure)
                terms.append(Term(times, widths.reads, widths.makes))
        ledger = Ledger(terms, net.structure.unit_num)
        if not self._dense:
            ledger.close(net.structure.kernels == 0)
        return ledger

    def reached(self, net: Net) -> float:
        """Return what has gone of the time, measured."""
        measured = latency([self._classifier, self._classifier.with_model(net.model)], _MEASURED)
        reached = 100.0 * (1.0 - measured.ratio)
        predicted = 100.0 * (1.0 - self._table(net).total / self._total)
        if predicted > self.slack:
            self._trust = min(max(reached / predicted, _LEAST_TRUST), _MOST_TRUST)
        return reached

    def open(self, net: Net, reached: float, percentage: float) -> tuple[Ledger, list[float]]:
        """Return the tables of all layers at their present widths."""
        return self._table(net), [self._total * (percentage - reached) / 100 / self._trust]

    def ranking(self, percentage: float, selection: str, normalization: str) -> Ranking:
        """Return the same order as for operations."""
        return _by_operations(percentage, selection, normalization)
