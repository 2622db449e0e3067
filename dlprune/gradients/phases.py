"""A depthwise convolution with stride on top of an expanding 1×1 convolution, differentiated phase by phase.

The gradient of such a convolution would be a map four times as large as dy, in many channels, from a slow
ConvTranspose. But what comes before it works on every pixel alone: activations, and the 1×1 convolution that made the
channels. So the map is never put together: each of its s × s phases (the pixels at one offset modulo the stride) is a
small stride-1 convolution of dy, goes through activations and 1×1 convolution by itself, and only behind that, where
channels are few, are the phases interleaved. Inverted residuals are built this way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from dlprune.gradients.rule import Site, find_rule
from dlprune.gradients.window import Window, place, window_of
from dlprune.gradients.writer import Writer, array_of, shape_of

#: Operators that work on every pixel alone.
_POINTWISE = frozenset(
    {"Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "Swish", "Mish", "Softplus"}
    | {"Add", "Sub", "Mul", "Div"}
)
#: The 1×1 convolution must at least double the channels, or interleaving its result costs what it saves.
_EXPANSION = 2


@dataclass(frozen=True)
class Region:
    """The pointwise nodes between an expanding convolution and a depthwise one, in backward order; the former last."""

    nodes: tuple[ir.Node, ...]

    @property
    def expansion(self) -> ir.Node:
        """The 1×1 convolution in which the region begins."""
        return self.nodes[-1]


def region_above(node: ir.Node, wants: Mapping[ir.Node, frozenset[int]]) -> Region | None:
    """Return the region that ends in a node, or None where the node or what lies above it is of another kind."""
    if node.op_type != "Conv" or node.domain != "" or wants[node] != {0} or not _is_strided_depthwise(node):
        return None
    inside, ordered = {node}, list[ir.Node]()
    top: ir.Node | None = None
    waiting = dict.fromkeys([_producer(node.inputs[0])])  # a set that keeps its order
    while waiting:
        above = next((w for w in waiting if w is not None and inside.issuperset(w.outputs[0].consumers())), None)
        if above is None:  # somebody outside reads the map
            return None
        del waiting[above]
        inside.add(above)
        if top is None and _is_expansion(above, wants):
            top = above
        elif above.op_type in _POINTWISE and above.domain == "" and _is_pointwise(above):
            ordered.append(above)
            waiting |= dict.fromkeys(_producer(v) for v in above.inputs if v is not None and array_of(v) is None)
        else:
            return None
    return None if top is None else Region((*ordered, top))


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None or value.is_graph_output() else value.producer()


def _ints(node: ir.Node, name: str, default: list[int]) -> list[int]:
    return [int(v) for v in node.attributes[name].as_ints()] if name in node.attributes else default


def _is_strided_depthwise(node: ir.Node) -> bool:
    x, weight = node.inputs[0], array_of(node.inputs[1])
    if x is None or weight is None or weight.ndim != 4 or weight.shape[1] != 1:
        return False
    channels, height, width = shape_of(x)[1:]
    strides, group = _ints(node, "strides", [1, 1]), node.attributes.get("group")
    step = strides[0]
    return (
        step > 1
        and strides[1] == step
        and height % step == width % step == 0
        and min(weight.shape[2:]) >= step
        and group is not None
        and group.as_int() == channels == weight.shape[0]
        and _ints(node, "dilations", [1, 1]) == [1, 1]
    )


def _is_expansion(node: ir.Node, wants: Mapping[ir.Node, frozenset[int]]) -> bool:
    if node.op_type != "Conv" or wants[node] != {0}:
        return False
    weight = array_of(node.inputs[1])
    return (
        weight is not None
        and weight.ndim == 4
        and weight.shape[2:] == (1, 1)
        and weight.shape[0] >= _EXPANSION * weight.shape[1]
        and ("group" not in node.attributes or node.attributes["group"].as_int() == 1)
        and _ints(node, "strides", [1, 1]) == [1, 1]
        and not any(_ints(node, "pads", [0] * 4))
    )


def _is_pointwise(node: ir.Node) -> bool:
    """Tell whether every operand is a map of the output's shape or a constant that is the same at all pixels."""
    shape = shape_of(node.outputs[0])
    for value in node.inputs:
        if value is None:
            continue
        own, constant = shape_of(value), array_of(value)
        if own != shape and (constant is None or any(size != 1 for size in own[-2:]) or len(own) > 4):
            return False
        if own == shape and constant is not None:
            return False
    return True


