"""Every gradient rule, run by ONNX Runtime in float32, against central differences of ONNX's reference in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
import reference
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from dlprune.facts import gather_facts
from dlprune.gradients import GradientError, Writer, differentiate
from dlprune.gradients.rule import _RULES
from dlprune.simplify import simplify

#: Worst relative error seen per operator, printed by the last test of this file.
WORST: dict[str, float] = {}
TOLERANCE = 1e-4
EXAMPLES = 25

Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass
class Case:
    """One node: inputs in `wanted` are fed and differentiated, others are constants; None leaves an input out."""

    inputs: Sequence[np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    wanted: Sequence[int] = (0,)
    outputs: int = 1
    opset: int = 18


CASES: dict[str, Callable[[Draw], Case]] = {}


def case(*op_types: str) -> Callable[[Callable[[Draw], Case]], Callable[[Draw], Case]]:
    def register(function: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
        CASES.update(dict.fromkeys(op_types, function))
        return function

    return register


def integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


def rng_of(draw: Draw) -> np.random.Generator:
    return np.random.default_rng(draw(st.integers(0, 2**16)))


def normal(draw: Draw, *shape: int) -> np.ndarray:
    return rng_of(draw).standard_normal(shape)


def distinct(draw: Draw, *shape: int) -> np.ndarray:
    """Numbers that keep a distance from each other and from the multiples of 0.1, where tests put kinks."""
    count = math.prod(shape)
    values = (np.arange(count) - count // 2) * 0.1 + 0.05
    return rng_of(draw).permutation(values).reshape(shape)


def positive(draw: Draw, *shape: int) -> np.ndarray:
    return rng_of(draw).uniform(0.5, 2.0, shape)


def any_shape(draw: Draw, rank: int | None = None, largest: int = 4) -> tuple[int, ...]:
    rank = draw(integers(1, 4)) if rank is None else rank
    return tuple(draw(integers(1, largest)) for _ in range(rank))


def indices(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


# Reverse mode and its truth


def build(op_type: str, c: Case) -> onnx.ModelProto:
    names = [f"x{i}" if array is not None else "" for i, array in enumerate(c.inputs)]
    while not names[-1]:
        names.pop()
    node = onnx.helper.make_node(op_type, names, [f"y{i}" for i in range(c.outputs)], name="node", **c.attributes)
    inputs, constants = [], []
    for i, array in enumerate(c.inputs):
        if array is None:
            continue
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        if i in c.wanted:
            inputs.append(onnx.helper.make_tensor_value_info(names[i], onnx.TensorProto.FLOAT, array.shape))
        else:
            constants.append(onnx.numpy_helper.from_array(array, names[i]))
    outputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in node.output]
    graph = onnx.helper.make_graph([node], "case", inputs, outputs, constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", c.opset)], ir_version=9)


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], outputs: Sequence[str] | None = None) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(outputs, feeds)


def reverse_mode(
    proto: onnx.ModelProto, wanted: Sequence[str], feeds: dict[str, np.ndarray], seeds: Sequence[np.ndarray]
):
    """Gradients of Σ seed·output by our rules."""
    model = ir.from_proto(proto)
    simplify(model, gather_facts(model, {}))
    writer = Writer(model.graph)
    tops = {
        value: writer.constant(seed.astype(np.float32)) for value, seed in zip(model.graph.outputs, seeds, strict=True)
    }
    values = {value.name: value for value in model.graph.inputs}
    found = differentiate(writer, tops, [values[name] for name in wanted], opset=proto.opset_import[0].version)
    model.graph.outputs.clear()
    for i, name in enumerate(wanted):
        output = writer.op("Identity", found.values[values[name]])
        output.name, output.type = f"gradient{i}", ir.TensorType(ir.DataType.FLOAT)
        model.graph.outputs.append(output)
    used = {value.name for value in model.graph.inputs}
    return run(ir.to_proto(model), {k: v for k, v in feeds.items() if k in used})


def check(op_type: str, c: Case) -> float:
    """Return the greatest error of any element of any gradient, relative to the greatest element of that gradient."""
    proto = build(op_type, c)
    data = {f"x{i}": np.asarray(c.inputs[i], np.float64).astype(np.float32).astype(np.float64) for i in c.wanted}
    feeds = {name: array.astype(np.float32) for name, array in data.items()}
    exact = onnx.ModelProto()
    exact.CopyFrom(proto)
    for tensor in exact.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float64), tensor.name)
            )
    evaluator = ReferenceEvaluator(exact, new_ops=reference.OPERATORS)
    truth = evaluator.run(None, data)
    for mine, theirs in zip(run(proto, feeds), truth, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4, err_msg="forward passes differ")
    rng = np.random.default_rng(0)
    seeds = [rng.standard_normal(np.shape(y)) for y in truth]
    gradients = reverse_mode(proto, list(data), feeds, seeds)

    def loss(name: str, step: np.ndarray) -> float:
        outputs = evaluator.run(None, {**data, name: data[name] + step})
        return sum(float((seed * y).sum()) for seed, y in zip(seeds, outputs, strict=True))

    worst = 0.0
    for (name, array), mine in zip(data.items(), gradients, strict=True):
        assert mine.shape == array.shape
        scale = max(float(np.abs(mine).max(initial=0.0)), 1e-3)
        chosen = rng.permutation(array.size)[:12]
        directions = [np.eye(1, array.size, k).reshape(array.shape) for k in chosen]
        directions += [rng.choice([-1.0, 1.0], array.shape) for _ in range(3)]
        for direction in directions:
            h = 1e-5 * direction
            slope = (loss(name, h) - loss(name, -h)) / 2e-5
            norm = math.sqrt(float((direction**2).sum()))
            worst = max(worst, abs(float((mine * direction).sum()) - slope) / (scale * norm))
    return worst


# Operators


@case("Conv")
def conv(draw: Draw) -> Case:
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    group = draw(integers(1, 3))
    kernel = [draw(integers(1, 3)) for _ in range(rank)]
    attributes: dict[str, Any] = {
        "group": group,
        "strides": [draw(integers(1, 3)) for _ in range(rank)],
        "dilations": [draw(integers(1, 2)) for _ in range(rank)],
    }
    padding = draw(st.sampled_from(["pads", "none", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if padding == "pads":
        attributes["pads"] = [draw(integers(0, 3)) for _ in range(2 * rank)]
    elif padding != "none":
        attributes["auto_pad"] = padding
        attributes["dilations"] = [1] * rank
    x = normal(draw, draw(integers(1, 2)), group * draw(integers(1, 2)), *(draw(integers(5, 7)) for _ in range(rank)))
    w = normal(draw, group * draw(integers(1, 2)), x.shape[1] // group, *kernel)
    return Case([x, w, normal(draw, w.shape[0])], attributes, draw(st.sampled_from([(0, 2), (0, 1, 2), (1,)])))


@case("ConvTranspose")
def conv_transpose(draw: Draw) -> Case:
    rank = draw(integers(1, 2))
    group = draw(integers(1, 2))
    kernel = [draw(integers(1, 3)) for _ in range(rank)]
    strides = [draw(integers(1, 3)) for _ in range(rank)]
    attributes: dict[str, Any] = {
        "group": group,
        "strides": strides,
        "dilations": [draw(integers(1, 2)) for _ in range(rank)],
    }
    if draw(st.booleans()):
        attributes["pads"] = [draw(integers(0, 1)) for _ in range(2 * rank)]
        attributes["output_padding"] = [draw(integers(0, s - 1)) for s in strides]
    x = normal(draw, draw(integers(1, 2)), group * draw(integers(1, 2)), *(draw(integers(3, 4)) for _ in range(rank)))
    w = normal(draw, x.shape[1], draw(integers(1, 2)), *kernel)
    bias = normal(draw, w.shape[1] * group)
    return Case([x, w, bias], attributes, draw(st.sampled_from([(0, 2), (0, 1, 2), (1,)])))


@case("Gemm")
def gemm(draw: Draw) -> Case:
    m, k, n = (draw(integers(1, 4)) for _ in range(3))
    a_t, b_t = draw(integers(0, 1)), draw(integers(0, 1))
    a, b = normal(draw, *((k, m) if a_t else (m, k))), normal(draw, *((n, k) if b_t else (k, n)))
    c = normal(draw, *draw(st.sampled_from([(n,), (1, n), (m, 1), (m, n), (1,)])))
    wanted = draw(st.sampled_from([(0,), (0, 1, 2), (0, 2)]))
    return Case([a, b, c], {"alpha": 0.7, "beta": 1.3, "transA": a_t, "transB": b_t}, wanted)


@case("MatMul")
def matmul(draw: Draw) -> Case:
    m, k, n = (draw(integers(1, 4)) for _ in range(3))
    before, after = draw(
        st.sampled_from([((), ()), ((2,), ()), ((2, 3), ()), ((2, 3), (3,)), ((1, 3), (2, 1)), ((), (2,))])
    )
    return Case([normal(draw, *before, m, k), normal(draw, *after, k, n)], wanted=draw(st.sampled_from([(0,), (0, 1)])))


@case("Relu", "LeakyRelu", "Sigmoid", "Tanh", "Elu", "Celu", "Selu", "Erf", "Softplus", "Softsign", "Exp", "Neg", "Abs")
@case("HardSwish", "Identity", "Mish")
def unary(draw: Draw) -> Case:
    return Case([distinct(draw, *any_shape(draw))])


@case("ThresholdedRelu")
def thresholded_relu(draw: Draw) -> Case:
    return Case([distinct(draw, *any_shape(draw))], {"alpha": 0.5})


@case("Clip")
def clip(draw: Draw) -> Case:
    low, high = draw(st.sampled_from([(-1.0, 1.0), (0.0, 6.0), (None, 0.5), (0.0, None), (None, None)]))
    bounds = [None if v is None else np.array(v) for v in (low, high)]
    return Case([distinct(draw, *any_shape(draw)), *bounds])


@case("PRelu")
def prelu(draw: Draw) -> Case:
    shape = (2, *any_shape(draw, 3))
    slope = positive(draw, *draw(st.sampled_from([(shape[1], 1, 1), (1,), (1, shape[1], 1, 1), shape])))
    return Case([distinct(draw, *shape), slope], wanted=(0, 1))


@case("HardSigmoid")
def hard_sigmoid(draw: Draw) -> Case:
    return Case([distinct(draw, *any_shape(draw))], {"alpha": draw(st.sampled_from([0.25, 0.5])), "beta": 0.5})


@case("Gelu")
def gelu(draw: Draw) -> Case:
    return Case([normal(draw, *any_shape(draw))], {"approximate": draw(st.sampled_from(["none", "tanh"]))}, opset=20)


@case("Swish")
def swish(draw: Draw) -> Case:
    return Case([normal(draw, *any_shape(draw))], {"alpha": draw(st.sampled_from([1.0, 1.5]))}, opset=24)


@case("Sqrt", "Log", "Reciprocal")
def of_positive(draw: Draw) -> Case:
    return Case([positive(draw, *any_shape(draw))])


@case("Softmax", "LogSoftmax")
def softmax(draw: Draw) -> Case:
    shape = any_shape(draw)
    return Case([normal(draw, *shape)], {"axis": draw(integers(-len(shape), len(shape) - 1))})


def broadcastable(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = any_shape(draw)
    other = tuple(1 if draw(st.booleans()) else size for size in shape)[draw(integers(0, len(shape))) :]
    return (shape, other) if draw(st.booleans()) else (other, shape)


@case("Add", "Sub", "Mul", "Div")
def binary(draw: Draw) -> Case:
    a, b = broadcastable(draw)
    wanted = draw(st.sampled_from([(0,), (1,), (0, 1)]))
    return Case([normal(draw, *a), positive(draw, *b)], wanted=wanted)


@case("Pow")
def power(draw: Draw) -> Case:
    a, b = broadcastable(draw)
    exponent = draw(st.sampled_from([np.array(2.0), np.array(3.0), np.array(0.5), positive(draw, *b)]))
    return Case([positive(draw, *a), exponent], wanted=draw(st.sampled_from([(0,), (0, 1)])))


@case("Sum", "Mean", "Max", "Min")
def variadic(draw: Draw) -> Case:
    shape = any_shape(draw, 3)
    count = draw(integers(1, 3))
    pool = distinct(draw, count, *shape)
    arrays = [pool[i] for i in range(count)]
    if count > 1 and draw(st.booleans()):
        arrays[1] = arrays[1][:1]
    return Case(arrays, wanted=draw(st.sampled_from([(0,), tuple(range(count))])))


@case("Where")
def where(draw: Draw) -> Case:
    a, b = broadcastable(draw)
    condition = rng_of(draw).random(np.broadcast_shapes(a, b)) < 0.5
    return Case([condition, normal(draw, *a), normal(draw, *b)], wanted=(1, 2))


@case("Cast")
def cast(draw: Draw) -> Case:
    return Case([normal(draw, *any_shape(draw))], {"to": onnx.TensorProto.FLOAT})


@case("Dropout")
def dropout(draw: Draw) -> Case:
    return Case([normal(draw, *any_shape(draw)), np.array(0.5, np.float32)])


@case("Reshape")
def reshape(draw: Draw) -> Case:
    target = draw(st.sampled_from([(4, 6), (-1,), (2, -1, 3), (0, 12), (1, 24)]))
    return Case([normal(draw, 2, 4, 3), indices(*target)])


@case("Flatten")
def flatten(draw: Draw) -> Case:
    return Case([normal(draw, *any_shape(draw, 3))], {"axis": draw(integers(-3, 3))})


@case("Squeeze")
def squeeze(draw: Draw) -> Case:
    return Case([normal(draw, 2, 1, 3, 1), draw(st.sampled_from([None, indices(1), indices(-1, 1)]))])


@case("Unsqueeze")
def unsqueeze(draw: Draw) -> Case:
    return Case([normal(draw, 2, 3), draw(st.sampled_from([indices(0), indices(-1, 1), indices(1, 2)]))])


@case("Transpose")
def transpose(draw: Draw) -> Case:
    shape = any_shape(draw)
    perm = draw(st.permutations(range(len(shape))))
    return Case([normal(draw, *shape)], draw(st.sampled_from([{}, {"perm": list(perm)}])))


@case("Expand")
def expand(draw: Draw) -> Case:
    big = any_shape(draw, 3)
    small = tuple(1 if draw(st.booleans()) else size for size in big)[draw(integers(0, 3)) :]
    return Case([normal(draw, *small), indices(*big)])


@case("Tile")
def tile(draw: Draw) -> Case:
    shape = any_shape(draw, 3, 3)
    return Case([normal(draw, *shape), indices(*(draw(integers(1, 3)) for _ in shape))])


@case("Concat")
def concat(draw: Draw) -> Case:
    shape = any_shape(draw, 3)
    axis = draw(integers(-3, 2))
    parts = []
    for _ in range(draw(integers(1, 3))):
        size = list(shape)
        size[axis] = draw(integers(1, 3))
        parts.append(normal(draw, *size))
    return Case(parts, {"axis": axis}, wanted=draw(st.sampled_from([(0,), tuple(range(len(parts)))])))


@case("Split")
def split(draw: Draw) -> Case:
    axis = draw(integers(-3, 2))
    shape = [2, 3, 2]
    shape[axis] = 6
    form = draw(st.sampled_from(["sizes", "even"]))
    if form == "sizes":
        return Case([normal(draw, *shape), indices(1, 3, 2)], {"axis": axis}, outputs=3)
    return Case([normal(draw, *shape)], {"axis": axis, "num_outputs": 3}, outputs=3)


@case("Slice")
def slice_(draw: Draw) -> Case:
    shape = (draw(integers(1, 3)), draw(integers(4, 6)), draw(integers(4, 6)))
    axes = draw(st.sampled_from([[1], [2], [-1], [1, 2], [2, 1]]))
    starts, ends, steps = [], [], []
    for _ in axes:
        step = draw(st.sampled_from([1, 1, 2, 3, -1, -2]))
        low, high = draw(integers(0, 2)), draw(st.sampled_from([-1, 3, 4, 2**31 - 1]))
        starts.append(low if step > 0 else high)
        ends.append(high if step > 0 else draw(st.sampled_from([0, -(2**31)])))
        steps.append(step)
    if draw(st.booleans()):
        return Case([normal(draw, *shape), indices(*starts), indices(*ends), indices(*axes), indices(*steps)])
    return Case([normal(draw, *shape), indices(0, 1, 1), indices(1, -1, 3)])


@case("Pad")
def pad(draw: Draw) -> Case:
    mode = draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    low = 0
    shape = (2, 3, 4)
    if draw(st.booleans()):
        amounts = [draw(integers(low, 1)) for _ in range(6)]
        return Case([normal(draw, *shape), indices(*amounts)], {"mode": mode}, opset=19)
    amounts = [draw(integers(low, 2)) for _ in range(4)]
    return Case([normal(draw, *shape), indices(*amounts), None, indices(1, -1)], {"mode": mode}, opset=19)


@case("Gather")
def gather(draw: Draw) -> Case:
    axis = draw(integers(-3, 2))
    shape = [2, 3, 2]
    shape[axis] = 4
    chosen = draw(
        st.sampled_from(
            [indices(3, 1, 0, 2), indices(1, 2), indices(0, 0, -1), np.array(2), np.array([[0, 1], [1, -4]])]
        )
    )
    return Case([normal(draw, *shape), chosen], {"axis": axis})


@case("DepthToSpace")
def depth_to_space(draw: Draw) -> Case:
    block = draw(integers(1, 3))
    x = normal(draw, draw(integers(1, 2)), block**2 * draw(integers(1, 2)), 2, 3)
    return Case([x], {"blocksize": block, "mode": draw(st.sampled_from(["DCR", "CRD"]))})


@case("SpaceToDepth")
def space_to_depth(draw: Draw) -> Case:
    block = draw(integers(1, 3))
    return Case([normal(draw, draw(integers(1, 2)), 2, 2 * block, block)], {"blocksize": block})


def window(draw: Draw, dilated: bool) -> tuple[int, dict[str, Any]]:
    rank = draw(st.sampled_from([1, 2, 2, 3]))
    kernel = [draw(integers(1, 3)) for _ in range(rank)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": [draw(integers(1, 3)) for _ in range(rank)]}
    padding = draw(st.sampled_from(["pads", "none", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if padding in ("pads", "none"):
        attributes["ceil_mode"] = draw(integers(0, 1))
        if dilated:
            attributes["dilations"] = [draw(integers(1, 2)) for _ in range(rank)]
    if padding == "pads":
        attributes["pads"] = [draw(integers(0, (k - 1) // 2)) for k in kernel] + [
            draw(integers(0, (k - 1) // 2)) for k in kernel
        ]
    elif padding != "none":
        attributes["auto_pad"] = padding
        attributes["strides"] = [min(s, k) for s, k in zip(attributes["strides"], kernel, strict=True)]
    return rank, attributes


@case("MaxPool")
def max_pool(draw: Draw) -> Case:
    rank, attributes = window(draw, True)
    return Case([distinct(draw, 2, 2, *(draw(integers(5, 7)) for _ in range(rank)))], attributes)


@case("AveragePool")
def average_pool(draw: Draw) -> Case:
    rank, attributes = window(draw, True)
    attributes["count_include_pad"] = draw(integers(0, 1))
    return Case([normal(draw, 2, 2, *(draw(integers(5, 7)) for _ in range(rank)))], attributes, opset=19)


@case("GlobalAveragePool", "GlobalMaxPool")
def global_pool(draw: Draw) -> Case:
    return Case([distinct(draw, *any_shape(draw, draw(integers(3, 4))))])


@case("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2")
def reduction(draw: Draw) -> Case:
    shape = any_shape(draw, 3)
    axes = draw(st.sampled_from([None, indices(0), indices(-1), indices(1, 2), indices(0, -1)]))
    attributes = {"keepdims": draw(integers(0, 1)), "noop_with_empty_axes": 0}
    return Case([distinct(draw, *shape), axes], attributes)


@case("Resize")
def resize(draw: Draw) -> Case:
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    attributes: dict[str, Any] = {"mode": mode}
    attributes["coordinate_transformation_mode"] = draw(
        st.sampled_from(["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
    )
    if mode == "nearest":
        attributes["nearest_mode"] = draw(st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))
    x = normal(draw, 1, 2, 3, 4)
    if draw(st.booleans()):
        odd = [1.0, 2.0] if attributes["coordinate_transformation_mode"] == "align_corners" else [1.5, 0.7]
        scales = np.array([1, 1, draw(st.sampled_from(odd)), draw(st.sampled_from([2.0, 3.0, 0.5]))])
        return Case([x, None, scales.astype(np.float32)], attributes, opset=19)
    sizes = indices(1, 2, draw(integers(2, 6)), draw(integers(2, 8)))
    return Case([x, None, None, sizes], attributes, opset=19)


def weights(draw: Draw) -> tuple[int, ...]:
    """Wanted inputs of a normalisation with scale and shift."""
    return draw(st.sampled_from([(0,), (0, 1, 2), (1,), (2,)]))


@case("BatchNormalization")
def batch_normalization(draw: Draw) -> Case:
    shape = (2, *any_shape(draw, draw(integers(1, 3))))
    vectors = [normal(draw, shape[1]) for _ in range(3)]
    return Case([normal(draw, *shape), *vectors, positive(draw, shape[1])], {"epsilon": 0.01}, weights(draw))


@case("InstanceNormalization")
def instance_normalization(draw: Draw) -> Case:
    shape = (2, draw(integers(1, 3)), draw(integers(2, 3)), 3)
    vectors = [normal(draw, shape[1]) for _ in range(2)]
    return Case([normal(draw, *shape), *vectors], {"epsilon": 0.01}, weights(draw))


@case("LayerNormalization")
def layer_normalization(draw: Draw) -> Case:
    axis = draw(st.sampled_from([-1, 1, 2]))
    shape = (2, 3, 4)
    tail = shape[axis:]
    vectors = [normal(draw, *tail) for _ in range(2)]
    return Case([normal(draw, *shape), *vectors], {"axis": axis, "epsilon": 0.01}, weights(draw))


@case("RMSNormalization")
def rms_normalization(draw: Draw) -> Case:
    axis = draw(st.sampled_from([-1, 1]))
    shape = (2, 3, 4)
    wanted = draw(st.sampled_from([(0,), (0, 1), (1,)]))
    return Case([normal(draw, *shape), normal(draw, *shape[axis:])], {"axis": axis, "epsilon": 0.01}, wanted, opset=23)


@case("GroupNormalization")
def group_normalization(draw: Draw) -> Case:
    groups = draw(integers(1, 2))
    channels = groups * draw(integers(1, 3))
    x = normal(draw, 2, channels, 2, draw(integers(2, 3)))
    attributes = {"num_groups": groups, "epsilon": 0.01}
    return Case([x, normal(draw, channels), normal(draw, channels)], attributes, weights(draw), opset=21)


@case("LRN")
def local_response_normalization(draw: Draw) -> Case:
    size = draw(st.sampled_from([1, 3, 5]))
    x = normal(draw, 2, draw(integers(3, 6)), 2, 2)
    return Case([x], {"size": size, "alpha": 0.5, "beta": 0.75, "bias": 1.5})


@pytest.mark.parametrize("op_type", sorted(CASES))
def test_rule_agrees_with_central_differences(op_type: str) -> None:
    """The gradient of every float input equals the central difference of the float64 reference."""

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(st.data())
    def examine(data: st.DataObject) -> None:
        error = check(op_type, CASES[op_type](data.draw))
        WORST[op_type] = max(WORST.get(op_type, 0.0), error)
        assert error <= TOLERANCE

    examine()


def test_every_rule_has_a_case() -> None:
    """No rule is registered that the test above does not try."""
    assert set(_RULES) == set(CASES)


def test_worst_error_is_small(capsys: pytest.CaptureFixture[str]) -> None:
    """The worst relative error over all operators is printed."""
    if WORST:
        op_type = max(WORST, key=lambda name: WORST[name])
        with capsys.disabled():
            print(f"\nworst relative gradient error of {len(WORST)} operators: {WORST[op_type]:.1e} ({op_type})")
        assert WORST[op_type] <= TOLERANCE


@pytest.mark.parametrize("width", [8, 70])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_large_depthwise_kernels(op_type: str, multiplier: int, stride: int, width: int) -> None:
    """Depthwise kernels of 16 positions and more have formulas of their own for the weight gradient."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, 9, width)), rng.standard_normal((3 * multiplier, 1, 5, 4))
    if op_type == "ConvTranspose":
        w = w.reshape(3, multiplier, 5, 4)
    attributes = {"group": 3, "strides": [stride, 1], "dilations": [1, 2], "pads": [2, 1, 0, 3]}
    assert check(op_type, Case([x, w], attributes, wanted=(0, 1))) <= TOLERANCE


