"""Output shapes of the operators that nets are made of, as ONNX's own inference gives them.

ONNX's inference of one node takes as long as serialising the node and its types, which is most of the time that an
analysis takes. These rules know the plain forms alone; of all else they say nothing, and ONNX's inference is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from .nodes import int_attribute, ints_attribute, string_attribute

Shape = tuple[int, ...]
Type = tuple[ir.DataType, Shape]

Rule = Callable[[ir.Node, Sequence[Shape]], Shape | None]

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE})

#: Operator → opset that it is known from on, and its rule.
_RULES: dict[str, tuple[int, Rule]] = {}


def output_type(node: ir.Node, inputs: Sequence[Type | None], opset: int) -> Type | None:
    """Return element type and shape of the only output of a node, None where its form is not a plain one.

    Args:
        node: a node of ONNX's default domain.
        inputs: type of each input, None where it is absent or unknown.
        opset: version of the default domain.
    """
    since, rule = _RULES.get(node.op_type, (0, None))
    known = [one for one in inputs if one is not None]
    if rule is None or opset < since or len(node.outputs) != 1 or len(known) != len(inputs) or not known:
        return None
    dtype = known[0][0]
    if dtype not in _FLOATS or any(other != dtype or 0 in shape for other, shape in known):
        return None
    shape = rule(node, [shape for _, shape in known])
    return None if shape is None else (dtype, shape)


def _knows(op_types: str, since: int = 7) -> Callable[[Rule], Rule]:
    """Register the rule of operators (names in a string)."""

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(op_types.split(), (since, rule)))
        return rule

    return register


@_knows("Abs Elu Exp HardSigmoid LeakyRelu Log Neg Reciprocal Relu Selu Sigmoid Softplus Sqrt Tanh")
@_knows("Erf", 9)
@_knows("Clip", 11)
@_knows("HardSwish", 14)
@_knows("Gelu", 20)
def _unary(node: ir.Node, shapes: Sequence[Shape]) -> Shape:
    """The shape stays."""
    del node
    return shapes[0]


@_knows("Add Div Mul Sub")
def _broadcast(node: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    del node
    if len(shapes) != 2:
        return None
    first, second = shapes
    if first == second:
        return first
    rank = max(len(first), len(second))
    pairs = zip((1,) * (rank - len(first)) + first, (1,) * (rank - len(second)) + second, strict=True)
    result = tuple(b if a == 1 else a if b in (1, a) else 0 for a, b in pairs)
    return None if 0 in result else result


@_knows("BatchNormalization", 9)
def _batch_normalization(node: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    del node
    data = shapes[0]
    fits = len(shapes) == 5 and len(data) > 1 and all(shape == data[1:2] for shape in shapes[1:])
    return data if fits else None


@_knows("Conv")
def _convolution(node: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    data, weight = shapes[0], shapes[1] if len(shapes) > 1 else ()
    rank, groups = len(data) - 2, int_attribute(node, "group", 1)
    if rank < 1 or len(weight) != len(data) or groups < 1 or weight[1] * groups != data[1] or weight[0] % groups:
        return None
    kernel = ints_attribute(node, "kernel_shape", weight[2:])
    spatial = None if kernel != weight[2:] else _slid(node, data[2:], kernel)
    return None if spatial is None else (data[0], weight[0], *spatial)


@_knows("AveragePool MaxPool")
def _pool(node: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    data = shapes[0]
    kernel = ints_attribute(node, "kernel_shape", ())
    if len(data) < 3 or len(kernel) != len(data) - 2 or int_attribute(node, "ceil_mode", 0):
        return None
    if "dilations" in node.attributes:  # not all versions know them
        return None
    spatial = _slid(node, data[2:], kernel)
    return None if spatial is None else (*data[:2], *spatial)


def _slid(node: ir.Node, sizes: Shape, kernel: Shape) -> Shape | None:
    """Return how many positions a window has along each axis."""
    rank = len(sizes)
    ones = (1,) * rank
    strides, dilations = ints_attribute(node, "strides", ones), ints_attribute(node, "dilations", ones)
    pads = ints_attribute(node, "pads", (0,) * 2 * rank)
    if string_attribute(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    if not len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        return None
    if min(strides) < 1 or min(dilations) < 1 or min(kernel) < 1 or min(pads) < 0:
        return None
    result = []
    for axis in range(rank):
        span = sizes[axis] + pads[axis] + pads[axis + rank] - (kernel[axis] - 1) * dilations[axis] - 1
        if span < 0:
            return None
        result.append(span // strides[axis] + 1)
    return tuple(result)


@_knows("GlobalAveragePool GlobalMaxPool")
def _global_pool(node: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    del node
    data = shapes[0]
    return None if len(data) < 3 else (*data[:2], *(1,) * (len(data) - 2))


@_knows("Flatten")
def _flatten(node: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    data, axis = shapes[0], int_attribute(node, "axis", 1)
    return (math.prod(data[:axis]), math.prod(data[axis:])) if 0 <= axis <= len(data) else None


@_knows("Gemm")
def _gemm(node: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    if len(shapes) != 3 or any(len(shape) != 2 for shape in shapes[:2]):
        return None
    first, second, _ = shapes
    rows, inner = reversed(first) if int_attribute(node, "transA", 0) else first
    other, columns = reversed(second) if int_attribute(node, "transB", 0) else second
    return (rows, columns) if inner == other else None


@_knows("Concat")
def _concat(node: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    axis, first = int_attribute(node, "axis", -1), shapes[0]
    if not 0 <= axis < len(first):
        return None
    if any(shape[:axis] != first[:axis] or shape[axis + 1 :] != first[axis + 1 :] for shape in shapes):
        return None
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


@_knows("Transpose")
def _transpose(node: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    data = shapes[0]
    order = ints_attribute(node, "perm", tuple(reversed(range(len(data)))))
    return tuple(data[axis] for axis in order) if sorted(order) == list(range(len(data))) else None
