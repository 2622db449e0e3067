"""Run a network piece by piece over all calibration images, so that weights may change between the pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from .. import onnxfile
from ..facts import Facts
from ..nodes import read_by

Array = NDArray[Any]


class Stages:
    """A network that is run up to some tensors, then a bit further, each node once.

    Args:
        model: the network; weights of nodes that have not run yet may be replaced between the stages.
        facts: its facts (only element types are used).
        wanted: names of all tensors that will be asked for.
        feeds: name of the image input and the images, float32 [n, …].
        batch: images per run.
    """

    def __init__(
        self, model: ir.Model, facts: Facts, wanted: Iterable[str], feeds: tuple[str, Array], batch: int
    ) -> None:
        self.batch = batch
        self._model = model
        self._facts = facts
        self._producers = {output.name or "": node for node in model.graph for output in node.outputs}
        self._order = {node: position for position, node in enumerate(model.graph)}
        self._constant = _constant_nodes(model)
        self._readers: dict[str, set[ir.Node]] = {}
        for node in model.graph:
            for value in read_by(node):
                self._readers.setdefault(value.name or "", set()).add(node)
        self._relevant = set(self._ancestors(wanted, set()))
        self._wanted = set(wanted)
        self._done: set[ir.Node] = set()
        name, images = feeds
        self._count = len(images)
        dtype = facts.dtype(name)
        images = images if dtype is None else images.astype(dtype.numpy(), copy=False)
        self._buffers = _Buffers()
        self._known: dict[str, list[Array]] = {name: list(batches(images, batch))}

    def tensor(self, name: str) -> Iterator[tuple[Array, int]]:
        """Yield a tensor batch by batch with the number of real images in it; what follows them is padding."""
        self.run([name])
        left = self._count
        for part in self._known[name]:
            yield part, min(self.batch, left)
            left -= self.batch

    def run(self, names: Sequence[str]) -> None:
        """Run all nodes that these tensors need and that have not run yet."""
        missing = [name for name in names if name not in self._known]
        nodes = sorted(self._ancestors(missing, self._done), key=self._order.__getitem__)
        if nodes:
            self._execute(nodes)

    def has_run(self, node: ir.Node) -> bool:
        """Tell whether a node has run, so that a change of its weights would come too late."""
        return node in self._done

    def release(self, name: str) -> None:
        """Forget a tensor that will not be asked for again, unless a later node reads it."""
        self._wanted.discard(name)
        self._drop_unused()

    def _ancestors(self, names: Iterable[str], done: set[ir.Node]) -> Iterator[ir.Node]:
        stack, seen = list(names), set[ir.Node]()
        while stack:
            node = self._producers.get(stack.pop())
            if node is None or node in seen or node in done:
                continue
            seen.add(node)
            yield node
            stack.extend(value.name or "" for value in read_by(node))

    def _execute(self, nodes: list[ir.Node]) -> None:
        self._done.update(node for node in nodes if node not in self._constant)
        inside = {output.name or "" for node in nodes for output in node.outputs}
        read = [value for node in nodes for value in read_by(node) if value.name not in inside]
        inputs = list(dict.fromkeys(value.name or "" for value in read if value.name in self._known))
        outputs = [
            output
            for node in nodes
            if node not in self._constant
            for output in node.outputs
            if output.name in self._wanted or self._is_read_later(output)
        ]
        session = self._session(nodes, inputs, outputs, read)
        names = [output.name or "" for output in outputs]
        # An output whose shape depends on the data has another one in each batch.
        fixed = all(self._facts.shape(output) is not None for output in outputs)
        results: dict[str, list[Array]] = {name: [] for name in names}
        for position in range(len(next(iter(self._known.values())))):
            feeds = {name: self._known[name][position] for name in inputs}
            likes = [results[name][0] for name in names] if fixed and position else None
            arrays = session.run(names, feeds) if likes is None else self._run_into(session, feeds, names, likes)
            for name, array in zip(names, arrays, strict=True):
                results[name].append(array)
        self._known.update(results)
        self._buffers.clear()
        self._drop_unused()

    def _run_into(
        self, session: ort.InferenceSession, feeds: dict[str, Array], names: list[str], likes: list[Array]
    ) -> list[Array]:
        """Run a session; its outputs, which are like those of the last run, are written into spare memory."""
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        outputs = [self._buffers.take(like) for like in likes]
        for name, array in zip(names, outputs, strict=True):
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        session.run_with_iobinding(binding)
        return outputs

    def _is_read_later(self, value: ir.Value) -> bool:
        return any(
            node in self._relevant and node not in self._done for node in self._readers.get(value.name or "", ())
        )

    def _drop_unused(self) -> None:
        values = {output.name: output for node in self._done for output in node.outputs}
        values.update({value.name: value for value in self._model.graph.inputs})
        for name in list(self._known):
            if name not in self._wanted and not self._is_read_later(values[name]) and len(self._known) > 1:
                arrays = self._known.pop(name)
                if name in self._producers:  # and not the user's images
                    self._buffers.give(arrays)

    def _session(
        self, nodes: list[ir.Node], inputs: list[str], outputs: list[ir.Value], read: list[ir.Value]
    ) -> ort.InferenceSession:
        weights = {value.name or "": value.const_value for value in read if value.const_value is not None}
        initializers = []
        for name, tensor in weights.items():
            proto = ir.to_proto(tensor)
            proto.name = name
            initializers.append(proto)
        graph = onnx.helper.make_graph(
            [ir.to_proto(node) for node in nodes],
            "stage",
            [self._info(name) for name in inputs],
            [self._info(output.name or "") for output in outputs],
            initializers,
        )
        opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in self._model.opset_imports.items()]
        proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=max(self._model.ir_version or 4, 4))
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers = ["CPUExecutionProvider"]
        if sum(tensor.nbytes for tensor in weights.values()) <= onnxfile.EXTERNAL_DATA_BYTES:
            return ort.InferenceSession(proto.SerializeToString(), options, providers=providers)
        with onnxfile.runnable(ir.from_proto(proto)) as source:
            return ort.InferenceSession(source, options, providers=providers)

    def _info(self, name: str) -> onnx.ValueInfoProto:
        dtype = self._facts.dtype(name)
        assert dtype is not None
        return onnx.helper.make_tensor_value_info(name, int(dtype), None)


class _Buffers:
    """Memory of tensors that nobody needs any more, for the next ones: fresh memory costs more than writing to it."""

    def __init__(self) -> None:
        self._spare: list[NDArray[np.uint8]] = []

    def give(self, arrays: list[Array]) -> None:
        """Take arrays back; nobody may read them any more."""
        self._spare.extend(array.reshape(-1).view(np.uint8) for array in arrays)

    def take(self, like: Array) -> Array:
        """Return an array like this one with any contents."""
        fits = [at for at, buffer in enumerate(self._spare) if like.nbytes <= buffer.nbytes <= 2 * like.nbytes]
        if not fits:
            return np.empty_like(like)
        buffer = self._spare.pop(min(fits, key=lambda at: self._spare[at].nbytes))
        return buffer[: like.nbytes].view(like.dtype).reshape(like.shape)

    def clear(self) -> None:
        """Let go of memory that has found no use."""
        self._spare.clear()


def _constant_nodes(model: ir.Model) -> set[ir.Node]:
    """Return the nodes that read no data at all; each stage that needs them runs them again."""
    found: set[ir.Node] = set()
    for node in model.graph:
        if all(value.is_initializer() or value.producer() in found for value in read_by(node)):
            found.add(node)
    return found


def batches(images: Array, batch: int) -> Iterator[Array]:
    """Cut images into equal batches; the last one is filled up with its own first image."""
    for start in range(0, len(images), batch):
        part = images[start : start + batch]
        if len(part) < batch:
            part = np.concatenate([part, np.repeat(part[:1], batch - len(part), axis=0)])
        yield part
