"""Small ONNX models for tests, written in ONNX's text format.

A weight only has to be declared between the angle brackets; its numbers are drawn here, the same for the same seed:

    model('''<ir_version: 8, opset_import: ["" : 17]>
    net (float[N,3,8,8] x) => (float[N,5] y) <float[4,3,3,3] w, float[4,5] v> {
      a = Conv<pads = [1,1,1,1]>(x, w)
      b = Relu(a)
      c = GlobalAveragePool(b)
      d = Flatten(c)
      y = MatMul(d, v)
    }''')
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

_PLAIN_BODY = """(float[{batch},{channels},{size},{size}] x) => (float[{batch},{classes}] y)
<float[6,{channels},3,3] w1, float[6] b1, float[8,6,3,3] w2, float[8,{classes}] w3, float[{classes}] b3>
{{
  a = Conv<pads = [1,1,1,1]>(x, w1, b1)
  ar = Relu(a)
  c = Conv<pads = [1,1,1,1]>(ar, w2)
  cr = Relu(c)
  g = GlobalAveragePool(cr)
  f = Flatten(g)
  m = Gemm(f, w3, b3)
  y = {head}(m)
}}"""


def fill(shape: tuple[int, ...], rng: np.random.Generator, name: str = "") -> np.ndarray:
    """Return float32 weights of a sane size; a name with 'var' gets positive numbers."""
    if "var" in name:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    fan_in = math.prod(shape[1:]) if len(shape) > 1 else 16
    return (rng.standard_normal(shape) * math.sqrt(2 / max(fan_in, 1))).astype(np.float32)


def model(text: str, seed: int = 0, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    """Parse ONNX text and give every declared weight without numbers (and those in `shapes`) fixed random ones."""
    proto = onnx.parser.parse_model(text)
    graph = proto.graph
    produced = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
    produced |= {tensor.name for tensor in graph.initializer} | {value.name for value in graph.output}
    wanted = dict(shapes)
    for value in list(graph.value_info):
        if value.name not in produced:
            wanted[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            graph.value_info.remove(value)
    rng = np.random.default_rng(seed)
    for name, shape in wanted.items():
        graph.initializer.append(numpy_helper.from_array(fill(shape, rng, name), name))
    return proto


def plain(
    *,
    seed: int = 0,
    batch: int | str = "N",
    channels: int = 3,
    size: int | str = 8,
    classes: int = 5,
    opset: int = 17,
    ir_version: int = 8,
    head: str = "Identity",
) -> onnx.ModelProto:
    """Return a classifier of two convolutions and a Gemm; `head` is the last operator ('Identity' or 'Softmax')."""
    header = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>\nplain '
    body = _PLAIN_BODY.format(batch=batch, channels=channels, size=size, classes=classes, head=head)
    return model(header + body, seed)


def saved(proto: onnx.ModelProto, path: Path) -> str:
    """Write the model to `path` and return the path as text."""
    onnx.save(proto, path)
    return str(path)
