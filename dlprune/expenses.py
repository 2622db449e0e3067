"""What each layer of a network costs as a function of its widths: the terms that a ledger adds up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .cost import multiply_accumulates, weights_of
from .facts import Facts
from .ledger import Amounts, Term
from .nodes import is_standard
from .shapes import Shape
from .structure import CONVOLUTIONS, FIXED, Structure
from .structure.units import Ids

_NOBODY: Ids = np.zeros(0, np.int64)
#: One parameter per channel, whatever the rank of the tensor that they meet.
_PER_CHANNEL = frozenset({"BatchNormalization", "InstanceNormalization", "GroupNormalization"})


@dataclass(frozen=True)
class Widths:
    """The channels that a weight-bearing node reads and writes.

    Attributes:
        reads: unit of each channel that is read, FIXED where none leaves; empty where the number of channels that one
            kernel reads does not change (depthwise, or whole groups leave).
        makes: unit of each channel that is written.
        own: whether the weights make these channels; else they are rows of a matrix that a MatMul multiplies.
    """

    reads: Ids
    makes: Ids
    own: bool


def widths_of(node: ir.Node, facts: Facts, structure: Structure) -> Widths:
    """Return the widths of a Conv, ConvTranspose, Gemm or MatMul."""
    source, target = node.inputs[0], node.outputs[0]
    shape, out = _shape(facts, source), _shape(facts, target)
    is_convolution = node.op_type in CONVOLUTIONS
    read_axis, made_axis = (1, 1) if is_convolution else (len(shape) - 1, len(out) - 1)
    written = structure.tensors.get(target.name or "")
    own = written is None or written.axis == made_axis
    makes = np.full(out[made_axis] if out else 1, FIXED) if written is None else written.units
    if is_convolution and structure.whole_groups.get(target.name or "", False):
        return Widths(_NOBODY, makes, own)
    read = structure.tensors.get((source.name if source is not None else None) or "")
    reads = np.full(shape[read_axis], FIXED) if read is None or read.axis != read_axis else read.units
    return Widths(reads, makes, own)


def multiply_accumulate_terms(
    model: ir.Model, facts: Facts, structure: Structure, batch: int
) -> Iterator[tuple[ir.Node, Term]]:
    """Yield each layer with its multiply-accumulates per image; they add up to what graph_cost counts."""
    for node in _layers(model, facts):
        found = multiply_accumulates(node, facts)
        if found is not None and found[1]:
            widths = widths_of(node, facts, structure)
            yield node, _product(found[1] / batch, widths.reads, widths.makes)


def parameter_terms(model: ir.Model, facts: Facts, structure: Structure) -> Iterator[Term]:
    """Yield each weight tensor's number of elements; one that several nodes read counts where it is read first."""
    seen: set[str] = set()
    for node in _layers(model, facts):
        for value in weights_of(node, facts):
            if value.name not in seen:
                seen.add(value.name or "")
                yield _weight_term(node, value, facts, structure)


def _layers(model: ir.Model, facts: Facts) -> Iterator[ir.Node]:
    for node in model.graph:
        if not all(facts.is_const(output) for output in node.outputs):
            yield node


def _weight_term(node: ir.Node, value: ir.Value, facts: Facts, structure: Structure) -> Term:
    shape = _shape(facts, value)
    size = float(math.prod(shape))
    if is_standard(node) and node.op_type in (*CONVOLUTIONS, "Gemm", "MatMul"):
        widths = widths_of(node, facts, structure)
        if len(node.inputs) > 1 and value is node.inputs[1]:
            return _product(size, widths.reads, widths.makes if widths.own else _NOBODY)
        if node.op_type in CONVOLUTIONS:
            return _product(size, _NOBODY, widths.makes)
    tensor = structure.tensors.get(node.outputs[0].name or "")
    if tensor is None or not is_standard(node):
        return _product(size, _NOBODY, _NOBODY)
    if node.op_type in _PER_CHANNEL:
        return _product(size, _NOBODY, tensor.units if shape == (len(tensor.units),) else _NOBODY)
    axis = tensor.axis - len(tensor.shape) + len(shape)  # aligned at the last axis, as broadcasting does
    fits = axis >= 0 and len(tensor.units) > 1 and shape[axis] == len(tensor.units)
    return _product(size, _NOBODY, tensor.units if fits else _NOBODY)


def _product(amount: float, reads: Ids, makes: Ids) -> Term:
    """Return costs that grow with either width; `amount` now."""
    per_pair = amount / (max(len(reads), 1) * max(len(makes), 1))
    has_reads, has_makes = len(reads) > 0, len(makes) > 0

    def cost(read: Amounts, made: Amounts) -> Amounts:
        return per_pair * (read if has_reads else 1.0) * (made if has_makes else np.ones_like(made))

    return Term(cost, reads, makes)


def _shape(facts: Facts, value: ir.Value | None) -> Shape:
    shape = None if value is None else facts.shape(value)
    assert shape is not None
    return shape
