"""The score graph against the definition of the oracle score, computed in float64 by other means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from models import model
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes import common
from reference import OPERATORS

from dlprune.gradients import GradientError
from dlprune.scoregraph import ScoreGraph, ScoreGraphError, Scores


@dataclass(frozen=True)
class Reading:
    """A consumer of which every channel is scored."""

    output: str
    input: str
    axis: int
    units: np.ndarray


def reading(output: str, source: str, channels: int, axis: int = 1) -> Reading:
    return Reading(output, source, axis, np.arange(channels))


RESIDUAL = """(float[N,3,6,6] x) => (float[N,4] y)
<float[6,3,3,3] w1, float[6] b1, float[6,6,3,3] w2, float[6] s2, float[6] h2, float[6] m2, float[6] var2,
 float[8,6,3,3] w3, float[8] b3, float[8,6,1,1] w4, float[8,8,1,1] w5, float[4,8] w6, float[4] b6>
{
  a = Conv<pads = [1,1,1,1]>(x, w1, b1)
  ar = Relu(a)
  b = Conv<pads = [1,1,1,1]>(ar, w2)
  bn = BatchNormalization<epsilon = 0.001>(b, s2, h2, m2, var2)
  bs = Add(bn, ar)
  br = Relu(bs)
  c = Conv<pads = [1,0,0,1], strides = [2,2]>(br, w3, b3)
  d = Conv<strides = [2,2]>(br, w4)
  e = Add(c, d)
  er = Relu(e)
  f = Conv(er, w5)
  g = GlobalAveragePool(f)
  h = Flatten(g)
  y = Gemm<transB = 1>(h, w6, b6)
}"""
RESIDUAL_READINGS = [
    reading("b", "ar", 6),
    reading("c", "br", 6),
    reading("d", "br", 6),
    reading("f", "er", 8),
    reading("y", "h", 8),
]


def parsed(body: str, opset: int = 17, ir_version: int = 8, seed: int = 0) -> onnx.ModelProto:
    return model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}]> net {body}', seed)


def images_for(proto: onnx.ModelProto, batch: int, seed: int = 1) -> np.ndarray:
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    return np.random.default_rng(seed).standard_normal((batch, *(d.dim_value for d in dims[1:]))).astype(np.float32)


def scored(
    proto: onnx.ModelProto, readings: Sequence[Reading], images: np.ndarray, labels: Sequence[int], **options: bool
) -> Scores:
    graph = prepared(proto)
    built = ScoreGraph(
        graph, graph.graph.inputs[0].name, graph.graph.outputs[0].name, images.shape, readings, **options
    )
    return built.evaluate(images, np.asarray(labels))


def prepared(proto: onnx.ModelProto) -> ir.Model:
    graph = ir.from_proto(proto)
    common.LiftConstantsToInitializersPass(lift_all_constants=True)(graph)
    common.RemoveInitializersFromInputsPass()(graph)
    return graph


class Truth:
    """The network in float64 with a factor for each channel of one consumer's input, 1 unless a test turns it."""

    def __init__(self, proto: onnx.ModelProto, read: Reading, logits: str | None = None) -> None:
        proto = onnx.ModelProto.FromString(proto.SerializeToString())
        graph = proto.graph
        for tensor in graph.initializer:
            if tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16):
                array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
                tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        if logits is not None:
            graph.output[0].name = logits
        index, node = next((i, n) for i, n in enumerate(graph.node) if n.output[0] == read.output)
        node.input[list(node.input).index(read.input)] = "scaled"
        gate = onnx.helper.make_node("Mul", [read.input, "factor"], ["scaled"])
        graph.node.insert(index, gate)
        graph.input.append(onnx.helper.make_tensor_value_info("factor", onnx.TensorProto.DOUBLE, None))
        self.axis, self.channels = read.axis, len(read.units)
        self.source = read.input
        self.input = graph.input[0].name
        self.evaluator = ReferenceEvaluator(proto, new_ops=OPERATORS)

    def logits(self, images: np.ndarray, factor: np.ndarray) -> np.ndarray:
        found = self.evaluator.run(None, {self.input: images.astype(np.float64), "factor": factor})[0]
        return found.reshape(len(images), -1)

    def terms(self, images: np.ndarray, labels: Sequence[int], rank: int) -> np.ndarray:
        """Return [N, C]: the derivative of each sample's cross-entropy by the factor of each channel."""
        shape = [1] * rank
        shape[self.axis] = self.channels
        losses = []
        for sign in (1, -1):
            rows = []
            for channel in range(self.channels):
                factor = np.ones(self.channels)
                factor[channel] += sign * 1e-6
                z = self.logits(images, factor.reshape(shape))
                z = z - z.max(axis=1, keepdims=True)
                rows.append(np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(z)), labels])
            losses.append(np.array(rows).T)
        return (losses[0] - losses[1]) / 2e-6