@pytest.mark.parametrize(("size", "channels"), [(5, 9), (5, 33), (18, 33)])
@pytest.mark.parametrize(("strides", "pads"), [([1, 1], [1, 0, 2, 1]), ([2, 1], [0, 0, 0, 0]), ([1, 2], [2, 1, 1, 0])])
def test_kernels_of_many_channels(strides: list[int], pads: list[int], size: int, channels: int) -> None:
    """From eight channels on, kernels are worked off by rows or positions, with or without joined samples."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, channels, size, size)), rng.standard_normal((8, channels, 3, 2))
    attributes = {"strides": strides, "dilations": [2, 1], "pads": pads}
    assert check("Conv", Case([x, w, rng.standard_normal(8)], attributes, wanted=(0, 1, 2))) <= TOLERANCE


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("strides", [[1, 1], [2, 2], [1, 2]])
def test_dense_kernels_of_many_positions(strides: list[int], group: int) -> None:
    """Above nine positions the image is shifted along one axis after the other."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 4, 9, 11)), rng.standard_normal((6, 4 // group, 5, 4))
    attributes = {"group": group, "strides": strides, "dilations": [1, 2], "pads": [2, 1, 0, 3]}
    assert check("Conv", Case([x, w], attributes, wanted=(0, 1))) <= TOLERANCE


