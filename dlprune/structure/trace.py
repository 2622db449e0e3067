"""The walk through the graph that finds out which channel goes where, and the register of one rule per operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ..facts import Facts
from ..nodes import captured, int_attribute, is_standard, label, shape_numbers
from ..shapes import Shape
from .channels import Channels, settle
from .units import DATA, ChannelSets, Ids

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})

Rule = Callable[["Trace", ir.Node], None]

#: Longer axes are not followed: no real feature map has so many channels, and each takes memory and time.
MAX_SIZE = 1 << 22

_RULES: dict[str, Rule] = {}


def moves(*op_types: str) -> Callable[[Rule], Rule]:
    """Register how channel ids move through these operators of the default domain (names, several in a string)."""

    def register(rule: Rule) -> Rule:
        for op_type in " ".join(op_types).split():
            _RULES[op_type] = rule
        return rule

    return register


@dataclass
class Reading:
    """A weight-bearing node that mixes the channels of one input (ids are raw until the trace ends)."""

    node: ir.Node
    value: ir.Value
    channels: Channels


@dataclass
class Making:
    """A weight-bearing node that makes new channels; `op_type` tells convolutions from dense layers."""

    node: ir.Node
    ids: Ids


@dataclass(frozen=True)
class Shuffle:
    """A chain of reshapes and transposes that in total only reorders the channels of one tensor, as a Gather would.

    Attributes:
        source: name of the tensor that is shuffled.
        axis: its channel axis, which is also that of the result.
        order: channel of `source` that stands at each position of the result.
        inner: names of the tensors between; they have no channel axis of their own.
    """

    source: str
    axis: int
    order: Ids
    inner: frozenset[str]


@dataclass
class Trace:
    """State of the walk: channels of every tensor so far, and the sets that they belong to."""

    model: ir.Model
    facts: Facts
    sets: ChannelSets = field(default_factory=ChannelSets)
    channels: dict[str, Channels] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    makings: list[Making] = field(default_factory=list)
    whole_groups: dict[str, bool] = field(default_factory=dict)
    shuffles: dict[str, Shuffle] = field(default_factory=dict)
    done: set[ir.Node] = field(default_factory=set)

    def run(self) -> None:
        """Apply each node's rule in graph order; what reaches an output is held."""
        for value in self.model.graph.inputs:
            shape = self.facts.shape(value)
            if shape is not None and not self.facts.is_const(value):
                self.channels[value.name or ""] = Channels.plain(shape)
        for node in self.model.graph:
            if node in self.done or all(self.facts.is_const(output) for output in node.outputs):
                continue
            self._visit(node)
        for value in self.model.graph.outputs:
            self.hold(value, "it reaches the network's output")

    def _visit(self, node: ir.Node) -> None:
        for value in captured(node):
            self.hold(value, f"it is read inside the control flow of {label(node)}")
            self.hold_channel_numbers(value, f"the control flow of {label(node)} computes with its channel number")
        rule = _RULES.get(node.op_type) if is_standard(node) else None
        needed = [o for i, o in enumerate(node.outputs) if i == 0 or o.uses() or o.is_graph_output()]
        unknown = any(self.facts.shape(output) is None for output in needed)
        if rule is None:
            self.give_up(node, f"the operator of {label(node)} is not known")
        elif unknown:
            self.give_up(node, f"the shape of the output of {label(node)} is not known")
        elif any(size > MAX_SIZE for output in needed for size in self.shape(output)):
            self.give_up(node, f"the output of {label(node)} is too large to be followed")
        else:
            for source in node.inputs:
                if source is not None and self.facts.dtype(source) in _FLOATS:
                    reason = f"{label(node)} computes with its channel number"
                    self.hold_channel_numbers(source, reason, frozen=node.op_type not in ("Resize", "Upsample"))
            rule(self, node)

    def of(self, value: ir.Value | None) -> Channels | None:
        """Return the channels of a tensor that depends on the data; None for constants and absent inputs."""
        if value is None or self.facts.is_const(value):
            return None
        known = self.channels.get(value.name or "")
        if known is None:
            shape = self.facts.shape(value)
            return None if shape is None else Channels.plain(shape)
        return known

    def shape(self, value: ir.Value) -> Shape:
        """Return the concrete shape of a tensor; rules run only where it is known."""
        shape = self.facts.shape(value)
        assert shape is not None
        return shape

    def put(self, value: ir.Value, channels: Channels) -> None:
        """Record the channels of an output."""
        self.channels[value.name or ""] = channels

    def put_array(self, node: ir.Node, value: ir.Value, array: Ids) -> None:
        """Record an output whose ids are given element by element (broadcastable)."""
        self.put(value, settle(self.sets, array, self.shape(value), label(node)))

    def hold(self, value: ir.Value | None, reason: str) -> None:
        """Declare that no channel of this tensor may leave."""
        channels = self.of(value)
        if channels is not None and channels.axis is not None:
            self.sets.hold(channels.ids, reason)

    def give_up(self, node: ir.Node, reason: str) -> None:
        """Hold all that a node reads; what it writes is plain data."""
        for value in node.inputs:
            self.hold(value, reason)
            self.hold_channel_numbers(value, reason)
        if is_standard(node) and node.op_type in CONVOLUTIONS:
            kernels = self._kernel_number(node)
            self.makings.append(Making(node, self.sets.fresh(kernels)))
            self.sets.hold(self.makings[-1].ids, reason)
        for output in node.outputs:
            shape = self.facts.shape(output)
            if shape is not None:
                self.put(output, Channels.plain(shape))

    def _kernel_number(self, node: ir.Node) -> int:
        """Return the number of kernels of a convolution that is left alone, as far as it can be told; at least 1."""
        weight, output = node.inputs[1], self.facts.shape(node.outputs[0])
        if output is not None and len(output) > 1:
            return output[1]
        shape = None if weight is None else self.facts.shape(weight)
        if shape is None or len(shape) < 2:
            return 1
        return shape[0] if node.op_type == "Conv" else shape[1] * int_attribute(node, "group", 1)

    def hold_channel_numbers(self, value: ir.Value | None, reason: str, *, frozen: bool = False) -> None:
        """Hold the tensors whose channel number a constant was computed from (`x / Shape(x)[1]` changes its value).

        With `frozen` they stay free where the constant can be written down as it is: surgery does so, and nothing but
        channel numbers, which no image changes, has gone into it.
        """
        if not self.facts.is_const(value):
            return
        sources: list[ir.Value] = []
        stack, seen = [value], set()
        while stack:
            item = stack.pop()
            if item is None or item in seen or not self.facts.is_const(item):
                continue
            seen.add(item)
            producer = item.producer()
            if producer is None:
                continue
            numbers = shape_numbers(self.facts, item)
            if numbers is not None:
                channels = self.of(numbers[0])
                if channels is not None and channels.axis in numbers[1]:
                    sources.append(numbers[0])
                    frozen = frozen and set(numbers[1]) == {channels.axis} and _are_single(channels.ids)
                else:
                    frozen = False
            elif producer.op_type == "Size":
                frozen = False
                sources.extend(source for source in producer.inputs if source is not None)
            else:
                stack.extend(producer.inputs)
        for source in () if frozen else sources:
            self.hold(source, reason)

    def fresh(self, node: ir.Node, axis: int) -> None:
        """Give new ids to the output of a weight-bearing node."""
        shape = self.shape(node.outputs[0])
        ids = self.sets.fresh(shape[axis])
        self.makings.append(Making(node, ids))
        self.put(node.outputs[0], Channels(shape, axis, ids))

    def mix(self, node: ir.Node, value: ir.Value | None, axis: int) -> None:
        """Record that a node's weights mix the channels of one input along an axis."""
        channels = self.of(value)
        if value is None or channels is None or channels.axis is None:
            return
        if channels.axis != axis:
            self.hold(value, f"{label(node)} mixes its values along another axis than its channels")
            return
        self.readings.append(Reading(node, value, channels))


def _are_single(ids: Ids) -> bool:
    """Tell whether each channel stands once on its axis: behind a Flatten its pixels would count as well."""
    return len(np.unique(ids)) == len(ids)


def is_data(channels: Channels) -> bool:
    """Tell whether a tensor carries plain data."""
    return channels.axis is None or not np.any(channels.ids != DATA)
