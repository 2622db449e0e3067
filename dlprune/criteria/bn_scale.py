"""Mode 'bn_scale': what a batch normalisation multiplies a kernel's output with."""

from __future__ import annotations

from collections import deque

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..errors import H_ERR_DL_PRUNING_UNSUPPORTED_BY_CNN, HOperatorError
from ..facts import Facts, gather_facts
from ..nodes import is_standard
from ..selection import Scores
from ..structure import FIXED, Layer, Structure
from .criterion import Network, Weighed, criterion

_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@criterion("bn_scale")
class BatchNormScale(Weighed):
    """|gamma| of the BatchNormalization behind each convolution, summed over the unit's kernels.

    Where a kernel's output passes activations, poolings or concatenations first, the next BatchNormalization counts;
    of several the first in graph order.
    Source: Liu et al., Learning Efficient Convolutional Networks through Network Slimming, 2017.
    """

    def weigh(self, network: Network) -> Scores:
        """Return one score per unit, float64 [U].

        Raises HOperatorError 7981 if there is no BatchNormalization behind a convolution that can lose kernels.
        """
        model, structure = network.classifier.model, network.structure
        facts = gather_facts(model, {network.classifier.input_name: network.shape})
        values = {output.name or "": output for node in model.graph for output in node.outputs}
        order = {node: position for position, node in enumerate(model.graph)}
        scores = np.zeros(structure.unit_num)
        for layer in structure.layers:
            if np.all(layer.units == FIXED):
                continue
            found = sorted(_next_normalizations(values[layer.output]), key=order.__getitem__)
            scales = [scale for node in found if (scale := _scales(node, facts, structure)) is not None]
            if scales:
                _add(scores, layer.units, scales)
            elif not layer.reason:
                raise _no_normalization(layer)
        return scores


def _next_normalizations(value: ir.Value) -> list[ir.Node]:
    """Return the batch normalisations that a tensor reaches before it reaches another layer."""
    found, pending, seen = [], deque([value]), {value}
    while pending:
        for node in pending.popleft().consumers():
            if is_standard(node) and node.op_type == "BatchNormalization":
                found.append(node)
            elif not (is_standard(node) and node.op_type in _LAYERS):
                new = [output for output in node.outputs if output not in seen]
                seen.update(new)
                pending.extend(new)
    return list(dict.fromkeys(found))


def _scales(node: ir.Node, facts: Facts, structure: Structure) -> NDArray[np.float64] | None:
    """Return the mean |gamma| of each unit that a BatchNormalization reads, float64 [U], NaN for others."""
    source = node.inputs[0]
    read = None if source is None else structure.tensors.get(source.name or "")
    gamma = facts.const(node.inputs[1])
    if read is None or read.axis != 1 or gamma is None:
        return None
    own = read.units != FIXED
    sums, counts = np.zeros(structure.unit_num), np.zeros(structure.unit_num)
    np.add.at(sums, read.units[own], np.abs(gamma.astype(np.float64))[own])
    np.add.at(counts, read.units[own], 1.0)
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)


def _add(scores: Scores, units: NDArray[np.int64], scales: list[NDArray[np.float64]]) -> None:
    """Add each kernel's scale in the first normalisation that reads it."""
    for unit in units[units != FIXED]:
        known = [scale[unit] for scale in scales if not np.isnan(scale[unit])]
        scores[unit] += known[0] if known else 0.0


def _no_normalization(layer: Layer) -> HOperatorError:
    return HOperatorError(
        H_ERR_DL_PRUNING_UNSUPPORTED_BY_CNN,
        f"Mode 'bn_scale' needs a BatchNormalization behind every convolution that can lose kernels, but there is none "
        f"behind {layer.name!r}. Exporters fold it into the convolution by default: export in training mode or without "
        "folding, or choose another mode such as 'oracle' or 'l2'.",
    )
