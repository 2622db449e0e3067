"""Forward pass, loss, backward pass and oracle scores as one static ONNX graph, and the session that runs it.

The score of a unit for a sample is the first-order change of the sample's own loss if the unit's slices in all
consumers were set to zero. This graph gives the part t of each consumer: activation × the gradient that comes back
through that consumer alone, summed over space.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from .cost import graph_cost
from .division import map_bytes
from .facts import Facts, gather_facts
from .gradients import Writer, differentiate
from .gradients.blocked import spatial_sum
from .gradients.reverse import Edge
from .gradients.writer import UnknownShapeError, shape_of
from .idioms import factored, join, part
from .lift import lift
from .logits import before_softmax, keep_output
from .simplify import simplify
from .staticsession import static_session

#: With fewer multiply-accumulates per byte of maps, a place that is planned beforehand for every tensor pays: taking
#: and returning memory counts then. With more of them, memory that has just been used is the faster one.
_FEW_OPERATIONS = 20


class Consumer(Protocol):
    """A node that mixes the channels of one of its inputs; see `dlprune.structure.Consumer`."""

    @property
    def output(self) -> str:
        """Name of the node's first output in the user's model."""

    @property
    def input(self) -> str:
        """Name of the tensor that it reads."""

    @property
    def axis(self) -> int:
        """Channel axis of that tensor."""

    @property
    def units(self) -> NDArray[np.int64]:
        """Unit index of each channel, −1 for fixed."""


class ScoreGraphError(Exception):
    """The model's output or a consumer's tensor does not keep its samples apart."""


@dataclass(frozen=True)
class Scores:
    """What one batch of N samples gives.

    Attributes:
        terms: per consumer, float32 [N, C]: the signed first-order loss change t of each channel.
        loss: float32 [N], each sample's own cross-entropy; zeros where the upstream gradient is given.
        logits: float32 [N, K].
    """

    terms: tuple[NDArray[np.float32], ...]
    loss: NDArray[np.float32]
    logits: NDArray[np.float32]


class ScoreGraph:
    """Scores the channels that a classifier's mixing consumers read.

    Args:
        model: the user's graph in its own opset; it is not touched.
        input_name: its image input.
        output_name: its class output, logits or softmax.
        input_shape: concrete shape of the images that are run at once, batch first.
        consumers: whose channels are scored; one in which every unit is fixed gets zeros at no cost.
        upstream: the gradient with respect to the logits is an input, instead of that of the cross-entropy.
        together: whether the terms of consumers that read the same tensor may be given as one, by the first of them;
            the others give zeros then.
        workers: more images than the input shape holds are worked off in parts, so many at a time.
        threads: threads of each; 0 = as many as there are cores.
        runtime: 'cpu', or 'gpu' to compute on the GPU of number `gpu`.

    Raises:
        HOperatorError 7913: the GPU cannot be used.
        GradientError: an operator between a consumer and the output has no gradient.
        LiftError: the model cannot be converted to opset 18.
        ScoreGraphError: the samples of a batch cannot be told apart, or a shape between consumers and output is not
            known beforehand.
    """

    def __init__(
        self,
        model: ir.Model,
        input_name: str,
        output_name: str,
        input_shape: Sequence[int],
        consumers: Sequence[Consumer],
        *,
        upstream: bool = False,
        together: bool = False,
        workers: int = 1,
        threads: int = 0,
        runtime: str = "cpu",
        gpu: int = 0,
    ) -> None:
        self.input_shape = tuple(int(d) for d in input_shape)
        self.upstream = upstream
        self._workers = workers
        self._sizes = [len(consumer.units) for consumer in consumers]
        lifted = lift(model, {input_name: self.input_shape})
        keep_output(lifted.graph, output_name)
        edges = _edges(lifted.graph, consumers)
        facts = gather_facts(lifted, {input_name: self.input_shape})
        planned = _operations_per_byte(lifted, facts) < _FEW_OPERATIONS
        try:
            simplify(lifted, facts)
            self._scored = _Assembly(lifted, self.input_shape[0], upstream=upstream).add(edges, together=together)
        except UnknownShapeError as error:
            raise ScoreGraphError(str(error)) from error
        self.model = lifted
        self._inputs = [value.name or "" for value in lifted.graph.inputs]
        self._session = static_session(lifted, threads, planned_memory=planned, runtime=runtime, gpu=gpu)

    def run(self, images: NDArray[np.float32], labels: NDArray[np.int64]) -> list[NDArray[np.float32]]:
        """Return t of every consumer, float32 [N, C], in the order of `consumers`.

        Args:
            images: float32, of the input shape but for any number N of images.
            labels: int64 [N], class index; −1 takes the model's own decision.
        """
        return list(self.evaluate(images, labels).terms)

    def evaluate(self, images: NDArray[np.float32], labels: NDArray[np.int64] | NDArray[np.float32]) -> Scores:
        """Return t of every consumer together with loss and logits.

        Args:
            images: float32, of the input shape but for any number N of images.
            labels: as in `run`; float32 [N, K], the gradient with respect to the logits, if `upstream` was chosen.
        """
        count, size = len(images), self.input_shape[0]
        if count == size:
            found = self._part(images, labels)
        else:
            # The last part is filled up with the last image.
            rows = [np.minimum(np.arange(start, start + size), count - 1) for start in range(0, count, size)]
            with ThreadPoolExecutor(self._workers) as pool:
                parts = list(pool.map(lambda these: self._part(images[these], labels[these]), rows))
            found = [np.concatenate(pieces)[:count] for pieces in zip(*parts, strict=True)]
        logits, loss, *scored = found
        terms = [np.zeros((count, channels), np.float32) for channels in self._sizes]
        for index, term in zip(self._scored, scored, strict=True):
            terms[index] = term
        return Scores(tuple(terms), loss, logits)

    def _part(
        self, images: NDArray[np.float32], labels: NDArray[np.int64] | NDArray[np.float32]
    ) -> list[NDArray[np.float32]]:
        """Return logits, loss and what is scored of as many images as the graph takes."""
        return list(self._session.run(None, dict(zip(self._inputs, (images, labels), strict=True))))


class MapGraph:
    """Maps and gradients of layers, the two factors of the gradients of their weights for each sample.

    Args:
        model, input_name, output_name, input_shape, runtime, gpu: see ScoreGraph.
        layers: names of the first outputs of nodes.

    Raises: see ScoreGraph.
    """

    def __init__(
        self,
        model: ir.Model,
        input_name: str,
        output_name: str,
        input_shape: Sequence[int],
        layers: Sequence[str],
        *,
        runtime: str = "cpu",
        gpu: int = 0,
    ) -> None:
        shapes = {input_name: tuple(input_shape)}
        lifted = lift(model, shapes)
        keep_output(lifted.graph, output_name)
        # What follows a layer stays behind it: it is the layer's own weights that matter.
        simplify(lifted, gather_facts(lifted, shapes), absorb=False)
        nodes = {node.outputs[0].name: node for node in lifted.graph}
        try:
            found = _Assembly(lifted, input_shape[0], upstream=True).add_maps([nodes[name] for name in layers])
        except UnknownShapeError as error:
            raise ScoreGraphError(str(error)) from error
        #: Those of the layers whose results reach the logits.
        self.layers = tuple(layers[index] for index in found)
        self._inputs = [value.name or "" for value in lifted.graph.inputs]
        self._session = static_session(lifted, 0, runtime=runtime, gpu=gpu)

    def run(
        self, images: NDArray[np.float32], upstream: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], list[tuple[NDArray[np.float32], NDArray[np.float32]]]]:
        """Return the logits [N, K], and for each of `layers` what it reads and the gradient of what it gives.

        Args:
            images: float32 of the input shape.
            upstream: float32 [N, K], the gradient with respect to the logits.
        """
        logits, _, *found = self._session.run(None, dict(zip(self._inputs, (images, upstream), strict=True)))
        return logits, list(zip(found[::2], found[1::2], strict=True))


def _operations_per_byte(model: ir.Model, facts: Facts) -> float:
    """Return the multiply-accumulates of a network for each byte that it writes."""
    return graph_cost(model, facts, 1).macs / max(map_bytes(model, facts), 1)


def _edges(graph: ir.Graph, consumers: Sequence[Consumer]) -> list[tuple[int, Edge, int]]:
    """Find the input slot of every consumer that reads prunable units: (its index, slot, channel axis)."""
    nodes = {node.outputs[0].name: node for node in graph if node.outputs}
    edges = []
    for index, consumer in enumerate(consumers):
        if np.all(consumer.units < 0):
            continue
        node = nodes[consumer.output]
        # Lifting keeps the names of most values, not of all (Upsample); what is mixed is a node's first input then.
        named = (i for i, value in enumerate(node.inputs) if value is not None and value.name == consumer.input)
        slot = next(named, 0)
        edges.append((index, (node, slot), consumer.axis))
    return edges


def _united(
    edges: Sequence[tuple[int, Edge, int]], partials: Mapping[Edge, ir.Value]
) -> list[tuple[int, Edge, int, ir.Value]]:
    """Put the gradients through readers of one axis of a tensor in one, where their sum is there anyway."""
    readers: dict[tuple[ir.Value | None, int], list[tuple[int, Edge, int]]] = {}
    for index, (node, slot), axis in edges:
        readers.setdefault((node.inputs[slot], axis), []).append((index, (node, slot), axis))
    found = []
    for own in readers.values():
        total = _sum_of([partials[edge] for _, edge, _ in own])
        found += [(*own[0], total)] if total is not None else [(*one, partials[one[1]]) for one in own]
    return found


def _sum_of(values: list[ir.Value]) -> ir.Value | None:
    """Return the value of the graph that is the sum of these, and of nothing else."""
    while len(values) > 1:
        users = (use.node for value in values for use in value.uses())
        addition = next((n for n in users if n.op_type == "Add" and set(n.inputs) <= set(values)), None)
        if addition is None or addition.inputs[0] is addition.inputs[1]:
            return None
        values = [value for value in values if value not in addition.inputs] + list(addition.outputs)
    return values[0]


class _Assembly:
    """Adds loss, backward pass and what is wanted of it to a simplified forward graph."""

    def __init__(self, model: ir.Model, batch: int, *, upstream: bool) -> None:
        self._graph = model.graph
        self._opset = model.opset_imports.get("", 18)
        self._batch = batch
        self._upstream = upstream
        self._writer = Writer(self._graph, "score")

    def add(self, edges: Sequence[tuple[int, Edge, int]], *, together: bool) -> list[int]:
        """Write scores; return the indices of the consumers whose scores are outputs, in their order."""
        seeds = self._heads()
        found = differentiate(self._writer, seeds, (), [edge for _, edge, _ in edges], opset=self._opset).edges
        reached = [one for one in edges if one[1] in found]
        partials = _united(reached, found) if together else [(*one, found[one[1]]) for one in reached]
        terms = {index: self._term(edge, partial, axis) for index, edge, axis, partial in partials}
        for index, term in terms.items():
            self._output(f"term{index}", term)
        part(self._graph)
        return list(terms)

    def add_maps(self, nodes: Sequence[ir.Node]) -> list[int]:
        """Write what nodes read first and the gradient of what they give; return the indices of those that matter."""
        seeds = self._heads()
        found = differentiate(self._writer, seeds, [node.outputs[0] for node in nodes], opset=self._opset).values
        reached = [index for index, node in enumerate(nodes) if node.outputs[0] in found]
        for index in reached:
            source = nodes[index].inputs[0]
            assert source is not None
            self._output(f"map{index}", source)
            self._output(f"gradient{index}", found[nodes[index].outputs[0]])
        part(self._graph)
        return reached

    def _heads(self) -> dict[ir.Value, ir.Value]:
        """Write logits and loss, the first two outputs; return the gradient to begin with, by its tensor."""
        output = self._graph.outputs[0]
        self._graph.outputs.clear()
        value = before_softmax(output, self._batch)
        shape = shape_of(value)
        classes = math.prod(shape) // self._batch
        if shape[:1] != (self._batch,):
            raise ScoreGraphError(
                f"the output has shape {shape}, which does not begin with the batch size {self._batch}"
            )
        logits = value if shape == (self._batch, classes) else self._writer.reshape(value, (self._batch, classes))
        seed, loss = self._given(classes) if self._upstream else self._cross_entropy(logits, classes)
        if shape != (self._batch, classes):
            seed = self._writer.reshape(seed, shape)
        join(self._writer)
        self._output("logits", logits, (self._batch, classes))
        self._output("loss", loss, (self._batch,))
        return {value: seed}

    def _input(self, name: str, dtype: ir.DataType, shape: Sequence[int]) -> ir.Value:
        # No other name of the graph begins like the writer's, whatever the user's tensors are called.
        full = f"{self._writer.prefix}/{name}"
        value = ir.Value(name=full, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self._graph.inputs.append(value)
        return value

    def _output(self, name: str, value: ir.Value, shape: Sequence[int] | None = None) -> None:
        named = self._writer.op("Identity", value, shape=shape)
        named.name = f"{self._writer.prefix}/{name}"
        named.type = ir.TensorType(ir.DataType.FLOAT)
        self._graph.outputs.append(named)

    def _given(self, classes: int) -> tuple[ir.Value, ir.Value]:
        seed = self._input("upstream", ir.DataType.FLOAT, (self._batch, classes))
        return seed, self._writer.constant(np.zeros(self._batch, np.float32))

    def _cross_entropy(self, logits: ir.Value, classes: int) -> tuple[ir.Value, ir.Value]:
        """Return softmax − onehot and the loss of each sample; a negative label stands for the greatest logit."""
        op = self._writer.op
        labels = self._input("labels", ir.DataType.INT64, (self._batch,))
        decision = op("ArgMax", logits, axis=1, keepdims=0)
        labels = op("Where", op("Less", labels, 0), decision, labels)
        target = op("OneHot", labels, classes, np.array([0.0, 1.0], np.float32), axis=1)
        logs = op("LogSoftmax", logits, axis=1)
        loss = op("Neg", op("ReduceSum", op("Mul", logs, target), [1], keepdims=0))
        return op("Sub", op("Exp", logs), target), loss

    def _term(self, edge: Edge, partial: ir.Value, axis: int) -> ir.Value:
        """Return activation × gradient summed to [N, C]."""
        node, slot = edge
        activation = node.inputs[slot]
        assert activation is not None  # differentiate has given a gradient for it
        shape = shape_of(activation)
        channels = shape[axis]
        if self._batch > 1 and (axis == 0 or shape[0] % self._batch):
            raise ScoreGraphError(f"tensor '{activation.name}' of shape {shape} does not begin with the samples")
        others = [a for a in range(len(shape)) if a not in (0, axis)] if axis else list(range(1, len(shape)))
        factors = factored(activation)
        if others == [2, 3] and axis == 1 and factors is not None:
            # The gradient of the factor holds the same sum: nothing but a product of [N, C] is left to do.
            product = spatial_sum(self._writer, self._writer.op("Mul", partial, factors[0]), shape)
            return self._writer.reshape(self._writer.op("Mul", product, factors[1]), shape[:2])
        product = self._writer.op("Mul", activation, partial)
        if others == [2, 3] and axis == 1:
            product = self._writer.reshape(spatial_sum(self._writer, product, shape), shape[:2])
        elif others:
            product = self._writer.op("ReduceSum", product, others, keepdims=0)
        if axis == 0:
            return self._writer.reshape(product, (1, channels))
        positions = shape[0] // self._batch
        if positions > 1:  # the batch axis also holds positions: put those of a sample together
            product = self._writer.reshape(product, (self._batch, positions, channels))
            product = self._writer.op("ReduceSum", product, [1], keepdims=0)
        return product
