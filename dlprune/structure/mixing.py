"""Channel rules of the operators that bear weights: they mix what they read and make new channels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..nodes import int_attribute, label
from .channels import Channels, free_sets
from .trace import Trace, moves


@moves("Conv", "ConvTranspose")
def convolution(trace: Trace, node: ir.Node) -> None:
    """Group 1 mixes all channels; a grouped one keeps its groups or loses whole groups, whichever is finer."""
    value = node.inputs[0]
    if not all(v is None or trace.facts.is_const(v) for v in node.inputs[1:]):
        trace.give_up(node, f"the weights of {label(node)} are computed from the data")
        return
    source = trace.of(value)
    if source is None:
        trace.give_up(node, f"{label(node)} reads a constant")
        return
    if int_attribute(node, "group", 1) == 1:
        trace.mix(node, value, 1)
        trace.fresh(node, 1)
        return
    if source.axis not in (None, 1):
        trace.hold(value, f"{label(node)} mixes its values along another axis than its channels")
        source = Channels.plain(source.shape)
    _grouped(trace, node, source)


def _grouped(trace: Trace, node: ir.Node, source: Channels) -> None:
    groups = int_attribute(node, "group", 1)
    width_in = source.shape[1] // groups
    trace.fresh(node, 1)
    made = trace.makings[-1].ids.reshape(groups, -1)
    width_out = made.shape[1]
    read = np.zeros((groups, width_in), dtype=np.int64) if source.axis is None else source.ids.reshape(groups, -1)
    members = np.concatenate([read, made], axis=1)
    depthwise = width_in == width_out == 1  # a group has one position only
    whole = depthwise or free_sets(trace.sets, members) >= (
        free_sets(trace.sets, read.T) + (width_out if width_out > 1 else 0)
    )
    trace.whole_groups[node.outputs[0].name or ""] = whole
    reason = f"{label(node)} reads it together with data whose channels must stay"
    if whole:
        trace.sets.unite(np.repeat(members[:, :1], members.shape[1] - 1, axis=1), members[:, 1:], reason)
    else:
        for side in (read, made):
            trace.sets.unite(np.repeat(side[:1], groups - 1, axis=0), side[1:], reason)
        trace.mix(node, node.inputs[0], 1)


@moves("Gemm")
def gemm(trace: Trace, node: ir.Node) -> None:
    """Mix the columns of a matrix; the bias may be data."""
    weight = node.inputs[1]
    if int_attribute(node, "transA", 0) or not trace.facts.is_const(weight) or trace.of(node.inputs[0]) is None:
        trace.give_up(node, f"{label(node)} multiplies data by data")
        return
    trace.mix(node, node.inputs[0], 1)
    trace.fresh(node, 1)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    added = trace.of(bias)
    if added is not None:
        own = trace.channels[node.outputs[0].name or ""]
        if added.axis is not None and added.axis == len(added.shape) - 1 and added.shape[-1] == own.shape[-1]:
            trace.sets.unite(own.ids, added.ids, f"{label(node)} adds it to data whose channels must stay")
        else:
            trace.hold(bias, f"{label(node)} adds it to other channels")
            if added.shape and added.shape[-1] != 1:
                trace.sets.hold(own.ids, f"{label(node)} adds it to data whose channels must stay")


@moves("MatMul")
def matmul(trace: Trace, node: ir.Node) -> None:
    """Mix the last axis with a constant matrix, or multiply data by data."""
    data, weight = node.inputs[0], node.inputs[1]
    source = trace.of(data)
    if source is not None and trace.of(weight) is not None:
        _product(trace, node)
        return
    weight_shape = None if weight is None else trace.facts.shape(weight)
    if source is None or not trace.facts.is_const(weight) or weight_shape is None or len(weight_shape) != 2:
        trace.give_up(node, f"{label(node)} multiplies it by weights that are not one matrix behind it")
        return
    if source.axis is not None and source.axis != len(source.shape) - 1:
        # Each row by itself; its new columns are of no use to anybody who wants a rectangle.
        trace.put(node.outputs[0], source.reshaped(trace.shape(node.outputs[0])))
        return
    trace.mix(node, data, len(source.shape) - 1)
    trace.fresh(node, len(trace.shape(node.outputs[0])) - 1)


def _product(trace: Trace, node: ir.Node) -> None:
    """Attention: what is summed over leaves both operands together, rows, columns and batch axes pass.

    A channel that is missing in one operand counts as zero in the sum, whatever the other one holds, so the first one
    is the reader of both.
    """
    left, right = (trace.of(value) for value in node.inputs)
    shape = trace.shape(node.outputs[0])
    if left is None or right is None or min(len(left.shape), len(right.shape)) < 2:
        trace.give_up(node, f"{label(node)} multiplies it by a vector")
        return
    summed = left.axis == len(left.shape) - 1, right.axis == len(right.shape) - 2
    reason = f"{label(node)} multiplies it by data whose channels must stay"
    if all(summed):
        trace.sets.unite(left.ids, right.ids, reason)
        trace.mix(node, node.inputs[0], len(left.shape) - 1)
    passing: dict[int, Channels] = {}
    for value, own, other, is_summed in zip(node.inputs, (left, right), (right, left), summed, strict=True):
        if own.axis is None or all(summed):
            continue
        axis = own.axis + len(shape) - len(own.shape)
        if is_summed or own.shape[own.axis] != shape[axis]:
            trace.hold(value, reason)
            continue
        across = axis - len(shape) + len(other.shape)
        if axis < len(shape) - 2 and across >= 0 and other.shape[across] == shape[axis] and other.axis != across:
            trace.hold(value, reason)
            continue
        if axis in passing:
            trace.sets.unite(passing[axis].ids, own.ids, reason)
        passing.setdefault(axis, own)
    # What stays must be a rectangle: only one axis may lose something, that which is free to lose most.
    best = max(passing, key=lambda axis: free_sets(trace.sets, passing[axis].ids[:, None]), default=None)
    for axis, own in passing.items():
        if axis != best:
            trace.sets.hold(own.ids, f"{label(node)} multiplies it by other channels")
    if best is None:
        trace.put(node.outputs[0], Channels.plain(shape))
    else:
        trace.put(node.outputs[0], Channels(shape, best, passing[best].ids))