# Whole graphs


def graph_gradients(text: str, wanted: Sequence[str], **feeds: np.ndarray) -> list[np.ndarray]:
    """Return the gradients of the sum of the first output."""
    proto = onnx.parser.parse_model(text)
    shape = run(proto, feeds)[0].shape
    return reverse_mode(proto, wanted, feeds, [np.ones(shape)])


def test_add_of_a_tensor_to_itself_doubles() -> None:
    """Both slots of a node that reads one tensor twice count."""
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float[3] x) => (float[3] y) { y = Add(x, x) }'
    (dx,) = graph_gradients(text, ["x"], x=np.ones(3, np.float32))
    np.testing.assert_array_equal(dx, [2, 2, 2])


def test_readers_add_up() -> None:
    """The gradient of a tensor is the sum over its readers, small broadcast parts included."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[1,2,1,2] x) => (float[1,2,1,2] y) {
      m = GlobalAveragePool(x)
      r = Relu(x)
      s = Add(r, m)
      y = Add(s, x)
    }"""
    (dx,) = graph_gradients(text, ["x"], x=np.array([[[[1, -1]], [[-1, 2]]]], np.float32))
    np.testing.assert_array_equal(dx, [[[[3, 2]], [[2, 3]]]])


def test_only_small_gradients_are_spread() -> None:
    """A gradient that broadcasts is expanded to its tensor where nothing else does it."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[1,2,2,2] x) => (float[1,2,1,1] y) {
      y = GlobalAveragePool(x)
    }"""
    (dx,) = graph_gradients(text, ["x"], x=np.zeros((1, 2, 2, 2), np.float32))
    np.testing.assert_array_equal(dx, np.full((1, 2, 2, 2), 0.25))


