"""Quantised networks: recognised, so that they can be refused with what to do instead."""

from __future__ import annotations

import onnx_ir as ir

_OPERATORS = frozenset(
    {
        "ConvInteger",
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QuantizeLinear",
    }
)


def quantised_node(model: ir.Model) -> ir.Node | None:
    """Return the first node that rounds activations to integers or computes with them, None in a network of floats.

    Rounding has no gradient to score by. Weights that are stored in integers and turned into floats do not count.
    """
    for node in model.graph:
        if node.op_type in _OPERATORS or node.op_type.startswith("QLinear"):
            return node
    return None
