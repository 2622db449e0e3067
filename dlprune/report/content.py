"""What a report tells, in plain numbers: gathered once, then written as page, JSON and CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..analysis import analysis_of
from ..classifier import Classifier
from ..cost import LayerCost, cost_of
from ..errors import H_ERR_DL_PRUNING_WRONG_DATA, HOperatorError
from ..fit import require_fit
from ..pruningdata import PruningData
from ..structure import FIXED

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Pair:
    """One figure of both models; None where it was not measured."""

    before: float | None
    after: float | None


@dataclass(frozen=True)
class LayerReport:
    """One convolution.

    Attributes:
        number: place in graph order, from 1.
        group: label of the coupled channel axis ('A', 'B', …), '' where no kernel can leave.
        coupled: whether other convolutions are in the same group.
        kept, removed, fixed: kernels that could leave but stay, that left, that can never leave; together all kernels.
        reason: why none can leave, '' if some can.
        scores: of the kernels that can leave, in their order.
        gone: for each of these, whether it left.
    """

    number: int
    name: str
    operator: str
    group: str
    coupled: bool
    kept: int
    removed: int
    fixed: int
    reason: str
    parameters: Pair
    macs: Pair
    scores: tuple[float, ...]
    gone: tuple[bool, ...]

    @property
    def kernels(self) -> Pair:
        """Kernels of both models."""
        return Pair(self.kept + self.removed + self.fixed, self.kept + self.fixed)


@dataclass(frozen=True)
class Test:
    """What both models made of the same images.

    Attributes:
        image_num: number of images.
        accuracy: shares, 0…1; None without labels.
        agreement: share of the images on which both decide alike.
        class_names: in the order of the rows of `confusion`.
        confusion: for both models how many images of class i were taken for class j; None without labels.
    """

    image_num: int
    accuracy: Pair
    agreement: float
    class_names: tuple[str, ...]
    confusion: tuple[Integers, Integers] | None


@dataclass(frozen=True)
class Measures:
    """What costs time or files to find out. `latency` is in seconds, for `latency_batch` images."""

    file_size: Pair = Pair(None, None)
    latency: Pair = Pair(None, None)
    latency_batch: int = 1
    test: Test | None = None


@dataclass(frozen=True)
class Report:
    """All that the page shows.

    Attributes:
        name: what was pruned.
        layers: every convolution in graph order.
        kernels, parameters, macs: of the whole networks.
        measures: see Measures.
        settings: parameters of set_dl_pruning_param.
        results: results of get_dl_pruning_param.
        history: one entry per step, see prune_dl_model; or per round of removal and training.
        curve: measured points (percent of the removable kernels that left, accuracy 0…1), may be empty.
        command: what repeats it.
    """

    name: str
    layers: tuple[LayerReport, ...]
    kernels: Pair
    parameters: Pair
    macs: Pair
    measures: Measures
    settings: Mapping[str, Any]
    results: Mapping[str, Any]
    history: tuple[Mapping[str, Any], ...]
    curve: tuple[tuple[float, float], ...]
    command: str

    def measured(self, measures: Measures) -> Report:
        """Return the same report with what has been measured since."""
        return replace(self, measures=measures)


_RESULTS = (
    "prunable_conv_num",
    "prunable_kernel_num",
    "pruned_kernel_num",
    "pruned_percentage",
    "pruned_feature_num",
    "target_reached",
    "scored_image_num",
)


def gather(
    data: PruningData,
    classifier: Classifier,
    pruned: Classifier,
    measures: Measures,
    *,
    name: str = "",
    curve: Sequence[tuple[float, float]] = (),
    command: str = "",
    rounds: Sequence[Mapping[str, Any]] = (),
) -> Report:
    """Return the report on a removal.

    With `rounds` of removal and training, one entry each, of which the last one tells 'kernel_num', the data serve for
    the structure and the parameters alone: scores of each round are those of another network.
    Raises HOperatorError 7980 if nothing has been removed yet, or if the three do not belong together.
    """
    require_fit(classifier, data)
    with data.lock:
        if data.removed is None and not rounds:
            raise HOperatorError(
                H_ERR_DL_PRUNING_WRONG_DATA,
                "Nothing has been removed with this pruning data yet; call gen_dl_pruned_model first, then report.",
            )
        infos = data.layer_info()
        settings = {one: getattr(data.settings, one) for one in vars(data.settings)}
        results = {one: data.get(one)[0] for one in _RESULTS}
        history: tuple[Mapping[str, Any], ...] = tuple(dict(step) for step in data.history)
    before, after = cost_of(classifier), cost_of(pruned)
    costs = {layer.name: layer for layer in before.layers}, {layer.name: layer for layer in after.layers}
    if rounds:
        gone = rounds[-1]["kernel_num"]
        results |= {"pruned_kernel_num": gone, "scored_image_num": rounds[-1]["images"]}
        results["pruned_percentage"] = 100.0 * gone / max(data.prunable_kernel_num, 1)
        history = tuple(rounds)
    else:
        _require_match(infos, costs[1])
    groups = _groups(classifier, infos)
    return Report(
        name=name,
        layers=tuple(
            _layer(i, info, (costs[0].get(info["name"]), costs[1][info["name"]]), group)
            for i, (info, group) in enumerate(zip(infos, groups, strict=True), 1)
        ),
        kernels=Pair(before.kernels, after.kernels),
        parameters=Pair(before.parameters, after.parameters),
        macs=Pair(before.macs, after.macs),
        measures=measures,
        settings=settings,
        results=results,
        history=history,
        curve=tuple(sorted((float(x), float(y)) for x, y in curve)),
        command=command,
    )


def test_of(truths: Integers, decisions: Sequence[Integers], class_names: Sequence[str]) -> Test:
    """Return what two models made of images: class indices int64 [N] each, −1 = no label."""
    labelled = truths >= 0
    first, last = decisions
    accuracies: list[float | None] = [None, None]
    tables: tuple[Integers, Integers] | None = None
    if labelled.any():
        accuracies = [float(np.mean(one[labelled] == truths[labelled])) for one in decisions]
        tables = (_confusion(truths, first, len(class_names)), _confusion(truths, last, len(class_names)))
    return Test(len(truths), Pair(*accuracies), float(np.mean(first == last)), tuple(class_names), tables)


def _confusion(truths: Integers, decisions: Integers, classes: int) -> Integers:
    table = np.zeros((classes, classes), np.int64)
    labelled = truths >= 0
    np.add.at(table, (truths[labelled], decisions[labelled]), 1)
    return table


def _require_match(infos: Sequence[Mapping[str, Any]], after: Mapping[str, LayerCost]) -> None:
    """Raise HOperatorError 7980 unless the pruned model has exactly the kernels that the data left in it."""
    for info in infos:
        expected = info["kernel_num"] - len(info["pruned_kernel_ids"])
        found = after.get(info["name"])
        if found is None or found.kernels != expected:
            what = "no such convolution" if found is None else f"{found.kernels} kernels in it"
            raise HOperatorError(
                H_ERR_DL_PRUNING_WRONG_DATA,
                f"The pruned model was not made by the last gen_dl_pruned_model with this pruning data: it has {what}, "
                f"{info['name']!r}, which was left with {expected} kernels. Give the model that belongs to it.",
            )


def _groups(classifier: Classifier, infos: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """Return for each convolution the label of its group, and whether other convolutions share it."""
    group_of = analysis_of(classifier).structure.groups
    found: list[int | None] = []
    for info in infos:
        free = [unit for unit in info["unit_ids"] if unit != FIXED]
        found.append(int(group_of[free[0]]) if free and not info["reason"] else None)
    labels = {group: _letters(i) for i, group in enumerate(dict.fromkeys(g for g in found if g is not None))}
    return [("", False) if g is None else (labels[g], found.count(g) > 1) for g in found]


def _letters(index: int) -> str:
    """Return A, B, …, Z, AA, AB, …"""
    head = "" if index < 26 else _letters(index // 26 - 1)
    return head + chr(ord("A") + index % 26)


def _layer(
    number: int, info: Mapping[str, Any], costs: tuple[LayerCost | None, LayerCost], group: tuple[str, bool]
) -> LayerReport:
    gone = set(info["pruned_kernel_ids"])
    removed = info["kernel_num"] - costs[1].kernels
    # A layer that was excluded after the removal has both a reason and kernels that left.
    free = [i for i, unit in enumerate(info["unit_ids"]) if i in gone or (unit != FIXED and not info["reason"])]
    scores = info["kernel_scores"]
    first, last = costs
    return LayerReport(
        number=number,
        name=info["name"],
        operator=last.op_type,
        group=group[0],
        coupled=group[1],
        kept=len(free) - removed,
        removed=removed,
        fixed=info["kernel_num"] - len(free),
        reason=info["reason"],
        parameters=Pair(None if first is None else first.parameters, last.parameters),
        macs=Pair(None if first is None else first.macs, last.macs),
        scores=tuple(float(scores[i]) for i in free) if scores else (),
        gone=tuple(i in gone for i in free) if scores else (),
    )