def test_integers_and_booleans_carry_no_gradient() -> None:
    """What depends on a tensor through a comparison only gets nothing from there."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[3] x) => (float[3] y) <float zero = {0.0}> {
      b = Greater(x, zero)
      m = Cast<to = 1>(b)
      y = Mul(x, m)
    }"""
    (dx,) = graph_gradients(text, ["x"], x=np.array([-1, 2, 3], np.float32))
    np.testing.assert_array_equal(dx, [0, 1, 1])


def test_unread_outputs_of_split_count_as_zero() -> None:
    """Only the part that reaches the loss gets a gradient."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[1,4] x) => (float[1,2] y) {
      a, y = Split<axis=1, num_outputs=2>(x)
    }"""
    (dx,) = graph_gradients(text, ["x"], x=np.zeros((1, 4), np.float32))
    np.testing.assert_array_equal(dx, [[0, 0, 1, 1]])


def test_a_tied_maximum_is_paid_once() -> None:
    """Where several elements of a window are greatest, one of them gets the whole gradient."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[1,1,4] x) => (float[1,1,2] y) {
      y = MaxPool<kernel_shape = [2], strides = [2]>(x)
    }"""
    (dx,) = graph_gradients(text, ["x"], x=np.zeros((1, 1, 4), np.float32))
    np.testing.assert_array_equal(dx.reshape(2, 2).sum(axis=1), [1, 1])


