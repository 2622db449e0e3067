"""Convolutions of live weights on ONNX Runtime's blocked layout, which it uses by itself for constant weights only.

ONNX Runtime's optimizer moves convolutions to kernels that work on blocks of channels (8 or 16, by processor), and
reorders their weights once. Weights that are inputs of the graph it leaves alone; their convolutions are 1.3 to 2 times
as slow, depthwise ones 3 to 25 times. Here the same operators (domain com.microsoft.nchwc) are written into the graph,
with the weights reordered by standard operators in every run. They are internal to ONNX Runtime: whether they work as
expected is tried out once per process, and where they do not, graphs stay as they are.

Layouts of weights, with o and i the numbers of a block of output and input channels, O and I the places within it:
dense [o, i, h, w, I, O], depthwise or of few input channels [o, i, h, w, O].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from onnx_ir.passes import common

from ..gradients.kernel import channels_last, origin_of
from ..gradients.writer import emitted_shape

_DOMAIN = "com.microsoft.nchwc"
#: Channels that ONNX Runtime's ReorderInput takes come in fours; it fills up the last block itself.
_MULTIPLE = 4
#: Reordering weights does not pay where they are so many times as large as what the convolution gives.
_LARGE_WEIGHTS = 16
_TOLERANCE = 1e-4


def block_convolutions(model: ir.Model, block: int) -> int:
    """Move the two-dimensional convolutions with live weights to the blocked layout, in place; return how many.

    Args:
        model: a static graph that nobody else reads.
        block: channels per block, see `block_size`.
    """
    rewriter = _Rewriter(model.graph, block)
    count = sum(rewriter.rewrite(node) for node in list(model.graph))
    if count:
        model.graph.opset_imports[_DOMAIN] = 1
        common.RemoveUnusedNodesPass()(model)  # kernels that were reordered from their origin; ONNX Runtime keeps them
    return count


class _Rewriter:
    def __init__(self, graph: ir.Graph, block: int) -> None:
        self._graph, self._block = graph, block
        self._prefix = "blocked"
        names = {value.name or "" for node in graph for value in node.outputs} | set(graph.initializers)
        while any(name.startswith(f"{self._prefix}/") for name in names):
            self._prefix += "_"
        self._count = 0
        self._reordered: dict[ir.Value, ir.Value] = {}
        self._constants: dict[tuple[tuple[int, ...], bytes], ir.Value] = {}
        self._made: list[ir.Node] = []

    def rewrite(self, node: ir.Node) -> bool:
        """Replace one node if it is of the right kind."""
        shape = _kernel_shape(node)
        if shape is None:
            return False
        outputs, inputs, *kernel = shape
        group = _int(node, "group", 1)
        depthwise = group > 1 and inputs == 1 and outputs == group
        if math.prod(kernel) == 1 or (group > 1 and not depthwise):
            return False
        result = _shape(node.outputs[0])
        if result is not None and math.prod(shape) > _LARGE_WEIGHTS * math.prod(result):
            return False
        image, weight = node.inputs[0], node.inputs[1]
        assert image is not None
        assert weight is not None
        direct = not depthwise and inputs < self._block
        if not direct:
            image = self._reordered_image(image, group if depthwise else inputs)
        few = depthwise or direct
        origin = None if few else origin_of(weight)
        source = weight if origin is None else origin.source
        weight = self._few_inputs(weight, shape) if few else self._dense(weight, shape)
        # ONNX Runtime turns first to the operand whose node comes later: thus weights do not wait for images.
        self._put_behind(source)
        operands = [image, weight]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None:
            operands.append(self._padded(bias, [self._up(outputs) - outputs]))
        attributes = {name: list(a.as_ints()) for name, a in node.attributes.items() if name in _GEOMETRY}
        attributes["kernel_shape"] = kernel
        conv = self._op("Conv", operands, _DOMAIN, **attributes, group=self._up(group) if depthwise else 1)
        plain = self._op("ReorderOutput", [conv], _DOMAIN, channels=outputs)
        plain.shape = node.outputs[0].shape
        plain.type = node.outputs[0].type
        self._graph.insert_before(node, self._made)
        self._made = []
        name = node.outputs[0].name
        node.outputs[0].replace_all_uses_with(plain, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)
        plain.name = name
        return True

    # --- operands -----------------------------------------------------------------------------------------------------

    def _up(self, channels: int) -> int:
        return -(-channels // self._block) * self._block

    def _reordered_image(self, image: ir.Value, channels: int) -> ir.Value:
        if image not in self._reordered:
            padded = self._padded(image, [0, -channels % _MULTIPLE, 0, 0])
            reordered = self._op("ReorderInput", [padded], _DOMAIN)
            self._put_behind(image)  # before all readers
            self._reordered[image] = reordered
        return self._reordered[image]

    def _put_behind(self, source: ir.Value) -> None:
        """Insert the nodes made so far right behind what makes their source, or first of all."""
        producer = source.producer()
        if producer is not None:
            self._graph.insert_after(producer, self._made)
        else:
            self._graph.insert_before(self._graph[0], self._made)
        self._made = []

    def _dense(self, weight: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Return [O, I, kh, kw] in the order o, i, h, w, I, O.

        Rows are moved by Gather, and Transpose only swaps the last two axes of large matrices: any other permutation,
        or many small matrices on several threads, takes ONNX Runtime up to ten times as long.
        """
        block, positions = self._block, math.prod(shape[2:])
        origin = origin_of(weight)
        if origin is not None and origin.group == 1:  # kernels of an input gradient: reorder the original at once
            value, rows, columns = self._by_position(origin.source, origin.shape)
            order = np.arange(rows * math.prod(origin.shape[2:]) * columns // block)
            place = order.reshape(rows // block, block, -1, columns // block)[:, :, origin.places].transpose(3, 0, 2, 1)
            return self._moved(value, order.size, place, (columns, rows, *shape[2:]))
        value, rows, columns = self._by_position(weight, shape)
        value = self._reshape(value, (rows // block, block, positions * columns))
        value = self._op("Transpose", [value], perm=[0, 2, 1])
        order = np.arange(rows // block * positions * columns // block)
        by_block = order.reshape(rows // block, positions, columns // block).transpose(0, 2, 1)
        return self._moved(value, order.size, by_block, (rows, columns, *shape[2:]))

    def _by_position(self, weight: ir.Value, shape: Sequence[int]) -> tuple[ir.Value, int, int]:
        """Return kernels [O, I, kh, kw] as [O, kh·kw, I], filled up to whole blocks, and O and I then."""
        rows, columns = self._up(shape[0]), self._up(shape[1])
        value = channels_last(weight)
        if value is None:
            flat = self._reshape(weight, (*shape[:2], math.prod(shape[2:])))
            value = self._op("Transpose", [flat], perm=[0, 2, 1])
        return self._padded(value, [rows - shape[0], 0, columns - shape[1]]), rows, columns

    def _moved(self, value: ir.Value, number: int, place: np.ndarray, shape: Sequence[int]) -> ir.Value:
        """Bring a number of rows of equal length, or some of them, into another order."""
        flat = self._reshape(value, (number, -1))
        return self._reshape(self._op("Gather", [flat, self._constant(place.reshape(-1))], axis=0), shape)

    def _few_inputs(self, weight: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Return [O, I, kh, kw] in the order o, i, h, w, O."""
        block, rows = self._block, self._up(shape[0])
        value = self._padded(weight, [rows - shape[0], 0, 0, 0])
        value = self._reshape(value, (rows // block, block, math.prod(shape[1:])))
        value = self._op("Transpose", [value], perm=[0, 2, 1])
        return self._reshape(value, (rows, *shape[1:]))

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _padded(self, value: ir.Value, amounts: Sequence[int]) -> ir.Value:
        """Add zeros at the end of each axis."""
        if not any(amounts):
            return value
        return self._op("Pad", [value, self._constant(np.array([0] * len(amounts) + list(amounts)))])

    def _reshape(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        return self._op("Reshape", [value, self._constant(np.array(shape))])

    def _op(
        self, op_type: str, inputs: Sequence[ir.Value], domain: str = "", **attributes: int | Sequence[int]
    ) -> ir.Value:
        output = ir.Value(name=self._name())
        node = ir.node(op_type, inputs, attributes, domain=domain, outputs=[output], name=output.name)
        self._made.append(node)
        return output

    def _constant(self, array: np.ndarray) -> ir.Value:
        array = array.astype(np.int64)
        key = (array.shape, array.tobytes())
        if key not in self._constants:
            name = self._name()
            tensor = ir.tensor(array, name=name)
            value = ir.Value(
                name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
            )
            self._graph.register_initializer(value)
            self._constants[key] = value
        return self._constants[key]

    def _name(self) -> str:
        self._count += 1
        return f"{self._prefix}/{self._count}"


_GEOMETRY = frozenset({"pads", "strides", "dilations"})


def _kernel_shape(node: ir.Node) -> tuple[int, ...] | None:
    """Return the shape of live kernels of a two-dimensional convolution, None for any other node."""
    if node.op_type != "Conv" or node.domain != "" or node.inputs[0] is None or node.inputs[1] is None:
        return None
    weight = node.inputs[1]
    auto = node.attributes["auto_pad"].as_string() if "auto_pad" in node.attributes else "NOTSET"
    shape = _shape(weight)
    if weight.const_value is not None or auto != "NOTSET" or shape is None or len(shape) != 4:
        return None
    return shape


def _shape(value: ir.Value) -> tuple[int, ...] | None:
    if value.shape is not None and all(isinstance(dim, int) for dim in value.shape):
        return tuple(int(dim) for dim in value.shape if isinstance(dim, int))
    return emitted_shape(value)


def _int(node: ir.Node, name: str, default: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default


# --- trying it out ---------------------------------------------------------------------------------------------------


@functools.cache
def block_size() -> int:
    """Return the number of channels per block on this machine; 0 where blocked convolutions cannot be relied on."""
    try:
        block = _measured_block()
        good = block in (4, 8, 16, 32) and all(_agrees(block, *case) for case in _CASES)
    except Exception:  # whatever a build without these operators raises
        return 0
    return block if good else 0


def _measured_block() -> int:
    """Find after how many channels the second pixel comes."""
    graph = _graph()
    image = _input(graph, "x", (1, 64, 1, 2))
    output = ir.Value(name="y", type=ir.TensorType(ir.DataType.FLOAT))
    graph.append(ir.node("ReorderInput", [image], domain=_DOMAIN, outputs=[output]))
    graph.outputs.append(output)
    pixels = np.arange(128, dtype=np.float32).reshape(1, 64, 1, 2)  # element 1 is channel 0 of the second pixel
    (reordered,) = _run(graph, {"x": pixels})
    return int(np.argmax(reordered.reshape(-1) == 1))


#: Shapes of image and kernels, and attributes, that are tried.
_CASES: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, int | list[int]]], ...] = (
    ((2, 20, 6, 5), (24, 20, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 35, 9, 8), (17, 35, 3, 2), {"pads": [0, 1, 2, 0], "strides": [2, 1], "dilations": [1, 2]}),
    ((2, 3, 9, 9), (10, 3, 5, 5), {"pads": [2, 2, 2, 2], "strides": [2, 2]}),
    ((2, 21, 7, 7), (21, 1, 5, 5), {"pads": [2, 2, 2, 2], "group": 21}),
    ((1, 32, 6, 6), (32, 1, 3, 3), {"pads": [0, 0, 1, 1], "strides": [2, 2], "group": 32}),
)


def _agrees(
    block: int, shape: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, int | list[int]]
) -> bool:
    """Tell whether a blocked convolution gives what the plain one gives."""
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal(shape).astype(np.float32),
        "w": rng.standard_normal(kernel).astype(np.float32),
        "b": rng.standard_normal(kernel[0]).astype(np.float32),
    }
    results = []
    for blocked in (False, True):
        graph = _graph()
        inputs = [_input(graph, name, array.shape) for name, array in feeds.items()]
        output = ir.Value(name="y", type=ir.TensorType(ir.DataType.FLOAT))
        graph.append(ir.node("Conv", inputs, attributes, outputs=[output]))
        graph.outputs.append(output)
        if blocked and not block_convolutions(ir.Model(graph, ir_version=9), block):
            return False
        results.append(_run(graph, feeds)[0])
    plain, other = results
    return plain.shape == other.shape and bool(np.abs(plain - other).max() <= _TOLERANCE * np.abs(plain).max())


def _graph() -> ir.Graph:
    return ir.Graph([], [], nodes=[], opset_imports={"": 18, _DOMAIN: 1}, name="trial")


def _input(graph: ir.Graph, name: str, shape: Sequence[int]) -> ir.Value:
    value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
    graph.inputs.append(value)
    return value


def _run(graph: ir.Graph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data = ir.to_proto(ir.Model(graph, ir_version=9)).SerializeToString()
    session: Callable[..., list[np.ndarray]] = ort.InferenceSession(
        data, options, providers=["CPUExecutionProvider"]
    ).run
    return session(None, feeds)
