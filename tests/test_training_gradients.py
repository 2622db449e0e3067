"""Gradients of every weight of small nets against float64 central differences of ONNX's reference evaluator."""

from __future__ import annotations

import models
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from dlprune.classifier import Classifier
from dlprune.training.recipe import Rates, Recipe
from dlprune.training.trainer import Trainer, trainer_of

TOLERANCE = 1e-4
BATCH = 4

NETS = {
    "plain": """(float[N,3,8,8] x) => (float[N,5] y)
        <float[6,3,3,3] w1, float[6] b1, float[8,6,3,3] w2, float[8,5] w3, float[5] b3> {
          a = Conv<pads = [1,1,1,1]>(x, w1, b1)
          ar = Relu(a)
          c = Conv<pads = [1,1,1,1], strides = [2,2]>(ar, w2)
          cr = LeakyRelu(c)
          g = GlobalAveragePool(cr)
          f = Flatten(g)
          y = Gemm(f, w3, b3)
        }""",
    "batchnorm": """(float[N,3,6,6] x) => (float[N,4] y)
        <float[6,3,3,3] w1, float[6] s1, float[6] t1, float[6] m1, float[6] var1,
         float[6,1,3,3] w2, float[6] s2, float[6] t2, float[6] m2, float[6] var2, float[4,6] w3> {
          a = Conv<pads = [1,1,1,1]>(x, w1)
          ab = BatchNormalization<epsilon = 0.01>(a, s1, t1, m1, var1)
          ar = Relu(ab)
          c = Conv<group = 6, pads = [1,1,1,1]>(ar, w2)
          cb = BatchNormalization<epsilon = 0.01>(c, s2, t2, m2, var2)
          d = Add(cb, ar)
          dr = Sigmoid(d)
          g = ReduceMean<axes = [2,3], keepdims = 0>(dr)
          w3t = Transpose<perm = [1,0]>(w3)
          y = MatMul(g, w3t)
        }""",
    "pooled": """(float[N,3,9,9] x) => (float[N,3] y) <float[4,3,3,3] w1, float[4] b1, float[3,4,3,3] w2, float[3] b2> {
          a = Conv<pads = [1,1,1,1]>(x, w1, b1)
          ar = Relu(a)
          p = MaxPool<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>(ar)
          c = Conv<pads = [1,1,1,1]>(p, w2, b2)
          cr = Relu(c)
          q = MaxPool<kernel_shape = [2,2], strides = [2,2]>(cr)
          s = GlobalAveragePool(cr)
          g = GlobalAveragePool(q)
          d = Add(g, s)
          y = Flatten(d)
        }""",
    "tied": """(float[N,3,6,6] x) => (float[N,3] y) <float[3,3,3,3] w, float[3] b> {
          a = Conv<pads = [1,1,1,1]>(x, w, b)
          ar = Tanh(a)
          c = Conv<pads = [1,1,1,1]>(ar, w, b)
          g = GlobalAveragePool(c)
          y = Flatten(g)
        }""",
    "scales": """(float[N,3,6,6] x) => (float[N,3] y)
        <float[1,3,1,1] image_mean, float[4,3,3,3] w, float[4,1,1] slope, float[1,4,1,1] gamma, float[4,1,1] shift,
         float[4,3] v, float[3] u> {
          n = Sub(x, image_mean)
          a = Conv(n, w)
          p = PRelu(a, slope)
          m = Mul(p, gamma)
          s = Add(m, shift)
          g = GlobalMaxPool(s)
          f = Flatten(g)
          q = MatMul(f, v)
          r = Add(u, q)
          y = Softmax<axis = 1>(r)
        }""",
    "transposed": """(float[N,3,6,6] x) => (float[N,4] y)
        <float[3,4,3,3] w, float[4] b, float[4,2,2,2] v, float[4] s, float[4] t> {
          a = ConvTranspose<strides = [2,2], pads = [1,1,1,1], output_padding = [1,1]>(x, w, b)
          i = InstanceNormalization(a, s, t)
          h = HardSwish(i)
          c = Conv<group = 2, dilations = [2,2], auto_pad = "VALID">(h, v)
          g = GlobalAveragePool(c)
          y = Flatten(g)
        }""",
    "sigmoid": """(float[N,3,5,5] x) => (float[N,3] y) <float[3,3,3,3] w, float[3] b> {
          a = Conv(x, w, b)
          g = GlobalAveragePool(a)
          f = Flatten(g)
          y = Sigmoid(f)
        }""",
}


def proto_of(name: str) -> onnx.ModelProto:
    return models.model(f'<ir_version: 8, opset_import: ["" : 17]>\nnet {NETS[name]}')


