"""The walk that removes units: cut the weights of each node, then mend what still speaks of the old channel numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common as passes

from ..facts import Facts, gather_facts
from ..nodes import int_attribute, is_standard, label, opset, subgraphs
from ..shapes import Shape
from ..structure import Structure

Keep = NDArray[np.bool_]
Rule = Callable[["Surgeon", ir.Node], None]

_CUTS: dict[str, Rule] = {}
_MENDS: dict[str, Rule] = {}


class SurgeryError(Exception):
    """A node that cannot be given its new shape; the model is thrown away."""


def cuts(op_types: str) -> Callable[[Rule], Rule]:
    """Register the rule that cuts the weights (and picks) of operators; runs where a channel leaves input or output."""

    def register(rule: Rule) -> Rule:
        _CUTS.update(dict.fromkeys(op_types.split(), rule))
        return rule

    return register


def mends(op_types: str) -> Callable[[Rule], Rule]:
    """Register the rule that mends the literals of operators; runs where the output has not got its new shape."""

    def register(rule: Rule) -> Rule:
        _MENDS.update(dict.fromkeys(op_types.split(), rule))
        return rule

    return register


class Surgeon:
    """One removal of units from a copy of a model.

    Attributes:
        model: the copy that is worked on.
        old: facts of the original.
        new: facts of the copy, known up to the node at work.
    """

    def __init__(
        self,
        model: ir.Model,
        facts: Facts,
        structure: Structure,
        gone: NDArray[np.bool_],
        other_shapes: Mapping[str, Shape],
    ) -> None:
        self._original = model
        self._other_shapes = other_shapes
        self.model = model.clone()
        self.old = facts
        self.new = facts.begun(self.model)
        self._structure = structure
        self._gone = gone
        self._cut: dict[tuple[str, bytes], ir.Value] = {}
        self._like: dict[str, str] = {}  # tensor that surgery has put in → one of the same channels
        self._kept: dict[str, tuple[int, Keep] | None] = {}
        self._shuffled = {name: end for end, s in structure.shuffles.items() if self._loses(end) for name in s.inner}

    def operate(self) -> ir.Model:
        """Remove the units and return the copy."""
        for node in list(self.model.graph):
            self._treat(node)
        self._rename()
        passes.RemoveUnusedNodesPass()(self.model)
        _forget_shapes(self.model)
        return self.model

    def _treat(self, node: ir.Node) -> None:
        if all(self.old.is_const(output) for output in node.outputs):
            self.new.add_node(node)
            return
        if node.outputs[0].name in self._shuffled:
            return  # gives way to the Gather at the end of its shuffle
        if node.outputs[0].name in self._shuffled.values():
            self._shuffle(node)
            return
        touched = [*node.inputs, *node.outputs]
        changed = any(value is not None and self.kept(value) is not None for value in touched)
        rule = _CUTS.get(node.op_type)
        if changed and rule is not None:
            rule(self, node)
            if node.graph is None:
                return  # another one has taken its place
        if not changed or node.op_type not in _MENDS:
            self._restore(node)
        if not changed:
            for output in node.outputs:
                self.new.add_type(output, self.old)
            return
        self.new.add_node(node)
        if self.fits(node):
            return
        if (mend := _MENDS.get(node.op_type)) is not None:
            mend(self, node)
        self._require_fit(node)

    def _restore(self, node: ir.Node) -> None:
        """Keep shapes and bounds of a node that loses nothing, where the graph computes them from one that does."""
        for index, value in enumerate(node.inputs):
            if value is None or not self._is_stale(value):
                continue
            before, after = self.old.const(value), self.new.const(value)
            if before is None or after is None:
                raise SurgeryError(f"the constant '{value.name}' cannot be computed")
            if np.array_equal(before, after):
                continue
            if self._is_lasting(value, before):
                node.replace_input_with(index, self.constant(f"{value.name}.kept", before))
            elif node.op_type in _MENDS:
                _MENDS[node.op_type](self, node)
                self._require_fit(node)
            else:
                self._restore_entries(node, index, value)

    def _restore_entries(self, node: ir.Node, index: int, value: ir.Value) -> None:
        """Write down the numbers that have changed, if they are the same for every size of the image."""
        facts = (self.old, self.new, self._other or self.old)
        old, new, other = (known.ints(value) or [] for known in facts)
        if not len(old) == len(new) == len(other) or self.old.shape(value) != (len(old),):
            raise SurgeryError(f"'{value.name}' follows a number of channels")
        if any(o != n and o != t for o, n, t in zip(old, new, other, strict=True)):
            raise SurgeryError(f"'{value.name}' follows a number of channels and the size of the image at once")
        patch_ints(self, node, "kept", index, [None if o == n else o for o, n in zip(old, new, strict=True)])

    def _is_stale(self, value: ir.Value) -> bool:
        """Tell whether a constant is computed from the shape of a tensor that loses channels."""
        stack, seen = [value], {value}
        while stack:
            item = stack.pop()
            maker = item.producer()
            if maker is None or not self.old.is_const(item):
                continue
            if maker.op_type in ("Shape", "Size"):
                source = maker.inputs[0]
                if source is not None and self.kept(source) is not None:
                    return True
                continue
            new = [source for source in maker.inputs if source is not None and source not in seen]
            seen.update(new)
            stack.extend(new)
        return False

    def _require_fit(self, node: ir.Node) -> None:
        if not self.fits(node):
            raise SurgeryError(
                f"{label(node)} would give the shape {self.new.shape(node.outputs[0])} instead of "
                f"{self.wanted(node.outputs[0])}"
            )

    def _loses(self, name: str) -> bool:
        return self._structure.kept(name, self._gone) is not None

    def _shuffle(self, node: ir.Node) -> None:
        """Put a Gather in the place of a channel shuffle that has become irregular."""
        result = node.outputs[0]
        shuffle = self._structure.shuffles[result.name or ""]
        source = node.inputs[0]
        while source is not None and source.name in shuffle.inner and (maker := source.producer()) is not None:
            source = maker.inputs[0]
        keep = self.keep(source, shuffle.axis)
        assert source is not None
        assert keep is not None
        picked = (np.cumsum(keep, dtype=np.int64) - 1)[shuffle.order[keep[shuffle.order]]]
        self.replace(node, "Gather", [source, self.constant(f"{result.name}.picked", picked)], axis=shuffle.axis)

    # What rules use.

    def kept(self, value: ir.Value) -> tuple[int, Keep] | None:
        """Return channel axis and mask of what stays of a tensor, or None if nothing leaves it."""
        name = value.name or ""
        name = self._like.get(name, name)
        if name not in self._kept:
            self._kept[name] = self._structure.kept(name, self._gone)
        return self._kept[name]

    def liken(self, added: ir.Value, value: ir.Value) -> None:
        """Declare that a tensor that has been put in has the channels of another one."""
        self._like[added.name or ""] = value.name or ""

    def keep(self, value: ir.Value | None, axis: int) -> Keep | None:
        """Return the mask of what stays along one axis, or None if nothing leaves there."""
        found = None if value is None else self.kept(value)
        return found[1] if found is not None and found[0] == axis else None

    def has_whole_groups(self, node: ir.Node) -> bool:
        """Tell whether whole groups leave a grouped convolution."""
        return self._structure.whole_groups[node.outputs[0].name or ""]

    def wanted(self, value: ir.Value) -> Shape | None:
        """Return the shape that a tensor must get."""
        shape, found = self.old.shape(value), self.kept(value)
        if shape is None or found is None:
            return shape
        axis, keep = found
        return (*shape[:axis], int(keep.sum()), *shape[axis + 1 :])

    def fits(self, node: ir.Node) -> bool:
        """Tell whether a node's outputs have the shapes that they must get; further ones that nobody reads are free."""
        outputs = [o for i, o in enumerate(node.outputs) if i == 0 or o.uses() or o.is_graph_output()]
        return all(self.new.shape(output) == self.wanted(output) for output in outputs if output.name)

    def varies(self, value: ir.Value, axis: int) -> bool:
        """Tell whether a dimension follows the input's dynamic dimensions, so that no literal may replace it."""
        other = None if self._other is None else self._other.shape(value)
        shape = self.old.shape(value)
        return other is not None and shape is not None and other[axis] != shape[axis]

    def is_static(self, value: ir.Value | None) -> bool:
        """Tell whether a constant keeps its value when the input's dynamic dimensions change."""
        if value is None or value.is_initializer() or self._other is None:
            return True
        return self._other.ints(value) == self.old.ints(value)

    @cached_property
    def _other(self) -> Facts | None:
        return gather_facts(self._original, self._other_shapes) if self._other_shapes else None

    def cut(self, node: ir.Node, index: int, keeps: Mapping[int, Keep | None]) -> None:
        """Replace a constant input by its slice; nodes that want the same slice share it."""
        value = node.inputs[index] if index < len(node.inputs) else None
        wanted = {axis: keep for axis, keep in sorted(keeps.items()) if keep is not None}
        if value is None or not wanted or all(keep.all() for keep in wanted.values()):
            return
        key = (value.name or "", b"".join(bytes([axis]) + keep.tobytes() for axis, keep in wanted.items()))
        if key not in self._cut:
            self._cut[key] = (
                self._filled(node, value, wanted)
                or self._dequantised(node, value, wanted)
                or self._sliced(node, value, wanted)
            )
        node.replace_input_with(index, self._cut[key])

    def _sliced(self, node: ir.Node, value: ir.Value, keeps: Mapping[int, Keep]) -> ir.Value:
        array = self.old.const(value)
        if array is None:
            raise SurgeryError(f"the constant '{value.name}' cannot be computed")
        if not self._is_lasting(value, array):
            for axis, keep in keeps.items():
                picked = self.constant(f"{value.name}.picked", np.flatnonzero(keep))
                value = self.insert_before(node, "Gather", [value, picked], axis=axis)
            return value
        for axis, keep in keeps.items():
            array = array.take(np.flatnonzero(keep), axis=axis, mode="clip")  # bounds need not be checked
        return self.constant(f"{value.name}.kept", array)

    def _is_lasting(self, value: ir.Value, array: NDArray[Any]) -> bool:
        """Tell whether a constant stays the same when the input's dynamic dimensions change."""
        if value.is_initializer() or self._other is None:
            return True
        other = self._other.const(value)
        return other is not None and np.array_equal(other, array)

    def _dequantised(self, node: ir.Node, value: ir.Value, keeps: Mapping[int, Keep]) -> ir.Value | None:
        """Cut a weight that is stored in integers without turning it into floats."""
        maker = value.producer()
        if maker is None or maker.op_type != "DequantizeLinear" or int_attribute(maker, "block_size", 0):
            return None
        rank = len(self.old.shape(value) or ())
        along = int_attribute(maker, "axis", 1) % max(rank, 1)
        small = ir.node(
            "DequantizeLinear",
            list(maker.inputs),
            dict(maker.attributes),
            outputs=[ir.Value(name=self._fresh_name(f"{value.name}.kept"), type=value.type)],
        )
        node.prepend(small)
        for index, quantised in enumerate(maker.inputs):
            if quantised is not None and self.old.shape(quantised) not in ((), (1,)):
                self.cut(small, index, keeps if index == 0 else {0: keeps.get(along)})
        self.new.add_node(small)
        return small.outputs[0]

    def _filled(self, node: ir.Node, value: ir.Value, keeps: Mapping[int, Keep]) -> ir.Value | None:
        """Cut a weight that is one number repeated (ConstantOfShape) without writing it out."""
        maker = value.producer()
        shape = self.old.shape(value)
        if maker is None or maker.op_type != "ConstantOfShape" or shape is None:
            return None
        for axis, keep in keeps.items():
            shape = (*shape[:axis], int(keep.sum()), *shape[axis + 1 :])
        small = ir.node(
            "ConstantOfShape",
            [self.constant(f"{value.name}.shape", np.array(shape, np.int64))],
            dict(maker.attributes),
            outputs=[ir.Value(name=self._fresh_name(f"{value.name}.kept"), type=value.type)],
        )
        node.prepend(small)
        self.new.add_node(small)
        return small.outputs[0]

    def constant(self, name: str, array: NDArray[Any]) -> ir.Value:
        """Add an initializer and return it."""
        name = self._fresh_name(name)
        tensor = ir.Tensor(np.asarray(array, order="C"), name=name)  # a number stays one
        value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.model.graph.register_initializer(value)
        self.new.add_initializer(value)
        return value

    def insert_before(self, node: ir.Node, op_type: str, inputs: list[ir.Value], **attributes: int) -> ir.Value:
        """Put a new node before another one and return its output."""
        name = self._fresh_name(f"{node.outputs[0].name}.{op_type.lower()}")
        added = ir.node(op_type, inputs, attributes, outputs=[ir.Value(name=name)], name=name)
        node.prepend(added)
        self.new.add_node(added)
        return added.outputs[0]

    def replace(self, node: ir.Node, op_type: str, inputs: list[ir.Value], **attributes: int) -> None:
        """Let a new node take the place of another one, under the same names."""
        old, name = node.outputs[0], node.outputs[0].name or ""
        new = ir.Value(name=name, type=old.type)
        old.name = self._fresh_name(f"{name}.replaced")
        added = ir.node(op_type, inputs, attributes, outputs=[new], name=node.name)
        node.prepend(added)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        self.model.graph.remove(node, safe=True)
        self.new.add_node(added)
        self._require_fit(added)

    def renew(self, node: ir.Node) -> bool:
        """Work out a node's shapes again after a change and tell whether they fit."""
        self.new.add_node(node)
        return self.fits(node)

    def _fresh_name(self, wish: str) -> str:
        name, count = wish, 1
        while self.new.shape(name) is not None or self.old.shape(name) is not None:
            count += 1
            name = f"{wish}_{count}"
        return name

    def _rename(self) -> None:
        """Let a slice take over the name of the weight that it replaced, where nobody reads that any more."""
        by_name = {(value.name or ""): value for value in self.model.graph.initializers.values()}
        for (name, _), value in self._cut.items():
            original = by_name.get(name)
            if original is None or original.uses() or original.is_graph_output() or not value.is_initializer():
                continue
            del self.model.graph.initializers[name]
            by_name.pop(name)
            value.name = name


