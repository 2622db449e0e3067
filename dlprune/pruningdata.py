"""What a 'dl_pruning' handle holds: parameters, accumulated scores and the outcome of the last removal."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .analysis import Analysis
from .calibration import Calibration, Images, Labels
from .criteria import Criterion, Tally, Weighed, make_criterion
from .errors import H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM, H_ERR_DL_PRUNING_WRONG_DATA, HOperatorError
from .limits import floors, held_units, matches, require_match
from .payload import Payload
from .pruningsettings import CHECKS, SETTABLE, Settings
from .selection import dense_features, removable
from .structure import FIXED
from .tuples import Element, HTuple

_BY_LAYER = ("exclude_layers", "layer_percentages")


@dataclass(frozen=True)
class LayerUnits:
    """One convolution or dense layer as the handle remembers it."""

    name: str
    reason: str
    units: NDArray[np.int64]


@dataclass(frozen=True)
class Findings:
    """What samples have brought: sums, number of samples, scores of weights alone, and remembered images."""

    mode: str
    sums: NDArray[np.float64]
    count: int
    weighed: NDArray[np.float64] | None
    calibration: Calibration


@dataclass
class PruningData(Payload):
    """Parameters, scores and outcome; it knows the architecture that it was made for, but no model.

    Attributes:
        signature: digest of the architecture.
        layers: every convolution in graph order.
        dense: every dense layer in graph order.
        kernels: kernels per unit, int64 [U].
        features: features of dense layers per unit, int64 [U].
        constraints: units of which at least one must stay.
        sums: what the criterion has added up over samples, float64 […, U]; for 'oracle' each unit's absolute score.
        count: number of samples that were added.
        weighed: scores of a criterion that needs no samples, float64 [U], once it has seen a model.
        calibration: bounded sample of the scored images.
        removed: units that left in the last gen_dl_pruned_model, or None.
        pruned_percentage, target_reached: what that came to.
        history: its steps, see Step.entry.
        mark: of the weights that were scored last, see mark.mark_of; '' = none or not known.
    """

    signature: str
    layers: tuple[LayerUnits, ...]
    dense: tuple[LayerUnits, ...]
    kernels: NDArray[np.int64]
    features: NDArray[np.int64]
    constraints: tuple[NDArray[np.int64], ...]
    sums: NDArray[np.float64]
    count: int = 0
    weighed: NDArray[np.float64] | None = None
    removed: NDArray[np.bool_] | None = None
    pruned_percentage: float = 0.0
    target_reached: float = 0.0
    history: tuple[dict[str, int | float | bool], ...] = ()
    mark: str = ""
    settings: Settings = field(default_factory=Settings)
    calibration: Calibration = field(default_factory=lambda: Calibration(Settings.calibration_image_num))
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    @classmethod
    def of(cls, analysis: Analysis) -> PruningData:
        """Return fresh data for an analysed classifier."""
        structure = analysis.structure
        return cls(
            signature=analysis.signature,
            layers=tuple(LayerUnits(layer.name, layer.reason, layer.units) for layer in structure.layers),
            dense=tuple(LayerUnits(layer.name, layer.reason, layer.units) for layer in structure.dense),
            kernels=structure.kernels,
            features=structure.features,
            constraints=structure.constraints,
            sums=np.zeros(structure.unit_num),
        )

    def set(self, name: str, values: HTuple) -> None:
        """Set a parameter. Raises HOperatorError 7911, 7914, 1203 or 1302; then nothing has changed."""
        check = CHECKS.get(name)
        if check is None:
            known = ", ".join(repr(n) for n in sorted(SETTABLE))
            what = "can only be read" if name in READABLE else "is not known"
            raise HOperatorError(
                H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM, f"The parameter {name!r} {what}; settable are {known}."
            )
        checked = check(name, values)
        if name in _BY_LAYER:
            patterns = checked if name == "exclude_layers" else [entry.rpartition(":")[0] for entry in checked]
            require_match(name, patterns, [layer.name for layer in self.layers + self.dense])
        with self.lock:
            if name == "mode" and checked != self.settings.mode:
                self._require_empty(checked)
            if name in ("mode", "seed") and checked != getattr(self.settings, name):
                self.weighed = None
            setattr(self.settings, name, checked)
            if name == "mode" and not self.count:
                self.sums = self.criterion.start(len(self.kernels))
            held_out = self.settings.held_out_image_num if self.settings.target == "accuracy_drop" else 0
            self.calibration.resize(self.settings.calibration_image_num + held_out)

    def get(self, name: str) -> list[Element]:
        """Return the values of a parameter. Raises HOperatorError 7911."""
        reader = _READERS.get(name)
        with self.lock:
            if reader is not None:
                return reader(self)
            if name in SETTABLE:
                value = getattr(self.settings, name)
                return list(value) if isinstance(value, tuple) else [value]
        known = ", ".join(repr(n) for n in sorted(READABLE))
        raise HOperatorError(
            H_ERR_DL_MODEL_UNSUPPORTED_GENPARAM, f"The parameter {name!r} is not known; possible are {known}."
        )

    def _require_empty(self, mode: str) -> None:
        if self.count:
            raise HOperatorError(
                H_ERR_DL_PRUNING_WRONG_DATA,
                f"The pruning data holds what mode {self.settings.mode!r} found on {self.count} samples, of no use for "
                f"mode {mode!r}; choose the mode before the first batch, or create new pruning data.",
            )

    @property
    def criterion(self) -> Criterion:
        """The criterion behind 'mode'."""
        return make_criterion(self.settings.mode, self.settings.seed)

    def add(self, sums: NDArray[np.float64], images: Images, labels: Labels) -> None:
        """Add what the criterion has found on some samples, float64 […, U], and remember some of the images."""
        with self.lock:
            self.sums += sums
            self.count += len(images)
            self.calibration.add(images, labels)

    def add_weighed(self, scores: NDArray[np.float64], images: Images, labels: Labels) -> None:
        """Keep the scores of a criterion that needs no samples, float64 [U], and remember some images for later."""
        with self.lock:
            self.weighed = scores
            self.count += len(images)
            self.calibration.add(images, labels)

    def fresh(self) -> PruningData:
        """Return data of the same architecture and with the same parameters that have seen nothing."""
        with self.lock:
            return replace(
                self,
                sums=self.criterion.start(len(self.kernels)),
                count=0,
                weighed=None,
                removed=None,
                pruned_percentage=0.0,
                target_reached=0.0,
                history=(),
                mark="",
                settings=replace(self.settings),
                calibration=Calibration(self.calibration.limit),
                lock=threading.RLock(),
            )

    def findings(self) -> Findings:
        """Return a copy of what samples have brought so far."""
        with self.lock:
            return Findings(self.settings.mode, self.sums.copy(), self.count, self.weighed, self.calibration.copy())

    def absorb(self, found: Findings) -> None:
        """Add what other data of the same architecture have found; parameters stay.

        Raises HOperatorError 7980 if it is of another mode; then nothing has changed.
        """
        with self.lock:
            if found.mode != self.settings.mode:
                raise HOperatorError(
                    H_ERR_DL_PRUNING_WRONG_DATA,
                    f"The scores are of mode {self.settings.mode!r} and of mode {found.mode!r}; only those of one mode "
                    "add up.",
                )
            self.sums += found.sums
            self.count += found.count
            self.weighed = found.weighed if self.weighed is None else self.weighed
            self.calibration.merge(found.calibration)

    def merge(self, other: PruningData) -> None:
        """Add what other pruning data have found; parameters stay.

        Raises HOperatorError 7980 if the others belong to another architecture or mode; then nothing has changed.
        """
        if other.signature != self.signature:
            raise HOperatorError(
                H_ERR_DL_PRUNING_WRONG_DATA,
                f"The pruning data belong to two architectures ({len(self.layers)} convolutions and "
                f"{len(self.kernels)} units; {len(other.layers)} and {len(other.kernels)}); only scores of the same "
                "network add up.",
            )
        self.absorb(other.findings())  # one lock after the other, so that two threads cannot wait for each other

    @property
    def is_scored(self) -> bool:
        """Whether there are scores."""
        return self.weighed is not None if isinstance(self.criterion, Weighed) else self.count > 0

    def tally(self) -> Tally:
        """Return what the criterion has found so far."""
        with self.lock:
            return Tally(self.sums.copy(), self.count) if self.weighed is None else Tally(self.weighed, 1)

    def scores(self) -> NDArray[np.float64]:
        """Return the score of each unit, float64 [U]; for 'oracle' its mean absolute score."""
        return self.criterion.scores(self.tally())

    def finish(
        self, removed: NDArray[np.bool_], reached: float, history: Sequence[dict[str, int | float | bool]] = ()
    ) -> None:
        """Note what gen_dl_pruned_model has removed, what it has reached of the target, and in which steps."""
        with self.lock:
            self.removed = removed
            self.pruned_percentage = 100.0 * self.pruned_kernel_num / max(self.prunable_kernel_num, 1)
            self.target_reached = reached
            self.history = tuple(history)

    @property
    def held(self) -> NDArray[np.bool_]:
        """Units that must stay because one of their layers is excluded, bool [U]."""
        layers = [(layer.name, layer.units) for layer in self.layers + self.dense]
        return held_units(self.settings.exclude_layers, layers, len(self.kernels))

    @property
    def floors(self) -> NDArray[np.int64]:
        """Kernels that must stay in each convolution and dense layer, int64 [L]."""
        layers = [(layer.name, layer.units) for layer in self.layers + self.dense]
        return floors(self.settings.layer_percentages, self.settings.min_kernel_num, layers)

    @property
    def prunable_kernel_num(self) -> int:
        """The most kernels that can leave."""
        return int(self.kernels[self._leaving(self.kernels)].sum())

    @property
    def prunes_dense(self) -> bool:
        """Whether features of dense layers leave; by default only in a network that can lose nothing else."""
        if self.settings.prune_dense == "auto":
            return not self.kernels[removable(self.kernels, self.constraints)].any()
        return self.settings.prune_dense == "true"

    @property
    def prunable_feature_num(self) -> int:
        """The most features of dense layers that can leave; 0 if they must stay."""
        if not self.prunes_dense:
            return 0
        counts = dense_features(self.kernels, self.features)
        return int(counts[removable(counts, self.constraints, self.held, already=self._leaving(self.kernels))].sum())

    def _leaving(self, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        return removable(counts, self.constraints, self.held)

    @property
    def pruned_kernel_num(self) -> int:
        """Kernels that left in the last gen_dl_pruned_model."""
        return 0 if self.removed is None else int(self.kernels[self.removed].sum())

    @property
    def pruned_feature_num(self) -> int:
        """Features of dense layers that left in the last gen_dl_pruned_model, without those that kernels took along."""
        counts = dense_features(self.kernels, self.features)
        return 0 if self.removed is None else int(counts[self.removed].sum())

    def reasons(self) -> list[str]:
        """Return for each convolution why it cannot lose kernels, '' if it can."""
        held, found = np.append(self.held, True), []
        for layer in self.layers:
            excluded = any(matches(pattern, layer.name) for pattern in self.settings.exclude_layers)
            coupled = (
                "its kernels only leave together with those of an excluded layer" if held[layer.units].all() else ""
            )
            found.append(layer.reason or ("it is excluded ('exclude_layers')" if excluded else coupled))
        return found

    def layer_info(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per convolution, see get_dl_pruning_layer_info."""
        with self.lock:
            scores, removed = self.scores(), self.removed
            gone = np.zeros(len(self.kernels) + 1, np.bool_) if removed is None else np.append(removed, False)
            infos = []
            for layer, reason in zip(self.layers, self.reasons(), strict=True):
                own = np.append(scores, -1.0)[layer.units] if self.is_scored else np.zeros(0)
                infos.append(
                    {
                        "name": layer.name,
                        "kernel_num": len(layer.units),
                        "prunable": int(not reason),
                        "reason": reason,
                        "unit_ids": layer.units.tolist(),
                        "kernel_scores": own.tolist(),
                        "pruned_kernel_ids": np.flatnonzero((layer.units != FIXED) & gone[layer.units]).tolist(),
                    }
                )
            return infos

    def to_bytes(self) -> bytes:
        """Return the data as an .npz file without pickled objects."""
        with self.lock:
            head = {
                "signature": self.signature,
                "names": [layer.name for layer in self.layers + self.dense],
                "reasons": [layer.reason for layer in self.layers + self.dense],
                "conv_num": len(self.layers),
                "count": self.count,
                "pruned_percentage": self.pruned_percentage,
                "target_reached": self.target_reached,
                "history": list(self.history),
                "mark": self.mark,
                "settings": asdict(self.settings),
            }
            arrays: dict[str, Any] = {f"layer{i}": layer.units for i, layer in enumerate(self.layers + self.dense)}
            arrays["members"] = np.concatenate([np.zeros(0, np.int64), *self.constraints])
            arrays["ends"] = np.cumsum([len(members) for members in self.constraints], dtype=np.int64)
            arrays["kernels"], arrays["features"], arrays["sums"] = self.kernels, self.features, self.sums
            if self.weighed is not None:
                arrays["weighed"] = self.weighed
            if self.removed is not None:
                arrays["removed"] = self.removed
            if len(self.calibration):
                arrays["images"], arrays["labels"] = self.calibration.arrays()
            stream = io.BytesIO()
            np.savez_compressed(stream, head=np.array(json.dumps(head)), **arrays)
            return stream.getvalue()

    def __reduce__(self) -> tuple[Callable[[bytes], PruningData], tuple[bytes]]:
        return PruningData.from_bytes, (self.to_bytes(),)

    @classmethod
    def from_bytes(cls, data: bytes) -> PruningData:
        """Return the data that to_bytes wrote; any exception means that the bytes are damaged."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            head = json.loads(str(arrays["head"]))
            layers = tuple(
                LayerUnits(name, reason, arrays[f"layer{i}"])
                for i, (name, reason) in enumerate(zip(head["names"], head["reasons"], strict=True))
            )
            found = cls(
                signature=head["signature"],
                layers=layers[: head["conv_num"]],
                dense=layers[head["conv_num"] :],
                kernels=arrays["kernels"],
                features=arrays["features"],
                constraints=tuple(np.split(arrays["members"], arrays["ends"][:-1])),
                sums=np.zeros(0),
                removed=arrays.get("removed"),
                pruned_percentage=head["pruned_percentage"],
                target_reached=head["target_reached"],
                history=tuple(head["history"]),
                mark=head.get("mark", ""),
            )
            for one_field in fields(Settings):
                if one_field.name in head["settings"]:  # older files know fewer
                    value = head["settings"][one_field.name]
                    found.set(one_field.name, tuple(value) if isinstance(value, list) else (value,))
            found.sums, found.count, found.weighed = arrays["sums"], head["count"], arrays.get("weighed")
            if "images" in arrays:
                found.calibration.add(arrays["images"], arrays["labels"])
        return found


_READERS: dict[str, Callable[[PruningData], list[Element]]] = {
    "prunable_conv_num": lambda data: [data.reasons().count("")],
    "prunable_conv_layer_name": lambda data: [
        layer.name for layer, reason in zip(data.layers, data.reasons(), strict=True) if not reason
    ],
    "prunable_kernel_num": lambda data: [data.prunable_kernel_num],
    "pruned_kernel_num": lambda data: [data.pruned_kernel_num],
    "pruned_percentage": lambda data: [data.pruned_percentage],
    "target_reached": lambda data: [data.target_reached],
    "prunable_feature_num": lambda data: [data.prunable_feature_num],
    "pruned_feature_num": lambda data: [data.pruned_feature_num],
    "scored_image_num": lambda data: [data.count],
}
READABLE = SETTABLE | frozenset(_READERS)
