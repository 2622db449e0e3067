"""What the original network computes on the calibration images, at the rows that the refit looks at."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..facts import Facts
from ..nodes import input_at, is_standard, read_by
from ..structure import Structure
from .behind import before, flat_level, follow, result_of, rising
from .rows import Regression
from .stages import Stages

Array = NDArray[np.float32]

#: Rows per consumer: sampled output positions over all calibration images.
ROWS = 6000
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True)
class Shortcut:
    """A consumer whose output goes, through per-channel scales and shifts, into one addition only.

    `total` is the addition's output, `other` its other operand, `chain` the nodes in between, `level` as in Target.
    """

    total: str
    other: str
    chain: tuple[ir.Node, ...]
    level: float | None


@dataclass(frozen=True)
class Target:
    """The rows of one consumer: positions per image int64 [n, r], original outputs with bias float32 [n·r, O].

    `result` is the tensor's name; `total` holds the original sum of the addition that the consumer feeds, if any;
    `weight` is one over the summed variance of the outputs; at or below `level`, per output float32 [O], the activation
    behind is flat.
    """

    result: str
    positions: NDArray[np.int64]
    outputs: Array
    total: Array | None
    weight: float
    level: Array | None


@dataclass(frozen=True)
class Reference:
    """Targets and shortcuts of all weighted consumers, by output name."""

    targets: dict[str, Target]
    shortcuts: dict[str, Shortcut]


def look_up(
    model: ir.Model, facts: Facts, structure: Structure, feeds: tuple[str, Array], batch: int, facts_batch: int
) -> Reference:
    """Run the original network once over the calibration images and keep the rows of every consumer.

    Args:
        model: the original network.
        facts: its facts, worked out for `facts_batch` images.
        structure: its units.
        feeds: name of the image input, and the calibration images float32 [n, …].
        batch: images per run.
        facts_batch: see `facts`.
    """
    nodes = {node.outputs[0].name or "": node for node in model.graph}
    consumers = [nodes[consumer.output] for consumer in structure.consumers]
    weighted = [node for node in consumers if is_standard(node) and node.op_type in WEIGHTED]
    weighted = [node for node in weighted if facts.is_const(node.inputs[1])]  # data times data has none
    order = fit_order(model)
    shortcuts = {
        name: found
        for node in weighted
        if (found := _shortcut(node, facts, order)) is not None
        for name in [_name(node)]
    }
    results = {_name(node): result_of(node, facts) for node in weighted}
    wanted = {result.name or "" for result in results.values()} | {shortcut.total for shortcut in shortcuts.values()}
    stages = Stages(model, facts, wanted, feeds, batch)
    targets: dict[str, Target] = {}
    for index, node in enumerate(sorted(weighted, key=order.__getitem__)):
        regression = Regression(node, facts, facts_batch)
        positions = _sample(len(feeds[1]), regression.positions, index)
        name = _name(node)
        result = results[name].name or ""
        outputs = gather(stages, result, regression, positions)
        total = gather(stages, shortcuts[name].total, regression, positions) if name in shortcuts else None
        variance = float(outputs.var(axis=0, dtype=np.float64).sum())
        weight = 1.0 / variance if variance > 0 else 0.0
        level = None if name in shortcuts else _level(results[name], facts, outputs.shape[1])
        targets[name] = Target(result, positions, outputs, total, weight, level)
        stages.release(result)
    return Reference(targets, shortcuts)


def _level(value: ir.Value, facts: Facts, width: int) -> Array | None:
    """Return the level below which a consumer's outputs do not matter, float32 [O], −∞ where all of them do."""
    chain, end = follow(value)
    level = flat_level(end, facts)
    if level is None:
        return None
    found = before(facts, chain, np.full((1, width), level, np.float32))[0]
    return np.where(rising(facts, chain) & np.isfinite(found), found, -np.inf).astype(np.float32)


def fit_order(model: ir.Model) -> dict[ir.Node, int]:
    """Return a topological order in which the longer of two branches that meet comes last.

    The last one is fitted to what the others leave to be desired, and the longer one has more weights to do so.
    """
    depth: dict[ir.Node, int] = {}
    for node in model.graph:
        depth[node] = 1 + max((depth[p] for p in _producers(node) if p in depth), default=0)
    order: dict[ir.Node, int] = {}
    ends = [output.producer() for output in model.graph.outputs]
    for root in [*(end for end in ends if end is not None), *model.graph]:
        stack = [root]
        while stack:
            node = stack[-1]
            waiting = [p for p in _producers(node) if p not in order]
            if node in order or not waiting:
                stack.pop()
                order.setdefault(node, len(order))
            else:
                stack.append(min(waiting, key=depth.__getitem__))
    return order


def _producers(node: ir.Node) -> list[ir.Node]:
    return [p for value in read_by(node) if (p := value.producer()) is not None]


def gather(stages: Stages, name: str, regression: Regression, positions: NDArray[np.int64]) -> Array:
    """Return the rows of an output-shaped tensor at some positions, float32 [n·r, O]."""
    parts, start = [], 0
    for data, count in stages.tensor(name):
        parts.append(regression.outputs(data, stages.batch, positions[start : start + count]))
        start += count
    return np.concatenate(parts).astype(np.float32, copy=False)


def _sample(images: int, available: int, seed: int) -> NDArray[np.int64]:
    """Choose about ROWS positions, equally many in each image."""
    per_image = min(available, max(math.ceil(ROWS / images), 1))
    generator = np.random.default_rng(seed)
    keys = generator.random((images, available))
    return np.sort(np.argpartition(keys, per_image - 1, axis=1)[:, :per_image], axis=1).astype(np.int64)


def _shortcut(node: ir.Node, facts: Facts, order: dict[ir.Node, int]) -> Shortcut | None:
    """Follow a consumer's output to an addition with data that is ready before."""
    chain, value = follow(result_of(node, facts))
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    reader = uses[0].node
    if reader.op_type not in ("Add", "Sum") or len(reader.inputs) != 2:
        return None
    other, shape = input_at(reader, 1 - uses[0].idx), facts.shape(node.outputs[0])
    if other is None or facts.is_const(other) or facts.shape(other) != shape or facts.shape(reader.outputs[0]) != shape:
        return None
    if _reads(other, node, order):
        return None
    total = reader.outputs[0]
    return Shortcut(total.name or "", other.name or "", chain, flat_level(total, facts))


def _reads(value: ir.Value, node: ir.Node, order: dict[ir.Node, int]) -> bool:
    """Tell whether a tensor is only ready once `node` has run, or would be ready later than it."""
    producer = value.producer()
    return producer is not None and order[producer] > order[node]


def _name(node: ir.Node) -> str:
    return node.outputs[0].name or ""
