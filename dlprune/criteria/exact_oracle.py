"""Mode 'exact_oracle': every unit is switched off in turn, and each sample's loss is looked at."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from ..calibration import Images, Labels
from ..crossentropy import cross_entropy, targets
from ..facts import Facts, gather_facts
from ..nodes import read_by
from ..onnxfile import EXTERNAL_DATA_BYTES
from ..scoregraph import ScoreGraphError
from ..shapes import Shape
from ..structure import FIXED, Consumer
from .criterion import Measured, Network, Scorer, Values, absolute_sum, criterion

#: A run takes so many pairs of image and unit at most, and fewer where its largest tensor would exceed so many bytes.
_PAIRS = 64
_TENSOR_BYTES = 1 << 26
#: Tensors that the networks' rear parts start from, for all images that are looked at together.
_ENTRY_BYTES = 1 << 29
#: Rear parts stay in memory up to so many bytes of weights; beyond, they are made anew for each batch.
_KEPT_BYTES = 1 << 29


@criterion("exact_oracle")
class ExactOracle(Measured):
    """Mean over samples of |ΔL|: the change of the sample's own loss when the unit's consumers read zeros instead.

    Takes about half a forward pass per unit and image: the network is only run from the unit's first consumer on, for
    many pairs of unit and image at once. Feasible for small networks and few images.
    """

    selection = "reconstruction"

    def scorer(self, network: Network) -> Scorer:
        """Cut the network before each group of consumers."""
        return _Switches(network).score


@dataclass(frozen=True)
class _Rear:
    """A network from some consumers on: the units that all of these read, its nodes, and what it starts from."""

    units: NDArray[np.int64]
    consumers: tuple[Consumer, ...]
    nodes: tuple[ir.Node, ...]
    entries: tuple[str, ...]
    constants: tuple[str, ...]


class _Switches:
    """Switches the units of a network off."""

    def __init__(self, network: Network) -> None:
        self._network = network
        classifier = network.classifier
        assert classifier.image is not None
        assert classifier.head is not None
        sigmoid = classifier.head.activation == "sigmoid"
        self._logits = classifier.output_name if sigmoid else classifier.logits_name
        self._facts = self._facts_at(network.batch)
        self._pairs = network.batch if classifier.image.batch is not None else self._affordable_pairs()
        self._pair_facts = self._facts if self._pairs == network.batch else self._facts_at(self._pairs)
        self._rears = list(self._cut())
        self._entries = list(dict.fromkeys(name for rear in self._rears for name in rear.entries))
        weights = sum(self._bytes(self._pair_facts, name) for rear in self._rears for name in rear.constants)
        self._sessions: dict[int, ort.InferenceSession] | None = {} if weights <= _KEPT_BYTES else None
        self._lock = threading.Lock()

    def score(self, images: Images, labels: Labels, count: int) -> Values:
        """Return the sum over samples of |ΔL| for each unit, float64 [U]."""
        total = np.zeros(self._network.structure.unit_num)
        for chosen in self._parts(count):
            names = [self._logits, *self._entries]
            part = images[chosen] if len(chosen) != len(images) else images
            logits, *found = self._network.classifier.run(part, names)
            logits = logits.reshape(len(part), -1)
            own = targets(logits, labels[chosen])
            tensors = dict(zip(self._entries, found, strict=True))
            for index, rear in enumerate(self._rears):
                if not rear.consumers:  # nothing of them reaches the class scores
                    continue
                changes = self._changes(index, rear, tensors, own, cross_entropy(logits, own))
                total[rear.units] += absolute_sum(changes[: min(count, len(part))])
        return total

    def _parts(self, count: int) -> Iterator[NDArray[np.int64]]:
        """Cut a batch into parts whose tensors fit into memory, unless the network fixes its batch."""
        image, size = self._network.classifier.image, self._network.batch
        assert image is not None
        each = sum(self._bytes(self._facts, name) for name in self._entries) // size
        step = size if image.batch is not None else max(min(_ENTRY_BYTES // max(each, 1), count), 1)
        end = size if image.batch is not None else count
        for start in range(0, end, step):
            yield np.arange(start, min(start + step, end))

    def _changes(
        self,
        index: int,
        rear: _Rear,
        tensors: dict[str, NDArray[np.floating]],
        labels: Labels,
        loss: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return the change of each sample's loss for each unit of a rear part, float64 [N, M]."""
        session, size = self._session(index, rear), self._pairs
        changes = np.zeros((len(labels), len(rear.units)))
        flat = changes.reshape(-1)
        for start in range(0, len(flat), size):
            pairs = np.minimum(np.arange(start, start + size), len(flat) - 1)
            samples, units = np.divmod(pairs, len(rear.units))
            feeds = {name: _rows(tensors[name], samples, len(labels)) for name in rear.entries}
            for number, consumer in enumerate(rear.consumers):
                feeds[_mask_name(number)] = self._mask(consumer, rear.units[units])
            (logits,) = session.run(None, feeds)
            after = cross_entropy(logits.reshape(size, -1), labels[samples])
            flat[pairs] = after - loss[samples]
        return changes

    def _mask(self, consumer: Consumer, units: NDArray[np.int64]) -> NDArray[np.floating]:
        """Return zeros where a consumer reads the unit of a pair, ones elsewhere, in the form of what it reads."""
        shape, dtype = self._pair_facts.shape(consumer.input), self._pair_facts.dtype(consumer.input)
        assert shape is not None
        assert dtype is not None
        mask: NDArray[np.floating] = (
            (consumer.units != units[:, None]).astype(dtype.numpy()).repeat(shape[0] // len(units), axis=0)
        )
        return mask.reshape([size if axis in (0, consumer.axis) else 1 for axis, size in enumerate(shape)])

    def _session(self, index: int, rear: _Rear) -> ort.InferenceSession:
        if self._sessions is None:
            return self._new_session(rear)
        with self._lock:
            if index not in self._sessions:
                self._sessions[index] = self._new_session(rear)
            return self._sessions[index]

    # --- cutting --------------------------------------------------------------------------------------------------

    def _facts_at(self, batch: int) -> Facts:
        classifier = self._network.classifier
        return gather_facts(classifier.model, {classifier.input_name: classifier.input_shape(batch)})

    def _bytes(self, facts: Facts, name: str) -> int:
        shape, dtype = facts.shape(name), facts.dtype(name)
        return 0 if shape is None or dtype is None else int(np.prod(shape, dtype=np.int64)) * dtype.bitwidth // 8

    def _affordable_pairs(self) -> int:
        names = (output.name or "" for node in self._network.classifier.model.graph for output in node.outputs)
        largest = max(self._bytes(self._facts, name) for name in names)
        return int(np.clip(_TENSOR_BYTES * self._network.batch // max(largest, 1), 1, _PAIRS))

    def _cut(self) -> Iterator[_Rear]:
        """Cut the network once for each set of consumers that some units have in common."""
        readers: dict[tuple[int, ...], list[int]] = {}
        structure = self._network.structure
        reading: list[list[int]] = [[] for _ in range(structure.unit_num)]
        for index, consumer in enumerate(structure.consumers):
            for unit in np.unique(consumer.units[consumer.units != FIXED]):
                reading[unit].append(index)
        for unit, indices in enumerate(reading):
            if indices:
                readers.setdefault(tuple(indices), []).append(unit)
        for common, units in readers.items():
            consumers = tuple(structure.consumers[index] for index in common)
            rear = self._rear(consumers, np.array(units, np.int64))
            for name in rear.entries:
                self._require_batch_first(name)
            yield rear

    def _require_batch_first(self, name: str) -> None:
        """Refuse tensors whose samples cannot be told apart by their first axis."""
        shape, other = self._facts.shape(name), self._pair_facts.shape(name)
        batch, pairs = self._network.batch, self._pairs
        if not shape or not other or shape[0] % batch or other[0] * batch != shape[0] * pairs:
            raise ScoreGraphError(f"tensor {name!r} of shape {shape} does not begin with the samples")

    def _rear(self, consumers: tuple[Consumer, ...], units: NDArray[np.int64]) -> _Rear:
        model, facts = self._network.classifier.model, self._pair_facts
        nodes = _between(model, [consumer.output for consumer in consumers], self._logits)
        made = {output.name or "" for node in nodes for output in node.outputs}
        read = dict.fromkeys(v.name or "" for n in nodes for v in read_by(n) if v.name not in made)
        entries = tuple(name for name in read if facts.const(name) is None)
        left = tuple(consumer for consumer in consumers if consumer.output in made)
        return _Rear(units, left, tuple(nodes), entries, tuple(name for name in read if name not in entries))

    def _new_session(self, rear: _Rear) -> ort.InferenceSession:
        model, facts = self._network.classifier.model, self._pair_facts
        protos = [ir.to_proto(node) for node in rear.nodes]
        inputs = [_info(facts, name, facts.shape(name)) for name in rear.entries]
        for number, consumer in enumerate(rear.consumers):
            place = next(i for i, proto in enumerate(protos) if consumer.output in proto.output)
            shape = facts.shape(consumer.input)
            assert shape is not None
            narrow: Shape = tuple(size if axis in (0, consumer.axis) else 1 for axis, size in enumerate(shape))
            inputs.append(_info(facts, consumer.input, narrow, _mask_name(number)))
            masked = f"{_mask_name(number)}/read"
            names = protos[place].input
            names[list(names).index(consumer.input)] = masked
            protos.insert(place, onnx.helper.make_node("Mul", [consumer.input, _mask_name(number)], [masked]))
        constants = [onnx.numpy_helper.from_array(np.asarray(facts.const(name)), name) for name in rear.constants]
        output = _info(facts, self._logits, facts.shape(self._logits))
        graph = onnx.helper.make_graph(protos, "rear", inputs, [output], constants)
        opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
        proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=max(model.ir_version or 4, 4))
        if proto.ByteSize() > EXTERNAL_DATA_BYTES:
            raise ScoreGraphError("its weights are too large for mode 'exact_oracle'; choose 'oracle'")
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _between(model: ir.Model, starts: Sequence[str], end: str) -> list[ir.Node]:
    """Return the nodes, in graph order, that the starts' outputs influence and that influence the end."""
    influenced: set[str] = set()
    ahead: list[ir.Node] = []
    for node in model.graph:
        outputs = [output.name or "" for output in node.outputs]
        if any(name in starts for name in outputs) or any(v.name in influenced for v in read_by(node)):
            influenced.update(outputs)
            ahead.append(node)
    needed, found = {end}, []
    for node in reversed(ahead):
        if any(output.name in needed for output in node.outputs):
            needed.update(v.name or "" for v in read_by(node))
            found.append(node)
    return found[::-1]


def _info(facts: Facts, name: str, shape: Shape | None, as_name: str | None = None) -> onnx.ValueInfoProto:
    dtype = facts.dtype(name)
    assert dtype is not None
    return onnx.helper.make_tensor_value_info(as_name or name, int(dtype), shape)


def _mask_name(number: int) -> str:
    return f"exact_oracle/mask{number}"


def _rows(tensor: NDArray[np.floating], samples: NDArray[np.int64], batch: int) -> NDArray[np.floating]:
    """Return what a tensor holds of each of some samples, one after the other."""
    parts: NDArray[np.floating] = tensor.reshape(batch, -1, *tensor.shape[1:])[samples]
    return parts.reshape(-1, *tensor.shape[1:])
