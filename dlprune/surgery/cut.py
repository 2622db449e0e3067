"""What is cut at each operator: weights, and the picks of operators that select channels by number."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..nodes import input_at, int_attribute, label, opset, pad_amounts, slice_bounds
from .surgeon import Keep, Surgeon, SurgeryError, cuts, patch_ints, set_ints


@cuts("Conv ConvTranspose")
def convolution(surgeon: Surgeon, node: ir.Node) -> None:
    """Kernels, their biases, and the input slices of those that left."""
    groups = int_attribute(node, "group", 1)
    keep_in, keep_out = surgeon.keep(node.inputs[0], 1), surgeon.keep(node.outputs[0], 1)
    surgeon.cut(node, 2, {0: keep_out})
    first, second = (keep_out, keep_in) if node.op_type == "Conv" else (keep_in, keep_out)
    if groups > 1:
        second = None if second is None else second.reshape(groups, -1)[0]
        if surgeon.has_whole_groups(node):
            # A whole group takes its rows of the first axis with it; the second axis counts within one group.
            second = None
            left = first if first is not None else np.ones(groups, dtype=np.bool_)
            node.attributes["group"] = ir.AttrInt64("group", int(left.reshape(groups, -1)[:, 0].sum()))
    surgeon.cut(node, 1, {0: first, 1: second})


@cuts("Gemm")
def gemm(surgeon: Surgeon, node: ir.Node) -> None:
    """Columns of the input and of the output, and the bias."""
    keep_in, keep_out = surgeon.keep(node.inputs[0], 1), surgeon.keep(node.outputs[0], 1)
    transposed = bool(int_attribute(node, "transB", 0))
    surgeon.cut(node, 1, {0: keep_out, 1: keep_in} if transposed else {0: keep_in, 1: keep_out})
    _cut_constants(surgeon, node, [2])


@cuts("MatMul")
def matmul(surgeon: Surgeon, node: ir.Node) -> None:
    """Rows of the constant matrix follow the input, columns the output; of data there is nothing to cut."""
    if not surgeon.old.is_const(node.inputs[1]):
        return
    keep_in = surgeon.keep(node.inputs[0], _rank(surgeon, node.inputs[0]) - 1)
    keep_out = surgeon.keep(node.outputs[0], _rank(surgeon, node.outputs[0]) - 1)
    surgeon.cut(node, 1, {0: keep_in, 1: keep_out})


@cuts("GroupNormalization")
def group_normalization(surgeon: Surgeon, node: ir.Node) -> None:
    """Whole groups leave. One scale and shift per channel: ONNX has withdrawn the form of opset 18."""
    keep, groups = surgeon.keep(node.outputs[0], 1), int_attribute(node, "num_groups", 1)
    if keep is None:
        return
    node.attributes["num_groups"] = ir.AttrInt64("num_groups", int(keep.reshape(groups, -1)[:, 0].sum()))
    for index in (1, 2):
        surgeon.cut(node, index, {0: keep})


@cuts("BatchNormalization InstanceNormalization")
def normalization(surgeon: Surgeon, node: ir.Node) -> None:
    """One parameter per channel."""
    keep = surgeon.keep(node.outputs[0], 1)
    for index in range(1, len(node.inputs)):
        surgeon.cut(node, index, {0: keep})


@cuts("Add Sub Mul Div Sum Max Min Mean Mod Pow PRelu Where And Or Xor Equal Greater GreaterOrEqual Less LessOrEqual")
@cuts("BitShift BitwiseAnd BitwiseOr BitwiseXor")
def broadcast(surgeon: Surgeon, node: ir.Node) -> None:
    """Per-channel constants are cut along with what they meet."""
    _cut_constants(surgeon, node, range(len(node.inputs)))


def _cut_constants(surgeon: Surgeon, node: ir.Node, indices: range | list[int]) -> None:
    found = surgeon.kept(node.outputs[0])
    rank = _rank(surgeon, node.outputs[0])
    if found is None:
        return
    axis, keep = found
    for index in indices:
        value = node.inputs[index] if index < len(node.inputs) else None
        shape = None if value is None or not surgeon.old.is_const(value) else surgeon.old.shape(value)
        own = axis - rank + len(shape or ())
        if shape is not None and own >= 0 and shape[own] == len(keep) and len(keep) > 1:
            surgeon.cut(node, index, {own: keep})


@cuts("Concat")
def concat(surgeon: Surgeon, node: ir.Node) -> None:
    """Constants that are joined along another axis lose the channels that the data loses."""
    found = surgeon.kept(node.outputs[0])
    axis = int_attribute(node, "axis", 1) % _rank(surgeon, node.outputs[0])
    if found is None or found[0] == axis:
        return
    for index, value in enumerate(node.inputs):
        if surgeon.old.is_const(value):
            surgeon.cut(node, index, {found[0]: found[1]})


@cuts("Split")
def split(surgeon: Surgeon, node: ir.Node) -> None:
    """State how many channels stay in each part."""
    rank = _rank(surgeon, node.inputs[0])
    axis = int_attribute(node, "axis", 0) % rank
    if surgeon.keep(node.inputs[0], axis) is None:
        return
    sizes = [(surgeon.wanted(output) or (0,) * rank)[axis] for output in node.outputs]
    node.attributes.pop("num_outputs", None)
    set_ints(surgeon, node, "split", 1, sizes, since=13)


@cuts("Slice")
def slice_(surgeon: Surgeon, node: ir.Node) -> None:
    """Move the bounds; what has become irregular is picked by index instead."""
    source = node.inputs[0]
    found = None if source is None else surgeon.kept(source)
    if source is None or found is None:
        return
    axis, keep = found
    bounds = slice_bounds(surgeon.old, node, _rank(surgeon, source))
    if bounds is None:
        raise SurgeryError(f"the bounds of {label(node)} are not constant")
    if bounds[axis] == slice(None):
        return
    positions = np.arange(len(keep))[bounds[axis]]
    picked = _renumbered(keep)[positions[keep[positions]]]
    steps = np.unique(np.diff(picked))
    step = int(steps[0]) if len(steps) == 1 else 1 if len(steps) == 0 else 0
    if not len(positions):  # it takes none, whatever leaves
        bounds[axis] = slice(0, 0, 1)
        _set_bounds(surgeon, node, bounds, axis)
        return
    if step >= 1 and (step == 1 or opset(surgeon.model) >= 10):
        bounds[axis] = slice(int(picked[0]), int(picked[-1]) + 1, step)
        _set_bounds(surgeon, node, bounds, axis)
        return
    indices = surgeon.constant(f"{node.outputs[0].name}.picked", picked)
    if all(bound == slice(None) for other, bound in enumerate(bounds) if other != axis):
        surgeon.replace(node, "Gather", [source, indices], axis=axis)
        return
    gathered = surgeon.insert_before(node, "Gather", [source, indices], axis=axis)
    surgeon.liken(gathered, node.outputs[0])
    node.replace_input_with(0, gathered)
    bounds[axis] = slice(0, len(picked), 1)
    _set_bounds(surgeon, node, bounds, axis)


def _set_bounds(surgeon: Surgeon, node: ir.Node, bounds: list[slice], changed: int) -> None:
    """Write the bounds down; where some follow the size of the image, only those of the axis that has changed."""
    axes = [axis for axis, cut in enumerate(bounds) if cut != slice(None)]
    if all(surgeon.is_static(value) for value in node.inputs[1:]):
        lowest = -(1 << 31)
        ends = [lowest if bounds[axis].stop is None else bounds[axis].stop for axis in axes]
        set_ints(surgeon, node, "starts", 1, [bounds[axis].start for axis in axes], since=10)
        set_ints(surgeon, node, "ends", 2, ends, since=10)
    else:
        given = surgeon.old.ints(input_at(node, 3))
        axes = list(range(len(surgeon.old.ints(node.inputs[1]) or ()))) if given is None else given
        axes = [axis % len(bounds) for axis in axes]
        cut = bounds[changed]
        patch_ints(surgeon, node, "starts", 1, [cut.start if axis == changed else None for axis in axes])
        patch_ints(surgeon, node, "ends", 2, [cut.stop if axis == changed else None for axis in axes])
    set_ints(surgeon, node, "axes", 3, axes, since=10)
    steps = [1 if bounds[axis].step is None else bounds[axis].step for axis in axes]
    if any(step != 1 for step in steps) or len(node.inputs) > 4:
        set_ints(surgeon, node, "steps", 4, steps, since=10)


@cuts("Gather")
def gather(surgeon: Surgeon, node: ir.Node) -> None:
    """Renumber the indices."""
    axis = int_attribute(node, "axis", 0) % _rank(surgeon, node.inputs[0])
    keep = surgeon.keep(node.inputs[0], axis)
    indices = surgeon.old.const(node.inputs[1])
    if keep is None or indices is None:
        return
    found = surgeon.kept(node.outputs[0])
    if found is not None and axis <= found[0] < axis + indices.ndim:
        indices = np.compress(found[1], indices, axis=found[0] - axis)
    picked = _renumbered(keep)[indices]
    node.replace_input_with(1, surgeon.constant(f"{node.outputs[0].name}.picked", picked.astype(indices.dtype)))


@cuts("Pad")
def pad(surgeon: Surgeon, node: ir.Node) -> None:
    """Pad or crop as many channels as stay."""
    rank = _rank(surgeon, node.inputs[0])
    found = surgeon.kept(node.outputs[0]) or surgeon.kept(node.inputs[0])  # type: ignore[arg-type]
    amounts = pad_amounts(surgeon.old, node, rank)
    if found is None or amounts is None:
        return
    axis = found[0]
    before, after = amounts[axis]
    if (before, after) == (0, 0):
        return
    inner, outer = surgeon.keep(node.inputs[0], axis), surgeon.keep(node.outputs[0], axis)
    inner = np.ones(surgeon.old.shape(node.inputs[0])[axis], np.bool_) if inner is None else inner  # type: ignore[index,arg-type]
    outer = np.ones(surgeon.old.shape(node.outputs[0])[axis], np.bool_) if outer is None else outer  # type: ignore[index]
    amounts[axis] = (
        int(outer[:before].sum()) if before >= 0 else -int(inner[:-before].sum()),
        int(outer[len(outer) - after :].sum()) if after >= 0 else -int(inner[len(inner) + after :].sum()),
    )
    given = surgeon.old.ints(input_at(node, 3))
    axes = list(range(rank)) if given is None else [a % rank for a in given]
    entries = [(a, amounts[a][side]) for side in (0, 1) for a in axes]
    if surgeon.is_static(input_at(node, 1)):
        set_ints(surgeon, node, "pads", 1, [amount for _, amount in entries], since=11)
    else:
        patch_ints(surgeon, node, "pads", 1, [amount if a == axis else None for a, amount in entries])


def _renumbered(keep: Keep) -> NDArray[np.int64]:
    """Return the new number of each channel that stays."""
    return np.cumsum(keep, dtype=np.int64) - 1


def _rank(surgeon: Surgeon, value: ir.Value | None) -> int:
    shape = None if value is None else surgeon.old.shape(value)
    if shape is None:
        raise SurgeryError("the shape of a tensor that loses channels is not known")
    return len(shape)
