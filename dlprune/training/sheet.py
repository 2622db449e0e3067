"""A graph that is being written: its named inputs and outputs, and the solver step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..gradients import Writer
from ..gradients.writer import shape_of
from .recipe import STATES, Recipe
from .solver import SOLVERS


@dataclass(frozen=True)
class Names:
    """Names of a training graph's inputs and outputs."""

    prefix: str

    def of(self, what: str) -> str:
        """Return the name of a single input or output."""
        return f"{self.prefix}/{what}"

    def new(self, weight: str) -> str:
        """Return the output that holds a new weight."""
        return f"{self.prefix}/new/{weight}"

    def state(self, kind: str, weight: str) -> str:
        """Return the input that holds a solver state."""
        return f"{self.prefix}/{kind}/{weight}"

    def new_state(self, kind: str, weight: str) -> str:
        """Return the output that holds a new solver state."""
        return f"{self.prefix}/new {kind}/{weight}"

    def norm(self, weight: str) -> str:
        """Return the output that holds the squared length of a gradient."""
        return f"{self.prefix}/norm/{weight}"

    def mask(self, weight: str) -> str:
        """Return the input that holds a mask."""
        return f"{self.prefix}/mask/{weight}"

    def total(self, weight: str) -> str:
        """Return the input that holds the gradients of earlier parts."""
        return f"{self.prefix}/total/{weight}"

    def new_total(self, weight: str) -> str:
        """Return the output that holds the gradients of all parts so far."""
        return f"{self.prefix}/new total/{weight}"


class Sheet:
    """Adds inputs, outputs and the solver step to a graph.

    Args:
        graph: where nodes are appended.
        writer: writes to that graph.
        names: of inputs and outputs.
    """

    def __init__(self, graph: ir.Graph, writer: Writer, names: Names) -> None:
        self._graph = graph
        self.writer = writer
        self.names = names
        #: The inputs of shape [], by what they are.
        self.scalars: dict[str, ir.Value] = {}

    def scalar(self, what: str) -> ir.Value:
        """Return an input of shape [], made at its first use."""
        if what not in self.scalars:
            self.scalars[what] = self.input(self.names.of(what), ())
        return self.scalars[what]

    def input(self, name: str, shape: Sequence[int], dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
        """Add an input."""
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self._graph.inputs.append(value)
        return value

    def output(self, name: str, value: ir.Value, shape: Sequence[int] | None) -> None:
        """Make a value an output under a name of our own."""
        ours = value.name is not None and value.name.startswith(f"{self.names.prefix}/")
        if not ours or value.producer() is None or value.is_graph_output():
            value = self.writer.op("Identity", value)
        value.name, value.type = name, ir.TensorType(ir.DataType.FLOAT)
        value.shape = None if shape is None else ir.Shape(shape)
        self._graph.outputs.append(value)

    def step(
        self,
        recipe: Recipe,
        gradients: Mapping[str, ir.Value],
        weights: Mapping[str, ir.Value],
        kernels: frozenset[str],
    ) -> None:
        """Add the solver step: new weights, new states, and the squared norm of each gradient.

        Everything is flat: [M, C, 1, 1] times a number takes ONNX Runtime a hundred times as long as [M·C] times it.
        ONNX Runtime works off what leads to one output after the other. So the steps stand in the order of their
        gradients, and each has a norm of its own: then no gradient has to be kept for long.
        """
        w, names = self.writer, self.names
        scalars = _Scalars(self)
        for name in _as_made(self._graph, gradients):
            gradient = gradients[name]
            weight, shape = weights[name], shape_of(weights[name])
            self.output(names.norm(name), w.op("ReduceSumSquare", gradient, keepdims=0), ())
            if recipe.prior and name in kernels:
                gradient = w.op("Add", gradient, w.op("Mul", weight, self.scalar("prior")))
            states = {kind: self.input(names.state(kind, name), shape) for kind in STATES[recipe.solver]}
            update = SOLVERS[recipe.solver](w, weight, gradient, states, scalars)
            new = update.weight
            if name in recipe.masked:
                new = w.op("Mul", new, self.input(names.mask(name), shape))
            self.output(names.new(name), new, shape)
            for kind, state in update.states.items():
                self.output(names.new_state(kind, name), state, shape)


def _as_made(graph: ir.Graph, gradients: Mapping[str, ir.Value]) -> list[str]:
    """Return the names in the order in which the graph makes the gradients."""
    place = {node: number for number, node in enumerate(graph)}
    producers = {name: value.producer() for name, value in gradients.items()}
    return sorted(gradients, key=lambda name: -1 if (node := producers[name]) is None else place[node])


class _Scalars(Mapping[str, ir.Value]):
    """The scalar inputs that a solver asks for."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet

    def __getitem__(self, what: str) -> ir.Value:
        return self._sheet.scalar(what)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sheet.scalars)

    def __len__(self) -> int:
        return len(self._sheet.scalars)