def set_ints(surgeon: Surgeon, node: ir.Node, name: str, index: int, values: list[int], *, since: int) -> None:
    """Write integers where the opset keeps them: in an attribute, or from opset `since` on in an input."""
    if opset(surgeon.model) < since:
        node.attributes[name] = ir.AttrInt64s(name, values)
        return
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, surgeon.constant(f"{node.outputs[0].name}.{name}", np.array(values, np.int64)))


def patch_ints(surgeon: Surgeon, node: ir.Node, name: str, index: int, values: Sequence[int | None]) -> None:
    """Change some entries of an integer vector that the graph computes; None leaves an entry as it is computed."""
    computed = node.inputs[index]
    assert computed is not None
    dtype = surgeon.old.dtype(computed) or ir.DataType.INT64
    parts: list[ir.Value] = []
    for kept, run in itertools.groupby(enumerate(values), key=lambda entry: entry[1] is None):
        positions, literals = zip(*run, strict=True)
        array = np.array(positions) if kept else np.array(literals, dtype.numpy())
        part = surgeon.constant(f"{node.outputs[0].name}.{name}", array)
        parts.append(surgeon.insert_before(node, "Gather", [computed, part], axis=0) if kept else part)
    node.replace_input_with(index, surgeon.insert_before(node, "Concat", parts, axis=0))


def _forget_shapes(model: ir.Model) -> None:
    """Drop stale shapes of inner tensors; what control flow and foreign operators give has not changed."""
    for node in model.graph:
        if not is_standard(node) or any(True for _ in subgraphs(node)):
            continue
        for output in node.outputs:
            if not output.is_graph_output():
                output.shape = None
