"""Literals that speak of channel numbers: target shapes of Reshape, Expand and Resize."""

from __future__ import annotations

import onnx_ir as ir

from ..nodes import input_at, int_attribute
from ..shapes import Shape
from .surgeon import Surgeon, mends, patch_ints, set_ints


@mends("Reshape")
def reshape(surgeon: Surgeon, node: ir.Node) -> None:
    """Change the entries that name a channel number; a computed shape gives way to a literal."""
    wanted, literal = surgeon.wanted(node.outputs[0]), surgeon.old.ints(input_at(node, 1))
    if wanted is None or literal is None:
        return
    if surgeon.is_static(input_at(node, 1)):
        entries = [new if old > 0 else old for old, new in zip(literal, wanted, strict=True)]
        set_ints(surgeon, node, "shape", 1, entries, since=5)
        if surgeon.renew(node):
            return
    zero_copies = int_attribute(node, "allowzero", 0) == 0
    source = surgeon.new.shape(node.inputs[0]) or ()  # type: ignore[arg-type]
    dynamic = [axis for axis in range(len(wanted)) if surgeon.varies(node.outputs[0], axis)]
    entries = list(wanted)
    for axis in dynamic:
        copies = zero_copies and axis < len(source) and source[axis] == wanted[axis]
        entries[axis] = 0 if copies and surgeon.varies(node.inputs[0], axis) else -1  # type: ignore[arg-type]
    if entries.count(-1) <= 1:
        set_ints(surgeon, node, "shape", 1, entries, since=5)
    else:
        patch_ints(
            surgeon, node, "shape", 1, [None if axis in dynamic else wanted[axis] for axis in range(len(wanted))]
        )
    surgeon.renew(node)


@mends("Squeeze")
def squeeze(surgeon: Surgeon, node: ir.Node) -> None:
    """Without axes every axis of length one goes, also one that has only now become so: say which are meant."""
    shape = surgeon.old.shape(node.inputs[0]) or ()  # type: ignore[arg-type]
    if "axes" not in node.attributes and input_at(node, 1) is None:
        set_ints(surgeon, node, "axes", 1, [axis for axis, size in enumerate(shape) if size == 1], since=13)
        surgeon.renew(node)


@mends("Expand")
def expand(surgeon: Surgeon, node: ir.Node) -> None:
    """Dimensions that are there already need no number; others get the new one."""
    wanted, source = surgeon.wanted(node.outputs[0]), surgeon.new.shape(node.inputs[0])  # type: ignore[arg-type]
    if wanted is None or source is None:
        return
    aligned: Shape = (1,) * (len(wanted) - len(source)) + source
    entries = [1 if have == new else new for have, new in zip(aligned, wanted, strict=True)]
    dynamic = [axis for axis, entry in enumerate(entries) if entry != 1 and surgeon.varies(node.outputs[0], axis)]
    if not dynamic:
        set_ints(surgeon, node, "shape", 1, entries, since=8)
    elif len(surgeon.old.ints(input_at(node, 1)) or ()) == len(entries):
        patch_ints(surgeon, node, "shape", 1, [None if axis in dynamic else e for axis, e in enumerate(entries)])
    surgeon.renew(node)


@mends("Resize")
def resize(surgeon: Surgeon, node: ir.Node) -> None:
    """The channel entry of literal target sizes."""
    wanted, sizes = surgeon.wanted(node.outputs[0]), surgeon.old.ints(input_at(node, 3))
    if wanted is None or sizes is None:
        return
    axes = [int(a) for a in node.attributes["axes"].as_ints()] if "axes" in node.attributes else range(len(wanted))
    if not any(surgeon.varies(node.outputs[0], axis) for axis in axes):
        set_ints(surgeon, node, "sizes", 3, [wanted[axis] for axis in axes], since=11)
    else:
        patch_ints(surgeon, node, "sizes", 3, [None if surgeon.varies(node.outputs[0], a) else wanted[a] for a in axes])
    surgeon.renew(node)
