"""How a batch is divided for scoring: into equal parts, several at a time, each on threads of its own.

ONNX Runtime's own threads share every single operator; hundreds of small operators then cost as many meetings. Parts of
a batch need none, and their smaller maps leave memory alone.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import onnx_ir as ir

from .facts import Facts

#: A part reads all weights once: what it computes should be so many times as large.
_MAPS_PER_WEIGHT = 5


@dataclass(frozen=True)
class Division:
    """Images per part, parts at a time, and threads of each (0 = as many as there are processors)."""

    images: int
    workers: int = 1
    threads: int = 0


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def divide(model: ir.Model, facts: Facts, input_name: str, batch: int) -> Division:
    """Return how to divide a batch of a network that takes any number of images.

    Args:
        model: the network.
        facts: its shapes at any number of images.
        input_name: its image input, batch first.
        batch: number of images.
    """
    count = processors()
    if batch == 1 or count == 1:
        return Division(batch)
    most = math.ceil(batch / count)
    rounds = math.ceil(batch / (count * min(most, _worthwhile(model, facts, input_name))))
    images = math.ceil(batch / (count * rounds))
    workers = min(count, math.ceil(batch / images))
    return Division(images, workers, count // workers)


def _worthwhile(model: ir.Model, facts: Facts, input_name: str) -> int:
    """Return from how many images on their maps outweigh the weights."""
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    known = facts.shape(input_name) or (1,)
    return max(math.ceil(_MAPS_PER_WEIGHT * weights * known[0] / max(map_bytes(model, facts), 1)), 1)


def map_bytes(model: ir.Model, facts: Facts) -> int:
    """Return the size of everything that a network computes, for as many images as its facts are for."""
    total = 0
    for node in model.graph:
        for output in node.outputs:
            shape, dtype = facts.shape(output), facts.dtype(output)
            if shape is not None and dtype is not None and not facts.is_const(output):
                total += math.prod(shape) * dtype.bitwidth // 8
    return total