class Truth:
    """Mean loss of a net in float64 as a function of its initializers."""

    def __init__(self, proto: onnx.ModelProto, images: np.ndarray, labels: np.ndarray, *, frozen: bool) -> None:
        proto = onnx.ModelProto.FromString(proto.SerializeToString())
        self.arrays = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in proto.graph.initializer}
        integers = [t for t in proto.graph.initializer if t.data_type == onnx.TensorProto.INT64]
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(integers)
        for name, array in self.arrays.items():
            info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, array.shape)
            proto.graph.input.append(info)
        for node in proto.graph.node:
            if node.op_type == "BatchNormalization" and not frozen:
                node.attribute.append(onnx.helper.make_attribute("training_mode", 1))
        self.head = proto.graph.node[-1].op_type
        self.logits = (
            proto.graph.node[-1].input[0] if self.head in ("Softmax", "Sigmoid") else proto.graph.output[0].name
        )
        proto.graph.output[0].name = self.logits
        self.evaluator = ReferenceEvaluator(proto)
        self.feeds = {"x": images.astype(np.float64)}
        self.labels = labels

    def loss(self, arrays: dict[str, np.ndarray]) -> float:
        (z,) = self.evaluator.run(None, {**self.feeds, **arrays})
        target = np.eye(z.shape[1])[self.labels]
        if self.head == "Sigmoid":
            return float(np.mean(np.sum(np.logaddexp(0, z) - z * target, axis=1)))
        z = z - z.max(axis=1, keepdims=True)
        return float(np.mean(np.log(np.exp(z).sum(axis=1)) - (z * target).sum(axis=1)))

    def slope(self, name: str, direction: np.ndarray) -> float:
        h = 1e-5 * direction
        up, down = ({**self.arrays, name: self.arrays[name] + s * h} for s in (1, -1))
        return (self.loss(up) - self.loss(down)) / 2e-5


def batch(proto: onnx.ModelProto) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    dims = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    classes = proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value
    images = rng.standard_normal((BATCH, *dims[1:])).astype(np.float32)
    return images, rng.integers(0, classes, BATCH)


def gradients(proto: onnx.ModelProto, images: np.ndarray, labels: np.ndarray, **wanted: object) -> Trainer:
    """Take a step of length 1: the velocity is then minus the gradient."""
    classifier = Classifier.from_proto(proto)
    trainer = trainer_of(classifier)
    parts = int(wanted.get("parts", 1))
    recipe = Recipe(shape=(len(images) // parts, *images.shape[1:]), **wanted)
    trainer.step(classifier, recipe, Rates(1.0, momentum=0.0), images, labels)
    return trainer


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_gradient_of_every_weight(name: str, frozen: bool):
    """Every element that is tried agrees with the central difference, relative to the weight's largest gradient."""
    proto = proto_of(name)
    images, labels = batch(proto)
    loss = "sigmoid" if name == "sigmoid" else "softmax"
    trainer = gradients(proto, images, labels, frozen_statistics=frozen, loss=loss)
    truth = Truth(proto, images, labels, frozen=frozen)
    found = trainer.snapshot().states["velocity"]
    statistics = {n for n in truth.arrays if n.startswith(("m1", "m2", "var"))}
    assert set(found) == set(truth.arrays) - statistics - {"image_mean"}
    rng = np.random.default_rng(0)
    largest = max(float(np.abs(velocity).max()) for velocity in found.values())
    for weight, velocity in found.items():
        # A bias before a BatchNormalization has the gradient 0: compare with the others then.
        scale = max(float(np.abs(velocity).max()), 1e-3 * largest)
        chosen = rng.permutation(velocity.size)[:8]
        directions = [np.eye(1, velocity.size, k).reshape(velocity.shape) for k in chosen]
        directions.append(rng.choice([-1.0, 1.0], velocity.shape))
        for direction in directions:
            error = abs(-float((velocity * direction).sum()) - truth.slope(weight, direction))
            assert error / (scale * np.linalg.norm(direction)) <= TOLERANCE, weight


def test_parts_add_up_to_the_whole():
    """Two parts of half the size give the gradient of the whole batch."""
    proto = proto_of("plain")
    images, labels = batch(proto)
    whole = gradients(proto, images, labels).snapshot().states["velocity"]
    parts = gradients(proto, images, labels, parts=2).snapshot().states["velocity"]
    for name, gradient in whole.items():
        np.testing.assert_allclose(parts[name], gradient, rtol=1e-5, atol=1e-6)


def test_gradients_of_normalisation_far_from_zero():
    """Inputs a thousand deviations off: sums of gradient times input must keep the digits that matter."""
    proto = models.model("""<ir_version: 8, opset_import: ["" : 17]>
    net (float[N,3,6,6] x) => (float[N,3] y) <float[3] s, float[3] t, float[3] m, float[3] var, float[3,3] w> {
      b = BatchNormalization(x, s, t, m, var)
      r = Relu(b)
      g = ReduceMean<axes = [2,3], keepdims = 0>(r)
      y = MatMul(g, w)
    }""")
    proto.graph.initializer[2].CopyFrom(numpy_helper.from_array(np.full(3, 1000, np.float32), "m"))
    images, labels = batch(proto)
    images = images + np.float32(1000)
    found = gradients(proto, images, labels).snapshot().states["velocity"]
    truth = Truth(proto, images, labels, frozen=False)
    for weight in ("s", "t", "w"):
        direction = np.sign(found[weight])
        expected = truth.slope(weight, direction)
        assert abs(-float((found[weight] * direction).sum()) - expected) <= 1e-3 * abs(expected), weight
