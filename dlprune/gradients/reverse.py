"""Walk a graph backwards and let the rule of every node turn output gradients into input gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ..nodes import captured
from . import blocked
from .phases import region_above, through
from .rule import GradientError, Site, find_rule, is_float
from .writer import Writer, emitted_shape, shape_of

#: An input slot of a node: the gradient that comes back through this reader alone.
Edge = tuple[ir.Node, int]


@dataclass(frozen=True)
class Gradients:
    """Gradients by tensor (summed over its readers) and by input slot; what is absent does not reach the loss."""

    values: Mapping[ir.Value, ir.Value]
    edges: Mapping[Edge, ir.Value]


def differentiate(
    writer: Writer,
    seeds: Mapping[ir.Value, ir.Value],
    wanted_values: Iterable[ir.Value] = (),
    wanted_edges: Iterable[Edge] = (),
    *,
    opset: int = 18,
) -> Gradients:
    """Append the backward nodes that lead from the seeds to what is wanted, and only those.

    Args:
        writer: writes to the graph that is differentiated; all shapes in it are static, constants are initializers.
        seeds: the gradient of the loss with respect to some tensors.
        wanted_values: tensors whose whole gradient is wanted.
        wanted_edges: (node, input index) pairs of which the gradient through that node alone is wanted.
        opset: the graph's opset, ≥ 18.

    Raises:
        GradientError: a node on the way cannot be differentiated.
    """
    nodes = list(writer.graph)
    wanted_values = set(wanted_values)
    wanted_edges = set(wanted_edges)
    wants, hiding = _wanted_inputs(nodes, wanted_values, wanted_edges)
    pending: dict[ir.Value, list[ir.Value]] = {}
    for value, seed in seeds.items():
        pending.setdefault(value, []).append(seed)
    edges: dict[Edge, ir.Value] = {}
    values: dict[ir.Value, ir.Value] = {}
    done: set[ir.Node] = set()
    for node in reversed(nodes):
        wanted = wants[node]
        if node in done:
            continue
        if not wanted and node not in hiding and not wanted_values.intersection(node.outputs):
            continue
        dys = [_total(writer, output, pending.pop(output, [])) for output in node.outputs]
        if node in hiding and any(dy is not None for dy in dys):
            raise GradientError(node, "there is no gradient of what is read inside of control flow")
        values.update((o, dy) for o, dy in zip(node.outputs, dys, strict=True) if o in wanted_values and dy is not None)
        if not wanted or all(dy is None for dy in dys):
            continue
        site = Site(node, writer, dys, wanted, opset)
        region = None if wanted_values else region_above(node, wants)
        if region is None:
            partials = _partials(site)
        else:
            done.update(region.nodes)
            node, partials = region.expansion, {0: through(site, region)}
        for index, partial in partials.items():
            source = node.inputs[index]
            if source is not None:
                pending.setdefault(source, []).append(partial)
            if (node, index) in wanted_edges:
                edges[node, index] = partial
    for value in wanted_values:
        total = _total(writer, value, pending.pop(value, []))
        if total is not None:
            values[value] = total
    return Gradients(values, edges)


def _wanted_inputs(
    nodes: list[ir.Node], wanted_values: set[ir.Value], wanted_edges: set[Edge]
) -> tuple[dict[ir.Node, frozenset[int]], set[ir.Node]]:
    """Find the inputs of every node whose gradient is wanted for itself or for something above it.

    The second result are nodes of control flow that read such a tensor inside their bodies, where no input says so.
    """
    alive = set(wanted_values)
    wants: dict[ir.Node, frozenset[int]] = {}
    hiding: set[ir.Node] = set()
    for node in nodes:
        wants[node] = frozenset(
            index
            for index, value in enumerate(node.inputs)
            if value is not None and is_float(value) and (value in alive or (node, index) in wanted_edges)
        )
        if not alive.isdisjoint(captured(node)):
            hiding.add(node)
        if wants[node] or node in hiding:
            alive.update(output for output in node.outputs if is_float(output))
    return wants, hiding


def _partials(site: Site) -> Mapping[int, ir.Value]:
    found = find_rule(site.node)(site)
    partials = {0: found} if isinstance(found, ir.Value) else found
    for index in range(len(site.node.inputs)):
        if site.wants(index) and index not in partials:
            raise GradientError(site.node, f"the rule gives no gradient for input {index}")
    return {index: partial for index, partial in partials.items() if site.wants(index)}


def _total(writer: Writer, value: ir.Value, partials: list[ir.Value]) -> ir.Value | None:
    """Add up the gradients that came back through the readers of a tensor; small ones are spread at the end."""
    if not partials:
        return None
    shape = shape_of(value)
    full = [p for p in partials if emitted_shape(p) in (None, shape)]
    small = [p for p in partials if emitted_shape(p) not in (None, shape)]
    blocks = [p for p in small if len(shape) == 4 and emitted_shape(p) == (*shape[:2], 1, 1)]
    full += [blocked.spread(writer, p, shape) for p in blocks]
    rest = [p for p in small if p not in blocks]
    if not full:
        full = [writer.op("Expand", rest.pop(0), list(shape), shape=shape)]
    total = full[0]
    for partial in [*full[1:], *rest]:
        total = writer.op("Add", total, partial)
    return total
