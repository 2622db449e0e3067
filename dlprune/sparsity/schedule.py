"""How sparse weights are to be at a step, and at which steps their masks are updated."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from ..errors import H_ERR_WIPT3, HOperatorError
from ..hparams import HParams
from ..parameters import bad_value


def sparsity_at(step: int, initial: float, target: float, begin: int, end: int, exponent: float = 3.0) -> float:
    """Return the wanted share of zeros at a step: (initial − target)·(1 − p)^exponent + target.

    p = (step − begin) / (end − begin), limited to 0…1: before `begin` the result is `initial`, after `end` it is
    `target`. This is the rule that tf.contrib.model_pruning computes. The formula in its documentation counts updates
    instead of steps and differs, see documented_sparsity.

    Parameters: `step`, `begin`, `end` (int, begin < end), `initial`, `target` (in [0, 1)), `exponent` (> 0).
    Returns float. Raises HOperatorError 7914 if the end does not lie after the begin.
    Source: Zhu and Gupta, To prune, or not to prune, 2017.

    Example:
        >>> [round(sparsity_at(step, 0.0, 0.5, 0, 100), 4) for step in (0, 50, 100, 200)]
        [0.0, 0.4375, 0.5, 0.5]
    """
    if begin >= end:
        raise bad_value("sparsity_function_end_step", end, f"a step after the begin ({begin}) is needed")
    share = min(max((step - begin) / (end - begin), 0.0), 1.0)
    return float((initial - target) * (1.0 - share) ** exponent + target)


def documented_sparsity(
    update: int, initial: float, target: float, begin: int, end: int, frequency: int, exponent: float = 3.0
) -> float:
    """Return what the formula printed in TensorFlow's documentation gives; it is here to be compared with.

    num_steps = (end − begin) / frequency; sparsity = (initial − target)·[1 − update / (num_steps − 1)]^exponent +
    target. `update` counts updates of the masks from 0 on. Where the formula is defined it equals sparsity_at over the
    steps 0…num_steps − 1, i.e. sparsity_at(update, initial, target, 0, num_steps − 1, exponent). It is not defined for
    num_steps = 1 (a division by zero) nor after update num_steps − 1 (where it would go beyond the target, or have no
    real value), and it does not know the begin. dlprune prunes by sparsity_at.

    Parameters: as sparsity_at; `frequency` (int ≥ 1: steps from one update to the next).
    Returns float. Raises HOperatorError 7914 where it is not defined.
    Source: the formula in the documentation of tf.contrib.model_pruning.get_pruning_hparams.

    Example:
        >>> documented_sparsity(9, 0.0, 0.5, 0, 100, 10)
        0.5
    """
    number = (end - begin) / frequency
    if number <= 1:
        raise bad_value("pruning_frequency", frequency, f"the formula needs more than one update ({number:g} here)")
    if not 0 <= update <= number - 1:
        raise bad_value("step", update, f"the formula is defined for updates 0…{number - 1:g} only")
    return float((initial - target) * (1.0 - update / (number - 1)) ** exponent + target)


@dataclass(frozen=True)
class Schedule(ABC):
    """When masks are updated, and how sparse weights are to be then."""

    @property
    @abstractmethod
    def target(self) -> float:
        """The sparsity at the end."""

    @abstractmethod
    def sparsity(self, step: int, target: float | None = None) -> float:
        """Return the wanted share of zeros at a step; `target` replaces the schedule's own."""

    @abstractmethod
    def due(self, step: int, last_update: int | None) -> bool:
        """Tell whether masks are to be updated at a step; `last_update` is the step of the last update, if any."""

    def __call__(self, step: int) -> tuple[bool, float]:
        """Return whether masks are to be updated at a step that had no update yet, and the sparsity for it."""
        return self.due(step, None), self.sparsity(step)

    def get_config(self) -> dict[str, Any]:
        """Return the class name and the arguments."""
        return {"class_name": type(self).__name__, "config": asdict(self)}