@pytest.mark.parametrize("attributes", ["strides = [2,2], pads = [1,1,1,1]", "", "strides = [1,2], ceil_mode = 1"])
def test_of_tied_maxima_of_overlapping_windows_the_first_is_paid(attributes: str) -> None:
    """The gradient goes where ONNX Runtime finds the maximum, to the first of several equal ones."""
    shape = f"kernel_shape = [3,3]{', ' * bool(attributes)}{attributes}"
    text = f"""<ir_version: 9, opset_import: ["" : 18]> g (float[2,3,8,7] x) => (float[2,3,H,W] y) {{
      y = MaxPool<{shape}>(x)
    }}"""
    with_indices = text.replace("[2,3,H,W] y)", "[2,3,H,W] y, int64[2,3,H,W] i)").replace("y = Max", "y, i = Max")
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, (2, 3, 8, 7)).astype(np.float32)
    _, indices = run(onnx.parser.parse_model(with_indices), {"x": x})
    expected = np.zeros(x.size, np.float32)
    seed = rng.standard_normal(indices.shape).astype(np.float32)
    np.add.at(expected, indices.reshape(-1), seed.reshape(-1))
    (dx,) = reverse_mode(onnx.parser.parse_model(text), ["x"], {"x": x}, [seed])
    np.testing.assert_allclose(dx.reshape(-1), expected, rtol=1e-5, atol=1e-5)