def check(
    proto: onnx.ModelProto,
    readings: Sequence[Reading],
    ranks: Sequence[int],
    batch: int = 3,
    logits: str | None = None,
    tolerance: float = 1e-5,
) -> Scores:
    """Compare every consumer's terms with the definition; return what the score graph gave."""
    images = images_for(proto, batch)
    labels = np.arange(batch) % 3
    found = scored(proto, readings, images, labels)
    for read, rank, terms in zip(readings, ranks, found.terms, strict=True):
        truth = Truth(proto, read, logits).terms(images, labels, rank)
        assert terms.dtype == np.float32
        np.testing.assert_allclose(terms, truth, atol=tolerance * np.abs(truth).max(), rtol=0, err_msg=read.output)
    return found


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 18, 21])
def test_terms_of_a_residual_network_equal_the_definition(opset: int) -> None:
    """t is the derivative of each sample's loss by the scale of the input slices of one consumer, in every opset."""
    check(parsed(RESIDUAL, opset), RESIDUAL_READINGS, [4, 4, 4, 4, 2])


@pytest.mark.parametrize(
    "hidden",
    [
        "r = Relu(a)",
        "r = Clip(a, low, high)",
        "r = HardSwish(a)",
        "s = Sigmoid(a) r = Mul(a, s)",
        "s = Sigmoid(a) q = Mul(s, a) t = Mul(q, half) r = LeakyRelu(t)",
    ],
)
@pytest.mark.parametrize(
    "window",
    [
        "kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]",
        "kernel_shape = [3,3], strides = [2,2], pads = [0,1,1,0]",
        "kernel_shape = [3,3], strides = [3,3], pads = [1,1,1,1]",
        'kernel_shape = [3,3], strides = [2,2], auto_pad = "SAME_LOWER"',
        "kernel_shape = [3,3], strides = [2,2]",
    ],
)
def test_inverted_residuals_are_scored_phase_by_phase(hidden: str, window: str) -> None:
    """A strided depthwise convolution on an expanding one needs no ConvTranspose, and gives the same terms."""
    body = f"""(float[N,3,6,6] x) => (float[N,4] y)
    <float[2,3,1,1] w0, float[6,2,1,1] w1, float[6] b1, float[6,1,3,3] w2, float[4,6,1,1] w3,
     float low = {{0.0}}, float high = {{1.0}}, float half = {{0.5}}>
    {{
      z = Conv(x, w0)
      zr = Relu(z)
      a = Conv(zr, w1, b1)
      {hidden.replace(") ", ")" + chr(10))}
      d = Conv<group = 6, {window}>(r, w2)
      dr = Relu(d)
      e = Conv(dr, w3)
      y = ReduceMean<axes = [2,3], keepdims = 0>(e)
    }}"""
    proto = parsed(body)
    readings = [reading("a", "zr", 2), reading("e", "dr", 6)]
    check(proto, readings, [4, 4], batch=2)
    built = ScoreGraph(prepared(proto), "x", "y", (2, 3, 6, 6), readings)
    kinds = [node.op_type for node in built.model.graph]
    assert "DepthToSpace" in kinds
    assert "ConvTranspose" not in kinds


def test_a_map_with_another_reader_is_not_cut_into_phases() -> None:
    """Where the map above a strided depthwise convolution is read elsewhere as well, it is put together."""
    body = """(float[N,3,6,6] x) => (float[N,4] y)
    <float[2,3,1,1] w0, float[6,2,1,1] w1, float[6,1,3,3] w2, float[4,6,1,1] w3, float[4,6,1,1] w4>
    {
      z = Conv(x, w0)
      zr = Relu(z)
      a = Conv(zr, w1)
      r = Relu(a)
      d = Conv<group = 6, strides = [2,2], pads = [1,1,1,1]>(r, w2)
      e = Conv(d, w3)
      f = Conv<strides = [2,2]>(r, w4)
      g = Add(e, f)
      y = ReduceMean<axes = [2,3], keepdims = 0>(g)
    }"""
    check(parsed(body), [reading("a", "zr", 2), reading("e", "d", 6), reading("f", "r", 6)], [4, 4, 4], batch=2)


