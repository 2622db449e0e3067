"""How much each group of coupled layers suffers when kernels leave it alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .analysis import analysis_of
from .calibration import Images, Labels
from .classifier import Classifier
from .compensation.stages import batches
from .crossentropy import cross_entropy, targets
from .plan import Plan
from .selection import removable
from .steps import Stepper
from .structure import FIXED, Structure

#: Images per run where the batch is free.
_BATCH = 16


@dataclass(frozen=True)
class Quality:
    """Share of the images that are decided rightly, 0…1, and mean cross-entropy."""

    accuracy: float
    loss: float


@dataclass(frozen=True)
class GroupSensitivity:
    """What became of the whole network when one group of layers alone lost kernels.

    Attributes:
        layers: names of the group's convolutions in graph order; their kernels share units.
        kernel_num: kernels of the group.
        prunable_kernel_num: the most that can leave it.
        pruned_kernel_nums: how many have left, one per percentage.
        qualities: of the pruned networks, one per percentage.
    """

    layers: tuple[str, ...]
    kernel_num: int
    prunable_kernel_num: int
    pruned_kernel_nums: tuple[int, ...]
    qualities: tuple[Quality, ...]


@dataclass(frozen=True)
class Sensitivity:
    """The original's quality, and that of every group at every percentage."""

    percentages: tuple[float, ...]
    original: Quality
    groups: tuple[GroupSensitivity, ...]


def quality(classifier: Classifier, images: Images, labels: Labels) -> Quality:
    """Return accuracy and loss of a classifier on images, float32 [n, …], with class indices int64 [n]."""
    logits = _logits(classifier, images)
    accuracy = float(np.mean(logits.argmax(axis=1) == labels))
    return Quality(accuracy, float(cross_entropy(logits, labels).mean()))


def _logits(classifier: Classifier, images: Images) -> NDArray[np.float32]:
    image = classifier.image
    assert image is not None
    parts = [classifier.logits(part) for part in batches(images, image.batch or min(_BATCH, len(images)))]
    return np.concatenate(parts)[: len(images)]


def measure_sensitivity(
    classifier: Classifier,
    stepper: Stepper,
    plan: Plan,
    test: tuple[Images, Labels],
    percentages: Sequence[float],
    progress: Callable[[float], None] = lambda _: None,
) -> Sensitivity:
    """Prune each group of coupled layers alone, at each percentage of its kernels in one step, and look at the result.

    Args:
        classifier: the original.
        stepper: of this classifier.
        plan: how to choose and make up for kernels; its percentage and target do not matter.
        test: images float32 [n, …] and class indices int64 [n], −1 = what the original decides.
        percentages: of the kernels that can leave a group, 0…100.
        progress: called with the share done.
    """
    structure = analysis_of(classifier).structure
    images, labels = test
    if (labels < 0).any():
        labels = targets(_logits(classifier, images), labels)
    groups = [(group, most) for group in np.unique(structure.groups) if (most := _most(structure, plan, group))]
    found = []
    for number, (group, most) in enumerate(groups):
        numbers, qualities = [], []
        for index, percentage in enumerate(percentages):
            progress((number + index / len(percentages)) / len(groups))
            alone = replace(plan, percentage=percentage, step=100.0, target="kernels", dense=False, cap=1.0)
            held = _others(structure, plan, group)
            result = stepper.run(replace(alone, limits=replace(plan.limits, held=held)), more_follow=True)
            numbers.append(int(structure.kernels[result.gone].sum()))
            qualities.append(quality(classifier.with_model(result.model), images, labels))
        members = structure.groups == group
        layers = [layer.name for layer in structure.layers if _any(members, layer.units)]
        kernel_num = int(structure.kernels[members].sum())
        found.append(GroupSensitivity(tuple(layers), kernel_num, most, tuple(numbers), tuple(qualities)))
    progress(1.0)
    return Sensitivity(tuple(percentages), quality(classifier, images, labels), tuple(found))


def _others(structure: Structure, plan: Plan, group: int) -> NDArray[np.bool_]:
    """Return the units that must stay while a group is looked at, bool [U]."""
    others: NDArray[np.bool_] = structure.groups != group
    return others if plan.limits.held is None else others | plan.limits.held


def _most(structure: Structure, plan: Plan, group: int) -> int:
    """Return the most kernels that can leave a group."""
    leaving = removable(structure.kernels, structure.constraints, _others(structure, plan, group))
    return int(structure.kernels[leaving].sum())


def _any(members: NDArray[np.bool_], units: NDArray[np.int64]) -> bool:
    return bool(members[units[units != FIXED]].any())