def test_negative_pads_cut() -> None:
    """What Pad cuts off gets no gradient."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[4] x) => (float[4] y) <int64[2] p = {-1, 1}> {
      y = Pad(x, p)
    }"""
    (dx,) = graph_gradients(text, ["x"], x=np.ones(4, np.float32))
    np.testing.assert_array_equal(dx, [0, 1, 1, 1])


@pytest.mark.parametrize(
    "attributes",
    [
        'strides = [2,2], auto_pad = "SAME_UPPER"',
        'strides = [2,2], auto_pad = "SAME_LOWER"',
        'strides = [3,2], auto_pad = "VALID"',
        "strides = [2,2], output_shape = [6,7]",
    ],
)
def test_conv_transpose_resolves_its_pads_as_onnx_runtime_does(attributes: str) -> None:
    """The gradient is the transpose of the forward map, whichever way the pads are given."""
    text = f"""<ir_version: 9, opset_import: ["" : 18]> g (float[1,1,3,3] x) => (float[1,1,H,W] y)
    <float[1,1,3,3] w = {{1,2,3,4,5,6,7,8,9}}> {{ y = ConvTranspose<{attributes}>(x, w) }}"""
    proto = onnx.parser.parse_model(text)
    unit = np.eye(9, dtype=np.float32).reshape(9, 1, 1, 3, 3)
    images = [run(proto, {"x": row})[0] for row in unit]
    rng = np.random.default_rng(0)
    seed = rng.standard_normal(images[0].shape).astype(np.float32)
    (dx,) = reverse_mode(proto, ["x"], {"x": unit[0]}, [seed])
    np.testing.assert_allclose(dx.reshape(-1), [float((seed * image).sum()) for image in images], rtol=1e-5, atol=1e-5)


