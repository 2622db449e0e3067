"""Which initializers of a graph are weights that training changes, and which vectors exporters merged by chance."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import numpy as np
import onnx_ir as ir

#: Inputs that hold trained weights, by operator.
_SLOTS: Final[dict[str, tuple[int, ...]]] = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (0, 1, 2),
    "MatMul": (0, 1),
    "BatchNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "GroupNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "RMSNormalization": (1,),
    "PRelu": (1,),
}
#: Those among them that are kernels or matrices.
_KERNELS: Final[dict[str, tuple[int, ...]]] = {"Conv": (1,), "ConvTranspose": (1,), "Gemm": (0, 1), "MatMul": (0, 1)}
#: A vector that such a node adds or multiplies to the result of a layer is a bias or a scale.
_PER_CHANNEL: Final = frozenset({"Add", "Sum", "Mul"})
#: Inputs that hold running statistics: they follow the data, not the gradient.
_STATISTICS: Final = (3, 4)
#: Steps that an exporter puts between a weight and its reader.
_MOVES: Final = frozenset({"Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})


@dataclass(frozen=True)
class Site:
    """A place where a weight is read: input `slot` of `node`, and the initializer behind it.

    `value` is what the node reads; it differs from `source` where steps like Identity or Transpose stand between.
    """

    node: ir.Node
    slot: int
    value: ir.Value
    source: ir.Value

    @property
    def is_kernel(self) -> bool:
        """Whether it is a kernel or matrix, not a bias, scale or slope."""
        return self.slot in _KERNELS.get(self.node.op_type, ())


def source_of(value: ir.Value | None) -> ir.Value | None:
    """Return the initializer that a value is, maybe in another form; None if it depends on data or is computed."""
    while value is not None and value.const_value is None:
        node = value.producer()
        if node is None or node.op_type not in _MOVES or not _standard(node) or not node.inputs:
            return None
        value = node.inputs[0]
    return value if value is not None and value.is_initializer() else None


def sites(model: ir.Model) -> Iterator[Site]:
    """Yield every place where a trained weight is read, in graph order."""
    behind_layer: set[ir.Value] = set()
    for node in model.graph:
        if not _standard(node):
            if behind_layer.intersection(v for v in node.inputs if v is not None):
                behind_layer.update(node.outputs)
            continue
        slots = _SLOTS.get(node.op_type, ())
        follows = any(value in behind_layer for value in node.inputs if value is not None)
        if node.op_type in _PER_CHANNEL and follows:
            slots = tuple(range(len(node.inputs)))
        found = [site for slot in slots if (site := _site(node, slot)) is not None]
        if node.op_type in _PER_CHANNEL:
            found = [site for site in found if _is_vector(site.source)]
        yield from found
        if follows or (found and node.op_type in _SLOTS):
            behind_layer.update(node.outputs)


def _site(node: ir.Node, slot: int) -> Site | None:
    value = node.inputs[slot] if slot < len(node.inputs) else None
    source = source_of(value)
    if value is None or source is None or source.const_value is None:
        return None
    tensor = source.const_value
    return Site(node, slot, value, source) if tensor.dtype.is_floating_point() and tensor.size > 1 else None


def trainable_weights(model: ir.Model) -> list[ir.Value]:
    """Return the initializers that training changes, each once, in graph order.

    These are kernels, matrices, biases, scales and slopes of layers. Not among them: running statistics, single
    numbers, and constants before the first layer (mean and deviation of the image).
    """
    statistics = set(running_statistics(model))
    return [value for value in dict.fromkeys(site.source for site in sites(model)) if value not in statistics]


def frozen_names(model: ir.Model, patterns: Sequence[str]) -> frozenset[str]:
    """Return the names of trainable weights that fit one of the patterns (of the kind 'stage1.*'; case matters)."""
    names = [value.name or "" for value in trainable_weights(model)] if patterns else []
    return frozenset(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


def running_statistics(model: ir.Model) -> list[ir.Value]:
    """Return the initializers that hold mean and variance of a BatchNormalization."""
    found: dict[ir.Value, None] = {}
    for node in model.graph.all_nodes():
        if node.op_type == "BatchNormalization" and _standard(node):
            for slot in _STATISTICS:
                source = source_of(node.inputs[slot])
                if source is not None:
                    found[source] = None
    return list(found)


def kernels(model: ir.Model) -> set[ir.Value]:
    """Return the trainable kernels and matrices: the weight prior acts on those alone."""
    return {site.source for site in sites(model) if site.is_kernel}


def _is_vector(value: ir.Value) -> bool:
    return sum(size > 1 for size in _dims(value)) <= 1


def _dims(value: ir.Value) -> tuple[int, ...]:
    assert value.const_value is not None
    return tuple(value.const_value.shape.numpy())


def _standard(node: ir.Node) -> bool:
    return node.domain in ("", "ai.onnx")


# --- merged vectors --------------------------------------------------------------------------------------------------


def unshare(model: ir.Model) -> bool:
    """Give every layer its own bias, scale and statistics where an exporter merged equal ones; tell if one was merged.

    Exporters store equal tensors once: all biases that are still zero, all scales that are still one. Such layers must
    not be trained as one. Vectors of a layer that is really applied twice (it shares its kernel or its trained
    statistics) stay shared, and so does every kernel.
    """
    changed = False
    readers: dict[ir.Value, dict[Hashable, list[Site]]] = {}
    for site in [*sites(model), *_statistics_sites(model)]:
        if _is_vector(site.source):
            readers.setdefault(site.source, {}).setdefault(_layer(site), []).append(site)
    for source, layers in readers.items():
        for group in list(layers.values())[1:]:
            _separate(model.graph, source, group)
            changed = True
    if changed:
        _drop_unused(model.graph)
    return changed


def _statistics_sites(model: ir.Model) -> Iterator[Site]:
    for node in model.graph:
        if node.op_type == "BatchNormalization" and _standard(node):
            yield from (site for slot in _STATISTICS if (site := _site(node, slot)) is not None)


def _layer(site: Site) -> Hashable:
    """Return what two readers of one vector have in common if they are the same layer applied twice."""
    node, slot = site.node, site.slot
    if node.op_type in _PER_CHANNEL:
        shared = [source_of(v) for producer in _producers(node) for v in producer.inputs[:2]]
        shared = [value for value in shared if value is not None]
    else:
        tell_tale = _STATISTICS if node.op_type == "BatchNormalization" else _KERNELS.get(node.op_type) or (1, 2)
        shared = [source_of(node.inputs[i]) for i in tell_tale if i < len(node.inputs)]
    if all(value is None or _is_uniform(value) for value in shared):  # fresh ones are alike without being the same
        return node, slot
    return slot, tuple(shared)


def _producers(node: ir.Node) -> list[ir.Node]:
    """Return the matrix products that an Add or Mul reads."""
    found = (value.producer() for value in node.inputs if value is not None)
    return [producer for producer in found if producer is not None and producer.op_type in _KERNELS]


def _is_uniform(value: ir.Value) -> bool:
    """Tell whether all elements are the same number, as in a layer that was never trained."""
    assert value.const_value is not None
    array = value.const_value.numpy()
    return bool(np.all(array == array.reshape(-1)[0]))


def _separate(graph: ir.Graph, source: ir.Value, group: list[Site]) -> None:
    """Give a group of readers a copy of a vector; its name is that of the Identity which stands for it, if any."""
    tensor = source.const_value
    assert tensor is not None
    alias = next((site.value for site in group if site.value is not source), None)
    if any(site.value is not source and not _is_identity(site.value) for site in group):
        return  # transposed or reshaped for some: too rare to be worth code
    if alias is not None and alias.name:
        name, alias.name = alias.name, _free(graph, f"{alias.name}/merged")
    else:
        name = _free(graph, f"{source.name}/{group[0].node.name}")
    copy = ir.Value(
        name=name,
        shape=ir.Shape(_dims(source)),
        type=ir.TensorType(tensor.dtype),
        const_value=ir.tensor(tensor.numpy(), dtype=tensor.dtype, name=name),
    )
    for site in group:
        site.node.replace_input_with(site.slot, copy)
    graph.register_initializer(copy)


def _is_identity(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type == "Identity" and _standard(node)


def _free(graph: ir.Graph, name: str) -> str:
    taken = {value.name for node in graph.all_nodes() for value in node.outputs} | set(graph.initializers)
    taken |= {value.name for value in graph.inputs}
    while name in taken:
        name += "_"
    return name


def _drop_unused(graph: ir.Graph) -> None:
    """Remove the Identity nodes that nobody reads any more."""
    for node in list(graph):
        output = node.outputs[0] if node.outputs else None
        if output is not None and _is_identity(output) and not output.uses() and not output.is_graph_output():
            graph.remove(node, safe=True)
