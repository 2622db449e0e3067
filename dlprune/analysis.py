"""Everything that is worked out of a classifier before it is scored or cut, kept with it until its weights change."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from .classifier import Classifier
from .facts import Facts, gather_facts
from .nodes import subgraphs
from .shapes import Shape
from .structure import Structure, analyse

#: Added to every dynamic dimension of the second look, which tells the numbers that follow the input.
_STEP = 1
_PIXEL_STEP = 32


@dataclass(frozen=True)
class Analysis:
    """A classifier's graph with its facts and structure at the present image size."""

    model: ir.Model
    facts: Facts
    structure: Structure
    other_shapes: Mapping[str, Shape]

    @cached_property
    def signature(self) -> str:
        """Digest of the architecture, see signature()."""
        return signature(self.model)


def analysis_of(classifier: Classifier) -> Analysis:
    """Return the analysis of a classifier, made once for each image size."""
    shape: Shape = classifier.nominal_shape()
    with classifier.lock:
        key = ("analysis", shape)
        if key not in classifier.derived:
            classifier.derived[key] = _analyse(classifier, shape)
        found = classifier.derived[key]
        assert isinstance(found, Analysis)
        return found


def _analyse(classifier: Classifier, shape: Shape) -> Analysis:
    facts = classifier.facts()
    try:
        structure = analyse(classifier.model, facts)
    except Exception:
        classifier.confidences(np.zeros(shape, np.float32))  # a model that cannot be run says so itself
        raise
    return Analysis(classifier.model, facts, structure, _other_shapes(classifier, shape))


def _other_shapes(classifier: Classifier, shape: Shape) -> dict[str, Shape]:
    """Return an input shape in which every dynamic dimension differs; empty where the shape is fixed."""
    image, name = classifier.image, classifier.input_name
    assert image is not None
    sizes = [(image.height, _PIXEL_STEP), (image.width, _PIXEL_STEP)]
    steps = [0 if known is not None else step for known, step in sizes]
    plain: Shape = (shape[0] + (_STEP if image.batch is None else 0), *shape[1:])
    first = 1 if classifier.layout == "NHWC" else 2
    larger: Shape = (*plain[:first], plain[first] + steps[0], plain[first + 1] + steps[1], *plain[first + 2 :])
    if larger != plain and gather_facts(classifier.model, {name: larger}).shape(classifier.output_name) is None:
        larger = plain  # the network takes some sizes only
    return {} if larger == shape else {name: larger}


def signature(model: ir.Model) -> str:
    """Return a digest of a network's architecture: operators, wiring, weight shapes; not names or weights.

    Whether two layers share a weight does not count: exporters merge equal vectors, and training separates them.
    """
    digest = hashlib.sha256()
    numbers: dict[ir.Value, int] = {}

    def number(value: ir.Value | None) -> str:
        if value is None:
            return "-"
        weight = _weight(value)
        if weight is not None:
            return f"w{tuple(weight.shape.numpy())}{weight.dtype}"
        return str(numbers.setdefault(value, len(numbers)))

    def visit(graph: ir.Graph) -> None:
        for node in graph:
            if len(node.outputs) == 1 and _weight(node.outputs[0]) is not None:
                continue
            wires = ",".join(number(value) for value in (*node.inputs, *node.outputs))
            plain = sorted(
                f"{name}={attribute.value}"
                for name, attribute in node.attributes.items()
                if attribute.type in _PLAIN_ATTRIBUTES
            )
            digest.update(f"{node.domain}.{node.op_type}({wires}){plain}".encode())
            for inner in subgraphs(node):
                visit(inner)

    visit(model.graph)
    return digest.hexdigest()


def _weight(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor behind an initializer or its Identity."""
    node = value.producer()
    while value.const_value is None and node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value.const_value


_PLAIN_ATTRIBUTES = frozenset(
    {
        ir.AttributeType.INT,
        ir.AttributeType.INTS,
        ir.AttributeType.FLOAT,
        ir.AttributeType.FLOATS,
        ir.AttributeType.STRING,
        ir.AttributeType.STRINGS,
    }
)
