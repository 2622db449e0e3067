"""A depthwise convolution with stride on top of an expanding 1×1 convolution, differentiated phase by phase.

The gradient of such a convolution would be a map four times as large as dy, in many channels, from a slow
ConvTranspose. But what comes before it works on every pixel alone: activations, and the 1×1 convolution that made the
channels. So the map is never put together: each of its s × s phases (the pixels at one offset modulo the stride) is a
small stride-1 convolution of dy, is multiplied by the slope of the activations, goes through the 1×1 convolution, and
only behind that, where channels are few, are the phases interleaved. Inverted residuals are built this way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from . import blocked
from .rule import Site, find_rule
from .window import Window, place, window_of
from .writer import Operand, array_of, shape_of

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
    slope = _slope(site, region)
    planes = [_one_phase(site, region, window, (row, column), slope) for row in range(step) for column in range(step)]
    joined = site.op("DepthToSpace", site.op("Concat", *planes, axis=1), blocksize=step)
    return blocked.enter(site.writer, joined, shape_of(_first_input(region.expansion)))


def _first_input(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None  # `region_above` has looked at it
    return value


def _slope(site: Site, region: Region) -> ir.Value | None:
    """Return how what the depthwise convolution reads grows with what the expansion gives, a map; None for 1."""
    pending: dict[ir.Value, list[ir.Value]] = {_first_input(site.node): []}
    for node in region.nodes[:-1]:
        above = _SlopeSite(node, site.writer, [_added(site, pending.pop(node.outputs[0]))], _depends(node), site.opset)
        found = find_rule(node)(above)
        for index, partial in ({0: found} if isinstance(found, ir.Value) else found).items():
            value = node.inputs[index]
            if value is not None and above.wants(index):
                pending.setdefault(value, []).append(partial)
    (slopes,) = pending.values()
    return _added(site, slopes)


def _depends(node: ir.Node) -> frozenset[int]:
    return frozenset(i for i, value in enumerate(node.inputs) if value is not None and array_of(value) is None)


def _added(site: Site, partials: list[ir.Value]) -> ir.Value | None:
    total: ir.Value | None = None
    for partial in partials:
        total = partial if total is None else site.op("Add", total, partial)
    return total


class _SlopeSite(Site):
    """A node of the region whose incoming gradient, where it is missing, is 1 everywhere."""

    @property
    def dy(self) -> ir.Value:
        return self.affine(self.y, 0.0, 1.0) if self.dys[0] is None else self.dys[0]

    def times(self, factor: Operand) -> ir.Value:
        is_map = isinstance(factor, ir.Value) and array_of(factor) is None
        return factor if self.dys[0] is None and is_map and isinstance(factor, ir.Value) else super().times(factor)


def _one_phase(site: Site, region: Region, window: Window, offset: tuple[int, int], slope: ir.Value | None) -> ir.Value:
    value = _phase_gradient(site, window, offset)
    if slope is not None:
        value = site.op("Mul", value, _pick(site, slope, window, offset))
    kernels = array_of(region.expansion.inputs[1])
    assert kernels is not None
    return site.op("Conv", value, np.ascontiguousarray(kernels.swapaxes(0, 1)))


def _pick(site: Site, value: ir.Value, window: Window, offset: tuple[int, int]) -> ir.Value:
    """Return the pixels of a map at one offset: a depthwise convolution that takes one pixel of each block."""
    channels = site.shape(0)[1]
    one_hot = np.zeros((channels, 1, offset[0] + 1, offset[1] + 1), np.float32)
    one_hot[:, :, -1, -1] = 1.0
    return site.op("Conv", value, one_hot, group=channels, strides=list(window.strides))


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
