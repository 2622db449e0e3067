"""How long single layers take on this machine at candidate widths, measured with ONNX Runtime."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import numpy_helper

from .facts import Facts
from .ledger import Amounts
from .nodes import input_at, int_attribute, opset
from .shapes import Shape
from .structure import CONVOLUTIONS

#: Shares of a layer's width at which it is timed; times between are interpolated.
_SHARES = (0.25, 0.5, 0.75, 1.0)
#: A layer is run so often, but no longer than so many seconds; three times at least.
_MOST_RUNS, _SECONDS = 25, 0.03
#: Numbers of channels in multiples of this suit all processors, those in multiples of a machine's block width suit it.
LEAST_BLOCK = 8


class LayerTimes:
    """Seconds of one layer over the number of channels that it reads and writes.

    Args:
        reads: ascending numbers of read channels, R of them.
        makes: ascending numbers of written channels, M of them.
        seconds: float64 [R, M].
    """

    def __init__(self, reads: Sequence[int], makes: Sequence[int], seconds: NDArray[np.float64]) -> None:
        # More channels never count as faster: noise would tempt to remove what saves nothing.
        rising = np.maximum.accumulate(np.maximum.accumulate(seconds, axis=0), axis=1)
        self._axes = [np.array([0.0, *reads]), np.array([0.0, *makes])]
        self._table = _from_zero(_from_zero(rising, self._axes[0]).T, self._axes[1]).T

    def __call__(self, read: Amounts, made: Amounts) -> Amounts:
        """Return the time at these widths, element by element."""
        (low, share), (left, part) = (_place(axis, at) for axis, at in zip(self._axes, (read, made), strict=True))
        table = self._table
        near = table[low, left] * (1 - part) + table[low, left + 1] * part
        far = table[low + 1, left] * (1 - part) + table[low + 1, left + 1] * part
        found: Amounts = near * (1 - share) + far * share
        return found


def _from_zero(table: NDArray[np.float64], axis: NDArray[np.float64]) -> NDArray[np.float64]:
    """Put a row for width 0 before a table: the first two rows tell which way it goes."""
    slope = (table[1] - table[0]) / (axis[2] - axis[1]) if len(table) > 1 else np.zeros(table.shape[1])
    return np.concatenate([np.maximum(table[:1] - slope * axis[1], 0.0), table])


def _place(axis: NDArray[np.float64], at: Amounts) -> tuple[NDArray[np.intp], Amounts]:
    index = np.clip(np.searchsorted(axis, at, side="right") - 1, 0, len(axis) - 2)
    share: Amounts = np.clip((at - axis[index]) / (axis[index + 1] - axis[index]), 0.0, 1.0)
    return index, share


def time_layer(
    model: ir.Model, node: ir.Node, facts: Facts, batch: tuple[int, int], free: tuple[bool, bool], whole_groups: bool
) -> LayerTimes:
    """Measure a Conv, ConvTranspose, Gemm or MatMul on noise; what this process has measured before is not again.

    Args:
        model: the network, for its opset.
        node: the layer.
        facts: shapes of its tensors.
        batch: images that the facts were worked out for, and images to time.
        free: whether it may come to read, and to write, fewer channels.
        whole_groups: whether whole groups of it leave; what it reads then follows from what it writes.
    """
    source, out = _shape(facts, node.inputs[0]), _shape(facts, node.outputs[0])
    axis = 1 if node.op_type in CONVOLUTIONS else -1
    read, made, groups = source[axis], out[axis], int_attribute(node, "group", 1)
    steps = (1, made // groups) if whole_groups else (groups, groups)
    read_grid = _grid(read, steps[0]) if free[0] and not whole_groups else [read]
    made_grid = _grid(made, steps[1]) if free[1] else [made]
    seconds = np.zeros((len(read_grid), len(made_grid)))
    images = max(source[0] * batch[1] // batch[0], 1)
    for (i, r), (j, m) in product(enumerate(read_grid), enumerate(made_grid)):
        kept = groups * m // made if whole_groups else groups
        width = read * kept // groups if whole_groups else r
        shape = (images, width, *source[2:]) if axis == 1 else (images, *source[1:-1], width)
        weight = _weight_shape(node, _shape(facts, node.inputs[1]), width, m, kept)
        seconds[i, j] = _seconds(opset(model), _alone(node, kept), shape, weight, m * _has_bias(node))
    return LayerTimes(read_grid, made_grid, seconds)


def _grid(width: int, step: int) -> list[int]:
    """Return the widths to time: multiples of the block width and of `step`, the present width last."""
    unit = math.lcm(block_width(), step)
    if width <= unit:
        return sorted({max(width // (2 * step), 1) * step, width})
    return sorted({min(math.ceil(width * share / unit) * unit, width) for share in _SHARES})


def _weight_shape(node: ir.Node, weight: Shape, read: int, made: int, groups: int) -> Shape:
    if node.op_type == "Conv":
        return (made, read // groups, *weight[2:])
    if node.op_type == "ConvTranspose":
        return (read, made // groups, *weight[2:])
    return (made, read) if node.op_type == "Gemm" and int_attribute(node, "transB", 0) else (read, made)


def _has_bias(node: ir.Node) -> bool:
    return node.op_type != "MatMul" and input_at(node, 2) is not None


def _alone(node: ir.Node, groups: int) -> bytes:
    """Return a node that reads x, w (and b) and writes y, serialised."""
    proto = ir.to_proto(node)
    kept = sorted((a for a in proto.attribute if a.name != "group"), key=lambda attribute: attribute.name)
    names = ["x", "w", "b"][: 2 + _has_bias(node)]
    alone = onnx.NodeProto(op_type=node.op_type, input=names, output=["y"], attribute=kept)
    if node.op_type in CONVOLUTIONS:
        alone.attribute.append(onnx.helper.make_attribute("group", groups))
    data: bytes = alone.SerializeToString(deterministic=True)
    return data


@cache
def _seconds(version: int, node: bytes, shape: Shape, weight: Shape, bias: int) -> float:
    """Return the time of a layer, float32; the least of several runs, as what disturbs only adds to it."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.standard_normal(weight).astype(np.float32)}
    if bias:
        constants["b"] = np.zeros(bias, np.float32)
    graph = onnx.helper.make_graph(
        [onnx.NodeProto.FromString(node)],
        "layer",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {"x": rng.standard_normal(shape).astype(np.float32)}
    session.run(None, feeds)
    times: list[float] = []
    while len(times) < 3 or (len(times) < _MOST_RUNS and sum(times) < _SECONDS):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    return min(times)


@cache
def block_width() -> int:
    """Return how many channels ONNX Runtime computes at once on this machine: 16 with AVX-512, 8 with AVX2.

    It is read off how many it pads a convolution of one channel to; 8 where it has no blocked layout.
    """
    image = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 1, 1, 1])
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    weight = numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Conv", ["x", "w"], ["y"])], "one", [image], [output], [weight]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    with tempfile.TemporaryDirectory(prefix="dlprune-") as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.optimized_model_filepath = os.path.join(folder, "optimised.onnx")
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        optimised = onnx.load(options.optimized_model_filepath).graph
    return max([LEAST_BLOCK, *(int(tensor.dims[0]) for tensor in optimised.initializer if len(tensor.dims) == 4)])


def _shape(facts: Facts, value: ir.Value | None) -> Shape:
    shape = None if value is None else facts.shape(value)
    assert shape is not None
    return shape
