"""The hyperparameters of magnitude pruning, by the names that tf.contrib.model_pruning gave them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from .dictionary import from_python_dict
from .errors import H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM, H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE, HOperatorError
from .handle import HHandle
from .parameters import bad_value, choice, count, integer, number, one, text
from .tuples import HTuple, to_str

POOLINGS: Final = ("AVG", "MAX")


@dataclass(frozen=True)
class HParams:
    """All hyperparameters with their defaults; see get_pruning_hparams for what they mean."""

    name: str = "model_pruning"
    begin_pruning_step: int = 0
    end_pruning_step: int = -1
    weight_sparsity_map: tuple[str, ...] = ("",)
    block_dims_map: tuple[str, ...] = ("",)
    threshold_decay: float = 0.0
    pruning_frequency: int = 10
    nbins: int = 256
    block_height: int = 1
    block_width: int = 1
    block_pooling_function: str = "AVG"
    initial_sparsity: float = 0.0
    target_sparsity: float = 0.5
    sparsity_function_begin_step: int = 0
    sparsity_function_end_step: int = 100
    sparsity_function_exponent: float = 3.0
    use_tpu: str = "false"

    def changed(self, values: Mapping[str, HTuple]) -> HParams:
        """Return a copy with other values; all of them are checked, alone and together.

        Raises HOperatorError 7911 (unknown name), 7914 (value), 1203 (type) or 1403 (number of values).
        """
        checked: dict[str, Any] = {}
        for name, value in values.items():
            if name not in _CHECKS:
                raise unknown_hyperparameter(name)
            checked[name] = _CHECKS[name](name, value)
        new = replace(self, **checked)
        new._check()
        return new

    def _check(self) -> None:
        """Raise HOperatorError 7914 for steps that do not fit together."""
        for begin, end in (
            ("begin_pruning_step", "end_pruning_step"),
            ("sparsity_function_begin_step", "sparsity_function_end_step"),
        ):
            first, last = getattr(self, begin), getattr(self, end)
            if end == "end_pruning_step" and last == -1:
                continue
            if first >= last:
                raise bad_value(end, last, f"a step after {begin!r} ({first}) is needed" + _FOR_EVER.get(end, ""))

    def values(self) -> dict[str, HTuple]:
        """Return every hyperparameter as a tuple."""
        found = {one_field.name: getattr(self, one_field.name) for one_field in fields(self)}
        return {name: value if isinstance(value, tuple) else (value,) for name, value in found.items()}


_FOR_EVER: Final = {"end_pruning_step": ", or −1 for ever"}


def map_entries(name: str, values: HTuple) -> tuple[str, ...]:
    """Return the entries of a map of weights; each value may be a list with commas, in brackets or not.

    Raises HOperatorError 1203 if an element is no string.
    """
    found: list[str] = []
    for value in values:
        stripped = text(name, value).strip()
        if stripped.startswith("[") and stripped.endswith("]"):
            stripped = stripped[1:-1]
        found += [entry.strip() for entry in stripped.split(",")]
    return tuple(entry for entry in found if entry) or ("",)


def split_entry(name: str, entry: str) -> tuple[str, str]:
    """Return pattern and value of an entry 'pattern:value'. Raises HOperatorError 7914."""
    parts = entry.split(":")
    if len(parts) != 2 or not parts[0].strip() or not parts[1].strip():
        raise bad_value(name, entry, "an entry has the form 'name:value' with exactly one colon")
    pattern = parts[0].strip()
    try:
        re.compile(pattern)
    except re.error as error:
        raise bad_value(name, entry, f"{pattern!r} is no regular expression ({error})") from None
    return pattern, parts[1].strip()


def sparsity_entries(name: str, entries: tuple[str, ...]) -> list[tuple[str, float]]:
    """Return patterns and target sparsities of a weight_sparsity_map. Raises HOperatorError 7914."""
    found = []
    for entry in entries:
        if entry:
            pattern, value = split_entry(name, entry)
            try:
                sparsity = float(value)
            except ValueError:
                sparsity = -1.0
            if not 0 <= sparsity < 1:
                raise bad_value(name, entry, "a sparsity in [0, 1) is needed after the colon")
            found.append((pattern, sparsity))
    return found


def block_entries(name: str, entries: tuple[str, ...]) -> list[tuple[str, tuple[int, int]]]:
    """Return patterns and block sizes (height, width) of a block_dims_map. Raises HOperatorError 7914."""
    found = []
    for entry in entries:
        if entry:
            pattern, value = split_entry(name, entry)
            sizes = re.fullmatch(r"(-1|\d+)\s*[xX]\s*(-1|\d+)", value)
            if sizes is None or "0" in {part.lstrip("0") or "0" for part in sizes.groups()}:
                raise bad_value(name, entry, "a block such as 4x4 or 1x-1 is needed after the colon")
            found.append((pattern, (int(sizes[1]), int(sizes[2]))))
    return found


def _sparsity_map(name: str, values: HTuple) -> tuple[str, ...]:
    entries = map_entries(name, values)
    sparsity_entries(name, entries)
    return entries


def _block_map(name: str, values: HTuple) -> tuple[str, ...]:
    entries = map_entries(name, values)
    block_entries(name, entries)
    return entries


def _not_negative(name: str, values: HTuple) -> int:
    return count(name, values, 0)


def _block(name: str, values: HTuple) -> int:
    value = integer(name, one(name, values))
    if value < 1 and value != -1:
        raise bad_value(name, value, "an integer of at least 1 is needed, or −1 for the full size of the weight")
    return value


def _use_tpu(name: str, values: HTuple) -> str:
    value = text(name, one(name, values)).lower()
    if value != "false":
        raise bad_value(name, values[0], "only 'false' is possible: ONNX Runtime does not train on TPUs")
    return value


def _pooling(name: str, values: HTuple) -> str:
    return choice(*POOLINGS)(name, tuple(v.upper() if isinstance(v, str) else v for v in values))


_CHECKS: Final[dict[str, Callable[[str, HTuple], Any]]] = {
    "name": lambda name, values: text(name, one(name, values)),
    "begin_pruning_step": _not_negative,
    "end_pruning_step": lambda name, values: integer(name, one(name, values)),
    "weight_sparsity_map": _sparsity_map,
    "block_dims_map": _block_map,
    "threshold_decay": number(0, 1, below=True),
    "pruning_frequency": count,
    "nbins": count,
    "block_height": _block,
    "block_width": _block,
    "block_pooling_function": _pooling,
    "initial_sparsity": number(0, 1, below=True),
    "target_sparsity": number(0, 1, below=True),
    "sparsity_function_begin_step": _not_negative,
    "sparsity_function_end_step": _not_negative,
    "sparsity_function_exponent": number(0, above=True),
    "use_tpu": _use_tpu,
}
NAMES: Final = frozenset(_CHECKS)
_MAPS: Final = ("weight_sparsity_map", "block_dims_map")
_STRINGS: Final = ("name", "block_pooling_function", "use_tpu")


def unknown_hyperparameter(name: object) -> HOperatorError:
    """Return error 7911 that lists what is possible."""
    known = ", ".join(repr(one_name) for one_name in sorted(NAMES))
    return HOperatorError(
        H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM, f"There is no hyperparameter {name!r}; possible are {known}."
    )


def get_pruning_hparams() -> HHandle:
    """Return every hyperparameter of magnitude pruning with its default.

    Read and change them with get_dict_tuple and set_dict_tuple, then give them to create_dl_pruning with mode
    'magnitude', which checks them. A step is one train_dl_model_batch.

    'name' ('model_pruning': free text); 'begin_pruning_step' (0, ≥ 0) and 'end_pruning_step' (−1 = never, or beyond
    the begin): first and last step at which masks are updated; 'pruning_frequency' (10, ≥ 1): steps from one update to
    the next; 'initial_sparsity' (0.0) and 'target_sparsity' (0.5), in [0, 1): share of zeros at the begin and at the
    end; 'sparsity_function_begin_step' (0), 'sparsity_function_end_step' (100, beyond the begin),
    'sparsity_function_exponent' (3.0, > 0; 1 is linear, above that the sparsity rises more slowly towards the end): how
    it goes from one to the other, see dlprune.sparsity.sparsity_at; 'weight_sparsity_map' (list of "pattern:sparsity",
    e.g. ['conv1:0.9', 'conv2/kernel:0.8']): targets of single weights; 'block_height', 'block_width' (1; −1 = full size
    of the weight) and 'block_dims_map' (list of "pattern:HEIGHTxWIDTH"): weights that leave together, in the view of a
    weight as a matrix that dlprune.sparsity.View describes; 'block_pooling_function' ('AVG' or 'MAX'): what counts of
    the magnitudes in a block; 'threshold_decay' (0.0, in [0, 1)): with 0 exactly the wanted number of weights is kept;
    above 0 the threshold is read off a histogram of 'nbins' (256, ≥ 1) bins and is smoothed over the updates, so the
    sparsity lags behind; 'use_tpu' ('false'). Patterns are regular expressions that are searched for in the name of the
    weight and of the nodes that read it: 'conv1' also fits 'conv10'.

    Returns a handle of type 'dict'. Source: tf.contrib.model_pruning.get_pruning_hparams.

    Example:
        >>> import dlprune as ha
        >>> hparams = ha.get_pruning_hparams()
        >>> ha.set_dict_tuple(hparams, "target_sparsity", 0.75)
        >>> ha.get_dict_tuple(hparams, "pruning_frequency")
        [10]
    """
    return from_python_dict({name: list(values) for name, values in HParams().values().items()})


def parse_pruning_hparams(text: str) -> HHandle:
    """Return every hyperparameter, those in a text with the values given there.

    Parameters: `text` (str: "name=value" pairs with commas between; lists stand in brackets; '' gives the defaults).
    Returns a handle of type 'dict', all values checked as by create_dl_pruning. Raises HOperatorError 7911 (unknown
    name), 7914 (value, or text that is no such list; the hyperparameter is named), 1201 (no string).
    Source: HParams.parse, as in tf.contrib.model_pruning.get_pruning_hparams().parse(FLAGS.pruning_hparams).

    Example:
        >>> import dlprune as ha
        >>> text = "target_sparsity=0.75,weight_sparsity_map=[conv1:0.9,conv2/kernel:0.8]"
        >>> hparams = ha.parse_pruning_hparams(text)
        >>> ha.get_dict_tuple(hparams, "weight_sparsity_map")
        ['conv1:0.9', 'conv2/kernel:0.8']
    """
    rest = to_str(text, "text", 1).strip()
    values: dict[str, HTuple] = {}
    while rest:
        found = re.match(r"\s*([^=,\[\]]+?)\s*=\s*(\[[^\]]*\]|[^,\[\]]*)\s*(,|$)", rest)
        if found is None:
            raise HOperatorError(
                H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE,
                f"{rest!r} cannot be read as hyperparameters; pairs 'name=value' with commas between are needed, with "
                "lists in brackets that are closed.",
            )
        name, value = found[1], found[2].strip()
        if name not in NAMES:
            raise unknown_hyperparameter(name)
        if name in values:
            raise bad_value(name, value, "it is given twice")
        values[name] = _parsed(name, value)
        rest = rest[found.end() :]
    checked = HParams().changed(values)
    return from_python_dict({name: list(value) for name, value in checked.values().items()})


def _parsed(name: str, value: str) -> HTuple:
    if name in _MAPS or name in _STRINGS:
        return (value,)
    for convert in (int, float):
        try:
            return (convert(value),)
        except ValueError:
            continue
    raise bad_value(name, value, "a number is needed")
