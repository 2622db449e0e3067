"""What may not leave, as the user says: excluded layers, shares of single layers, least numbers, multiples."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence

import numpy as np

from .dictionary import unwrap_dict
from .errors import H_ERR_WIPT3, HOperatorError
from .handle import HHandle
from .image import HObject
from .parameters import bad_value, number, text
from .selection import Mask
from .structure import FIXED
from .structure.units import Ids
from .timing import LEAST_BLOCK, block_width
from .tuples import HTuple


def layer_patterns(name: str, values: HTuple) -> tuple[str, ...]:
    """Check names of layers or regular expressions. Raises HOperatorError 1203."""
    return tuple(text(name, value) for value in values)


def layer_percentages(name: str, values: HTuple) -> tuple[str, ...]:
    """Check "pattern:percent" strings, or a dict handle from patterns to percentages, and return strings.

    Raises HOperatorError 1203 (type) or 7914 (no percentage).
    """
    if len(values) == 1 and isinstance(values[0], HHandle):
        entries = unwrap_dict(values[0], 3).entries
        values = tuple(_entry(name, key, value) for key, value in entries.items())
    found = []
    for value in values:
        pattern, colon, percentage = text(name, value).rpartition(":")
        if not colon:
            raise bad_value(name, value, "'pattern:percent' is needed, for example 'stage4.*:0'")
        try:
            number(0, 100)(name, (float(percentage),))
        except ValueError:
            raise bad_value(name, value, "a number of percent in [0, 100] is needed behind the last colon") from None
        found.append(f"{pattern}:{percentage}")
    return tuple(found)


def _entry(name: str, key: object, value: object) -> str:
    if isinstance(value, HObject) or not isinstance(value, tuple) or len(value) != 1:
        raise HOperatorError(H_ERR_WIPT3, f"{name!r}: the entry {key!r} needs one number of percent.")
    return f"{key}:{value[0]}"


def matches(pattern: str, layer: str) -> bool:
    """Tell whether a pattern is a layer's name, or a regular expression for all of it."""
    if pattern == layer:
        return True
    try:
        return re.fullmatch(pattern, layer) is not None
    except re.error:  # a name with brackets, of a layer that this is not
        return False


def require_match(name: str, patterns: Iterable[str], layers: Sequence[str]) -> None:
    """Raise HOperatorError 7914 if a pattern fits no layer: a misspelt one would protect nothing."""
    for pattern in patterns:
        if not any(matches(pattern, layer) for layer in layers):
            near = difflib.get_close_matches(pattern, layers, 3, 0.4) or list(layers[:3])
            raise bad_value(name, pattern, f"no layer has such a name; there are for example {near}")


def held_units(patterns: Sequence[str], layers: Iterable[tuple[str, Ids]], unit_num: int) -> Mask:
    """Return the units of all layers that a pattern fits, bool [U]."""
    held: Mask = np.zeros(unit_num, np.bool_)
    for layer, units in layers:
        if any(matches(pattern, layer) for pattern in patterns):
            held[units[units != FIXED]] = True
    return held


def floors(percentages: Sequence[str], least: int, layers: Iterable[tuple[str, Ids]]) -> Ids:
    """Return how many kernels must stay in each layer, int64 [L]; the first pattern that fits a layer counts."""
    parts = [percentage.rpartition(":") for percentage in percentages]
    found = []
    for layer, units in layers:
        share = next((float(s) for p, _, s in parts if matches(p, layer)), 100.0)
        found.append(max(1, least, math.ceil(len(units) * (1 - share / 100) - 1e-9)))
    return np.array(found, np.int64)


def multiple_of(wanted: float | str) -> int:
    """Return the number that layers keep a multiple of, for a value of 'kernel_multiple'.

    Whoever asks for multiples of 8 wants speed; ONNX Runtime pads channels to its block width, and its pooling and
    concatenation only take whole blocks.
    """
    if wanted == "auto":
        return block_width()
    return int(wanted) if int(wanted) % LEAST_BLOCK else math.lcm(int(wanted), block_width())