def _steps(begin: int, end: int, frequency: int) -> None:
    for name, value in (("begin_step", begin), ("end_step", end), ("frequency", frequency)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise HOperatorError(H_ERR_WIPT3, f"{name!r} needs an integer, not {value!r}.")
    if begin < 0:
        raise bad_value("begin_step", begin, "an integer of at least 0 is needed")
    if frequency < 1:
        raise bad_value("frequency", frequency, "an integer of at least 1 is needed")


def _share(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise HOperatorError(H_ERR_WIPT3, f"{name!r} needs a number, not {value!r}.")
    if not 0 <= value < 1:
        raise bad_value(name, value, "a number in [0, 1) is needed")


def _fires(step: int, begin: int, end: int, frequency: int) -> bool:
    return begin <= step and (step <= end or end < 0) and (step - begin) % frequency == 0


@dataclass(frozen=True)
class ConstantSparsity(Schedule):
    """The same sparsity at every update, which come at begin_step, begin_step + frequency, … up to end_step.

    Parameters: `target_sparsity` (in [0, 1)), `begin_step` (≥ 0), `end_step` (≥ begin_step, or −1 = for ever),
    `frequency` (≥ 1). Raises HOperatorError 7914, 1203. Source: tfmot.sparsity.keras.ConstantSparsity.

    Example:
        >>> ConstantSparsity(0.5, begin_step=100)(200)
        (True, 0.5)
    """

    target_sparsity: float
    begin_step: int
    end_step: int = -1
    frequency: int = 100

    def __post_init__(self) -> None:
        _share("target_sparsity", self.target_sparsity)
        _steps(self.begin_step, self.end_step, self.frequency)
        if self.end_step != -1 and self.end_step < self.begin_step:
            raise bad_value("end_step", self.end_step, f"{self.begin_step} or more is needed, or −1 for ever")

    @property
    def target(self) -> float:
        """The sparsity at the end."""
        return self.target_sparsity

    def sparsity(self, step: int, target: float | None = None) -> float:
        """Return the wanted share of zeros at a step."""
        return self.target_sparsity if target is None else target

    def due(self, step: int, last_update: int | None) -> bool:
        """Tell whether masks are to be updated at a step."""
        return step != last_update and _fires(step, self.begin_step, self.end_step, self.frequency)


@dataclass(frozen=True)
class PolynomialDecay(Schedule):
    """A sparsity that rises from one value to another, see sparsity_at; updates come as with ConstantSparsity.

    Parameters: `initial_sparsity`, `final_sparsity` (in [0, 1)), `begin_step` (≥ 0), `end_step` (> begin_step),
    `power` (> 0), `frequency` (≥ 1). Raises HOperatorError 7914, 1203.
    Source: tfmot.sparsity.keras.PolynomialDecay.

    Example:
        >>> PolynomialDecay(0.5, 0.8, begin_step=0, end_step=200, power=1)(100)
        (True, 0.65)
    """

    initial_sparsity: float
    final_sparsity: float
    begin_step: int
    end_step: int
    power: float = 3
    frequency: int = 100

    def __post_init__(self) -> None:
        _share("initial_sparsity", self.initial_sparsity)
        _share("final_sparsity", self.final_sparsity)
        _steps(self.begin_step, self.end_step, self.frequency)
        if self.end_step <= self.begin_step:
            raise bad_value("end_step", self.end_step, f"a step after 'begin_step' ({self.begin_step}) is needed")
        if isinstance(self.power, bool) or not isinstance(self.power, (int, float)):
            raise HOperatorError(H_ERR_WIPT3, f"'power' needs a number, not {self.power!r}.")
        if not (0 < self.power < math.inf):
            raise bad_value("power", self.power, "a number above 0 is needed")

    @property
    def target(self) -> float:
        """The sparsity at the end."""
        return self.final_sparsity

    def sparsity(self, step: int, target: float | None = None) -> float:
        """Return the wanted share of zeros at a step."""
        final = self.final_sparsity if target is None else target
        return sparsity_at(step, self.initial_sparsity, final, self.begin_step, self.end_step, self.power)

    def due(self, step: int, last_update: int | None) -> bool:
        """Tell whether masks are to be updated at a step."""
        return step != last_update and _fires(step, self.begin_step, self.end_step, self.frequency)


@dataclass(frozen=True)
class HParamsSchedule(Schedule):
    """The schedule of tf.contrib.model_pruning's hyperparameters.

    Masks are updated at the steps begin_pruning_step…end_pruning_step (for ever if that is −1) of which each lies at
    least pruning_frequency after the last update; the first one counts from step 0.

    Example:
        >>> from dlprune.hparams import HParams
        >>> schedule = HParamsSchedule.of(HParams())
        >>> [schedule.due(step, None) for step in (0, 9, 10)], schedule.due(15, 10)
        ([False, False, True], False)
    """

    initial_sparsity: float
    target_sparsity: float
    function_begin: int
    function_end: int
    exponent: float
    begin: int
    end: int
    frequency: int

    @classmethod
    def of(cls, hparams: HParams) -> HParamsSchedule:
        """Return the schedule of checked hyperparameters."""
        return cls(
            hparams.initial_sparsity,
            hparams.target_sparsity,
            hparams.sparsity_function_begin_step,
            hparams.sparsity_function_end_step,
            hparams.sparsity_function_exponent,
            hparams.begin_pruning_step,
            hparams.end_pruning_step,
            hparams.pruning_frequency,
        )

    @property
    def target(self) -> float:
        """The sparsity at the end."""
        return self.target_sparsity

    def sparsity(self, step: int, target: float | None = None) -> float:
        """Return the wanted share of zeros at a step."""
        final = self.target_sparsity if target is None else target
        return sparsity_at(step, self.initial_sparsity, final, self.function_begin, self.function_end, self.exponent)

    def due(self, step: int, last_update: int | None) -> bool:
        """Tell whether masks are to be updated at a step."""
        inside = self.begin <= step and (step <= self.end or self.end < 0)
        return inside and (last_update or 0) + self.frequency <= step


_KINDS: Final[dict[str, type[Schedule]]] = {
    kind.__name__: kind for kind in (ConstantSparsity, PolynomialDecay, HParamsSchedule)
}


def schedule_from_config(config: dict[str, Any]) -> Schedule:
    """Invert Schedule.get_config. Raises KeyError or TypeError for anything else.

    Example:
        >>> schedule_from_config(ConstantSparsity(0.5, 0).get_config())
        ConstantSparsity(target_sparsity=0.5, begin_step=0, end_step=-1, frequency=100)
    """
    kind = _KINDS[config["class_name"]]
    return kind(**{one.name: config["config"][one.name] for one in fields(kind)})