def test_an_operator_without_rule_is_named() -> None:
    """A node on the way that cannot be differentiated is an error with operator and node, never a zero gradient."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[3] x) => (float[3] y) <int64 i = {0}> {
      a = Relu(x)
      y = CumSum(a, i)
    }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.node[1].name = "running total"
    with pytest.raises(GradientError, match=r"CumSum.*running total") as caught:
        reverse_mode(proto, ["x"], {"x": np.ones(3, np.float32)}, [np.ones(3)])
    assert (caught.value.op_type, caught.value.node) == ("CumSum", "running total")


def test_an_operator_without_rule_beside_the_way_does_no_harm() -> None:
    """What does not lead from a wanted tensor to the loss needs no rule."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[3] x, float[3] z) => (float[3] y) <int64 i = {0}> {
      c = CumSum(z, i)
      y = Mul(x, c)
    }"""
    (dx,) = graph_gradients(text, ["x"], x=np.ones(3, np.float32), z=np.ones(3, np.float32))
    np.testing.assert_array_equal(dx, [1, 2, 3])


def test_training_mode_is_refused() -> None:
    """BatchNormalization in training mode is an error, not a wrong gradient."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[2,1,3] x) => (float[2,1,3] y)
    <float[1] s = {1.0}, float[1] b = {0.0}, float[1] m = {0.0}, float[1] v = {1.0}> {
      y, rm, rv = BatchNormalization<training_mode = 1>(x, s, b, m, v)
    }"""
    proto = onnx.parser.parse_model(text)
    with pytest.raises(GradientError, match="training mode"):
        reverse_mode(proto, ["x"], {"x": np.ones((2, 1, 3), np.float32)}, [np.ones((2, 1, 3))])


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_dilated_pools_that_pad_themselves_are_refused(op_type: str) -> None:
    """ONNX Runtime forgets the dilation in the pads: an error, not the gradient of other pads."""
    text = f"""<ir_version: 9, opset_import: ["" : 19]> g (float[1,1,7,7] x) => (float[N,C,H,W] y) {{
      y = {op_type}<kernel_shape = [2,2], dilations = [2,2], auto_pad = "SAME_UPPER">(x)
    }}"""
    proto = onnx.parser.parse_model(text)
    with pytest.raises(GradientError, match="dilated"):
        reverse_mode(proto, ["x"], {"x": np.ones((1, 1, 7, 7), np.float32)}, [np.ones((1, 1, 6, 6))])
