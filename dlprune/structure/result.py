"""What the walk found, frozen: layers, units, groups, consumers and what must stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..facts import Facts
from ..nodes import label
from ..shapes import Shape
from .trace import CONVOLUTIONS, Making, Shuffle, Trace
from .units import ChannelSets, Ids

#: Unit index of a channel position that never leaves.
FIXED = -1


@dataclass(frozen=True)
class Layer:
    """One convolution: which unit each of its kernels belongs to, and why it cannot be pruned (empty if it can)."""

    name: str
    output: str
    units: Ids
    reason: str

    @property
    def kernel_num(self) -> int:
        """Number of kernels, i.e. output channels."""
        return len(self.units)


@dataclass(frozen=True)
class Consumer:
    """A node that mixes the channels of one of its inputs; removing a unit cuts its slice there.

    `units` gives the unit of each position along `axis` of the tensor `input` (FIXED = stays).
    """

    output: str
    input: str
    axis: int
    units: Ids


@dataclass(frozen=True)
class TensorUnits:
    """The unit of each position along the channel axis of a tensor."""

    shape: Shape
    axis: int
    units: Ids


@dataclass(frozen=True)
class Structure:
    """All that selection and surgery need to know of a network.

    Attributes:
        layers: every convolution in graph order.
        kernels: kernels per unit, int64 [U]; 0 for units of dense features or padding alone, which only follow.
        features: output features of dense layers per unit, int64 [U].
        groups: group index per unit, int64 [U]; units of one group share one channel axis.
        consumers: where units are read.
        tensors: unit of each channel, by tensor name.
        constraints: unit sets (sorted indices) of which at least one must stay, or a tensor would be empty.
        whole_groups: by output name of a grouped convolution: whole groups leave, else positions in all groups.
        shuffles: by name of the tensor that a channel shuffle ends in.
        dense: every dense layer (Gemm or MatMul with constant weights) in graph order; its kernels are features.
    """

    layers: tuple[Layer, ...]
    kernels: Ids
    features: Ids
    groups: Ids
    consumers: tuple[Consumer, ...]
    tensors: Mapping[str, TensorUnits]
    constraints: tuple[Ids, ...]
    whole_groups: Mapping[str, bool]
    shuffles: Mapping[str, Shuffle]
    dense: tuple[Layer, ...] = ()

    @property
    def all_layers(self) -> tuple[Layer, ...]:
        """Convolutions, then dense layers."""
        return self.layers + self.dense

    @property
    def unit_num(self) -> int:
        """Number of units that may leave."""
        return len(self.kernels)

    def kept(self, name: str, gone: NDArray[np.bool_]) -> tuple[int, NDArray[np.bool_]] | None:
        """Return channel axis and mask of what stays of a tensor, or None if nothing leaves it."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        leaves = (tensor.units != FIXED) & gone[tensor.units]
        return (tensor.axis, ~leaves) if leaves.any() else None

    def without(self, gone: NDArray[np.bool_]) -> Structure:
        """Return the structure of the network that has lost some units; the others keep their numbers."""

        def stay(units: Ids) -> NDArray[np.bool_]:
            staying: NDArray[np.bool_] = (units == FIXED) | ~gone[units]
            return staying

        def cut(tensor: TensorUnits) -> TensorUnits:
            units = tensor.units[stay(tensor.units)]
            shape = (*tensor.shape[: tensor.axis], len(units), *tensor.shape[tensor.axis + 1 :])
            return TensorUnits(shape, tensor.axis, units)

        constraints = {members[~gone[members]].tobytes(): members[~gone[members]] for members in self.constraints}
        return replace(
            self,
            layers=tuple(replace(layer, units=layer.units[stay(layer.units)]) for layer in self.layers),
            dense=tuple(replace(layer, units=layer.units[stay(layer.units)]) for layer in self.dense),
            kernels=np.where(gone, 0, self.kernels),
            features=np.where(gone, 0, self.features),
            consumers=tuple(replace(c, units=c.units[stay(c.units)]) for c in self.consumers),
            tensors={name: cut(tensor) for name, tensor in self.tensors.items()},
            constraints=tuple(constraints.values()),
            # A shuffle that has lost a channel has become a Gather.
            shuffles={name: s for name, s in self.shuffles.items() if self.kept(name, gone) is None},
        )


