"""Channel rules of normalisations and other operators that look along an axis."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..nodes import int_attribute, label, opset, reduced_axes
from .channels import Channels
from .trace import Trace, moves


@moves("BatchNormalization")
def batch_normalization(trace: Trace, node: ir.Node) -> None:
    """Inference: one scale and shift per channel."""
    source = trace.of(node.inputs[0])
    constant = all(trace.facts.is_const(value) for value in node.inputs[1:])
    if source is None or not constant or any(output.uses() for output in node.outputs[1:]):
        trace.give_up(node, f"{label(node)} is in training mode or takes its parameters from the data")
        return
    trace.put(node.outputs[0], source)


@moves("InstanceNormalization")
def instance_normalization(trace: Trace, node: ir.Node) -> None:
    """Each channel by itself, over space."""
    source = trace.of(node.inputs[0])
    if source is None or not all(trace.facts.is_const(value) for value in node.inputs[1:]):
        trace.give_up(node, f"{label(node)} takes its parameters from the data")
    elif source.axis in (None, 1):
        trace.put(node.outputs[0], source)
    else:
        trace.give_up(node, f"it is normalised across channels by {label(node)}")


@moves("LRN")
def across_channels(trace: Trace, node: ir.Node) -> None:
    """What looks along axis 1 holds the channels there."""
    _along(trace, node, {1})


@moves("GroupNormalization")
def group_normalization(trace: Trace, node: ir.Node) -> None:
    """The channels of a group only leave all together."""
    source, groups = trace.of(node.inputs[0]), int_attribute(node, "num_groups", 1)
    if source is None or not all(trace.facts.is_const(value) for value in node.inputs[1:]):
        trace.give_up(node, f"{label(node)} takes its parameters from the data")
    elif source.axis != 1 or groups == 1:
        _along(trace, node, set(range(1, len(source.shape))))
    else:
        members = source.ids.reshape(groups, -1)
        first = np.repeat(members[:, :1], members.shape[1] - 1, axis=1)
        trace.sets.unite(
            first, members[:, 1:], f"{label(node)} normalises it together with data whose channels must stay"
        )
        trace.put(node.outputs[0], source)


@moves("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "LayerNormalization", "RMSNormalization", "CumSum")
def along_axis(trace: Trace, node: ir.Node) -> None:
    """One axis, or all from it on (Softmax before opset 13, LayerNormalization)."""
    rank = len(trace.shape(node.outputs[0]))
    if node.op_type == "CumSum":
        axes = trace.facts.ints(node.inputs[1])
        if not axes:
            trace.give_up(node, f"the axis of {label(node)} is not known")
            return
        axis = axes[0] % rank
    else:
        old_softmax = node.op_type in ("Softmax", "LogSoftmax", "Hardmax") and opset(trace.model) < 13
        axis = int_attribute(node, "axis", 1 if old_softmax else -1) % rank
        if old_softmax or node.op_type in ("LayerNormalization", "RMSNormalization"):
            _along(trace, node, set(range(axis, rank)))
            return
    _along(trace, node, {axis})


@moves("MeanVarianceNormalization")
def mean_variance_normalization(trace: Trace, node: ir.Node) -> None:
    """Over the axes of its attribute."""
    rank = len(trace.shape(node.outputs[0]))
    axes = node.attributes["axes"].as_ints() if "axes" in node.attributes else (0, 2, 3)
    _along(trace, node, {int(axis) % rank for axis in axes})


def _along(trace: Trace, node: ir.Node, axes: set[int]) -> None:
    source = trace.of(node.inputs[0])
    if source is None:
        trace.give_up(node, f"{label(node)} reads a constant")
    elif source.axis in axes:
        trace.give_up(node, f"it is normalised across channels by {label(node)}")
    else:
        trace.put(node.outputs[0], source)


@moves("MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool", "MaxRoiPool")
def pool(trace: Trace, node: ir.Node) -> None:
    """Space is pooled, channels pass."""
    source = trace.of(node.inputs[0])
    if source is None or (source.axis is not None and source.axis > 1):
        trace.give_up(node, f"{label(node)} pools across its channels")
    elif any(output.uses() for output in node.outputs[1:]):
        trace.give_up(node, f"the indices that {label(node)} returns count channels")
    else:
        trace.put(node.outputs[0], source.reshaped(trace.shape(node.outputs[0])))


@moves("Resize", "Upsample")
def resize(trace: Trace, node: ir.Node) -> None:
    """Space is resized, channels pass."""
    source = trace.of(node.inputs[0])
    shape = trace.shape(node.outputs[0])
    if source is None or (source.axis is not None and source.shape[source.axis] != shape[source.axis]):
        trace.give_up(node, f"{label(node)} resizes the channel axis")
    else:
        trace.put(node.outputs[0], source.reshaped(shape))


@moves(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare ArgMax ArgMin"
)
def reduce(trace: Trace, node: ir.Node) -> None:
    """Other axes may go; along the channels only sums are exact, because a missing channel counts as zero in them."""
    source = trace.of(node.inputs[0])
    if source is None:
        trace.give_up(node, f"{label(node)} reads a constant")
        return
    shape = trace.shape(node.outputs[0])
    rank = len(source.shape)
    axes = reduced_axes(trace.facts, node, rank)
    if source.axis is None:
        trace.put(node.outputs[0], Channels.plain(shape))
    elif axes is None:
        trace.give_up(node, f"the axes of {label(node)} are not known")
    elif source.axis not in axes:
        axis = source.axis
        if len(shape) != rank:
            axis -= sum(1 for reduced in axes if reduced < source.axis)
        trace.put(node.outputs[0], source.reshaped(shape, axis))
    elif node.op_type in ("ReduceL1", "ReduceL2", "ReduceSum", "ReduceSumSquare"):
        trace.mix(node, node.inputs[0], source.axis)
        trace.put(node.outputs[0], Channels.plain(shape))
    else:
        trace.give_up(node, f"it is reduced across channels by {label(node)}")
