"""Channel rules of the operators that move data without computing: they are run on the ids themselves."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ..nodes import int_attribute, is_standard, label, pad_amounts, slice_bounds, string_attribute
from ..shapes import Shape
from .channels import Channels
from .trace import Shuffle, Trace, is_data, moves
from .units import DATA, Ids


@moves("Transpose")
def transpose(trace: Trace, node: ir.Node) -> None:
    """Permute the axes."""
    source = _source(trace, node)
    if source is None:
        return
    perm = _permutation(node, len(source.shape))
    axis = None if source.axis is None else perm.index(source.axis)
    trace.put(node.outputs[0], source.reshaped(trace.shape(node.outputs[0]), axis))


def _permutation(node: ir.Node, rank: int) -> list[int]:
    return list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else list(reversed(range(rank)))


@moves("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(trace: Trace, node: ir.Node) -> None:
    """Lay the ids out in the new shape."""
    source = _source(trace, node)
    if source is None:
        return
    if any(trace.of(value) is not None for value in node.inputs[1:]):
        trace.give_up(node, f"{label(node)} takes its shape from the data")
        return
    if not _shuffle(trace, node, source):
        trace.put_array(node, node.outputs[0], _reshaped(source, trace.shape(node.outputs[0])))


#: A shuffle is checked on the number of every element; larger maps than this are taken for ordinary reshapes.
_SHUFFLE_ELEMENTS = 1 << 23
_SHUFFLE_NODES = 4


def _shuffle(trace: Trace, node: ir.Node, source: Channels) -> bool:
    """See a channel shuffle (Reshape, Transpose, Reshape) as one reordering, so that it couples nothing."""
    axis, shape = source.axis, source.shape
    if axis is None or node.op_type != "Reshape" or math.prod(shape) > _SHUFFLE_ELEMENTS:
        return False
    if trace.shape(node.outputs[0])[: axis + 1] == shape[: axis + 1]:
        return False
    chain = [node]
    while len(chain) < _SHUFFLE_NODES:
        value = chain[-1].outputs[0]
        uses = list(value.uses())
        if len(uses) != 1 or value.is_graph_output() or uses[0].idx != 0:
            return False
        following = uses[0].node
        if not _is_shuffling(trace, following):
            return False
        chain.append(following)
        if following.op_type == "Reshape" and trace.shape(following.outputs[0]) == shape:
            break
    numbers = np.arange(math.prod(shape), dtype=np.int32)
    moved = numbers.reshape(shape)
    for link in chain:
        if link.op_type == "Transpose":
            moved = moved.transpose(_permutation(link, moved.ndim))
        else:
            moved = moved.reshape(trace.shape(link.outputs[0]))
    if moved.shape != shape:
        return False
    order = moved[(0,) * axis + (slice(None),) + (0,) * (len(shape) - axis - 1)] // math.prod(shape[axis + 1 :])
    if not np.array_equal(moved, np.take(numbers.reshape(shape), order % shape[axis], axis)):
        return False
    result = chain[-1].outputs[0]
    inner = frozenset(link.outputs[0].name or "" for link in chain[:-1])
    trace.shuffles[result.name or ""] = Shuffle(node.inputs[0].name or "", axis, order.astype(np.int64), inner)  # type: ignore[union-attr]
    trace.done.update(chain[1:])
    trace.put(result, Channels(shape, axis, source.ids[order]))
    return True


def _is_shuffling(trace: Trace, node: ir.Node) -> bool:
    known = is_standard(node) and node.op_type in ("Reshape", "Transpose")
    constant = all(trace.facts.is_const(value) for value in node.inputs[1:])
    return known and constant and trace.facts.shape(node.outputs[0]) is not None


def _reshaped(source: Channels, shape: Shape) -> Ids:
    """Reshape the ids; leading and trailing axes that stay as they are keep their compact form."""
    old, array = source.shape, source.array()
    head = 0
    while head < min(len(old), len(shape)) and old[head] == shape[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(shape)) - head and old[-1 - tail] == shape[-1 - tail]:
        tail += 1
    last = len(old) - tail
    index = tuple(slice(0, 1) if (i < head or i >= last) and i != source.axis else slice(None) for i in range(len(old)))
    part = array[index]
    return part.reshape(part.shape[:head] + shape[head : len(shape) - tail] + part.shape[last:])


@moves("Concat")
def concat(trace: Trace, node: ir.Node) -> None:
    """Put ids one after the other; constants among the inputs stay for ever."""
    shape = trace.shape(node.outputs[0])
    axis = int_attribute(node, "axis", 1) % len(shape)
    parts: list[Channels] = []
    for value in node.inputs:
        known = trace.of(value)
        part_shape = None if value is None else trace.facts.shape(value)
        if part_shape is None:
            trace.give_up(node, f"the shape of an input of {label(node)} is not known")
            return
        trace.hold_channel_numbers(value, f"{label(node)} computes with its channel number")
        parts.append(Channels.plain(part_shape) if known is None else known)
    axes = {part.axis for part in parts if part.axis is not None}
    if not axes:
        trace.put(node.outputs[0], Channels.plain(shape))
    elif axes == {axis}:
        vectors = [np.full(p.shape[axis], DATA, np.int64) if p.axis is None else p.ids for p in parts]
        trace.put(node.outputs[0], Channels(shape, axis, np.concatenate(vectors)))
    elif len(axes) == 1 and None not in axes:
        other = axes.pop()
        assert other is not None
        data = [part for value, part in zip(node.inputs, parts, strict=True) if trace.of(value) is not None]
        vectors = [np.full(shape[other], DATA, np.int64) if p.axis is None else p.ids for p in data]
        for vector in vectors[1:]:
            trace.sets.unite(vectors[0], vector, f"{label(node)} joins it with data whose channels must stay")
        trace.put(node.outputs[0], Channels(shape, other, np.maximum.reduce(vectors)))
    else:
        trace.put_array(node, node.outputs[0], np.concatenate([part.array() for part in parts], axis))


@moves("Split")
def split(trace: Trace, node: ir.Node) -> None:
    """Cut the ids into pieces."""
    source = _source(trace, node)
    if source is None:
        return
    axis = int_attribute(node, "axis", 0) % len(source.shape)
    start = 0
    for output in node.outputs:
        shape = trace.facts.shape(output)
        if shape is None:  # an output that nobody reads may lack a name and so a shape
            trace.give_up(node, f"the shape of the output of {label(node)} is not known")
            return
        if source.axis == axis:
            trace.put_array(node, output, _column(source.ids[start : start + shape[axis]], axis, len(shape)))
            start += shape[axis]
        else:
            trace.put(output, source.reshaped(shape))


@moves("Slice")
def slice_(trace: Trace, node: ir.Node) -> None:
    """Cut out the ids."""
    source = _source(trace, node)
    if source is None:
        return
    cut = slice_bounds(trace.facts, node, len(source.shape))
    if cut is None:
        trace.give_up(node, f"the bounds of {label(node)} are computed from the data")
        return
    _take(trace, node, source, np.arange(source.shape[source.axis or 0])[cut[source.axis or 0]])


def _take(trace: Trace, node: ir.Node, source: Channels, positions: Ids) -> None:
    shape = trace.shape(node.outputs[0])
    if source.axis is None:
        trace.put(node.outputs[0], Channels.plain(shape))
    else:
        trace.put_array(node, node.outputs[0], _column(source.ids[positions], source.axis, len(shape)))


@moves("Gather")
def gather(trace: Trace, node: ir.Node) -> None:
    """Pick ids by constant indices."""
    source = _source(trace, node)
    if source is None:
        return
    axis = int_attribute(node, "axis", 0) % len(source.shape)
    indices = trace.facts.const(node.inputs[1])
    if indices is None:
        trace.give_up(node, f"the indices of {label(node)} are computed from the data")
        return
    trace.put_array(node, node.outputs[0], np.take(_shrunk(source, axis), indices, axis=axis))


@moves("Pad")
def pad(trace: Trace, node: ir.Node) -> None:
    """Channels that are padded with a constant get ids of their own and leave with what they are added to."""
    source = _source(trace, node)
    if source is None:
        return
    amounts = pad_amounts(trace.facts, node, len(source.shape))
    if amounts is None or any(trace.of(value) is not None for value in node.inputs[1:]):
        trace.give_up(node, f"the amounts of {label(node)} are computed from the data")
        return
    shape, axis = trace.shape(node.outputs[0]), source.axis
    if axis is None:
        axis = 1 if len(shape) > 1 else 0
        if amounts[axis] == (0, 0) or string_attribute(node, "mode", "constant") != "constant":
            trace.put(node.outputs[0], Channels.plain(shape))
            return
        source = Channels(source.shape, axis, np.full(source.shape[axis], DATA, np.int64))
    before, after = amounts[axis]
    ids = source.ids[max(-before, 0) : len(source.ids) - max(-after, 0)]
    before, after = max(before, 0), max(after, 0)
    if string_attribute(node, "mode", "constant") == "constant":
        ids = np.concatenate([trace.sets.fresh(before), ids, trace.sets.fresh(after)])
    elif before or after:
        trace.give_up(node, f"{label(node)} repeats channels")
        return
    trace.put(node.outputs[0], Channels(shape, axis, ids))


@moves("Expand")
def expand(trace: Trace, node: ir.Node) -> None:
    """Repeat along axes of length one."""
    source, shape = trace.of(node.inputs[0]), trace.shape(node.outputs[0])
    if source is not None and is_data(source) and _is_spread(source.shape, shape, 1):
        # All channels are the same one: each may leave with what it meets.
        trace.put(node.outputs[0], Channels(shape, 1, trace.sets.fresh(shape[1])))
        return
    source = _source(trace, node)
    if source is None:
        return
    if source.axis is not None and source.shape[source.axis] == shape[source.axis + len(shape) - len(source.shape)]:
        trace.put(node.outputs[0], source.reshaped(shape, source.axis + len(shape) - len(source.shape)))
    else:
        trace.put_array(node, node.outputs[0], np.broadcast_to(source.array(), shape))


def _is_spread(old: Shape, new: Shape, axis: int) -> bool:
    """Tell whether an axis of length one becomes longer."""
    own = axis + len(old) - len(new)
    return len(new) > axis and new[axis] > 1 and (own < 0 or old[own] == 1)


@moves("Tile")
def tile(trace: Trace, node: ir.Node) -> None:
    """Repeat whole axes."""
    source = _source(trace, node)
    repeats = trace.facts.ints(node.inputs[1])
    if source is None:
        return
    trace.hold_channel_numbers(node.inputs[1], f"{label(node)} computes with its channel number")
    if repeats is None:
        trace.give_up(node, f"the repeats of {label(node)} are computed from the data")
    elif source.axis is None:
        trace.put(node.outputs[0], Channels.plain(trace.shape(node.outputs[0])))
    else:
        ids = np.tile(source.ids, repeats[source.axis])
        trace.put(node.outputs[0], Channels(trace.shape(node.outputs[0]), source.axis, ids))


@moves("DepthToSpace", "SpaceToDepth")
def blocks(trace: Trace, node: ir.Node) -> None:
    """Exchange channels and space; the channels of one block stay together."""
    source = _source(trace, node)
    if source is None:
        return
    shape, size = trace.shape(node.outputs[0]), int_attribute(node, "blocksize", 1)
    if source.axis is None:
        trace.put(node.outputs[0], Channels.plain(shape))
    elif source.axis != 1:
        trace.give_up(node, f"{label(node)} mixes space along its channel axis")
    elif node.op_type == "SpaceToDepth":
        trace.put(node.outputs[0], Channels(shape, 1, np.tile(source.ids, size * size)))
    else:
        rows = source.ids
        column_first = string_attribute(node, "mode", "DCR") == "CRD"
        per_block = rows.reshape(-1, size * size) if column_first else rows.reshape(size * size, -1).T
        tied = np.ascontiguousarray(per_block)
        trace.sets.unite(
            np.repeat(tied[:, :1], tied.shape[1] - 1, axis=1),
            tied[:, 1:],
            f"{label(node)} joins it with data whose channels must stay",
        )
        trace.put(node.outputs[0], Channels(shape, 1, tied[:, 0].copy()))


def _source(trace: Trace, node: ir.Node) -> Channels | None:
    """Return the channels of the moved tensor; plain data stays plain and needs no rule."""
    source = trace.of(node.inputs[0])
    if source is None:
        trace.give_up(node, f"{label(node)} reads a constant")
        return None
    if is_data(source) and node.op_type != "Pad":
        for output in node.outputs:
            shape = trace.facts.shape(output)
            if shape is not None:
                trace.put(output, Channels.plain(shape))
        return None
    return source


def _column(ids: Ids, axis: int, rank: int) -> Ids:
    shape = [1] * rank
    shape[axis] = len(ids)
    return ids.reshape(shape)


def _shrunk(source: Channels, axis: int) -> Ids:
    """Return the ids with every axis of length one but the channel axis and `axis`."""
    index = tuple(slice(None) if i in (source.axis, axis) else slice(0, 1) for i in range(len(source.shape)))
    return source.array()[index]
