"""Building blocks of random classifiers: each takes a feature map and returns the next one, or None if it cannot."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
from netbuilder import Map, Net
from onnx import helper

Block = Callable[[Net, Map], Map | None]

#: Name, share and function of every block.
BLOCKS: dict[str, tuple[float, Block]] = {}


def block(share: float = 1.0) -> Callable[[Block], Block]:
    """Register a block that is chosen with this share."""

    def register(function: Block) -> Block:
        BLOCKS[function.__name__] = (share, function)
        return function

    return register


# --- convolutions -----------------------------------------------------------------------------------------------------


def conv(net: Net, x: Map, out: int, kernel: int = 3, stride: int = 1, group: int = 1, bias: bool | None = None) -> Map:
    """A convolution that keeps the size (divided by the stride, rounded up)."""
    weight = net.weight((out, x.channels // group, kernel, kernel))
    inputs = [weight, net.vector(out)] if (net.chance(0.5) if bias is None else bias) else [weight]
    attributes: dict[str, object] = {}
    if kernel > 1 or net.chance(0.5):
        attributes["kernel_shape"] = [kernel, kernel]
    if kernel > 1:
        if net.chance(0.1):
            attributes["auto_pad"] = net.pick(["SAME_UPPER", "SAME_LOWER"]) if stride == 1 else "SAME_UPPER"
        else:
            attributes["pads"] = [(kernel - 1) // 2] * 2 + [kernel // 2] * 2
    if stride > 1 or net.chance(0.3):
        attributes["strides"] = [stride, stride]
    if group > 1:
        attributes["group"] = group
    name = net.op("Conv", x.name, *inputs, **attributes)
    return Map(name, out, -(-x.height // stride), -(-x.width // stride))


def norm(net: Net, x: Map) -> Map:
    c = x.channels
    if net.zero_keeping:
        zero = [net.shift(c), net.shift(c)]
        return net.put(x, "BatchNormalization", net.vector(c, 1.0, 0.4), *zero, net.vector(c, 1.0, 0.5))
    parts = [net.vector(c, 1.0, 0.4), net.vector(c), net.vector(c), net.vector(c, 1.0, 0.5)]
    return net.put(x, "BatchNormalization", *parts, epsilon=net.pick([1e-5, 1e-3]))


def activation(net: Net, x: Map) -> Map:
    """One of the activations; those that do not map 0 to 0 only where silence need not be kept."""
    choices = [_relu] * 6 + [_leaky, _prelu, _elu, _relu6, _hard_swish, _spelled_hard_swish, _silu, _gelu, _mish, _odd]
    if not net.zero_keeping:
        choices += [_shifting, _shifting]
    return net.pick(choices)(net, x)


def _relu(net: Net, x: Map) -> Map:
    return net.put(x, "Relu")


def _leaky(net: Net, x: Map) -> Map:
    return net.put(x, "LeakyRelu", alpha=0.1)


def _prelu(net: Net, x: Map) -> Map:
    shape = net.pick([(x.channels, 1, 1), (1, x.channels, 1, 1), (1,)])
    return net.put(x, "PRelu", net.constant(net.rng.uniform(0.05, 0.4, shape).astype(np.float32)))


def _elu(net: Net, x: Map) -> Map:
    return net.put(x, net.pick(["Elu", "Selu", "Celu"] if net.opset >= 12 and not net.half else ["Elu", "Selu"]))


def _relu6(net: Net, x: Map) -> Map:
    return Map(net.clip(x.name, 0.0, net.pick([6.0, None])), x.channels, x.height, x.width)


def _hard_swish(net: Net, x: Map) -> Map:
    if net.opset >= 14:
        return net.put(x, "HardSwish")
    gate = net.put(x, "HardSigmoid", alpha=1 / 6, beta=0.5)
    return net.put(x, "Mul", gate.name)


def _spelled_hard_swish(net: Net, x: Map) -> Map:
    gate = net.clip(net.op("Add", x.name, net.number(3.0)), 0.0, 6.0)
    if net.chance(0.5):
        return net.put(net.put(x, "Mul", gate), "Div", net.number(6.0))
    return net.put(x, "Mul", net.op("Mul", gate, net.number(1 / 6)))


def _silu(net: Net, x: Map) -> Map:
    return net.put(x, "Mul", net.op("Sigmoid", x.name))


def _gelu(net: Net, x: Map) -> Map:
    if net.opset >= 20 and net.chance(0.5):
        return net.put(x, "Gelu", approximate=net.pick(["none", "tanh"]))
    inner = net.op("Erf", net.op("Div", x.name, net.number(math.sqrt(2))))
    return net.put(net.put(x, "Mul", net.op("Add", inner, net.number(1.0))), "Mul", net.number(0.5))


def _mish(net: Net, x: Map) -> Map:
    if net.opset >= 18 and net.chance(0.5):
        return net.put(x, "Mish")
    return net.put(x, "Mul", net.op("Tanh", net.op("Softplus", x.name)))


def _odd(net: Net, x: Map) -> Map:
    return net.put(x, net.pick(["Tanh", "Softsign", "Erf", "Abs"]))


def _shifting(net: Net, x: Map) -> Map:
    return net.put(x, net.pick(["Sigmoid", "HardSigmoid", "Softplus"]))


@block(3.0)
def plain(net: Net, x: Map) -> Map | None:
    """A convolution with random kernel, stride, pads and dilation."""
    kernel, stride, dilation, pads = _window(net, x)
    height, width = _sizes(x, kernel, stride, dilation, pads)
    if min(height, width) < 1:
        return None
    out = net.width()
    weight = net.weight((out, x.channels, *kernel))
    bias = [net.vector(out)] if net.chance(0.5) else []
    name = net.op("Conv", x.name, weight, *bias, pads=pads, strides=stride, dilations=dilation, kernel_shape=kernel)
    return activation(net, Map(name, out, height, width))


def _window(net: Net, x: Map) -> tuple[list[int], list[int], list[int], list[int]]:
    large = min(x.height, x.width) >= 6
    kernel = [net.pick([1, 2, 3, 3, 5] if large else [1, 2, 3]) for _ in range(2)]
    stride = [net.pick([1, 1, 2] if large else [1]) for _ in range(2)]
    dilation = [net.pick([1, 1, 1, 2]) for _ in range(2)]
    pads = [net.integer(0, d * (k - 1)) for k, d in zip(kernel * 2, dilation * 2, strict=True)]
    return kernel, stride, dilation, pads


def _sizes(x: Map, kernel: list[int], stride: list[int], dilation: list[int], pads: list[int]) -> tuple[int, int]:
    height, width = (
        (size + pads[i] + pads[i + 2] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i, size in enumerate((x.height, x.width))
    )
    return height, width


@block(4.0)
def conv_norm_act(net: Net, x: Map) -> Map:
    stride = 2 if min(x.height, x.width) >= 8 and net.chance(0.3) else 1
    return activation(net, norm(net, conv(net, x, net.width(), net.pick([1, 3, 3]), stride)))


@block(1.5)
def depthwise(net: Net, x: Map) -> Map:
    multiplier = net.pick([1, 1, 1, 2, 3])
    y = conv(net, x, x.channels * multiplier, 3, group=x.channels)
    return activation(net, norm(net, y) if net.chance(0.5) else y)


@block(1.5)
def grouped(net: Net, x: Map) -> Map | None:
    """One or two grouped convolutions in a row, also with different group numbers."""
    divisors = [g for g in (2, 3, 4) if x.channels % g == 0]
    if not divisors:
        return None
    group = net.pick(divisors)
    y = activation(net, conv(net, x, net.pick([4, 6, 8, 12]) // group * group or group, 3, group=group))
    more = [g for g in (2, 3, 4) if y.channels % g == 0]
    if more and net.chance(0.4):
        again = net.pick(more)
        y = conv(net, y, net.pick([1, 2, 3]) * again, 1, group=again)
    return y


@block(0.8)
def transposed(net: Net, x: Map) -> Map | None:
    """A transposed convolution, also grouped, with output padding."""
    group = net.pick([1, 1, 1, *[g for g in (2, 3) if x.channels % g == 0]])
    per_group, kernel, stride = net.integer(1, 4), net.pick([2, 3, 4]), net.pick([1, 2])
    if stride == 2 and max(x.height, x.width) > 12:
        return None
    pads = [net.integer(0, kernel - 1) if net.chance(0.5) else 0 for _ in range(4)]
    extra = net.integer(0, stride - 1)
    height, width = (
        stride * (size - 1) + extra + kernel - pads[i] - pads[i + 2] for i, size in enumerate((x.height, x.width))
    )
    if min(height, width) < 1:
        return None
    out = per_group * group
    inputs = [net.weight((x.channels, per_group, kernel, kernel)), *([net.vector(out)] if net.chance(0.5) else [])]
    name = net.op(
        "ConvTranspose", x.name, *inputs, group=group, strides=[stride] * 2, pads=pads, output_padding=[extra] * 2
    )
    return activation(net, Map(name, out, height, width))


@block(0.6)
def shared_weights(net: Net, x: Map) -> Map:
    """The same convolution twice, or two that share a bias."""
    weight, bias = net.weight((x.channels, x.channels, 3, 3)), net.vector(x.channels)
    first = activation(net, net.put(x, "Conv", weight, bias, pads=[1] * 4))
    if net.chance(0.5):
        weight = net.weight((x.channels, x.channels, 3, 3))
    return net.put(first, "Conv", weight, bias, pads=[1] * 4)


@block(0.4)
def line_convolution(net: Net, x: Map) -> Map:
    """A Conv1d over all pixels in a row."""
    length = x.height * x.width
    flat = net.reshape(x.name, [0, x.channels, length], [(0, 1), (1, 1), -1])
    out = net.width()
    y = net.op("Conv", flat, net.weight((out, x.channels, 3)), pads=[1, 1])
    if net.open_size:
        shape = net.op("Shape", x.name)
        tail = net.slice(shape, [2], [4], [0])
        target = net.op("Concat", net.slice(shape, [0], [1], [0]), net.ints(out), tail, axis=0)
        return Map(net.op("Reshape", y, target), out, x.height, x.width)
    name = net.reshape(y, [0, out, x.height, x.width], [(0, 1), (1, 1), x.height, x.width])
    return Map(name, out, x.height, x.width)


@block(0.4)
def volume_convolution(net: Net, x: Map) -> Map:
    """A Conv3d on a volume of depth one."""
    out = net.width()
    volume = net.unsqueeze(x.name, [2])
    volume = net.op("Conv", volume, net.weight((out, x.channels, 1, 3, 3)), net.vector(out), pads=[0, 1, 1, 0, 1, 1])
    if not net.zero_keeping and net.chance(0.5):
        volume = net.op("InstanceNormalization", volume, net.vector(out, 1.0, 0.4), net.vector(out))
    volume = net.op("Relu", volume)
    return Map(net.squeeze(volume, [2]), out, x.height, x.width)


# --- gates ------------------------------------------------------------------------------------------------------------


@block(1.5)
def squeeze_excite(net: Net, x: Map) -> Map:
    """A gate per channel, computed by 1×1 convolutions or by dense layers."""
    hidden = net.integer(2, 4)
    sigmoid = net.pick(["Sigmoid", "HardSigmoid"])
    pooled = net.op("GlobalAveragePool", x.name) if net.chance(0.6) else net.reduce("ReduceMean", x.name, [2, 3], 1)
    squeezed = Map(pooled, x.channels, 1, 1)
    if net.chance(0.6):
        y = net.put(conv(net, squeezed, hidden, 1), "Relu")
        gate = net.op(sigmoid, conv(net, y, x.channels, 1).name)
        return net.put(x, "Mul", gate) if net.chance(0.7) else net.put(Map(gate, *_rest(x)), "Mul", x.name)
    flat = net.op("Flatten", pooled) if net.chance(0.5) else net.squeeze(pooled, [2, 3])
    y = net.op("Relu", net.op("Gemm", flat, net.weight((x.channels, hidden)), net.vector(hidden)))
    y = net.op("MatMul", y, net.weight((hidden, x.channels))) if net.chance(0.4) else _gemm(net, y, hidden, x.channels)
    gate = net.op(sigmoid, y)
    if net.chance(0.5):
        gate = net.unsqueeze(gate, [2, 3])
    else:
        gate = net.reshape(gate, [0, x.channels, 1, 1], [(0, 1), (1, 1), 1, 1])
    if net.chance(0.3) and not net.open_size:
        gate = net.op("Expand", gate, net.ints(1, x.channels, x.height, x.width))
    return net.put(x, "Mul", gate)


def _rest(x: Map) -> tuple[int, int, int]:
    return x.channels, x.height, x.width


def _gemm(net: Net, x: str, features: int, out: int) -> str:
    return net.op("Gemm", x, net.weight((out, features)), net.vector(out), transB=1)


@block(0.3)
def efficient_channel_attention(net: Net, x: Map) -> Map:
    """A gate by a Conv1d over the channels: they cannot leave, for a reason."""
    pooled = net.squeeze(net.op("GlobalAveragePool", x.name), [3])
    row = net.op("Transpose", pooled, perm=[0, 2, 1])
    row = net.op("Conv", row, net.weight((1, 1, 3)), pads=[1, 1])
    gate = net.op("Sigmoid", net.unsqueeze(net.op("Transpose", row, perm=[0, 2, 1]), [3]))
    return net.put(x, "Mul", gate)


@block(0.6)
def spatial_attention(net: Net, x: Map) -> Map:
    """A mask for all channels: of a convolution, or (CBAM) of the mean and maximum over channels."""
    if net.chance(0.5):
        mask = net.op("Sigmoid", conv(net, x, 1, 3).name)
    else:
        parts = [net.reduce(kind, x.name, [1], 1) for kind in ("ReduceMean", "ReduceMax")]
        joined = Map(net.op("Concat", *parts, axis=1), 2, x.height, x.width)
        mask = net.op("Sigmoid", conv(net, joined, 1, 3).name)
    return net.put(x, "Mul", mask)


# --- several branches -------------------------------------------------------------------------------------------------


@block(2.5)
def residual(net: Net, x: Map) -> Map:
    y = activation(net, norm(net, conv(net, x, net.width(), net.pick([1, 3]))))
    y = conv(net, y, x.channels, 3)
    y = norm(net, y) if net.chance(0.7) else y
    total = net.put(x, "Add", y.name) if net.chance(0.5) else net.put(y, "Add", x.name)
    return activation(net, total) if net.chance(0.7) else total


@block(1.5)
def projection(net: Net, x: Map) -> Map:
    out, stride = net.width(), 2 if min(x.height, x.width) >= 8 and net.chance(0.5) else 1
    y = conv(net, activation(net, norm(net, conv(net, x, net.width(), 3, stride))), out, 3)
    shortcut = conv(net, x, out, 1, stride)
    if net.chance(0.5):
        y, shortcut = norm(net, y), norm(net, shortcut)
    return activation(net, net.put(y, "Add", shortcut.name))


@block(1.0)
def inverted_residual(net: Net, x: Map) -> Map:
    wide = x.channels * net.pick([1, 2, 3])
    y = activation(net, norm(net, conv(net, x, wide, 1)))
    y = activation(net, norm(net, conv(net, y, wide, 3, group=wide)))
    if net.chance(0.4):
        y = squeeze_excite(net, y)
    y = norm(net, conv(net, y, x.channels, 1))
    return net.put(x, "Add", y.name) if net.chance(0.8) else y


@block(1.0)
def joined(net: Net, x: Map) -> Map:
    """Several convolutions of one input, joined element by element, also in nested pairs."""
    out = net.width()
    parts = [conv(net, x, out, net.pick([1, 3])) for _ in range(net.pick([2, 3, 3]))]
    kinds = ["Sum", "Add", "Max", "Mul", "Sub", "Mean", "Min"]
    kind = net.pick(kinds)
    if kind in ("Max", "Min"):  # equal convolutions would tie, and a tie has no derivative
        parts = [net.put(part, "Mul", net.number(1 + index / 10)) for index, part in enumerate(parts)]
    if kind in ("Sum", "Max", "Mean", "Min"):
        return activation(net, net.put(parts[0], kind, *(part.name for part in parts[1:])))
    y = parts[-1]
    for part in reversed(parts[:-1]):
        y = net.put(part, kind, y.name)
    return activation(net, y)


@block(1.5)
def dense(net: Net, x: Map) -> Map:
    """A dense block: concats of concats."""
    y = x
    for _ in range(net.pick([1, 2, 2, 3])):
        new = activation(net, conv(net, norm(net, y) if net.chance(0.5) else y, net.integer(2, 4), 3))
        parts = [y.name, new.name] if net.chance(0.7) else [new.name, y.name]
        y = Map(net.op("Concat", *parts, axis=1), y.channels + new.channels, y.height, y.width)
    return y


@block(1.0)
def branches(net: Net, x: Map) -> Map:
    """Convolutions of several sizes and a pooled branch, concatenated; one branch may occur twice."""
    parts = [activation(net, conv(net, x, net.integer(2, 5), kernel)) for kernel in (1, 3)]
    if net.chance(0.5):
        pooled = net.put(x, net.pick(["MaxPool", "AveragePool"]), kernel_shape=[3, 3], pads=[1] * 4)
        parts.append(conv(net, pooled, net.integer(2, 4), 1) if net.chance(0.5) else pooled)
    if net.chance(0.2):
        parts.append(net.pick(parts))
    name = net.op("Concat", *(part.name for part in parts), axis=net.pick([1, -3]))
    return Map(name, sum(part.channels for part in parts), x.height, x.width)


@block(0.7)
def pyramid_pooling(net: Net, x: Map) -> Map:
    """SPP: a chain of pools, all concatenated, perhaps with a squeeze before and after."""
    y = conv(net, x, net.integer(2, 5), 1)
    parts = [y]
    for _ in range(2):
        parts.append(net.put(parts[-1], "MaxPool", kernel_shape=[3, 3], pads=[1] * 4))
    name = net.op("Concat", *(part.name for part in parts), axis=1)
    return conv(net, Map(name, 3 * y.channels, x.height, x.width), net.width(), 1)


@block(0.6)
def image_pooling(net: Net, x: Map) -> Map:
    """ASPP: one branch sees the mean of the image, spread over all pixels."""
    pooled = conv(net, Map(net.op("GlobalAveragePool", x.name), x.channels, 1, 1), net.integer(2, 4), 1)
    y = conv(net, x, net.integer(2, 5), 3)
    if net.open_size or net.chance(0.4):
        head = net.slice(net.op("Shape", pooled.name), [0], [2], [0])
        sizes = net.op("Concat", head, net.slice(net.op("Shape", x.name), [2], [4], [0]), axis=0)
        spread = _resized(net, pooled.name, sizes)
    elif net.batch is not None and net.chance(0.5):
        spread = _resized(net, pooled.name, net.ints(net.batch, pooled.channels, x.height, x.width))
    else:
        spread = net.op("Expand", pooled.name, net.ints(1, net.pick([1, pooled.channels]), x.height, x.width))
    name = net.op("Concat", y.name, spread, axis=1)
    return activation(net, Map(name, y.channels + pooled.channels, x.height, x.width))


def _resized(net: Net, x: str, sizes: str) -> str:
    empty = net.floats() if net.opset < 13 else ""
    roi = net.floats() if net.opset < 13 else ""
    mode = net.pick(["nearest", "linear"])
    return net.op("Resize", x, roi, empty, sizes, mode=mode, coordinate_transformation_mode="asymmetric")


@block(0.6)
def spatial_concat(net: Net, x: Map) -> Map:
    """Two maps one above the other: both keep the same channels."""
    out = net.width()
    y, z = conv(net, x, out, 3), conv(net, x, out, 1)
    axis = net.pick([2, 3])
    height, width = (2 * x.height, x.width) if axis == 2 else (x.height, 2 * x.width)
    return activation(net, Map(net.op("Concat", y.name, z.name, axis=axis), out, height, width))


@block(0.8)
def ghost(net: Net, x: Map) -> Map:
    y = activation(net, norm(net, conv(net, x, net.integer(2, 5), 1)))
    z = activation(net, conv(net, y, y.channels, 3, group=y.channels))
    return Map(net.op("Concat", y.name, z.name, axis=1), 2 * y.channels, x.height, x.width)


@block(0.8)
def u_shape(net: Net, x: Map) -> Map | None:
    """Down, up again by Resize or ConvTranspose, and together with what was there before."""
    if x.height % 2 or x.width % 2:
        return None
    pooled = Map(
        net.op("MaxPool", x.name, kernel_shape=[2, 2], strides=[2, 2]), x.channels, x.height // 2, x.width // 2
    )
    y = activation(net, conv(net, pooled, net.width(), 3))
    if net.chance(0.6):
        up = net.resize(y, 2, net.pick(["nearest", "linear"]))
    else:
        name = net.op("ConvTranspose", y.name, net.weight((y.channels, 3, 2, 2)), strides=[2, 2])
        up = Map(name, 3, x.height, x.width)
    if net.chance(0.5):
        same = conv(net, up, x.channels, 1)
        return net.put(x, "Add", same.name)
    return Map(net.op("Concat", up.name, x.name, axis=1), up.channels + x.channels, x.height, x.width)


@block(0.8)
def long_skip(net: Net, x: Map) -> Map | None:
    """Join with some earlier map of the same size."""
    fitting = [m for m in net.maps if m.name != x.name and (m.height, m.width) == (x.height, x.width)]
    if not fitting:
        return None
    other = net.pick(fitting)
    if other.channels == x.channels and net.chance(0.6):
        return net.put(x, net.pick(["Add", "Mul", "Max"]), other.name)
    return Map(net.op("Concat", x.name, other.name, axis=1), x.channels + other.channels, x.height, x.width)


# --- channels moved about ---------------------------------------------------------------------------------------------


@block(1.2)
def chunks(net: Net, x: Map) -> Map | None:
    """C2f: split the channels, work on one part, concatenate."""
    if x.channels < 2:
        return None
    first = x.channels // 2 if net.chance(0.6) else net.integer(1, x.channels - 1)
    sizes = [first, x.channels - first]
    if x.channels % 3 == 0 and net.chance(0.3):
        sizes = [x.channels // 3] * 3
    parts = [Map(n, s, x.height, x.width) for n, s in zip(net.split(x.name, sizes, 1), sizes, strict=True)]
    y = activation(net, conv(net, parts[-1], net.width(), 3))
    if net.chance(0.4) and len(parts) == 2:  # nobody reads the first part
        return y
    names = [part.name for part in parts] + [y.name]
    return Map(net.op("Concat", *names, axis=1), x.channels + y.channels, x.height, x.width)


@block(1.0)
def gated_halves(net: Net, x: Map) -> Map | None:
    """A gated linear unit: one half of the channels gates the other."""
    if x.channels % 2 or x.channels < 4:
        return None
    half = x.channels // 2
    first, second = net.split(x.name, [half, half], 1)
    return Map(net.op("Mul", first, net.op("Sigmoid", second)), half, x.height, x.width)


@block(1.5)
def shuffle(net: Net, x: Map) -> Map | None:
    """A channel shuffle by Reshape, Transpose, Reshape."""
    groups = [g for g in (2, 3, 4) if x.channels % g == 0 and x.channels > g]
    return _shuffled(net, x, net.pick(groups)) if groups else None


def _shuffled(net: Net, x: Map, groups: int) -> Map:
    each = x.channels // groups
    if net.open_size:
        shape = net.op("Shape", x.name)
        size, head = net.slice(shape, [2], [4], [0]), net.slice(shape, [0], [1], [0])
        y = net.op("Reshape", x.name, net.op("Concat", head, net.ints(groups, each), size, axis=0))
    else:
        y = net.reshape(
            x.name,
            [0, groups, each, x.height, x.width],
            [(0, 1), groups, net.pick([each, (1, groups)]), x.height, x.width],
        )
    y = net.op("Transpose", y, perm=[0, 2, 1, 3, 4])
    if net.open_size:
        name = net.op("Reshape", y, net.op("Concat", head, net.ints(x.channels), size, axis=0))
    else:
        name = net.reshape(y, [0, x.channels, x.height, x.width], [(0, 1), -1, x.height, x.width])
    return Map(name, x.channels, x.height, x.width)


@block(1.0)
def shuffle_unit(net: Net, x: Map) -> Map | None:
    """ShuffleNetV2: one half passes, the other is worked on; then concat and shuffle."""
    if x.channels % 2 or x.channels < 4:
        return None
    half = x.channels // 2
    if net.chance(0.5):
        names = net.split(x.name, [half, half], 1)
    else:
        names = [net.slice(x.name, [0], [half], [1]), net.slice(x.name, [half], [net.pick([x.channels, 1 << 31])], [1])]
    passed, y = (Map(name, half, x.height, x.width) for name in names)
    y = activation(net, norm(net, conv(net, y, half, 1)))
    y = norm(net, conv(net, y, half, 3, group=half))
    y = activation(net, conv(net, y, half, 1))
    return _shuffled(net, Map(net.op("Concat", passed.name, y.name, axis=1), 2 * half, x.height, x.width), 2)


@block(0.8)
def channel_slice(net: Net, x: Map) -> Map | None:
    """Some channels only: in a row, every second, or backwards."""
    if x.channels < 3:
        return None
    kind = net.integer(0, 3)
    if kind == 0:
        start = net.integer(0, x.channels - 2)
        end = net.integer(start + 1, x.channels)
        name, count = net.slice(x.name, [start], [end], [1], net.pick([None, [1]])), end - start
    elif kind == 1:
        start = net.integer(0, 1)
        name, count = net.slice(x.name, [start], [1 << 31], [1], [2]), len(range(start, x.channels, 2))
    elif kind == 2:
        name, count = net.slice(x.name, [-1], [-(1 << 31)], [-3], [-1]), x.channels
    else:
        name, count = net.slice(x.name, [-2], [x.channels], [1]), 2
    return conv(net, Map(name, count, x.height, x.width), net.width(), 1)


@block(0.6)
def channel_gather(net: Net, x: Map) -> Map:
    """Channels picked by number, in any order, also twice."""
    if net.chance(0.5):
        indices = net.rng.permutation(x.channels)
    else:
        indices = net.rng.integers(-x.channels, x.channels, net.integer(2, x.channels + 2))
    name = net.op("Gather", x.name, net.constant(indices.astype(np.int64)), axis=1)
    return Map(name, len(indices), x.height, x.width)


@block(0.8)
def channel_pad(net: Net, x: Map) -> Map:
    """A shortcut that is padded with empty channels before it is added."""
    more, front = net.integer(1, 4), net.chance(0.4)
    before = net.integer(0, more) if front else 0
    value = 0.0 if net.zero_keeping else net.pick([0.0, 0.0, 0.5])
    padded = net.pad(x.name, [0, before, 0, 0, 0, more - before, 0, 0], value)
    y = activation(net, conv(net, x, net.width(), 3))
    y = norm(net, conv(net, y, x.channels + more, 3))
    return activation(net, net.put(y, "Add", padded))


@block(0.8)
def pixel_shuffle(net: Net, x: Map) -> Map | None:
    """DepthToSpace in both modes, or spelled by Reshape and Transpose."""
    if x.channels % 4 or max(x.height, x.width) > 12:
        x = conv(net, x, 4 * net.integer(1, 3), 1)
    if max(x.height, x.width) > 12:
        return None
    channels, height, width = x.channels // 4, x.height, x.width
    if net.open_size or net.chance(0.6):
        name = net.op("DepthToSpace", x.name, blocksize=2, mode=net.pick(["DCR", "CRD"]))
    else:
        each = [(0, 1), channels, 2, 2, height, width]
        y = net.reshape(x.name, [0, channels, 2, 2, height, width], each)
        y = net.op("Transpose", y, perm=[0, 1, 4, 2, 5, 3])
        name = net.reshape(y, [0, channels, 2 * height, 2 * width], [(0, 1), channels, 2 * height, 2 * width])
    return Map(name, channels, 2 * height, 2 * width)


@block(0.8)
def space_to_depth(net: Net, x: Map) -> Map | None:
    """SpaceToDepth, or focus: four strided slices and a concat."""
    if x.height % 2 or x.width % 2 or min(x.height, x.width) < 4:
        return None
    if net.chance(0.5):
        name = net.op("SpaceToDepth", x.name, blocksize=2)
    else:
        parts = []
        for row, column in ((0, 0), (1, 0), (0, 1), (1, 1)):
            end = 1 << 31
            if net.chance(0.5):
                parts.append(net.slice(x.name, [row, column], [end, end], [2, 3], [2, 2]))
            else:
                rows = net.slice(x.name, [row], [end], [2], [2])
                parts.append(net.slice(rows, [column], [end], [3], [2]))
        name = net.op("Concat", *parts, axis=1)
    return conv(net, Map(name, 4 * x.channels, x.height // 2, x.width // 2), net.width(), 1)


# --- space ------------------------------------------------------------------------------------------------------------


@block(1.5)
def pool(net: Net, x: Map) -> Map | None:
    kind = net.pick(["MaxPool", "AveragePool"])
    kernel, stride = net.pick([2, 3]), net.pick([1, 2])
    if min(x.height, x.width) < 4:
        return None
    pads = [net.integer(0, kernel // 2) for _ in range(4)]
    attributes: dict[str, object] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": pads}
    ceil = stride == 2 and net.chance(0.3)
    if ceil:
        attributes["ceil_mode"] = 1
    if kind == "AveragePool" and net.chance(0.5) and not ceil:  # runtimes disagree on both together
        attributes["count_include_pad"] = 1
    sizes = []
    for i, size in enumerate((x.height, x.width)):
        span = size + pads[i] + pads[i + 2] - kernel
        count = (-(-span // stride) if ceil else span // stride) + 1
        if ceil and (count - 1) * stride >= size + pads[i]:  # runtimes disagree on windows that begin in the padding
            return None
        sizes.append(count)
    return Map(net.op(kind, x.name, **attributes), x.channels, *sizes)


@block(0.5)
def enlarge(net: Net, x: Map) -> Map | None:
    return None if max(x.height, x.width) > 8 else net.resize(x, 2, net.pick(["nearest", "linear"]))


@block(0.5)
def pad_space(net: Net, x: Map) -> Map | None:
    if min(x.height, x.width) < 3:
        return None
    mode = net.pick(["constant", "reflect", "edge"])
    name = net.pad(x.name, [0, 0, 1, 2, 0, 0, 1, 0], mode=mode)
    return Map(name, x.channels, x.height + 2, x.width + 2)


@block(0.4)
def crop(net: Net, x: Map) -> Map | None:
    if min(x.height, x.width) < 4:
        return None
    name = net.slice(x.name, [1, 1], [-1, 1 << 31], net.pick([[2, 3], [-2, -1]]))
    return Map(name, x.channels, x.height - 2, x.width - 1)


# --- constants and normalisations -------------------------------------------------------------------------------------


@block(1.0)
def affine(net: Net, x: Map) -> Map:
    """Scale and shift per channel, spelled out in one of many ways."""
    spread = 0.0 if net.zero_keeping else 0.3
    kind = net.integer(0, 4)
    if kind == 0:
        return net.put(
            net.put(x, "Mul", net.per_channel(x.channels, 1.0, 0.4)), "Add", net.per_channel(x.channels, 0.0, spread)
        )
    if kind == 1:
        return net.put(net.put(x, "Sub", net.per_channel(x.channels, 0.0, spread)), "Div", net.number(1.5))
    if kind == 2:
        return net.put(net.put(x, "Div", net.per_channel(x.channels, 1.0, 0.3)), "Mul", net.number(0.8))
    if kind == 3:
        return net.put(norm(net, x), "Mul", net.per_channel(x.channels, 1.0, 0.4))
    y = conv(net, x, net.width(), 3, bias=False)
    return net.put(y, "Add", net.per_channel(y.channels, 0.0, spread))


@block(0.5)
def position_embedding(net: Net, x: Map) -> Map | None:
    """A constant of full size is added or multiplied."""
    if net.open_size:
        return None
    shape = net.pick([(1, x.channels, x.height, x.width), (x.channels, x.height, x.width), (x.height, x.width)])
    array = net.rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return net.put(x, "Mul" if net.zero_keeping else net.pick(["Mul", "Add"]), net.constant(array))


@block(0.5)
def power(net: Net, x: Map) -> Map:
    """Square roots, squares, floors and ceilings of numbers, choices by a condition."""
    kind = net.integer(0, 3)
    if kind == 0:
        return net.put(x, "Pow", net.number(2.0))
    if kind == 1:
        return net.put(x, net.pick(["Max", "Min"]), net.number(0.0))
    if kind == 2:
        condition = net.op("Greater", x.name, net.number(0.0))
        scaled = net.op("Mul", x.name, net.number(0.3))
        return Map(net.op("Where", condition, x.name, scaled), x.channels, x.height, x.width)
    root = net.op("Sqrt", net.op("Add", net.op("Abs", x.name), net.number(1.0)))
    return net.put(x, "Div", root)


@block(0.6)
def instance_norm(net: Net, x: Map) -> Map | None:
    if x.height * x.width < 4 or net.zero_keeping:
        return None
    return net.put(x, "InstanceNormalization", net.vector(x.channels, 1.0, 0.4), net.vector(x.channels))


@block(0.4)
def group_norm(net: Net, x: Map) -> Map | None:
    """GroupNormalization, or an InstanceNormalization on a reshaped tensor: fixed, with a reason."""
    groups = [g for g in (1, 2, 3) if x.channels % g == 0]
    if net.zero_keeping or x.height * x.width < 4:
        return None
    g = net.pick(groups)
    if net.opset >= 21 and net.chance(0.6):
        return net.put(x, "GroupNormalization", net.vector(x.channels, 1.0, 0.4), net.vector(x.channels), num_groups=g)
    flat = net.reshape(x.name, [0, g, -1], [(0, 1), g, -1]) if net.open_size else _to_groups(net, x, g)
    y = net.op("InstanceNormalization", flat, net.vector(g, 1.0, 0.0), net.vector(g, 0.0, 0.0))
    back = net.op("Reshape", y, net.op("Shape", x.name))
    y = net.op("Mul", back, net.per_channel(x.channels, 1.0, 0.4))
    return Map(net.op("Add", y, net.per_channel(x.channels, 0.0, 0.3)), x.channels, x.height, x.width)


def _to_groups(net: Net, x: Map, groups: int) -> str:
    length = x.channels // groups * x.height * x.width
    return net.reshape(x.name, [0, groups, length], [(0, 1), groups, -1])


@block(0.4)
def layer_norm(net: Net, x: Map) -> Map | None:
    """Normalised over the channels of each pixel, as an operator or spelled out."""
    if net.zero_keeping or x.channels < 2:
        return None
    if net.chance(0.4):
        mean = net.reduce("ReduceMean", x.name, [1], 1)
        centred = net.op("Sub", x.name, mean)
        variance = net.reduce("ReduceMean", net.op("Pow", centred, net.number(2.0)), [1], 1)
        root = net.op("Sqrt", net.op("Add", variance, net.number(1e-3)))
        y = net.op("Mul", net.op("Div", centred, root), net.per_channel(x.channels, 1.0, 0.4))
        return Map(net.op("Add", y, net.per_channel(x.channels, 0.0, 0.3)), x.channels, x.height, x.width)
    if net.opset < 17:
        return None
    y = net.op("Transpose", x.name, perm=[0, 2, 3, 1])
    scale, shift = net.vector(x.channels, 1.0, 0.4), net.vector(x.channels)
    y = net.op("LayerNormalization", y, scale, shift, axis=-1, epsilon=1e-3)
    hidden = net.width()
    if net.chance(0.6):  # ConvNeXt: the inner expansion is a matter of its own
        y = net.op("MatMul", y, net.weight((x.channels, hidden)))
        y = net.op("Relu", net.op("Add", y, net.vector(hidden)))
        y = net.op("Add", net.op("MatMul", y, net.weight((hidden, x.channels))), net.vector(x.channels))
    y = net.op("Transpose", y, perm=[0, 3, 1, 2])
    return net.put(x, "Add", y) if net.chance(0.5) else Map(y, x.channels, x.height, x.width)


@block(0.3)
def local_response(net: Net, x: Map) -> Map | None:
    if net.zero_keeping:
        return None
    return net.put(x, "LRN", size=net.pick([3, 5]), alpha=0.1, beta=0.75, bias=1.0)


@block(0.8)
def channels_last(net: Net, x: Map) -> Map:
    """A part in NHWC: a scale per channel, or a dense layer on every pixel."""
    y, channels = net.op("Transpose", x.name, perm=[0, 2, 3, 1]), x.channels
    kind = net.integer(0, 2)
    if kind == 0:
        y = net.op("Relu", net.op("Mul", y, net.vector(channels, 1.0, 0.4)))
    else:
        channels = net.width()
        y = net.op("MatMul", y, net.weight((x.channels, channels)))
        y = net.op("Add", y, net.shift(channels)) if net.chance(0.5) else net.op("Add", net.shift(channels), y)
        y = net.op("Relu", y)
    if kind == 2 and not net.open_size:
        y = net.reshape(y, [0, x.height * x.width, channels], [(0, 1), x.height * x.width, channels])
        y = net.op("Mul", y, net.vector(channels, 1.0, 0.4))
        shape = [0, x.height, x.width, channels]
        y = net.reshape(y, shape, [(0, 1), x.height, x.width, net.pick([channels, -1])])
    return Map(net.op("Transpose", y, perm=[0, 3, 1, 2]), channels, x.height, x.width)


@block(0.4)
def transposed_trunk(net: Net, x: Map) -> Map:
    """A sum that is formed in another layout."""
    y = conv(net, x, x.channels, 3)
    perm = net.pick([[0, 2, 3, 1], [1, 0, 2, 3], [0, 1, 3, 2]])
    back = [int(axis) for axis in np.argsort(perm)]
    total = net.op("Add", net.op("Transpose", x.name, perm=perm), net.op("Transpose", y.name, perm=perm))
    return Map(net.op("Transpose", total, perm=back), x.channels, x.height, x.width)


@block(0.6)
def nothing(net: Net, x: Map) -> Map:
    """Operators that do nothing in a finished network."""
    kind = net.pick(["Identity", "Dropout", "Cast", "Squeeze", "Flat"])
    if kind == "Cast":
        return net.put(x, "Cast", to=onnx.TensorProto.FLOAT)
    if kind == "Squeeze":
        axis = net.pick([2, 4])
        return Map(net.squeeze(net.unsqueeze(x.name, [axis]), [axis]), x.channels, x.height, x.width)
    if kind == "Flat" and not net.open_size:
        flat = net.reshape(x.name, [0, x.channels, x.height * x.width], [(0, 1), (1, 1), -1])
        y = net.reshape(flat, [0, x.channels, x.height, x.width], [(0, 1), (1, 1), x.height, x.width])
        return Map(y, x.channels, x.height, x.width)
    if kind == "Dropout" and net.opset >= 12 and net.chance(0.5):
        return net.put(x, "Dropout", net.number(0.5))
    return net.put(x, "Identity" if kind == "Flat" else kind)


@block(0.3)
def non_local(net: Net, x: Map) -> Map | None:
    """Attention between pixels: data times data, fixed with a reason."""
    if net.open_size or x.height * x.width > 64:
        return None
    length, inner = x.height * x.width, net.integer(2, 4)
    parts = [conv(net, x, inner, 1) for _ in range(2)]
    rows = [net.reshape(p.name, [0, inner, length], [(0, 1), inner, length]) for p in parts]
    similar = net.op("MatMul", net.op("Transpose", rows[0], perm=[0, 2, 1]), rows[1])
    similar = net.op("Softmax", net.op("Mul", similar, net.number(0.3)), axis=2)
    values = net.reshape(x.name, [0, x.channels, length], [(0, 1), x.channels, length])
    y = net.op("MatMul", values, similar)
    y = net.reshape(y, [0, x.channels, x.height, x.width], [(0, 1), x.channels, x.height, x.width])
    return conv(net, Map(y, x.channels, x.height, x.width), net.width(), 1)


@block(0.5)
def dense_to_map(net: Net, x: Map) -> Map | None:
    """Gemm, Reshape to a small map, ConvTranspose."""
    if net.open_size:
        return None
    channels = net.pick([2, 3, 4])
    flat = net.op("Flatten", net.op("GlobalAveragePool", x.name))
    y = net.op("Relu", net.op("Gemm", flat, net.weight((x.channels, channels * 4)), net.vector(channels * 4)))
    y = net.reshape(y, [0, channels, 2, 2], [(0, 1), channels, 2, 2])
    if net.chance(0.5):
        return conv(net, Map(y, channels, 2, 2), net.width(), 1)
    out = net.width()
    return Map(net.op("ConvTranspose", y, net.weight((channels, out, 2, 2)), strides=[2, 2]), out, 4, 4)


@block(0.4)
def two_stems(net: Net, x: Map) -> Map | None:
    """A second look at the image, added or concatenated."""
    image = net.maps[0]
    if (image.height, image.width) != (x.height, x.width):
        return None
    y = conv(net, image, x.channels, 3)
    if net.chance(0.5):
        return net.put(x, "Add", y.name)
    return Map(net.op("Concat", x.name, image.name, axis=1), x.channels + image.channels, x.height, x.width)


@block(0.3)
def channel_sum(net: Net, x: Map) -> Map:
    """A sum over channels is exact: a channel that is missing counts as zero."""
    total = net.reduce("ReduceSum", x.name, [1], 1)
    return net.put(x, "Mul", net.op("Sigmoid", total))


@block(0.3)
def tiled(net: Net, x: Map) -> Map:
    """The channels repeated as a whole."""
    if x.channels > 6:
        return net.put(x, "Relu")
    return Map(net.op("Tile", x.name, net.ints(1, 2, 1, 1)), 2 * x.channels, x.height, x.width)


# --- what cannot be followed ------------------------------------------------------------------------------------------


@block(0.25)
def branch(net: Net, x: Map) -> Map | None:
    """One of two ways, by what the image shows: what they read stays."""
    if net.open_size:
        return None
    level = net.op("ReduceMax", net.maps[0].name, keepdims=0)
    bright = net.op("Greater", level, net.number(2.5))
    ways = {}
    for attribute, op_type in (("then_branch", net.pick(["Relu", "Neg"])), ("else_branch", "Identity")):
        made = net.name(attribute)
        node = helper.make_node(op_type, [x.name], [made])
        ways[attribute] = helper.make_graph([node], attribute, [], [net.described(made, x)])
    return Map(net.op("If", bright, **ways), x.channels, x.height, x.width)


@block(0.25)
def loop(net: Net, x: Map) -> Map | None:
    """A few turns of a Loop, or a Scan over the rows: what they read stays."""
    if net.open_size:
        return None
    if net.chance(0.3):
        before, row, after, out = (net.name(hint) for hint in ("before", "row", "after", "out"))
        nodes = [helper.make_node("Add", [before, row], [after]), helper.make_node("Tanh", [after], [out])]
        start = net.reduce("ReduceMin", x.name, [2], 0)
        line = [net.described(name, x, line=True) for name in (before, row, after, out)]
        body = helper.make_graph(nodes, "one_row", line[:2], line[2:])
        rows = net.op("Transpose", x.name, perm=[2, 0, 1, 3])
        made = net.several("Scan", [start, rows], 2, body=body, num_scan_inputs=1)[1]
        return Map(net.op("Transpose", made, perm=[1, 2, 0, 3]), x.channels, x.height, x.width)
    turn, go, on, before, after = (net.name(hint) for hint in ("turn", "go", "on", "before", "after"))
    nodes = [helper.make_node("Identity", [go], [on]), helper.make_node("Tanh", [before], [after])]
    entries = [
        helper.make_tensor_value_info(turn, onnx.TensorProto.INT64, []),
        helper.make_tensor_value_info(go, onnx.TensorProto.BOOL, []),
        net.described(before, x),
    ]
    results = [helper.make_tensor_value_info(on, onnx.TensorProto.BOOL, []), net.described(after, x)]
    body = helper.make_graph(nodes, "one_turn", entries, results)
    count, yes = net.constant(np.int64(net.integer(1, 3))), net.constant(np.bool_(True))
    y = Map(net.op("Loop", count, yes, x.name, body=body), x.channels, x.height, x.width)
    net.declared.append(net.described(y.name, y))  # nobody can infer it, so exporters write it down
    return y


@block(0.1)
def rounded(net: Net, x: Map) -> Map | None:
    """Activations in 8 bits: the operators refuse the model."""
    if net.half:
        return None
    scale, zero = net.number(0.05), net.constant(np.uint8(128))
    y = net.op("QuantizeLinear", x.name, scale, zero)
    return Map(net.op("DequantizeLinear", y, scale, zero), x.channels, x.height, x.width)
