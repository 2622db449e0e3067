"""What a classifier costs: kernels, parameters, multiply-accumulates, file size, latency."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from .classifier import Classifier
from .facts import Facts, gather_facts
from .nodes import int_attribute, is_standard, label
from .onnxfile import files_of

_WARM_UP = 3
_LEAST_RUNS, _MOST_RUNS = 5, 500


@dataclass(frozen=True)
class LayerCost:
    """One layer with weights: kernels (output channels or features), parameters, multiply-accumulates per image."""

    name: str
    op_type: str
    kernels: int
    parameters: int
    macs: float


@dataclass(frozen=True)
class Cost:
    """The layers of a classifier in graph order, and the float weights of the whole graph."""

    layers: tuple[LayerCost, ...]
    parameters: int

    @property
    def kernels(self) -> int:
        """Kernels of all convolutions."""
        return sum(layer.kernels for layer in self.layers if layer.op_type in _CONVOLUTIONS)

    @property
    def macs(self) -> int:
        """Multiply-accumulates per image."""
        return round(sum(layer.macs for layer in self.layers))


@dataclass(frozen=True)
class Latency:
    """Median times of one run in seconds, one per model, at `batch_size` images each."""

    seconds: tuple[float, ...]
    runs: int

    @property
    def ratio(self) -> float:
        """Time of the last model as a share of the first one's."""
        return self.seconds[-1] / self.seconds[0]


def cost_of(classifier: Classifier) -> Cost:
    """Return what a classifier costs at its image size, per image.

    Parameters are the elements of all float tensors that are weights: initializers, or constants that the graph
    computes, where they meet data; a tensor with several readers counts once, numbers without axes (the bounds of a
    Clip) do not. So the running statistics of BatchNormalization are parameters too, which 'num_trainable_params' of a
    model does not count. Multiply-accumulates are those of Conv, ConvTranspose, Gemm and MatMul; adding a bias is none.

    Raises HOperatorError 7912 (no image input) or 7788 (image size open).

    Example:
        >>> import dlprune as ha
        >>> cost = cost_of(Classifier.read(ha.demo_model_file()))
        >>> cost.kernels > 0 and cost.macs > cost.parameters
        True
    """
    fixed = classifier.image.batch if classifier.image is not None else None
    batch = fixed or 1
    facts = gather_facts(classifier.model, {classifier.input_name: classifier.input_shape(batch)})
    return graph_cost(classifier.model, facts, batch)


def graph_cost(model: ir.Model, facts: Facts, batch: int) -> Cost:
    """Return what a graph costs per image; `facts` were worked out for `batch` images. See cost_of."""
    layers: list[LayerCost] = []
    parameters = 0
    seen: set[str] = set()
    for node in model.graph.all_nodes():
        if all(facts.is_const(output) for output in node.outputs):
            continue
        own = 0
        for value in weights_of(node, facts):
            size = math.prod(facts.shape(value) or ())
            own += size
            if value.name not in seen:
                seen.add(value.name or "")
                parameters += size
        found = multiply_accumulates(node, facts)
        if found is not None:
            kernels, macs = found
            layers.append(LayerCost(node.name or label(node), node.op_type, kernels, own, macs / batch))
    return Cost(tuple(layers), parameters)


def weights_of(node: ir.Node, facts: Facts) -> list[ir.Value]:
    """Return the inputs of a node that are weights, see cost_of; one that is read twice comes twice."""
    return [value for value in node.inputs if value is not None and _is_weight(facts, value)]


def multiply_accumulates(node: ir.Node, facts: Facts) -> tuple[int, int] | None:
    """Return kernels and multiply-accumulates (for all images of the facts) of a layer, None for other nodes."""
    count = _COUNTERS.get(node.op_type) if is_standard(node) else None
    return None if count is None else count(node, facts)


def _is_weight(facts: Facts, value: ir.Value) -> bool:
    dtype, shape = facts.dtype(value), facts.shape(value)
    if not facts.is_const(value) or dtype is None or shape is None:
        return False
    return dtype.is_floating_point() and len(shape) > 0


def _shapes(node: ir.Node, facts: Facts) -> list[tuple[int, ...]] | None:
    """Return the shapes of the first two inputs and the first output, None if one of them is unknown."""
    values = (node.inputs[0], node.inputs[1], node.outputs[0])
    shapes = [None if value is None else facts.shape(value) for value in values]
    known = [shape for shape in shapes if shape is not None]
    return known if len(known) == len(shapes) else None


def _convolution(node: ir.Node, facts: Facts) -> tuple[int, int]:
    shapes = _shapes(node, facts)
    if shapes is None:
        return 0, 0
    _, weight, output = shapes
    return weight[0], math.prod(output) * math.prod(weight[1:])  # the weight is [kernels, inputs per group, *size]


def _transposed(node: ir.Node, facts: Facts) -> tuple[int, int]:
    shapes = _shapes(node, facts)
    if shapes is None:
        return 0, 0
    data, weight, _ = shapes  # the weight is [inputs, kernels per group, *size]; every input pixel meets all of it
    return weight[1] * int_attribute(node, "group", 1), math.prod(data) * math.prod(weight[1:])


def _product(node: ir.Node, facts: Facts) -> tuple[int, int]:
    shapes = _shapes(node, facts)
    if shapes is None:
        return 0, 0
    left, _, output = shapes
    inner = left[0] if node.op_type == "Gemm" and int_attribute(node, "transA", 0) else left[-1]
    kernels = output[-1] if facts.is_const(node.inputs[1]) and output else 0
    return kernels, math.prod(output) * inner


_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_COUNTERS: dict[str, Callable[[ir.Node, Facts], tuple[int, int]]] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "Gemm": _product,
    "MatMul": _product,
}


def file_size(path: str | os.PathLike[str]) -> int:
    """Return the bytes of an ONNX file, together with the files that its weights lie in.

    Raises OSError if one of them is missing.
    """
    return sum(one.stat().st_size for one in files_of(path))


def latency(classifiers: Sequence[Classifier], seconds: float = 1.0, runs: int | None = None) -> Latency:
    """Return the median time of a run of each classifier on ONNX Runtime, at batch size 1 or the fixed one.

    Runs alternate, so that a machine that slows down does so for all; threads do not spin while they wait, so that one
    session does not disturb the next.

    Parameters: `classifiers` (at least one); `seconds` (about the time to spend on each, float); `runs` (fixes the
    number of timed runs instead; int ≥ 1).
    Raises HOperatorError 7912 (ONNX Runtime cannot run one of them) or 7788 (image size open).
    """
    calls = [_call(classifier) for classifier in classifiers]
    slowest = max(min(_seconds(call) for _ in range(_WARM_UP)) for call in calls)
    if runs is None:
        runs = min(max(int(seconds / max(slowest, 1e-9)), _LEAST_RUNS), _MOST_RUNS)
    times = np.array([[_seconds(call) for call in calls] for _ in range(runs)])
    return Latency(tuple(median(column) for column in times.T.tolist()), runs)


def _call(classifier: Classifier) -> Callable[[], object]:
    """Return a function that runs the classifier once, on the same random image every time."""
    fixed = classifier.image.batch if classifier.image is not None else None
    shape = classifier.input_shape(fixed or 1)
    params = classifier.params
    noise = np.random.default_rng(0).uniform(params.image_range_min, params.image_range_max, shape)
    session: ort.InferenceSession = classifier.session()
    dtype: Any = classifier.image.dtype.numpy() if classifier.image is not None else np.float32
    feed = {classifier.input_name: noise.astype(dtype)}
    names = [classifier.output_name]
    return lambda: session.run(names, feed)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
