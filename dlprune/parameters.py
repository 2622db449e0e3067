"""The parameters of a model: their values, which ones can be set, and what is allowed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from .errors import (
    H_ERR_DL_CLASS_IDS_INVALID,
    H_ERR_DL_CLASS_IDS_NOT_UNIQUE,
    H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM,
    H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE,
    H_ERR_WIPN3,
    H_ERR_WIPT3,
    HOperatorError,
)
from .tuples import Element, HTuple

ModelType: TypeAlias = Literal["classification", "generic"]

MIN_VERSION: Final = "0.1"


@dataclass
class Parameters:
    """The values behind get_dl_model_param and set_dl_model_param."""

    type: ModelType = "generic"
    class_output: str = ""
    batch_size: int = 1
    batch_size_multiplier: int = 1
    image_height: int = 0
    image_width: int = 0
    image_range_min: float = -127.0
    image_range_max: float = 128.0
    class_ids: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    learning_rate: float = 0.001
    momentum: float = 0.9
    weight_prior: float = 0.0
    batchnorm_momentum: float = 0.9
    batchnorm_frozen: str = "false"
    frozen_weights: tuple[str, ...] = ()
    solver_type: str = "sgd"
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    optimize_for_inference: str = "false"
    precision_is_converted: str = "false"
    meta_data: dict[str, str] = field(default_factory=dict)
    runtime: str = "cpu"
    gpu: int = 0

    def copy(self) -> Parameters:
        """Return an independent copy."""
        return dataclasses.replace(self, meta_data=dict(self.meta_data))


def bad_value(name: str, given: object, expected: str) -> HOperatorError:
    """Return error 7914 that names the parameter, what was given and what is possible."""
    return HOperatorError(H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE, f"{name!r} cannot be {given!r}; {expected}.")


def unknown_parameter(name: str, possible: object) -> HOperatorError:
    """Return error 7911 that lists what is possible."""
    names = ", ".join(repr(one) for one in sorted(possible)) if isinstance(possible, (set, frozenset)) else possible
    return HOperatorError(
        H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM, f"There is no parameter {name!r}; possible are: {names}."
    )


def one(name: str, values: HTuple) -> Element:
    """Return the only value of a parameter, or raise 1403."""
    if len(values) != 1:
        raise HOperatorError(H_ERR_WIPN3, f"{name!r} needs exactly one value, not {len(values)}.")
    return values[0]


def integer(name: str, value: Element) -> int:
    """Return an element as int (5.0 counts as 5), or raise 1203."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int):
        raise HOperatorError(H_ERR_WIPT3, f"{name!r} needs an integer, not {value!r}.")
    return value


def text(name: str, value: Element) -> str:
    """Return an element as str, or raise 1203."""
    if not isinstance(value, str):
        raise HOperatorError(H_ERR_WIPT3, f"{name!r} needs a string, not {value!r}.")
    return value


def count(name: str, values: HTuple, lowest: int = 1) -> int:
    """Return a single integer that is not below `lowest`."""
    value = integer(name, one(name, values))
    if value < lowest:
        raise bad_value(name, value, f"an integer of at least {lowest} is needed")
    return value


def choice(*possible: str) -> Callable[[str, HTuple], str]:
    """Return a check that a parameter is one of the given strings."""

    def check(name: str, values: HTuple) -> str:
        value = text(name, one(name, values))
        if value not in possible:
            raise bad_value(name, value, "possible are " + " and ".join(repr(p) for p in possible))
        return value

    return check


def number(
    low: float = -math.inf, high: float = math.inf, *, above: bool = False, below: bool = False
) -> Callable[[str, HTuple], float]:
    """Return a check for a finite number in a range; `above` and `below` leave out the ends."""
    left, right = "(" if above or low == -math.inf else "[", ")" if below or high == math.inf else "]"

    def check(name: str, values: HTuple) -> float:
        value = one(name, values)
        if not isinstance(value, (int, float)):
            raise HOperatorError(H_ERR_WIPT3, f"{name!r} needs a number, not {value!r}.")
        inside = (low < value if above else low <= value) and (value < high if below else value <= high)
        if not math.isfinite(value) or not inside:
            raise bad_value(name, value, f"a finite number in {left}{low:g}, {high:g}{right} is needed")
        return float(value)

    return check


def class_ids(name: str, values: HTuple, class_num: int) -> tuple[int, ...]:
    """Check class ids: different integers from 0 on, one per class. Raises 7793, 7792, 7914 or 1203."""
    ids = tuple(integer(name, value) for value in values)
    _one_per_class(name, len(ids), class_num)
    negative = [value for value in ids if value < 0]
    if negative:
        raise HOperatorError(H_ERR_DL_CLASS_IDS_INVALID, f"{name!r} holds {negative[0]}; ids begin at 0.")
    if len(set(ids)) != len(ids):
        twice = sorted(value for value in set(ids) if ids.count(value) > 1)
        raise HOperatorError(H_ERR_DL_CLASS_IDS_NOT_UNIQUE, f"{name!r} holds {twice} more than once.")
    return ids


def class_names(name: str, values: HTuple, class_num: int) -> tuple[str, ...]:
    """Check class names: strings, one per class. Raises 7914 or 1203."""
    names = tuple(text(name, value) for value in values)
    _one_per_class(name, len(names), class_num)
    return names


def _one_per_class(name: str, given: int, class_num: int) -> None:
    if class_num and given != class_num:
        raise HOperatorError(
            H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE,
            f"{name!r} has {given} values but the model tells {class_num} classes apart; give one value per class.",
        )


# Parameters whose check needs nothing but the value.
PLAIN: Final[dict[str, Callable[[str, HTuple], object]]] = {
    "batch_size_multiplier": count,
    "image_range_min": number(),
    "image_range_max": number(),
    "learning_rate": number(0, above=True),
    "momentum": number(0, 1, below=True),
    "weight_prior": number(0),
    "batchnorm_momentum": number(0, 1),
    "batchnorm_frozen": choice("false", "true"),
    "frozen_weights": lambda name, values: tuple(text(name, value) for value in values),
    "solver_type": choice("sgd", "adam"),
    "adam_beta1": number(0, 1, below=True),
    "adam_beta2": number(0, 1, below=True),
    "adam_epsilon": number(0, above=True),
    "optimize_for_inference": choice("false", "true"),
    "gpu": lambda name, values: count(name, values, 0),
}
SET_AND_GET: Final = frozenset(
    {"batch_size", "class_ids", "class_names", "class_output", "device", "image_dimensions", "image_height"}
    | {"image_width", "meta_data", "runtime", "type"}
    | (PLAIN.keys() - {"batchnorm_momentum"})
)
SET_ONLY: Final = frozenset({"batchnorm_momentum", "runtime_init"})
GET_ONLY: Final = frozenset(
    {
        "image_num_channels",
        "input_dimensions",
        "layer_names",
        "min_version",
        "num_trainable_params",
        "precision",
        "precision_is_converted",
        "summary",
    }
)
# What a written model does not carry: it belongs to the machine, not to the model.
NOT_STORED: Final = frozenset({"runtime", "gpu"})
