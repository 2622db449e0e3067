"""Sessions for graphs with static shapes that dlprune itself has written."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from . import devices

#: Weights of so many bytes are handed over as they lie in memory; smaller ones may steer the optimizer.
_LARGE_BYTES = 4096
#: A session reads some of its weights where they lie: they have to stay there as long as it lives.
_held: WeakKeyDictionary[ort.InferenceSession, list[ort.OrtValue]] = WeakKeyDictionary()


def static_session(
    model: ir.Model,
    threads: int,
    *,
    planned_memory: bool = True,
    spinning: bool = False,
    runtime: str = "cpu",
    gpu: int = 0,
) -> ort.InferenceSession:
    """Return a session for a graph, whose large weights are not copied into a protobuf message first.

    Args:
        model: the graph.
        threads: of the session; 0 = as many as there are cores.
        planned_memory: after the first run, take all memory in one piece with a place for each tensor; large graphs
            need up to twice as much in that way.
        spinning: whether threads that wait for the next operator keep their processors busy, but not between runs: a
            tenth faster where nothing else runs, and slower where something does.
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
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    large: dict[ir.Value, ir.TensorProtocol] = {}
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.dtype == ir.DataType.FLOAT and tensor.nbytes >= _LARGE_BYTES:
            large[value] = tensor
        elif isinstance(tensor, ir.ExternalTensor):  # a model that comes as bytes has no folder to look into
            value.const_value = ir.tensor(tensor.numpy(), name=value.name)
    held = [ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(tensor.numpy())) for tensor in large.values()]
    options.add_external_initializers([value.name for value in large], held)
    try:
        for value, tensor in large.items():
            value.const_value = ir.ExternalTensor(
                "memory", None, None, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name or ""
            )
        data = ir.to_proto(model).SerializeToString()
    finally:
        for value, tensor in large.items():
            value.const_value = tensor
    session = ort.InferenceSession(data, options, providers=devices.providers(runtime, gpu))
    devices.require_provider(session, runtime)
    _held[session] = held
    return session
