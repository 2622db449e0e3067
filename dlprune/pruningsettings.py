"""The settable parameters of pruning data: each with its name, its default and the check of its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_type_hints

from . import limits
from .compensation.sweep import Method
from .criteria import modes
from .errors import H_ERR_DL_PRUNING_WRONG_DATA, H_ERR_WIPV2, HOperatorError
from .parameters import bad_value, choice, count, number, one, text
from .reconstruction import POWERS
from .selection import NORMALIZATIONS
from .targets import TARGETS
from .tuples import HTuple

Check = Callable[[str, HTuple], Any]


def _mode(name: str, values: HTuple) -> str:
    mode = text(name, one(name, values))
    if mode not in modes():
        if mode == "magnitude":
            raise HOperatorError(
                H_ERR_DL_PRUNING_WRONG_DATA,
                "Mode 'magnitude' works with masks instead of scores and is chosen in create_dl_pruning.",
            )
        possible = ", ".join(repr(m) for m in (*modes(), "magnitude"))
        raise HOperatorError(H_ERR_WIPV2, f"The pruning mode {mode!r} is not known; possible are {possible}.")
    return mode


def _percentage(name: str, values: HTuple) -> int | float:
    number(0, 100)(name, values)
    value = values[0]
    assert isinstance(value, (int, float))
    return value


def _share(name: str, values: HTuple) -> int | float | str:
    value = one(name, values)
    if value == "auto":
        return "auto"
    if isinstance(value, str):
        raise bad_value(name, value, "a number of percent in [0, 100] or 'auto' is needed")
    return _percentage(name, values)


def _positive_or_auto(name: str, values: HTuple) -> int | str:
    if one(name, values) == "auto":
        return "auto"
    if isinstance(values[0], str):
        raise bad_value(name, values[0], "an integer of at least 1 or 'auto' is needed")
    return count(name, values)


def _choices(name: str, values: HTuple) -> int | str:
    found = _positive_or_auto(name, values)
    if isinstance(found, int) and found > len(POWERS):
        raise bad_value(name, found, f"an integer from 1 to {len(POWERS)} or 'auto' is needed")
    return found


def _natural(name: str, values: HTuple) -> int:
    return count(name, values, 0)


@dataclass
class Settings:
    """The settable parameters, by their names in set_dl_pruning_param; each with the check of what a user gives."""

    mode: Annotated[str, _mode] = "oracle"
    seed: Annotated[int, _natural] = 0
    percentage: Annotated[int | float, _percentage] = 10
    normalization: Annotated[str, choice(*NORMALIZATIONS)] = "sqrt_mean"
    max_layer_percentage: Annotated[int | float | str, _share] = "auto"
    compensation: Annotated[Method, choice("least_squares", "bias", "none")] = "least_squares"
    selection: Annotated[str, choice("auto", "reconstruction", "score")] = "auto"
    choice_num: Annotated[int | str, _choices] = "auto"
    joint_refit: Annotated[str, choice("auto", "false", "true")] = "auto"
    step_percentage: Annotated[int | float, number(0, 100, above=True)] = 10
    calibration_image_num: Annotated[int, count] = 256
    target: Annotated[str, choice(*TARGETS)] = "kernels"
    held_out_image_num: Annotated[int, count] = 256
    kernel_multiple: Annotated[int | str, _positive_or_auto] = 1
    min_kernel_num: Annotated[int, count] = 1
    exclude_layers: Annotated[tuple[str, ...], limits.layer_patterns] = ()
    layer_percentages: Annotated[tuple[str, ...], limits.layer_percentages] = ()
    prune_dense: Annotated[str, choice("auto", "false", "true")] = "auto"
    batchnorm: Annotated[str, choice("keep", "reestimate")] = "keep"
    distillation_steps: Annotated[int, _natural] = 0


CHECKS: Final[dict[str, Check]] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Settings, include_extras=True).items()
}
SETTABLE: Final = frozenset(CHECKS)
