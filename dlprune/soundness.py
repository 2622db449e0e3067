"""Faults of a file that ONNX's checker lets pass, but that would take all memory or all time: found before any work.

All looks are at the protobuf as it was parsed; nothing is computed or unpacked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import onnx
import onnx_ir as ir
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

#: More nodes than this come of no real network, once every call of a function is written out.
MAX_NODES: Final = 200_000
#: No real loop takes more rounds.
MAX_ROUNDS: Final = 1_000_000

#: Where a type keeps its numbers if they are not raw bytes, one entry per element.
_FIELDS: Final[dict[int, str]] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.INT32: "int32_data",
    TensorProto.STRING: "string_data",
}

_Function = tuple[str, str, str]


def fault_of(proto: ModelProto) -> str:
    """Return what is wrong with a model, '' if nothing was found."""
    return _wrong_tensor(tensors(proto)) or _bomb(proto) or _endless(proto)


def graphs(graph: GraphProto | onnx.FunctionProto) -> Iterator[GraphProto | onnx.FunctionProto]:
    """Yield a graph or function body and all graphs inside it."""
    pending = [graph]
    while pending:
        current = pending.pop()
        yield current
        for node in current.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.GRAPH or attribute.HasField("g"):
                    pending.append(attribute.g)
                pending.extend(attribute.graphs)


def tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor of a model, also those in attributes, sub-graphs and functions."""
    for outer in (proto.graph, *proto.functions):
        for graph in graphs(outer):
            if isinstance(graph, GraphProto):
                yield from graph.initializer
                for sparse in graph.sparse_initializer:
                    yield from (sparse.values, sparse.indices)
            for node in graph.node:
                for attribute in node.attribute:
                    if attribute.HasField("t"):
                        yield attribute.t
                    yield from attribute.tensors


def _wrong_tensor(all_tensors: Iterable[TensorProto]) -> str:
    """Find a tensor that holds more or fewer numbers than its dimensions say."""
    for tensor in all_tensors:
        if tensor.data_location == TensorProto.EXTERNAL:
            continue
        what, dims = f"weight {tensor.name!r}", list(tensor.dims)
        if any(dim < 0 for dim in dims):
            return f"{what} has a negative dimension ({dims})"
        count, field = math.prod(dims), _FIELDS.get(tensor.data_type)
        try:
            bits = ir.DataType(tensor.data_type).bitwidth if tensor.HasField("raw_data") else 0
        except (ValueError, TypeError):
            return f"{what} holds raw bytes of a type without a size (number {tensor.data_type})"
        if tensor.HasField("raw_data"):
            expected, found = -(-bits * count // 8), len(tensor.raw_data)
            if expected != found:
                return f"{what} of dimensions {dims} needs {expected} bytes but holds {found}"
        elif field is not None and len(getattr(tensor, field)) != count:
            return f"{what} of dimensions {dims} needs {count} numbers but holds {len(getattr(tensor, field))}"
    return ""


def _bomb(proto: ModelProto) -> str:
    """Find functions that call themselves, or that grow beyond all measure where they are written out."""
    bodies = {(f.domain, f.name, f.overload): _nodes(f) for f in proto.functions}
    sizes: dict[_Function, int] = {}
    stack = list(bodies)
    open_calls: set[_Function] = set()
    while stack:
        key = stack[-1]
        missing = [call for node in bodies[key] if (call := _called(node)) in bodies and call not in sizes]
        if key not in sizes and missing:
            if key in open_calls:
                return f"function {key[1]!r} calls itself"
            open_calls.add(key)
            stack.extend(missing)
            continue
        stack.pop()
        open_calls.discard(key)
        sizes.setdefault(key, _written_out(bodies[key], sizes))
    total = _written_out(_nodes(proto.graph), sizes)
    return f"it has {total} nodes once its functions are written out; {MAX_NODES} is the limit" * (total > MAX_NODES)


def _nodes(outer: GraphProto | onnx.FunctionProto) -> list[NodeProto]:
    return [node for graph in graphs(outer) for node in graph.node]


def _called(node: NodeProto) -> _Function:
    return node.domain, node.op_type, node.overload


def _written_out(nodes: Iterable[NodeProto], sizes: Mapping[_Function, int]) -> int:
    return sum(sizes.get(_called(node), 1) for node in nodes)


def _endless(proto: ModelProto) -> str:
    """Find a loop that is not known to end."""
    constants: dict[str, TensorProto] = {}
    loops: list[NodeProto] = []
    for outer in (proto.graph, *proto.functions):
        for graph in graphs(outer):
            if isinstance(graph, GraphProto):
                constants.update((tensor.name, tensor) for tensor in graph.initializer)
            for node in graph.node:
                if node.op_type == "Loop" and node.domain in ("", "ai.onnx"):
                    loops.append(node)
                if node.op_type == "Constant" and node.output:
                    constants.update((node.output[0], a.t) for a in node.attribute if a.HasField("t"))
    for loop in loops:
        if not loop.input or not loop.input[0]:
            return f"the loop {loop.name!r} has no fixed number of rounds, so it might never end"
        trips = constants.get(loop.input[0])
        if trips is not None and trips.data_type == TensorProto.INT64:
            rounds = int(onnx.numpy_helper.to_array(trips).max(initial=0))
            if rounds > MAX_ROUNDS:
                return f"the loop {loop.name!r} takes {rounds} rounds; {MAX_ROUNDS} is the limit"
    return ""
