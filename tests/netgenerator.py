"""Random convolutional classifiers: the same net for the same seed.

python tests/netgenerator.py 17          # prints net 17
python tests/netgenerator.py 17 net.onnx # writes it
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass

import netblocks
import numpy as np
import onnx
from netbuilder import Map, Net, Row
from numberformats import to_half
from onnx import TensorProto, helper

#: Nodes before the head, and the fewest blocks and convolutions: a few are easily all fixed.
_NODES, _BLOCKS, _CONVOLUTIONS = (3, 25), 2, 4
_IR_VERSIONS = {11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10}


@dataclass(frozen=True)
class RandomNet:
    """A random classifier.

    Attributes:
        seed: number that it was made from.
        proto: the model.
        image_shape: shape of the image input at its nominal size, with the batch size of the file or 2.
        open_batch, open_size: what the file leaves open.
        zero_keeping: a silent channel stays silent up to whoever mixes it.
        blocks: names of the building blocks, the head last.
    """

    seed: int
    proto: onnx.ModelProto
    image_shape: tuple[int, int, int, int]
    open_batch: bool
    open_size: bool
    zero_keeping: bool
    blocks: tuple[str, ...]

    @property
    def tolerance(self) -> float:
        """Relative error that scores may have: half precision keeps three digits."""
        half = any(weight.data_type == TensorProto.FLOAT16 for weight in self.proto.graph.initializer)
        return 2e-3 if half else 1e-4

    @property
    def output(self) -> str:
        """Name of the class output."""
        return self.proto.graph.output[0].name

    def images(self, batch: int | None = None, scale: int = 1) -> np.ndarray:
        """Return random images, float32, for another batch size or a multiple of the nominal size."""
        n, *rest = self.image_shape
        spatial = (1, 2) if self.proto.graph.input[0].name == "image_nhwc" else (2, 3)
        shape = [n if batch is None else batch, *rest]
        for axis in spatial:
            shape[axis] *= scale
        rng = np.random.default_rng((self.seed, sum(shape)))
        return rng.standard_normal(shape).astype(np.float32)


def generate(seed: int, skip: Collection[int] = (), blocks: int | None = None) -> RandomNet:
    """Return net number `seed`.

    `skip` leaves out some of its building blocks, to find out which ones matter; `blocks` is the most it may have.
    """
    rng = np.random.default_rng(seed)
    open_batch, open_size = bool(rng.random() < 0.75), bool(rng.random() < 0.12)
    batch = None if open_batch else int(rng.integers(1, 4))
    half = bool(rng.random() < 0.06)
    net = Net(rng, int(rng.integers(11, 22)), batch, open_size, bool(rng.random() < 0.3), half)
    x, shape, is_nhwc = _stem(net)
    names = list(netblocks.BLOCKS)
    shares = np.array([share for share, _ in netblocks.BLOCKS.values()])
    wanted = net.integer(*_NODES)
    used: list[str] = []
    index = 0
    while (len(net.nodes) < wanted or len(used) < _BLOCKS or net.convolutions < _CONVOLUTIONS) and (
        index < 60 and len(used) != blocks
    ):
        # Each block draws from a source of its own, so that leaving one out changes the others as little as possible.
        net.rng = np.random.default_rng((seed, index))
        name = str(net.rng.choice(names, p=shares / shares.sum()))
        index += 1
        if index - 1 in skip:
            continue
        before = len(net.nodes)
        y = netblocks.BLOCKS[name][1](net, x)
        if y is None or y.height * y.width * y.channels > 1 << 13:
            net.forget(before)
            continue
        used.append(f"{index - 1}:{name}")
        net.maps.append(y)
        x = y
    net.rng = np.random.default_rng((seed, 1000))
    classes = net.integer(2, 6)
    head = net.pick([one for one, needs_size in _HEADS if not (needs_size and net.open_size)])
    logits, dims = head(net, x, classes)
    output, dims = _end(net, logits, dims)
    used.append(head.__name__)
    proto = _model(net, output, [net.pick([None, "classes", classes, classes]), *[1] * (dims - 2)], shape, is_nhwc)
    if half:
        to_half(proto, proto.graph.input[0].name, keep_ends=net.chance(0.5))
    return RandomNet(
        seed=seed,
        proto=proto,
        image_shape=tuple(2 if d is None else d for d in shape),  # type: ignore[arg-type]
        open_batch=batch is None,
        open_size=net.open_size,
        zero_keeping=net.zero_keeping,
        blocks=tuple(used),
    )


def _stem(net: Net) -> tuple[Map, list[int | None], bool]:
    """The image, perhaps scaled and in another layout, and a first convolution."""
    channels, height, width = net.pick([1, 3, 3, 4]), net.integer(6, 14), net.integer(6, 14)
    is_nhwc = net.chance(0.12) and not net.open_size
    name = "image_nhwc" if is_nhwc else "image"
    shape: list[int | None] = [net.batch, channels, height, width]
    if is_nhwc:
        shape = [net.batch, height, width, channels]
        name = net.op("Transpose", name, perm=[0, 3, 1, 2])
    if net.chance(0.15):
        name = net.op("Mul", name, net.number(0.5))
        name = net.op("Sub", name, net.number(0.1)) if net.chance(0.5) else name
    net.maps.append(Map(name, channels, height, width))
    x = netblocks.conv(net, net.maps[0], net.width(), net.pick([1, 3, 3, 5]))
    x = netblocks.activation(net, netblocks.norm(net, x) if net.chance(0.5) else x)
    net.maps.append(x)
    return x, shape, is_nhwc


# --- heads ------------------------------------------------------------------------------------------------------------

Head = Callable[[Net, Map, int], tuple[str, int]]
_HEADS: list[tuple[Head, bool]] = []


def _head(needs_size: bool = False) -> Callable[[Head], Head]:
    def register(function: Head) -> Head:
        _HEADS.append((function, needs_size))
        return function

    return register


def _pooled(net: Net, x: Map) -> str:
    """A map [N, C, 1, 1]."""
    kind = net.integer(0, 3)
    if kind == 0:
        return net.reduce("ReduceMean", x.name, net.pick([[2, 3], [-2, -1], [-1, -2]]), 1)
    return net.op(net.pick(["GlobalAveragePool", "GlobalAveragePool", "GlobalMaxPool"]), x.name)


def _dense(net: Net, row: Row, out: int) -> Row:
    """A dense layer: Gemm in one of its forms, or MatMul and Add."""
    kind = net.integer(0, 3)
    if kind == 0:
        y = net.op("MatMul", row.name, net.weight((row.features, out), row.features))
        return Row(net.op("Add", y, net.shift(out)) if net.chance(0.8) else y, out)
    transposed = net.chance(0.6)
    weight = net.weight((out, row.features) if transposed else (row.features, out), row.features)
    inputs = [weight]
    bias = net.integer(0, 5)
    if bias == 0:
        inputs.append(net.floats(0.0 if net.zero_keeping else 0.2))
    elif bias == 1:
        inputs.append(net.constant(np.full((1, out), 0.0 if net.zero_keeping else 0.1, np.float32)))
    elif bias > 2 or net.opset < 11:
        inputs.append(net.shift(out))
    attributes: dict[str, object] = {"transB": 1} if transposed else {}
    if net.chance(0.2):
        attributes.update(alpha=0.5, beta=2.0)
    return Row(net.op("Gemm", row.name, *inputs, **attributes), out)


def _layers(net: Net, row: Row, classes: int) -> str:
    """One to three dense layers."""
    for _ in range(net.pick([0, 0, 1, 1, 2])):
        hidden = _dense(net, row, net.integer(3, 10))
        name = net.op(net.pick(["Relu", "Tanh", "LeakyRelu"]), hidden.name)
        if net.chance(0.2):
            name = net.op("Dropout", name)
        row = Row(name, hidden.features)
    return _dense(net, row, classes).name


@_head()
def global_pool(net: Net, x: Map, classes: int) -> tuple[str, int]:
    """Pool, flatten in one of many ways, dense layers."""
    kind, c = net.integer(0, 5), x.channels
    if kind == 0:
        name = net.reduce("ReduceMean", x.name, [2, 3], 0)
    elif kind == 1:
        name = net.squeeze(_pooled(net, x), net.pick([[2, 3], [-1, -2]]))
    elif kind == 2:
        name = net.squeeze(net.squeeze(_pooled(net, x), [3]), [2])
    elif kind == 3:
        name = net.op("Flatten", _pooled(net, x), axis=net.pick([1, -3]))
    else:
        name = net.reshape(_pooled(net, x), [0, c], [(0, 1), net.pick([-1, (1, 1)])])
    return _layers(net, Row(name, c), classes), 2


@_head(needs_size=True)
def flattened(net: Net, x: Map, classes: int) -> tuple[str, int]:
    """All pixels go into the dense layers."""
    if x.height * x.width > 36 and x.height >= 4 and x.width >= 4:
        x = Map(net.op("MaxPool", x.name, kernel_shape=[2, 2], strides=[2, 2]), x.channels, x.height // 2, x.width // 2)
    features = x.channels * x.height * x.width
    if net.chance(0.3):
        last = net.op("Transpose", x.name, perm=[0, 2, 3, 1])
        name = net.reshape(last, [0, features], [(0, 1), -1])
    elif net.chance(0.5):
        name = net.op("Flatten", x.name)
    else:
        name = net.reshape(x.name, [0, features], [(0, 1), -1])
    return _layers(net, Row(name, features), classes), 2


@_head(needs_size=True)
def flattened_twice(net: Net, x: Map, classes: int) -> tuple[str, int]:
    """Two flattened maps, concatenated."""
    small = Map(net.op("GlobalMaxPool", x.name), x.channels, 1, 1)
    y = Map(_pooled(net, x), x.channels, 1, 1)
    if x.height * x.width <= 24:
        y = x
    parts = [net.op("Flatten", small.name), net.op("Flatten", y.name)]
    features = x.channels + y.channels * y.height * y.width
    return _layers(net, Row(net.op("Concat", *parts, axis=1), features), classes), 2


@_head()
def convolution_head(net: Net, x: Map, classes: int) -> tuple[str, int]:
    """The class layer is a convolution, before or after the pool."""
    if net.chance(0.5):
        y = netblocks.conv(net, x, classes, 1)
        name = _pooled(net, y)
    else:
        name = netblocks.conv(net, Map(_pooled(net, x), x.channels, 1, 1), classes, 1).name
    if net.chance(0.3):
        return name, 4
    if net.chance(0.5):
        return net.op("Flatten", name), 2
    return net.squeeze(name, [2, 3]), 2


@_head()
def mean_over_pixels(net: Net, x: Map, classes: int) -> tuple[str, int]:
    """A sequence of pixels, a dense layer on each, the mean of all."""
    y = net.reshape(x.name, [0, x.channels, x.height * x.width], [(0, 1), net.pick([x.channels, (1, 1)]), -1])
    y = net.op("Transpose", y, perm=[0, 2, 1])
    y = net.op("MatMul", y, net.weight((x.channels, classes)))
    y = net.op("Add", y, net.shift(classes)) if net.chance(0.5) else y
    return net.reduce("ReduceMean", y, [1], 0), 2


@_head()
def sum_over_pixels(net: Net, x: Map, classes: int) -> tuple[str, int]:
    """Two pools added before the dense layers."""
    if net.chance(0.5):
        name = net.reduce("ReduceSum", net.op("Tanh", x.name), [2, 3], 0)
    else:
        name = net.op("Add", net.op("GlobalAveragePool", x.name), net.op("GlobalMaxPool", x.name))
        name = net.op("Flatten", name)
    return _layers(net, Row(name, x.channels), classes), 2


def _end(net: Net, logits: str, dims: int) -> tuple[str, int]:
    """Logits as they are, or a softmax, perhaps hidden behind a change of shape."""
    kind = net.integer(0, 5)
    if kind > 2:
        return logits, dims
    op_type = net.pick(["Softmax", "Softmax", "LogSoftmax"])
    y = net.op(op_type, logits, axis=1)
    if dims == 4 and kind:
        return net.op("Flatten", y), 2
    return (net.op("Identity", y) if kind == 2 else y), dims


def _model(
    net: Net, output: str, class_dims: list[int | str | None], shape: list[int | None], is_nhwc: bool
) -> onnx.ModelProto:
    declared = ["N" if shape[0] is None else shape[0], *shape[1:]]
    if net.open_size:
        declared[2:] = ["H", "W"]
    image = helper.make_tensor_value_info("image_nhwc" if is_nhwc else "image", TensorProto.FLOAT, declared)
    classes = helper.make_tensor_value_info(output, TensorProto.FLOAT, [declared[0], *class_dims])
    used = {name for node in net.nodes for name in node.input}
    weights = [tensor for tensor in net.initializers if tensor.name in used]
    inputs, outputs = [image], [classes]
    if net.chance(0.08):  # as old files list them
        inputs += [helper.make_tensor_value_info(w.name, w.data_type, list(w.dims)) for w in weights]
    inner = [m for m in net.maps[1:] if m.height * m.width > 1 and m.name != output]
    # Another output than the classes: the channels of that map must stay.
    if len(inner) > 3 and not net.open_size and net.chance(0.08):
        m = net.pick(inner)
        dims = [declared[0], m.channels, m.height, m.width]
        outputs.append(helper.make_tensor_value_info(m.name, TensorProto.FLOAT, dims))
    model = helper.make_model(
        helper.make_graph(net.nodes, "random", inputs, outputs, weights, value_info=net.declared),
        opset_imports=[helper.make_opsetid("", net.opset)],
        ir_version=_IR_VERSIONS[net.opset],
        producer_name="netgenerator",
    )
    if net.chance(0.25):  # shapes of inner tensors, which are wrong after pruning
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return model


if __name__ == "__main__":
    found = generate(int(sys.argv[1]))
    print(found.blocks, found.image_shape, f"open size {found.open_size}, keeps zeros {found.zero_keeping}")
    if len(sys.argv) > 2:
        onnx.save(found.proto, sys.argv[2])
    else:
        print(onnx.printer.to_text(found.proto))
