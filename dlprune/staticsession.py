"""Sessions for graphs with static shapes that dlprune itself has written."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx_ir as ir
import onnxruntime as ort

from dlprune import devices

#: protobuf holds no larger message; larger models go to the session through files.
_PROTOBUF_BYTES = 1_900_000_000


def static_session(
    model: ir.Model, threads: int, *, planned_memory: bool = True, runtime: str = "cpu", gpu: int = 0
) -> ort.InferenceSession:
    """Return a session for a graph.

    Args:
        model: the graph.
        threads: of the session; 0 = as many as there are cores.
        planned_memory: after the first run, take all memory in one piece with a place for each tensor; large graphs
            need up to twice as much in that way.
        runtime: 'cpu' or 'gpu'.
        gpu: number of the GPU.

    Raises:
        HOperatorError 7913: the GPU cannot be used.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.enable_mem_pattern = planned_memory
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = devices.providers(runtime, gpu)
    size = 0
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):  # a model that comes as bytes has no folder to look into
            value.const_value = ir.tensor(tensor.numpy(), name=value.name)
        size += 0 if tensor is None else tensor.nbytes
    if size < _PROTOBUF_BYTES:
        session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=providers)
        devices.require_provider(session, runtime)
        return session
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "score.onnx"
        ir.save(model, path, external_data="score.data")
        session = ort.InferenceSession(str(path), options, providers=providers)
        devices.require_provider(session, runtime)
        return session