def test_loss_and_logits_are_those_of_the_model() -> None:
    """Loss is each sample's own cross-entropy; logits are the model's output."""
    proto = parsed(RESIDUAL)
    images = images_for(proto, 4)
    found = scored(proto, RESIDUAL_READINGS, images, [0, 1, 2, 3])
    truth = ReferenceEvaluator(proto).run(None, {"x": images})[0]
    np.testing.assert_allclose(found.logits, truth, rtol=1e-4, atol=1e-5)
    loss = np.log(np.exp(truth).sum(axis=1)) - truth[np.arange(4), np.arange(4)]
    np.testing.assert_allclose(found.loss, loss, rtol=1e-4)


def test_samples_do_not_mix() -> None:
    """A batch gives what its samples give one by one, so the number of samples in a batch does not matter."""
    proto = parsed(RESIDUAL)
    images = images_for(proto, 4)
    together = scored(proto, RESIDUAL_READINGS, images, [0, 1, 2, 3])
    for i in range(4):
        alone = scored(proto, RESIDUAL_READINGS, images[i : i + 1], [i])
        for a, b in zip(together.terms, alone.terms, strict=True):
            np.testing.assert_allclose(a[i], b[0], atol=1e-6)


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_any_number_of_images_is_worked_off_in_parts(count: int) -> None:
    """A graph for four images, several at a time, gives for fewer and for more what a graph of their number gives."""
    proto = parsed(RESIDUAL)
    graph = prepared(proto)
    images, labels = images_for(proto, count), np.arange(count) % 4
    whole = scored(proto, RESIDUAL_READINGS, images, labels)
    built = ScoreGraph(graph, "x", "y", (4, 3, 6, 6), RESIDUAL_READINGS, workers=2, threads=1)
    parts = built.evaluate(images, labels)
    assert parts.loss.shape == (count,)
    np.testing.assert_allclose(parts.logits, whole.logits, atol=1e-5)
    for mine, theirs in zip(parts.terms, whole.terms, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_runs_are_repeatable() -> None:
    """The same batch gives the same bits."""
    proto = parsed(RESIDUAL)
    graph = prepared(proto)
    built = ScoreGraph(graph, "x", "y", (4, 3, 6, 6), RESIDUAL_READINGS)
    images, labels = images_for(proto, 4), np.arange(4)
    first, second = built.run(images, labels), built.run(images, labels)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_an_unlabelled_sample_gets_the_models_own_decision() -> None:
    """Label −1 gives what the arg max as label gives."""
    proto = parsed(RESIDUAL)
    images = images_for(proto, 3)
    free = scored(proto, RESIDUAL_READINGS, images, [-1, -1, -1])
    named = scored(proto, RESIDUAL_READINGS, images, free.logits.argmax(axis=1))
    for a, b in zip(free.terms, named.terms, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_fixed_batch_is_served() -> None:
    """A model whose batch size and reshape are literal numbers is scored at that size."""
    body = """(float[2,3,4,4] x) => (float[2,4] y) <float[4,3,3,3] w, float[4,16] v, int64[2] shape = {2, 16}>
    {
      a = Conv(x, w)
      r = Relu(a)
      f = Reshape(r, shape)
      y = Gemm<transB = 1>(f, v)
    }"""
    check(parsed(body), [reading("y", "f", 16)], [2], batch=2)


HEAD = """(float[N,3,5,5] x) => ({output} y) <float[6,3,3,3] w1, float[4,6,1,1] w2, float[4] b2{weights}>
{{
  a = Conv(x, w1)
  r = Relu(a)
  g = GlobalAveragePool(r)
  z = Conv(g, w2, b2)
  {head}
}}"""


@pytest.mark.parametrize(
    ("output", "head", "weights"),
    [
        ("float[N,4,1,1]", "y = Identity(z)", ""),
        ("float[N,4]", "f = Flatten(z) y = Softmax<axis = 1>(f)", ""),
        ("float[N,4]", "f = Flatten(z) y = LogSoftmax<axis = -1>(f)", ""),
        ("float[N,4]", "p = Softmax<axis = 1>(z) y = Flatten(p)", ""),
        ("float[N,4,1,1]", "p = Softmax<axis = 1>(z) y = Identity(p)", ""),
        ("float[N,4]", "p = Softmax<axis = 1>(z) y = Reshape(p, shape)", ", int64[2] shape = {-1, 4}"),
        (
            "float[N,4]",
            "f = Squeeze(z, axes) p = Softmax(f) q = Identity(p) y = Dropout(q)",
            ", int64[2] axes = {2, 3}",
        ),
    ],
)
def test_a_final_softmax_is_looked_through(output: str, head: str, weights: str) -> None:
    """The loss is taken from the logits, wherever the softmax hides and whatever shape the classes come in."""
    proto = parsed(HEAD.format(output=output, head=head.replace(") ", ")\n  "), weights=weights))
    found = check(proto, [reading("z", "g", 6)], [4], logits="z")
    assert found.logits.shape == (3, 4)


def test_a_softmax_over_space_is_part_of_the_network() -> None:
    """Only a softmax over the classes is stripped."""
    body = """(float[N,3,2,2] x) => (float[N,4] y) <float[4,3,1,1] w, float[4,4,1,1] v, int64[2] axes = {2, 3}>
    {
      a = Conv(x, w)
      r = Relu(a)
      c = Conv(r, v)
      s = Softmax<axis = 3>(c)
      m = Mul(s, c)
      y = ReduceSum<keepdims = 0>(m, axes)
    }"""
    check(parsed(body), [reading("c", "r", 4)], [4])


def test_positions_folded_into_the_batch_are_put_together() -> None:
    """A dense layer over [N·P, C] gives terms per sample."""
    body = """(float[N,3,2,3] x) => (float[N,4] y)
    <float[5,3,1,1] w, float[5,4] v, int64[2] rows = {-1, 5}, int64[3] back = {-1, 6, 4}, int64[1] axes = {1}>
    {
      a = Conv(x, w)
      r = Relu(a)
      t = Transpose<perm = [0,2,3,1]>(r)
      f = Reshape(t, rows)
      d = MatMul(f, v)
      e = Reshape(d, back)
      y = ReduceMax<keepdims = 0, axes = [1]>(e)
    }"""
    check(parsed(body), [reading("d", "f", 5)], [2])


def test_a_sum_over_channels_is_a_consumer() -> None:
    """ReduceSum over channels counts like a convolution with ones."""
    body = """(float[N,3,4,4] x) => (float[N,4] y) <float[5,3,1,1] w, float[16,4] v, int64[1] axes = {1}>
    {
      a = Conv(x, w)
      r = Relu(a)
      s = ReduceSum<keepdims = 1>(r, axes)
      f = Flatten(s)
      y = MatMul(f, v)
    }"""
    check(parsed(body), [reading("s", "r", 5)], [4])


def test_channels_last_tensors_are_scored_on_their_axis() -> None:
    """A dense layer on [N, H, W, C] sums over H and W."""
    body = """(float[N,3,2,3] x) => (float[N,4] y) <float[5,3,1,1] w, float[5,4] v>
    {
      a = Conv(x, w)
      r = Relu(a)
      t = Transpose<perm = [0,2,3,1]>(r)
      d = MatMul(t, v)
      y = ReduceMean<keepdims = 0, axes = [1,2]>(d)
    }"""
    check(parsed(body), [reading("d", "t", 5, axis=3)], [4])


def test_weights_may_be_computed() -> None:
    """Constants behind Reshape, Transpose and Identity, dropouts and casts do no harm; Conv, Mul and Add are joined."""
    body = """(float[N,3,4,4] x) => (float[N,4] y)
    <float[6,3,3,3] w, float[6] m, float[6] b, float[4,24] v, int64[4] shape = {1, 6, 1, 1}>
    {
      i = Identity(w)
      a = Conv(x, i)
      mr = Reshape(m, shape)
      am = Mul(mr, a)
      br = Reshape(b, shape)
      ab = Add(am, br)
      r = Relu(ab)
      q = Dropout(r)
      f = Flatten(q)
      vt = Transpose(v)
      y = MatMul(f, vt)
    }"""
    proto = parsed(body)
    check(proto, [reading("y", "f", 24)], [2])
    graph = prepared(proto)
    built = ScoreGraph(graph, "x", "y", (1, 3, 4, 4), [reading("y", "f", 24)])
    assert not {"Identity", "Dropout"} & {node.op_type for node in list(built.model.graph)[:3]}


def test_a_shared_weight_is_folded_for_one_reader_only() -> None:
    """Two convolutions that read one initializer keep their own batch normalisation."""
    body = """(float[N,4,4,4] x) => (float[N,4] y)
    <float[4,4,1,1] w, float[4] s, float[4] h, float[4] m, float[4] var, float[4,4] v>
    {
      a = Conv(x, w)
      an = BatchNormalization(a, s, h, m, var)
      ar = Relu(an)
      b = Conv(ar, w)
      g = GlobalAveragePool(b)
      f = Flatten(g)
      y = MatMul(f, v)
    }"""
    check(parsed(body), [reading("b", "ar", 4), reading("y", "f", 4)], [4, 2])


def test_float16_models_are_scored_in_float32() -> None:
    """Weights and casts of a float16 model become float32."""
    proto = parsed(
        """(float[N,3,4,4] x) => (float[N,4] y) <float[6,3,3,3] w, float[4,6] v, float[4] b>
        {
          h = Cast<to = 10>(x)
          a = Conv(h, w)
          r = Relu(a)
          g = GlobalAveragePool(r)
          f = Flatten(g)
          o = Gemm<transB = 1>(f, v, b)
          y = Cast<to = 1>(o)
        }"""
    )
    for tensor in proto.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    check(proto, [reading("o", "f", 6)], [2])


def test_the_gradient_at_the_logits_can_be_given() -> None:
    """With `upstream` t is linear in the given gradient, and softmax − onehot gives the cross-entropy's."""
    proto = parsed(RESIDUAL)
    images = images_for(proto, 3)
    own = scored(proto, RESIDUAL_READINGS, images, [0, 1, 2])
    p = np.exp(own.logits - own.logits.max(axis=1, keepdims=True))
    gradient = (p / p.sum(axis=1, keepdims=True) - np.eye(3, 4)).astype(np.float32)
    graph = prepared(proto)
    built = ScoreGraph(graph, "x", "y", images.shape, RESIDUAL_READINGS, upstream=True)
    for a, b in zip(built.evaluate(images, gradient).terms, own.terms, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_consumers_without_units_cost_nothing() -> None:
    """A consumer whose channels are all fixed gets zeros, and no backward node is written for it."""
    proto = parsed(RESIDUAL)
    fixed = [Reading(r.output, r.input, r.axis, np.full(len(r.units), -1)) for r in RESIDUAL_READINGS[:-1]]
    graph = prepared(proto)
    built = ScoreGraph(graph, "x", "y", (2, 3, 6, 6), [*fixed, RESIDUAL_READINGS[-1]])
    terms = built.run(images_for(proto, 2), np.array([0, 1]))
    assert [t.shape for t in terms] == [(2, 6), (2, 6), (2, 6), (2, 8), (2, 8)]
    assert not any(t.any() for t in terms[:-1])
    assert terms[-1].all()
    assert not any(node.op_type == "Greater" for node in built.model.graph)


def test_a_consumer_off_the_way_gets_zeros() -> None:
    """A branch that does not reach the class output has no influence on the loss."""
    body = """(float[N,3,4,4] x) => (float[N,4] y, float[N,2,4,4] extra)
    <float[4,3,1,1] w, float[2,4,1,1] u, float[4,4] v>
    {
      a = Conv(x, w)
      extra = Conv(a, u)
      g = GlobalAveragePool(a)
      f = Flatten(g)
      y = MatMul(f, v)
    }"""
    proto = parsed(body)
    found = scored(proto, [reading("extra", "a", 4), reading("y", "f", 4)], images_for(proto, 2), [0, 1])
    assert not found.terms[0].any()
    assert found.terms[1].all()


def test_terms_of_consumers_of_one_tensor_may_come_together() -> None:
    """Where the sum of their gradients is there anyway, one product with it gives the sum of their terms."""
    proto = parsed(RESIDUAL)
    images = images_for(proto, 2)
    single, joint = (scored(proto, RESIDUAL_READINGS, images, [0, 1], together=way).terms for way in (False, True))
    np.testing.assert_allclose(joint[1], single[1] + single[2], rtol=1e-5, atol=1e-7)
    assert not joint[2].any()
    for index in (0, 3, 4):
        np.testing.assert_array_equal(joint[index], single[index])


def test_terms_stay_apart_where_more_than_their_consumers_reads_the_tensor() -> None:
    """The gradient through the residual connection belongs to nobody who mixes channels."""
    proto = parsed("""(float[N,3,6,6] x) => (float[N,4] y)
    <float[4,3,1,1] w0, float[4,4,1,1] w1, float[4,4,1,1] w2> {
      a = Conv(x, w0)
      r = Relu(a)
      b = Conv(r, w1)
      c = Conv(r, w2)
      m = Mul(b, c)
      s = Add(m, r)
      g = GlobalAveragePool(s)
      y = Flatten(g)
    }""")
    images = images_for(proto, 2)
    readings = [reading("b", "r", 4), reading("c", "r", 4)]
    single, joint = (scored(proto, readings, images, [0, 1], together=way).terms for way in (False, True))
    total = single[0] + single[1]
    np.testing.assert_allclose(joint[0] + joint[1], total, rtol=1e-4, atol=1e-6)
    assert np.abs(total).max() > 1e-3


def test_terms_stay_apart_where_consumers_read_different_axes() -> None:
    """A convolution mixes the channels of this tensor, a product with a matrix its columns."""
    proto = parsed("""(float[N,3,6,6] x) => (float[N,4] y)
    <float[4,3,1,1] w0, float[4,4,1,1] w1, float[6,5] w2> {
      a = Conv(x, w0)
      r = Tanh(a)
      b = Conv(r, w1)
      c = MatMul(r, w2)
      p = GlobalAveragePool(b)
      q = GlobalMaxPool(c)
      s = Add(p, q)
      y = Flatten(s)
    }""")
    images = images_for(proto, 2)
    readings = [reading("b", "r", 4), reading("c", "r", 6, axis=3)]
    single, joint = (scored(proto, readings, images, [0, 1], together=way).terms for way in (False, True))
    for mine, own in zip(joint, single, strict=True):
        np.testing.assert_array_equal(mine, own)
        assert own.any()


def test_weights_outside_the_file_are_found(tmp_path: Path) -> None:
    """A model with external data is scored like the same model in one file."""
    proto = parsed(RESIDUAL)
    images = images_for(proto, 2)
    ir.save(ir.from_proto(proto), tmp_path / "net.onnx", external_data="net.data", size_threshold_bytes=0)
    built = ScoreGraph(ir.load(tmp_path / "net.onnx"), "x", "y", images.shape, RESIDUAL_READINGS)
    for a, b in zip(
        built.run(images, np.array([0, 1])), scored(proto, RESIDUAL_READINGS, images, [0, 1]).terms, strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_the_users_names_cannot_clash() -> None:
    """Tensors of the user's that are called like ours do no harm."""
    proto = parsed(RESIDUAL)
    for node in proto.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name in ("ar", "br"):
                    names[i] = {"ar": "score/labels", "br": "score/1"}[name]
    readings = [reading("b", "score/labels", 6), reading("c", "score/1", 6)]
    check(proto, readings, [4, 4])


def test_the_users_model_is_left_alone() -> None:
    """Scoring changes neither the graph nor the weights that it was given."""
    proto = parsed(RESIDUAL, 11)
    graph = prepared(proto)
    before = ir.to_proto(graph).SerializeToString()
    ScoreGraph(graph, "x", "y", (2, 3, 6, 6), RESIDUAL_READINGS)
    assert ir.to_proto(graph).SerializeToString() == before


def test_an_unknown_operator_on_the_way_is_named() -> None:
    """An operator without a gradient between a consumer and the loss is an error with its name."""
    body = """(float[N,3,4,4] x) => (float[N,4] y) <float[4,3,1,1] w, float[4,4] v, int64 i = {1}>
    {
      a = Conv(x, w)
      g = GlobalAveragePool(a)
      f = Flatten(g)
      d = MatMul(f, v)
      y = CumSum(d, i)
    }"""
    proto = parsed(body)
    with pytest.raises(GradientError, match="CumSum"):
        scored(proto, [reading("d", "f", 4)], images_for(proto, 2), [0, 1])


def test_mixed_samples_are_refused() -> None:
    """A tensor without the batch in front is an error where samples could not be told apart."""
    body = """(float[2,3,4,4] x) => (float[2,4] y) <float[4,3,1,1] w, float[4,4] v>
    {
      a = Conv(x, w)
      g = GlobalAveragePool(a)
      f = Flatten(g)
      t = Transpose(f)
      d = MatMul(v, t)
      y = Transpose(d)
    }"""
    proto = parsed(body)
    with pytest.raises(ScoreGraphError, match="'t'"):
        scored(proto, [reading("d", "t", 4, axis=0)], images_for(proto, 2), [0, 1])
    found = scored(parsed(body.replace("[2,", "[1,")), [reading("d", "t", 4, axis=0)], images_for(proto, 1), [0])
    assert found.terms[0].shape == (1, 4)
