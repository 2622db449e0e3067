"""Quantised networks: recognised, so that they can be refused with what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from .errors import H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, HOperatorError
from .nodes import label

if TYPE_CHECKING:
    from .classifier import Classifier

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


def refuse_converted(classifier: Classifier) -> None:
    """Raise HOperatorError 7912 if a model was made by optimize_dl_model_for_inference, or is quantised anyway."""
    if classifier.params.precision_is_converted == "true":
        raise HOperatorError(
            H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
            "This model was made by optimize_dl_model_for_inference ('precision_is_converted'). Prune or train the "
            "model that it was made from, then convert the result.",
        )
    refuse_quantised(classifier.model)


def refuse_quantised(model: ir.Model) -> None:
    """Raise HOperatorError 7912 if a network is quantised."""
    node = quantised_node(model)
    if node is not None:
        raise HOperatorError(
            H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
            f"This model is quantised ({label(node)}), and rounding has no gradient. Prune or train the model of "
            "floating-point numbers that it was made from, then quantise the result.",
        )
