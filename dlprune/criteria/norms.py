"""How large the weights of each unit's kernels are; what the modes 'l1' and 'l2' share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..facts import Facts, gather_facts
from ..nodes import int_attribute, is_standard
from ..selection import Scores
from ..structure import FIXED
from .criterion import Network

#: Axis of the made channels in a layer's output, by operator.
_AXES = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "MatMul": -1}

#: So many weights are looked at in double precision at a time.
_PART = 1 << 22

#: Takes the weights of kernels, float64 [O, n]; returns one number per kernel, float64 [O].
Norm = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def kernel_norms(network: Network, norm: Norm) -> Scores:
    """Return for each unit the sum of a norm over its kernels and dense features, float64 [U].

    Biases and what follows a convolution do not count.
    """
    model, structure = network.classifier.model, network.structure
    facts = gather_facts(model, {network.classifier.input_name: network.shape})
    scores = np.zeros(structure.unit_num)
    for node in model.graph:
        made = structure.tensors.get(node.outputs[0].name or "") if node.outputs else None
        if made is None or not is_standard(node) or node.op_type not in _AXES:
            continue
        kernels = _kernels(node, facts)
        own = made.units != FIXED
        if kernels is None or not own.any() or _AXES[node.op_type] % len(made.shape) != made.axis:
            continue
        part = max(_PART // max(kernels.shape[1], 1), 1)
        parts = (kernels[start : start + part] for start in range(0, len(kernels), part))
        norms = np.concatenate([norm(rows.astype(np.float64)) for rows in parts])
        np.add.at(scores, made.units[own], norms[own])
    return scores


def _kernels(node: ir.Node, facts: Facts) -> NDArray[Any] | None:
    """Return a layer's weights with one row per made channel, [O, n]; None if they are computed from data."""
    weight = facts.const(node.inputs[1])
    if weight is None:
        return None
    if node.op_type == "ConvTranspose":  # [C, O / groups, …]
        groups = int_attribute(node, "group", 1)
        grouped = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
        return grouped.transpose(0, 2, 1, 3).reshape(groups * weight.shape[1], -1)
    if node.op_type == "MatMul" or (node.op_type == "Gemm" and not int_attribute(node, "transB", 0)):
        return weight.T
    return weight.reshape(len(weight), -1)
