"""Forward pass, loss, backward pass and solver step as one static ONNX graph whose weights are inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..facts import gather_facts
from ..gradients import Writer, differentiate
from ..gradients.kernel import channels_last, mark_channels_last
from ..gradients.writer import shape_of
from ..lift import lift
from ..logits import before_sigmoid, before_softmax, keep_output
from ..nodes import is_standard
from ..simplify import simplify
from ..weights import kernels, source_of, trainable_weights
from . import loss as losses
from .blocked import block_convolutions
from .buffers import is_channels_last
from .recipe import Recipe
from .sheet import Names, Sheet
from .solver import TIMES_RATE

#: The inputs of a training graph are named by this prefix (longer where the model uses it) and these names.
IMAGES, LABELS, TEACHER, ZERO = "images", "labels", "teacher", "zero"
#: Its outputs, besides new weights and solver states.
LOSS, LOGITS, STATISTICS = "loss", "logits", "statistics"


class TrainGraphError(Exception):
    """The model cannot be trained; the message says why."""


@dataclass(frozen=True)
class Normalization:
    """One BatchNormalization in training mode: the names of its running statistics, and values per channel."""

    mean: str | None
    variance: str | None
    channels: int
    count: int


@dataclass(frozen=True)
class TrainGraph:
    """The graphs of one recipe.

    Attributes:
        recipe: what they were built for.
        model: the graph of a step; with several parts, that of a part, which adds its gradients to a total.
        step: with several parts, the graph that takes the step; else None.
        names: names of inputs and outputs.
        shapes: shape of each weight that is trained, by its name.
        kernels: names of those among them that the weight prior acts on.
        classes: number of classes K.
        normalizations: the BatchNormalizations whose statistics come out, in the order of the output.
        scalars, step_scalars: the inputs of shape [] of model and step.
    """

    recipe: Recipe
    model: ir.Model
    step: ir.Model | None
    names: Names
    shapes: Mapping[str, tuple[int, ...]]
    kernels: frozenset[str]
    classes: int
    normalizations: tuple[Normalization, ...]
    scalars: frozenset[str]
    step_scalars: frozenset[str]


def build(model: ir.Model, input_name: str, output_name: str, recipe: Recipe, block: int = 0) -> TrainGraph:
    """Return the training graph of a classifier.

    Args:
        model: the user's graph in its own opset, merged vectors separated (see weights.unshare); it is not touched.
        input_name: its image input.
        output_name: its class output.
        recipe: what is wanted.
        block: channels per block of blocked convolutions; 0 = standard operators alone.

    Raises:
        GradientError: an operator between a weight and the output has no gradient.
        LiftError: the model cannot be converted to opset 18.
        TrainGraphError: nothing is left to train, or a batch is too small for its statistics.
    """
    graph = _Assembly(model, input_name, output_name, recipe, fast_depthwise=block > 0).build()
    if block:
        block_convolutions(graph.model, block)
    return graph


class _Assembly:
    def __init__(
        self, model: ir.Model, input_name: str, output_name: str, recipe: Recipe, *, fast_depthwise: bool
    ) -> None:
        self._recipe = recipe
        wanted = [value.name or "" for value in trainable_weights(model)]
        self._kernels = frozenset(value.name or "" for value in kernels(model))
        lifted = lift(model, {input_name: recipe.shape})
        self._model, self._graph = lifted, lifted.graph
        keep_output(self._graph, output_name)
        self._weights = {name: self._promote(name) for name in wanted if name not in recipe.frozen}
        self._normalizations = [] if recipe.frozen_statistics else self._use_batch_statistics()
        simplify(lifted, gather_facts(lifted, {input_name: recipe.shape}))
        _pool_before_relu(self._graph)
        self._writer = Writer(self._graph, "train")
        self._writer.live_weights = True
        self._writer.fast_depthwise = fast_depthwise
        self._sheet = Sheet(self._graph, self._writer, Names(self._writer.prefix))
        self._images = next(value for value in self._graph.inputs if value.name == input_name)
        self._images.name = self._name(IMAGES)

    def _name(self, what: str) -> str:
        return self._sheet.names.of(what)

    def _promote(self, name: str) -> ir.Value:
        """Make a weight an input of the graph, flat (see Sheet.step and buffers.pack), and return it in its shape."""
        value = self._graph.initializers.pop(name)
        tensor = value.const_value
        assert tensor is not None
        shape = tensor.shape.numpy()
        value.shape, value.dtype = ir.Shape([math.prod(shape)]), tensor.dtype
        value.const_value = None
        self._graph.inputs.append(value)
        if len(shape) == 1:
            return value
        readers = list(value.uses())
        made: list[ir.Node] = []
        shaped = value
        if is_channels_last(shape):
            last = self._reshaped(made, value, (shape[0], math.prod(shape[2:]), shape[1]), f"{name}/channels last")
            made.append(ir.node("Transpose", [last], {"perm": [0, 2, 1]}, name=f"{name}/channels first"))
            shaped = made[-1].outputs[0]
            shaped.name = made[-1].name
        shaped = self._reshaped(made, shaped, shape, f"{name}/shaped")
        if is_channels_last(shape):
            mark_channels_last(shaped, last)
        self._graph.insert_before(self._graph[0], made)
        for reader in readers:
            reader.node.replace_input_with(reader.idx, shaped)
        return shaped

    def _reshaped(self, made: list[ir.Node], value: ir.Value, shape: Sequence[int], name: str) -> ir.Value:
        array = np.array(shape, np.int64)
        target = ir.Value(name=f"{name}/shape", const_value=ir.tensor(array, name=f"{name}/shape"))
        self._graph.register_initializer(target)
        made.append(ir.node("Reshape", [value, target], name=name))
        made[-1].outputs[0].name = name
        return made[-1].outputs[0]

    def _use_batch_statistics(self) -> list[tuple[ir.Node, str | None, str | None]]:
        """Put every BatchNormalization into training mode; with momentum 0 its outputs are those of the batch."""
        found = []
        for node in self._graph:
            if node.op_type != "BatchNormalization" or node.domain not in ("", "ai.onnx"):
                continue
            sources = [source_of(value) for value in node.inputs[3:5]]
            mean, variance = (None if value is None else value.name for value in sources)
            found.append((node, mean, variance))
            node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
            node.attributes["momentum"] = ir.AttrFloat32("momentum", 0.0)
            node.resize_outputs(3)
            for output, what in zip(node.outputs[1:], ("mean", "variance"), strict=True):
                output.name = output.name or f"{node.outputs[0].name}/batch {what}"
        return found

    def build(self) -> TrainGraph:
        """Write everything."""
        recipe = self._recipe
        output = self._graph.outputs[0]
        self._graph.outputs.clear()
        value = before_sigmoid(output) if recipe.loss == "sigmoid" else before_softmax(output, recipe.batch)
        shape = shape_of(value)
        classes = math.prod(shape) // recipe.batch
        if shape[:1] != (recipe.batch,):
            raise TrainGraphError(f"its output has the shape {shape}, which does not begin with the batch size")
        statistics = self._statistics()
        logits = value if len(shape) == 2 else self._writer.reshape(value, (recipe.batch, classes))
        loss = self._loss(logits, classes)
        seed = self._writer.op("Mul", loss.gradient, 1.0 / (recipe.batch * recipe.parts))
        if recipe.solver in TIMES_RATE:
            seed = self._writer.op("Mul", seed, self._sheet.scalar("rate"))
        if len(shape) != 2:
            seed = self._writer.reshape(seed, shape)
        opset = self._model.opset_imports.get("", 18)
        found = differentiate(self._writer, {value: seed}, self._weights.values(), opset=opset).values
        gradients = {name: found[weight] for name, weight in self._weights.items() if weight in found}
        if not gradients:
            raise TrainGraphError("none of its weights can be trained (all are frozen, or none reaches the output)")
        inputs = {value.name or "": value for value in self._graph.inputs}
        for name in self._weights.keys() - gradients:
            self._graph.inputs.remove(inputs[name])
        shapes = {name: shape_of(self._weights[name]) for name in gradients}
        flat = {name: self._flat(gradient, shapes[name]) for name, gradient in gradients.items()}
        self._sheet.output(self._name(LOSS), loss.value, (recipe.batch,))
        self._sheet.output(self._name(LOGITS), logits, (recipe.batch, classes))
        if statistics:
            rows = [value for _, values in statistics for value in values]
            self._sheet.output(self._name(STATISTICS), self._writer.op("Concat", *rows, axis=0), None)
        step = self._finish(flat, {name: inputs[name] for name in flat})
        return TrainGraph(
            recipe=recipe,
            model=self._model,
            step=None if step is None else step[0],
            names=self._sheet.names,
            shapes=shapes,
            kernels=self._kernels.intersection(shapes),
            classes=classes,
            normalizations=tuple(one for one, _ in statistics),
            scalars=frozenset(self._sheet.scalars),
            step_scalars=frozenset() if step is None else frozenset(step[1].scalars),
        )

    # --- parts --------------------------------------------------------------------------------------------------------

    def _statistics(self) -> list[tuple[Normalization, Sequence[ir.Value]]]:
        """Give each BatchNormalization private inputs, and return its statistics.

        ONNX Runtime writes the outputs 1 and 2 into the inputs 3 and 4: these must not be shared with anything, and
        nothing must tell the optimizer that two of them are equal.
        """
        found = []
        for number, (node, mean, variance) in enumerate(self._normalizations):
            if node.graph is None:
                continue
            shape = shape_of(node.inputs[0])  # type: ignore[arg-type]
            channels = shape[1]
            count = math.prod(shape) // channels
            if count < 2:
                raise TrainGraphError(
                    f"BatchNormalization '{node.name}' sees a single value per channel; set a larger 'batch_size', or "
                    "freeze its statistics ('batchnorm_frozen')"
                )
            zero = self._sheet.scalar(ZERO)
            first = self._graph[0]
            for slot in (3, 4):
                factor = self._writer.constant(np.array(1.0 + 2 * number + slot, np.float32))
                scaled = ir.node("Mul", [zero, factor])
                private = ir.node("Expand", [*scaled.outputs, self._writer.constant(np.array([channels]))])
                for made, what in ((scaled, "zero"), (private, "zeros")):
                    made.outputs[0].name = f"{self._name(what)}/{number}/{slot}"
                    made.name = made.outputs[0].name
                self._graph.insert_before(first, [scaled, private])
                node.replace_input_with(slot, private.outputs[0])
            found.append((Normalization(mean, variance, channels, count), node.outputs[1:3]))
        return found

    def _loss(self, logits: ir.Value, classes: int) -> losses.Loss:
        recipe, w = self._recipe, self._writer
        labels = self._sheet.input(self._name(LABELS), (recipe.batch,), ir.DataType.INT64)
        target = losses.one_hot(w, labels, classes)
        function = losses.binary_cross_entropy if recipe.loss == "sigmoid" else losses.cross_entropy
        found = function(w, logits, target)
        if not recipe.distilled:
            return found
        teacher = losses.Teacher(
            self._sheet.input(self._name(TEACHER), (recipe.batch, classes)),
            self._sheet.scalar("temperature"),
            self._sheet.scalar("share"),
        )
        return losses.distilled(w, logits, found, teacher)

    def _flat(self, gradient: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        """Return a gradient in the order in which its weight is kept."""
        if len(shape) == 1:
            return gradient
        if is_channels_last(shape):
            last = channels_last(gradient)
            if last is None:
                rows = self._writer.reshape(gradient, (shape[0], shape[1], math.prod(shape[2:])))
                last = self._writer.op("Transpose", rows, perm=[0, 2, 1])
            gradient = last
        return self._writer.reshape(gradient, (math.prod(shape),))

    def _finish(
        self, gradients: Mapping[str, ir.Value], weights: Mapping[str, ir.Value]
    ) -> tuple[ir.Model, Sheet] | None:
        """Write the solver step, or add the gradients to a total and return the graph of the step."""
        if self._recipe.parts == 1:
            self._sheet.step(self._recipe, gradients, weights, self._kernels)
            return None
        names = self._sheet.names
        for name, gradient in gradients.items():
            size = shape_of(weights[name])
            total = self._sheet.input(names.total(name), size)
            self._sheet.output(names.new_total(name), self._writer.op("Add", total, gradient), size)
        graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="step")
        sheet = Sheet(graph, Writer(graph, names.prefix), names)
        own = {name: sheet.input(name, shape_of(weights[name])) for name in gradients}
        totals = {name: sheet.input(names.total(name), shape_of(weights[name])) for name in gradients}
        sheet.step(self._recipe, totals, own, self._kernels)
        return ir.Model(graph, ir_version=9), sheet


def _pool_before_relu(graph: ir.Graph) -> None:
    """Write MaxPool(Relu(x)) as Relu(MaxPool(x)), which is the same: a pool is the smaller map to work on."""
    for pool in [node for node in graph if node.op_type == "MaxPool" and is_standard(node)]:
        relu = None if pool.inputs[0] is None else pool.inputs[0].producer()
        if relu is None or relu.op_type != "Relu" or not is_standard(relu) or len(pool.outputs) > 1:
            continue
        rectified, pooled = relu.outputs[0], pool.outputs[0]
        if len(rectified.uses()) > 1 or rectified.is_graph_output():
            continue
        pool.replace_input_with(0, relu.inputs[0])
        pooled.replace_all_uses_with(rectified, replace_graph_outputs=True)
        relu.replace_input_with(0, pooled)
        rectified.shape = pooled.shape
        graph.remove(relu)
        graph.insert_after(pool, relu)
