"""A pruned classifier in torch: an ONNX file's nodes run one by one, its weights are the module's parameters.

For benchmarks that train the same pruned net with dlprune and with PyTorch. It knows the operators of the benchmark's
nets and stops at any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional

Attributes = dict[str, Any]


def symmetric(attributes: Attributes) -> list[int]:
    """Return the pads of both sides, which must be equal."""
    pads = attributes.get("pads", [0, 0, 0, 0])
    half = len(pads) // 2
    if pads[:half] != pads[half:] or attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise NotImplementedError(f"pads {pads}")
    return list(pads[:half])


def conv(a: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.conv2d(
        x, weight, bias, a.get("strides", 1), symmetric(a), a.get("dilations", 1), a.get("group", 1)
    )


def gemm(a: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if a.get("transA", 0) or a.get("alpha", 1.0) != 1.0 or a.get("beta", 1.0) != 1.0:
        raise NotImplementedError(f"Gemm with {a}")
    return functional.linear(x, weight if a.get("transB", 0) else weight.T, bias)


def max_pool(a: Attributes, x: Tensor) -> Tensor:
    return functional.max_pool2d(
        x, a["kernel_shape"], a.get("strides"), symmetric(a), a.get("dilations", 1), bool(a.get("ceil_mode", 0))
    )


OPERATORS: dict[str, Callable[..., Tensor]] = {
    "Conv": conv,
    "Gemm": gemm,
    "MaxPool": max_pool,
    "Add": lambda _, x, y: x + y,
    "Mul": lambda _, x, y: x * y,
    "Relu": lambda _, x: functional.relu(x),
    "HardSwish": lambda _, x: functional.hardswish(x),
    "HardSigmoid": lambda a, x: (x * a.get("alpha", 0.2) + a.get("beta", 0.5)).clamp(0, 1),
    "GlobalAveragePool": lambda _, x: x.mean((2, 3), keepdim=True),
    "Flatten": lambda a, x: x.flatten(a.get("axis", 1)),
    "Reshape": lambda _, x, shape: x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(shape.tolist())]),
    "Identity": lambda _, x: x,
}


class OnnxModule(nn.Module):
    """Runs the nodes of an ONNX model with one input and one output.

    Args:
        model: static weights, float32; BatchNormalization follows the module's mode.
        momentum: share of the old running statistics that a training step keeps.
    """

    def __init__(self, model: onnx.ModelProto, momentum: float = 0.9) -> None:
        super().__init__()
        graph = model.graph
        self._nodes = [(node, {a.name: helper.get_attribute_value(a) for a in node.attribute}) for node in graph.node]
        unknown = {node.op_type for node in graph.node} - {*OPERATORS, "BatchNormalization", "Constant"}
        if unknown:
            raise NotImplementedError(f"operators {sorted(unknown)}")
        statistics = {name for n in graph.node if n.op_type == "BatchNormalization" for name in n.input[3:5]}
        self._momentum, self._output = momentum, graph.output[0].name
        self._keys: dict[str, str] = {}  # a parameter's name has no dots
        for number, initializer in enumerate(graph.initializer):
            key = self._keys[initializer.name] = f"w{number}"
            value = torch.from_numpy(np.array(numpy_helper.to_array(initializer)))
            if value.is_floating_point() and initializer.name not in statistics:
                self.register_parameter(key, nn.Parameter(value))
            else:
                self.register_buffer(key, value)
        self._input = next(value.name for value in graph.input if value.name not in self._keys)

    def forward(self, image: Tensor) -> Tensor:
        values: dict[str, Tensor | None] = {name: getattr(self, key) for name, key in self._keys.items()}
        values |= {"": None, self._input: image}
        for node, attributes in self._nodes:
            operands = [values[name] for name in node.input]
            if node.op_type == "Constant":
                result = torch.from_numpy(np.array(numpy_helper.to_array(attributes["value"])))
            elif node.op_type == "BatchNormalization":
                x, scale, shift, mean, variance = operands
                assert x is not None
                result = functional.batch_norm(
                    x, mean, variance, scale, shift, self.training, 1 - self._momentum, attributes.get("epsilon", 1e-5)
                )
            else:
                result = OPERATORS[node.op_type](attributes, *operands)
            values[node.output[0]] = result
        found = values[self._output]
        assert found is not None
        return found