def analyse(model: ir.Model, facts: Facts) -> Structure:
    """Find the kernels of a classifier that can leave, which only leave together, and why others stay.

    Args:
        model: the graph in topological order, all values named.
        facts: its shapes and constants at a concrete input shape.
    """
    trace = Trace(model, facts)
    trace.run()
    return _frozen(trace)


def _frozen(trace: Trace) -> Structure:
    sets = trace.sets
    everything = np.arange(len(sets), dtype=np.int64)
    roots, held = sets.find(everything), sets.held(everything)
    convolutions = [making for making in trace.makings if making.node.op_type in CONVOLUTIONS]
    dense = [making for making in trace.makings if making.node.op_type not in CONVOLUTIONS]
    # Units are numbered by their first kernel, in graph order; those without a kernel come last.
    ordered = np.concatenate([*(roots[making.ids] for making in convolutions + dense), roots[1:]])
    free, first = np.unique(ordered[~held[ordered]], return_index=True)
    count = len(free)
    table = np.full(len(sets), FIXED, dtype=np.int64)
    table[free[np.argsort(first)]] = np.arange(count)
    units = table[roots]

    of_ids: dict[int, Ids] = {}  # many tensors share their ids, and so their units

    def units_of(ids: Ids) -> Ids:
        if id(ids) not in of_ids:
            of_ids[id(ids)] = units[ids]
        return of_ids[id(ids)]

    tensors = {
        name: TensorUnits(channels.shape, channels.axis, units_of(channels.ids))
        for name, channels in trace.channels.items()
        if channels.axis is not None
    }
    readings = [(reading, units_of(reading.channels.ids)) for reading in trace.readings]
    constraints = _constraints(tensors)
    alone = np.zeros(count + 1, np.bool_)
    alone[[int(members[0]) for members in constraints if len(members) == 1]] = alone[FIXED] = True
    return Structure(
        layers=tuple(_layer(trace, making, units, alone) for making in convolutions),
        kernels=_counts(units, convolutions, count),
        features=_counts(units, dense, count),
        groups=_groups(units, trace.makings, count),
        consumers=tuple(
            Consumer(_output(r.node), r.value.name or "", r.channels.axis or 0, own)
            for r, own in readings
            if np.any(own != FIXED)
        ),
        tensors=tensors,
        constraints=constraints,
        whole_groups=dict(trace.whole_groups),
        shuffles=dict(trace.shuffles),
        dense=tuple(_layer(trace, making, units, alone) for making in dense),
    )


def _output(node: ir.Node) -> str:
    return node.outputs[0].name or ""


def _counts(units: Ids, makings: list[Making], count: int) -> Ids:
    own = units[np.concatenate([np.zeros(0, np.int64), *(making.ids for making in makings)])]
    return np.bincount(own[own != FIXED], minlength=count)


def _groups(units: Ids, makings: list[Making], count: int) -> Ids:
    """Number the connected components of units that share an output axis."""
    sets = ChannelSets()
    identities = sets.fresh(count)
    axes = [own[own != FIXED] for own in (units[making.ids] for making in makings)]
    axes = [identities[own] for own in axes if len(own)]
    if axes:
        heads, lengths = [int(own.min()) for own in axes], [len(own) for own in axes]
        sets.unite(np.repeat(np.array(heads), lengths), np.concatenate(axes), "")
    return np.unique(sets.find(identities), return_inverse=True)[1].astype(np.int64)


def _constraints(tensors: Mapping[str, TensorUnits]) -> tuple[Ids, ...]:
    distinct: dict[bytes, Ids] = {}
    for units in {tensor.units.tobytes(): tensor.units for tensor in tensors.values()}.values():
        if len(units) and (least := int(units.min())) != FIXED:
            members = np.flatnonzero(np.bincount(units - least)) + least
            distinct.setdefault(members.tobytes(), members)
    return tuple(distinct.values())


def _layer(trace: Trace, making: Making, units: Ids, alone: NDArray[np.bool_]) -> Layer:
    """Return the layer that makes some channels; a unit that is `alone` in a tensor, and FIXED, cannot leave."""
    own = units[making.ids]
    reason = ""
    if alone[own].all():
        fixed = making.ids[own == FIXED]
        if len(own) == 1:
            reason = "it has one kernel only, and one must stay"
        elif len(fixed):
            reason = trace.sets.reason(int(fixed[0]))
        else:
            reason = "its kernels can only leave all together, and one must stay"
    return Layer(making.node.name or label(making.node), _output(making.node), own, reason)
