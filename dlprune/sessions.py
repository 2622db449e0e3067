"""Sessions of ONNX Runtime that run a graph and may put out inner values as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import onnx_ir as ir

from . import devices, onnxfile
from .errors import H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, HOperatorError

if TYPE_CHECKING:
    import onnxruntime as ort

# ONNX Runtime's own messages are swallowed up to warnings; errors arrive as exceptions anyway.
_LOG_ERRORS: Final = 3


def open_session(model: ir.Model, extra: Sequence[str], runtime: str, gpu: int) -> ort.InferenceSession:
    """Return a new session of a graph that also puts out the values named in `extra`.

    Raises HOperatorError 7912 if ONNX Runtime cannot run the graph.
    """
    import onnxruntime as ort  # takes longer to import than the rest of dlprune

    if extra:
        model = model.clone()
        values = {value.name: value for node in model.graph for value in node.outputs if value.name}
        present = {value.name for value in model.graph.outputs}
        model.graph.outputs.extend(values[name] for name in extra if name not in present)
    options = ort.SessionOptions()
    options.log_severity_level = _LOG_ERRORS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        with onnxfile.runnable(model) as source:
            session = ort.InferenceSession(source, options, providers=devices.providers(runtime, gpu))
    except Exception as error:
        raise HOperatorError(
            H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, f"ONNX Runtime cannot load this model: {error}"
        ) from error
    devices.require_provider(session, runtime)
    return session
