"""Channel rules of the operators that work element by element."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..nodes import label
from .channels import Channels
from .trace import Trace, moves


@moves(
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Clip Cos Cosh Dropout Elu Erf Exp "
    "Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu "
    "Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu"
)
def unary(trace: Trace, node: ir.Node) -> None:
    """Ids pass through; further inputs (Clip's bounds, Dropout's ratio) are scalars."""
    source = trace.of(node.inputs[0])
    if source is None or any(trace.of(value) is not None for value in node.inputs[1:]):
        trace.give_up(node, f"{label(node)} takes its parameters from the data")
        return
    for value in node.inputs[1:]:
        trace.hold_channel_numbers(value, f"{label(node)} computes with its channel number", frozen=True)
    for output in node.outputs:
        trace.put(output, source)


@moves(
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual "
    "Max Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor"
)
def broadcast(trace: Trace, node: ir.Node) -> None:
    """Couple the operands element by element; constants are cut along with what they meet."""
    shape = trace.shape(node.outputs[0])
    for value in node.inputs:
        trace.hold_channel_numbers(value, f"{label(node)} computes with its channel number", frozen=True)
    operands = [(value, _aligned(channels, len(shape))) for value in node.inputs if (channels := trace.of(value))]
    axes = {channels.axis for _, channels in operands if channels.axis is not None}
    kept: list[Channels] = []
    for value, channels in operands:
        if any(channels.shape[axis] != shape[axis] for axis in axes):
            trace.hold(value, f"{label(node)} spreads it over other channels")
        else:
            kept.append(channels)
    # All operands that are left reach over the whole of each channel axis, so they may be coupled element by element.
    if not kept:
        trace.put(node.outputs[0], Channels.plain(shape))
        return
    reason = f"{label(node)} joins it with data whose channels must stay"
    if len(axes) == 1:
        axis = axes.pop()
        assert axis is not None
        vectors = [np.zeros(shape[axis], np.int64) if c.axis is None else c.ids for c in kept]
        for vector in vectors[1:]:
            trace.sets.unite(vectors[0], vector, reason)
        trace.put(node.outputs[0], Channels(shape, axis, np.maximum.reduce(vectors)))
        return
    arrays = [np.broadcast_to(c.array(), shape) for c in kept]
    for array in arrays[1:]:
        trace.sets.unite(arrays[0], array, reason)
    trace.put_array(node, node.outputs[0], np.maximum.reduce(arrays))


def _aligned(channels: Channels, rank: int) -> Channels:
    """Pad a shape with leading ones, as broadcasting does."""
    shift = rank - len(channels.shape)
    axis = None if channels.axis is None else channels.axis + shift
    return Channels((1,) * shift + channels.shape, axis, channels.ids)
