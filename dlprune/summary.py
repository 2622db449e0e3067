"""What a graph consists of, in numbers and words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir

from .weights import frozen_names, trainable_weights


def trainable_parameters(model: ir.Model, frozen: Sequence[str] = ()) -> int:
    """Return the number of weights that training changes, without those whose name fits a pattern in `frozen`."""
    still = frozen_names(model, frozen)
    weights = [value for value in trainable_weights(model) if value.name not in still]
    return sum(value.const_value.size for value in weights if value.const_value is not None)


def precision(model: ir.Model) -> str:
    """Return the type of most weights: 'float32', 'float16', 'float64'; 'int8' for quantized graphs."""
    sizes: Counter[str] = Counter()
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype != ir.DataType.INT64:
                sizes[str(value.const_value.dtype).lower()] += value.const_value.size
    name = sizes.most_common(1)[0][0] if sizes else "float"
    return {"float": "float32", "double": "float64"}.get(name, name)


def summary(model: ir.Model) -> list[str]:
    """Return one line per layer (name; operator; output shape where the file tells it; weights), then the sum."""
    lines: list[str] = []
    owned = set(trainable_weights(model))
    for node in model.graph:
        size = sum(
            value.const_value.size for value in {v for v in node.inputs if v in owned} if value.const_value is not None
        )
        shape = node.outputs[0].shape if node.outputs else None
        lines.append(f"{node.name}; {node.op_type}; {shape if shape is not None else '?'}; {size}")
    lines.append(f"Total number of weights: {trainable_parameters(model)}")
    return lines
