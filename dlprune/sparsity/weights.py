"""Which weights of a graph magnitude pruning takes, and how they are seen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import onnx_ir as ir

from ..classifier import Classifier
from ..facts import Facts, gather_facts
from ..nodes import int_attribute
from ..parameters import bad_value
from ..weights import Site, sites
from .view import View

_T = TypeVar("_T")

_PRUNED: Final = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True)
class SparseWeight:
    """A weight that masks are made for.

    Attributes:
        name: of the initializer.
        nodes: names of the nodes that read it.
        outputs: names of their first outputs.
        view: as a matrix.
        groups: groups of a ConvTranspose; else 1.
    """

    name: str
    nodes: tuple[str, ...]
    outputs: tuple[str, ...]
    view: View
    groups: int = 1

    @property
    def size(self) -> int:
        """Number of elements."""
        total = 1
        for dim in self.view.shape:
            total *= dim
        return total

    def fits(self, pattern: str) -> bool:
        """Tell whether a regular expression is found in the name of the weight or of a node that reads it."""
        return any(re.search(pattern, name) is not None for name in (self.name, *self.nodes))

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and numbers."""
        return {
            "name": self.name,
            "nodes": list(self.nodes),
            "outputs": list(self.outputs),
            "groups": self.groups,
            "shape": list(self.view.shape),
            "steps": [[kind, list(numbers)] for kind, numbers in self.view.steps],
            "inputs": self.view.inputs,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SparseWeight:
        """Invert to_json."""
        steps = tuple((str(kind), tuple(numbers)) for kind, numbers in data["steps"])
        view = View(tuple(data["shape"]), steps, data["inputs"])
        return cls(data["name"], tuple(data["nodes"]), tuple(data["outputs"]), view, data["groups"])


def prunable_weights(classifier: Classifier) -> tuple[SparseWeight, ...]:
    """Return the weights of Conv, ConvTranspose, Gemm and MatMul in graph order, each once.

    Depthwise kernels, biases, scales and statistics are not among them.
    """
    found: dict[str, SparseWeight] = {}
    facts: Facts | None = None
    for site in sites(classifier.model):
        node, name = site.node, site.source.name or ""
        if not site.is_kernel or node.op_type not in _PRUNED or _is_depthwise(site):
            continue
        if name in found:
            known = found[name]
            nodes, outputs = (*known.nodes, node.name or ""), (*known.outputs, node.outputs[0].name or "")
            found[name] = replace(known, nodes=nodes, outputs=outputs)
            continue
        if facts is None and site.value is not site.source:
            fixed = classifier.image.batch if classifier.image is not None else None
            facts = gather_facts(classifier.model, {classifier.input_name: classifier.input_shape(fixed or 1)})
        moves = _moves(site, facts)
        if moves is None:
            continue
        assert site.source.const_value is not None
        shape = tuple(site.source.const_value.shape.numpy())
        rank = len(_shape_after(shape, moves))
        if rank < 2:
            continue
        groups = int_attribute(node, "group", 1) if node.op_type == "ConvTranspose" else 1
        view = View.of(shape, moves, _order(site, rank))
        found[name] = SparseWeight(name, (node.name or "",), (node.outputs[0].name or "",), view, groups)
    return tuple(found.values())


def _shape_after(shape: tuple[int, ...], moves: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[int, ...]:
    for kind, numbers in moves:
        shape = numbers if kind == "reshape" else tuple(shape[axis] for axis in numbers)
    return shape


def _is_depthwise(site: Site) -> bool:
    """Tell whether each kernel of a convolution reads one channel of many."""
    groups = int_attribute(site.node, "group", 1)
    tensor = site.source.const_value
    if groups == 1 or tensor is None or len(tensor.shape) < 2:
        return False
    shape = tensor.shape.numpy()
    return shape[1] == 1 if site.node.op_type == "Conv" else shape[0] == groups


def _order(site: Site, rank: int) -> tuple[int, ...]:
    """Return the axes of what a node reads in the order positions …, inputs, outputs."""
    node, left = site.node, site.slot == 0
    if node.op_type == "Conv":
        return (*range(2, rank), 1, 0)
    if node.op_type == "ConvTranspose":
        return (*range(2, rank), 0, 1)
    swapped = left  # a matrix on the left has one row per output
    if node.op_type == "Gemm" and int_attribute(node, "transA" if left else "transB", 0):
        swapped = not swapped
    last = (rank - 1, rank - 2) if swapped else (rank - 2, rank - 1)
    return (*range(rank - 2), *last)


def _moves(site: Site, facts: Facts | None) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    """Return the steps from the stored weight to what its reader gets; None if a shape is not known."""
    moves: list[tuple[str, tuple[int, ...]]] = []
    value: ir.Value | None = site.value
    while value is not None and value is not site.source:
        node = value.producer()
        assert node is not None
        shape = None if facts is None else facts.shape(value)
        if node.op_type == "Transpose":
            if shape is None:
                return None
            order = node.attributes.get("perm")
            moves.append(("transpose", tuple(range(len(shape))[::-1] if order is None else order.as_ints())))
        elif node.op_type not in ("Identity", "Cast"):
            if shape is None:
                return None
            moves.append(("reshape", tuple(shape)))
        value = node.inputs[0]
    return tuple(reversed(moves))


def matched(
    parameter: str, entries: Sequence[tuple[str, _T]], weights: Sequence[SparseWeight], default: _T
) -> dict[str, _T]:
    """Return for each weight the value of the entry whose pattern fits it, or the default.

    Raises HOperatorError 7914, naming the parameter: two entries fit one weight, or one fits none.
    """
    for pattern, _ in entries:
        if not any(weight.fits(pattern) for weight in weights):
            names = ", ".join(repr(weight.name) for weight in weights[:8]) + (" …" if len(weights) > 8 else "")
            raise bad_value(parameter, pattern, f"it must fit a weight that is pruned or its node; weights are {names}")
    found: dict[str, _T] = {}
    for weight in weights:
        hits = [(pattern, value) for pattern, value in entries if weight.fits(pattern)]
        if len(hits) > 1:
            patterns = ", ".join(repr(pattern) for pattern, _ in hits)
            raise bad_value(
                parameter,
                patterns,
                f"only one entry may fit a weight, but these are all found in {weight.name!r} or its nodes "
                f"({', '.join(weight.nodes)}); patterns are searched for, so write '^conv1$' for the very name",
            )
        found[weight.name] = hits[0][1] if hits else default
    return found
