"""Append nodes and constants to a graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir

Operand = ir.Value | np.ndarray | np.generic | float | int | Sequence[int] | None
Attribute = int | float | str | Sequence[int] | Sequence[float]

#: Constants up to this size are shared between the nodes that need the same one.
_SHARED_BYTES = 4096
_SHAPE = "dlprune.shape"


class UnknownShapeError(ValueError):
    """A tensor has no shape that is known beforehand."""


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Return the static shape of a value. Raises UnknownShapeError."""
    if value.shape is None or not all(isinstance(d, int) for d in value.shape):
        raise UnknownShapeError(f"the shape of tensor '{value.name}' is not known")
    return tuple(int(d) for d in value.shape if isinstance(d, int))


def emitted_shape(value: ir.Value) -> tuple[int, ...] | None:
    """Return the shape of a value that a rule emitted, or None where it was not noted."""
    noted: tuple[int, ...] | None = value.meta.get(_SHAPE)
    return noted


def array_of(value: ir.Value | None) -> np.ndarray | None:
    """Return the constant that a value holds, or None if it depends on data."""
    if value is None or value.const_value is None:
        return None
    return value.const_value.numpy()


class Writer:
    """Adds nodes to a graph; every name that it makes starts with a prefix that no value of the graph has."""

    def __init__(self, graph: ir.Graph, prefix: str = "grad") -> None:
        self.graph = graph
        names = {name for value in _values(graph) if (name := value.name)}
        while any(name.startswith(prefix) for name in names):
            prefix += "_"
        #: Begins every name that this writer makes, and no other name of the graph.
        self.prefix = prefix
        #: Whether depthwise convolutions are fast even where their kernels are not constant (see training.blocked).
        self.fast_depthwise = False
        self._place: ir.Node | None = None
        #: Whether weights are inputs of the graph, so that maps lie in plain order between convolutions.
        self.live_weights = False
        self._count = 0
        self._shared: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}

    def op(
        self, op_type: str, *operands: Operand, shape: Sequence[int] | None = None, **attributes: Attribute
    ) -> ir.Value:
        """Add a node with one output.

        Args:
            op_type: operator of the standard domain.
            operands: values, or constants: floats and float arrays become float32, ints and lists of ints int64.
            shape: shape of the output, where the caller knows it and somebody needs it.
            attributes: the node's attributes.
        """
        inputs = [self._operand(operand) for operand in operands]
        while inputs and inputs[-1] is None:
            inputs.pop()
        output = ir.Value(name=self._name())
        if shape is not None:
            output.meta[_SHAPE] = tuple(shape)
        node = ir.node(op_type, inputs, attributes, outputs=[output], name=output.name)
        if self._place is None:
            self.graph.append(node)
        else:
            self.graph.insert_before(self._place, node)
        return output

    @contextmanager
    def before(self, node: ir.Node) -> Iterator[None]:
        """Put new nodes before a node of the graph for a while, instead of at its end.

        ONNX Runtime turns first to the operand whose node comes later: what stands early is computed late.
        """
        self._place = node
        try:
            yield
        finally:
            self._place = None

    def constant(self, array: np.ndarray) -> ir.Value:
        """Return an initializer with this content."""
        array = np.asarray(array, order="C")  # ascontiguousarray would make scalars 1-D
        key = (array.dtype.str, array.shape, array.tobytes()) if array.nbytes <= _SHARED_BYTES else None
        if key is not None and key in self._shared:
            return self._shared[key]
        name = self._name()
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.graph.register_initializer(value)
        if key is not None:
            self._shared[key] = value
        return value

    def reshape(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Reshape to a static shape."""
        return self.op("Reshape", value, list(shape), shape=shape, allowzero=int(math.prod(shape) == 0))

    def _operand(self, operand: Operand) -> ir.Value | None:
        if operand is None or isinstance(operand, ir.Value):
            return operand
        if isinstance(operand, float):
            return self.constant(np.array(operand, np.float32))
        if isinstance(operand, np.ndarray | np.generic):
            return self.constant(np.asarray(operand, np.float32 if operand.dtype.kind == "f" else None))
        return self.constant(np.array(operand, np.int64))

    def _name(self) -> str:
        self._count += 1
        return f"{self.prefix}/{self._count}"


def _values(graph: ir.Graph) -> list[ir.Value]:
    nodes = (output for node in graph.all_nodes() for output in node.outputs)
    return [*graph.inputs, *graph.initializers.values(), *nodes]
