"""What is wanted of a removal, and what its steps and all of it came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import onnx_ir as ir

from .compensation.sweep import Method
from .selection import Limits, Mask


@dataclass(frozen=True)
class Plan:
    """What is wanted: how much is to leave, how it is chosen and made up for.

    Attributes:
        percentage: share of the target that is to leave; for 'accuracy_drop' the points that may be lost.
        step: share of what is left of the target that leaves in a step, in percent.
        target: one of TARGETS.
        dense: whether features of dense layers may leave too.
        limits: what holds besides; its cap is ignored.
        cap: share of its kernels that a group may lose, 0…1; None = 20 points more than is asked of all.
        selection: 'reconstruction' or 'score'.
        normalization: see selection_values; used with 'score'.
        compensation: 'least_squares', 'bias' or 'none'.
        reestimate: whether BatchNormalization behind a refitted layer gets new statistics.
        distillation_steps: steps of all weights towards the original's logits at the end.
        choices: how many choices are refitted in each step to keep the best; None: several if that costs little.
        joint: whether all layers are refitted together at the end; None: if that costs little.
    """

    percentage: float
    step: float = 10.0
    target: str = "kernels"
    dense: bool = False
    limits: Limits = field(default_factory=Limits)
    cap: float | None = 1.0
    selection: str = "reconstruction"
    normalization: str = "sqrt_mean"
    compensation: Method = "least_squares"
    reestimate: bool = False
    distillation_steps: int = 0
    choices: int | None = None
    joint: bool | None = None

    @property
    def is_plain(self) -> bool:
        """Whether units leave by the first scores, all at once."""
        return self.compensation == "none" and self.selection == "score"


@dataclass(frozen=True)
class Step:
    """What a step came to.

    Attributes:
        kernel_num, feature_num: kernels and features of dense layers that have left so far.
        reached: what has been reached of the target, see Pruned.
        methods: how many consumers were refitted by which method.
        seconds: time that it took.
        kept: whether it was kept; a search goes back from steps that lose too much.
    """

    kernel_num: int
    feature_num: int
    reached: float
    methods: Counter[str]
    seconds: float
    kept: bool = True

    def entry(self) -> dict[str, int | float | bool]:
        """Return the step as a plain dictionary, see prune_dl_model."""
        return {
            "kernel_num": int(self.kernel_num),
            "feature_num": int(self.feature_num),
            "target_reached": float(self.reached),
            "least_squares": self.methods["least_squares"],
            "bias": self.methods["bias"],
            "seconds": self.seconds,
            "kept": bool(self.kept),
        }


@dataclass(frozen=True)
class Pruned:
    """The outcome.

    Attributes:
        model: the pruned graph.
        gone: the units that left.
        reached: percent of the target that left; for 'accuracy_drop' the points that were lost on held-out images.
        methods: how many consumers were refitted by which method in the last sweep.
        history: one entry per step.
    """

    model: ir.Model
    gone: Mask
    reached: float
    methods: Counter[str]
    history: tuple[Step, ...]


#: Takes a step that was kept and what it would give if it were the last one, but for distillation; that must not be
#: changed.
Watch = Callable[[Step, ir.Model], object]
