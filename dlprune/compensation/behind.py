"""What stands behind a consumer: where its bias is, which affine steps follow, and below what nothing matters."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..facts import Facts
from ..nodes import input_at, is_standard
from ..structure import CONVOLUTIONS
from .storage import value_of

Array = NDArray[np.float32]


def bias_place(node: ir.Node, facts: Facts) -> tuple[ir.Node, int] | None:
    """Return node and input index where the consumer's bias is or may be put; None where there is no place for one."""
    if node.op_type in CONVOLUTIONS:
        return node, 2
    if node.op_type == "Gemm":
        given = input_at(node, 2)
        return (node, 2) if given is None or facts.is_const(given) else None
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or uses[0].node.op_type != "Add":
        return None
    other = 1 - uses[0].idx
    added = uses[0].node.inputs[other]
    shape = None if added is None else facts.shape(added)
    width = (facts.shape(node.outputs[0]) or (0,))[-1]
    is_vector = shape is not None and shape[-1:] == (width,) and math.prod(shape) == width
    return (uses[0].node, other) if is_vector and facts.is_const(added) else None


def result_of(node: ir.Node, facts: Facts) -> ir.Value:
    """Return what a consumer gives together with its bias, which may be an addition of its own."""
    place = bias_place(node, facts)
    return (node if place is None else place[0]).outputs[0]


def follow(value: ir.Value) -> tuple[tuple[ir.Node, ...], ir.Value]:
    """Return the BatchNormalizations that a tensor goes through on its only way, and where it is then."""
    chain: list[ir.Node] = []
    while not value.is_graph_output():
        uses = list(value.uses())
        if len(uses) != 1 or uses[0].node.op_type != "BatchNormalization" or uses[0].idx != 0:
            break
        chain.append(uses[0].node)
        value = uses[0].node.outputs[0]
    return tuple(chain), value


def before(facts: Facts, chain: tuple[ir.Node, ...], values: Array) -> Array:
    """Return what must go into a chain of BatchNormalizations for these values to come out, float32 [R, O].

    Not a number where a scale is too small to tell.
    """
    for link in reversed(chain):
        scale, shift = affine(facts, link)
        usable = np.abs(scale) > 1e-3 * np.abs(scale).max(initial=0.0)
        values = np.where(usable, (values - shift) / np.where(usable, scale, 1.0), np.nan).astype(np.float32)
    return values


def rising(facts: Facts, chain: tuple[ir.Node, ...]) -> NDArray[np.bool_]:
    """Tell whether more comes out of a chain of BatchNormalizations if more goes in, bool [O], or [1] for no chain."""
    sign = np.ones(1, np.float32)
    for link in chain:
        sign = sign * np.sign(affine(facts, link)[0])
    found: NDArray[np.bool_] = sign > 0
    return found


def affine(facts: Facts, node: ir.Node) -> tuple[Array, Array]:
    """Return scale and shift of a BatchNormalization."""
    gamma, beta, mean, variance = (value_of(facts, node.inputs[i]).astype(np.float32) for i in range(1, 5))
    epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
    scale = gamma / np.sqrt(variance + np.float32(epsilon))
    return scale, beta - mean * scale


def flat_level(value: ir.Value, facts: Facts) -> float | None:
    """Return the level at or below which all readers give the same for every input; None if there is none."""
    if value.is_graph_output():
        return None
    levels = [_level(use.node, facts) if use.idx == 0 else None for use in value.uses()]
    known = [level for level in levels if level is not None]
    return min(known) if known and len(known) == len(levels) else None


def _level(node: ir.Node, facts: Facts) -> float | None:
    if not is_standard(node):
        return None
    if node.op_type == "Clip":
        if "min" in node.attributes:
            return node.attributes["min"].as_float()
        least = facts.const(input_at(node, 1)) if input_at(node, 1) is not None else None
        return None if least is None else float(least.reshape(-1)[0])
    if node.op_type == "HardSigmoid":
        alpha, beta = (
            node.attributes[name].as_float() if name in node.attributes else default
            for name, default in (("alpha", 0.2), ("beta", 0.5))
        )
        return -beta / alpha if alpha > 0 else None
    return {"Relu": 0.0, "HardSwish": -3.0}.get(node.op_type)