def through(site: Site, region: Region) -> ir.Value:
    """Return the gradient of the input of the region's 1×1 convolution.

    Args:
        site: the depthwise convolution with its incoming gradient.
        region: what lies above it.
    """
    window = window_of(site, site.shape(1)[2:], site.shape(0)[2:], site.out_shape()[2:])
    step = window.strides[0]
    planes = [_one_phase(site, region, window, (row, column)) for row in range(step) for column in range(step)]
    return site.op("DepthToSpace", site.op("Concat", *planes, axis=1), blocksize=step)


def _one_phase(site: Site, region: Region, window: Window, offset: tuple[int, int]) -> ir.Value:
    start = site.node.inputs[0]
    assert start is not None  # `region_above` has looked at it
    pending = {start: [_phase_gradient(site, window, offset)]}
    for node in region.nodes:
        first, *rest = pending.pop(node.outputs[0])
        for partial in rest:
            first = site.op("Add", first, partial)
        wanted = frozenset(i for i, v in enumerate(node.inputs) if v is not None and array_of(v) is None)
        phase = _PhaseSite(node, site.writer, first, wanted, site.opset, window, offset)
        found = find_rule(node)(phase)
        for index, partial in ({0: found} if isinstance(found, ir.Value) else found).items():
            value = node.inputs[index]
            if index in wanted and value is not None:
                pending.setdefault(value, []).append(partial)
    (values,) = pending.values()
    return values[0]


def _phase_gradient(site: Site, window: Window, offset: tuple[int, int]) -> ir.Value:
    """Return the pixels of dx at one offset: position step·q + offset meets every step-th tap of the kernel."""
    weight = site.array(1)
    assert weight is not None
    taps, before, after = [], [], []
    for axis in range(2):
        step, kernel = window.strides[axis], window.kernel[axis]
        shift, first = divmod(offset[axis] + window.begin[axis], step)
        chosen = np.arange(first, kernel, step)[::-1]
        taps.append(chosen)
        before.append(len(chosen) - 1 - shift)
        after.append(window.size[axis] // step - window.out[axis] + len(chosen) - 1 - before[axis])
    kernels = weight[:, :, taps[0][:, None], taps[1][None, :]]
    value = place(site.writer, site.dy, [min(0, v) for v in before], [min(0, v) for v in after])
    pads = [max(0, v) for v in before + after]
    return site.op("Conv", value, kernels, group=weight.shape[0], pads=pads)


class _PhaseSite(Site):
    """A node of the region as it is at the pixels of one phase."""

    def __init__(
        self,
        node: ir.Node,
        writer: Writer,
        dy: ir.Value,
        wanted: frozenset[int],
        opset: int,
        window: Window,
        offset: tuple[int, int],
    ) -> None:
        super().__init__(node, writer, [dy], wanted, opset)
        self._size = tuple(window.size)
        self._step = window.strides[0]
        self._offset = offset

    @property
    def y(self) -> ir.Value:
        return self._pick(self.node.outputs[0])

    def optional(self, index: int) -> ir.Value | None:
        value = super().optional(index)
        return value if value is None or shape_of(value)[2:] != self._size else self._pick(value)

    def shape(self, index: int = 0) -> tuple[int, ...]:
        value = self.node.inputs[index]
        assert value is not None
        return self._small(shape_of(value))

    def out_shape(self, index: int = 0) -> tuple[int, ...]:
        return self._small(shape_of(self.node.outputs[index]))

    def _small(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if shape[2:] != self._size:
            return shape
        return (*shape[:2], *(size // self._step for size in self._size))

    def _pick(self, value: ir.Value) -> ir.Value:
        """Return the pixels of this phase: a depthwise convolution that takes one pixel of each block."""
        channels = shape_of(value)[1]
        one_hot = np.zeros((channels, 1, self._step, self._step), np.float32)
        one_hot[:, :, self._offset[0], self._offset[1]] = 1.0
        return self.op("Conv", value, one_hot, group=channels, strides=[self._step] * 2)
