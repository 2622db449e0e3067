"""Networks in other number formats: half precision, and eight-bit integers calibrated on images.

The work is done by ONNX Runtime's quantizer (onnxruntime.quantization, QDQ format) and float16 converter.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx.numpy_helper
import onnx_ir as ir
from onnx_ir.passes import common as passes
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

from ..classifier import Array, Classifier
from ..errors import H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, HOperatorError
from ..interface import find_head
from ..lift import at_opset
from ..nodes import input_at, int_attribute
from ..onnxfile import EXTERNAL_DATA_BYTES, weight_bytes
from ..parameters import bad_value

METHODS: Final = {
    "min_max": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}
#: From this opset on a weight may have a scale per kernel.
_OPSET: Final = 13
#: Operators that stay float32 in float16: those that the converter knows of, and more that take nothing else.
_FLOAT_ONLY: Final = [*DEFAULT_OP_BLOCK_LIST, "Celu", "DequantizeLinear", "QuantizeLinear"]
#: The largest number of half precision.
_HALF: Final = 65504.0
#: The tools print, warn and log; what they redirect meanwhile belongs to the whole process.
_LOCK: Final = threading.Lock()


@dataclass(frozen=True)
class Calibration:
    """How a network is made to compute with eight-bit integers.

    Attributes:
        calibration_method: of METHODS; how the range of each tensor follows from the images.
        reduce_range: weights have 7 bits, for processors whose 16-bit sums would overflow (AVX2 and AVX-512 without
            VNNI).
        exclude_layers: names of layers that stay as they are.
    """

    calibration_method: str = "min_max"
    reduce_range: bool = False
    exclude_layers: tuple[str, ...] = ()


def convert(classifier: Classifier, precision: str, batches: Iterable[Array], calibration: Calibration) -> Classifier:
    """Return a classifier with the same parameters that computes in another number format.

    Args:
        classifier: computes in float32; it is not changed.
        precision: 'float32' (constants are folded, BatchNormalization goes into convolutions), 'float16' (weights and
            computations; input and output stay float32), 'int8' (weights per kernel, activations per tensor).
        batches: images for 'int8', float32 in the layout of the classifier.
        calibration: how 'int8' is made.

    Raises:
        HOperatorError 7912: ONNX Runtime's tools cannot convert this graph, or not without another end; more than
            1.9 GB; a weight that float16 cannot hold.
        HOperatorError 7914: a layer to exclude is not there after fusion.
    """
    model = classifier.model.clone()
    if weight_bytes(model) > EXTERNAL_DATA_BYTES:
        raise _unsupported("more than 1.9 GB of weights cannot be converted")
    model.ir_version = max(model.ir_version, 8)
    try:
        if model.opset_imports.get("", _OPSET) < _OPSET:
            model = at_opset(model, _OPSET)
        with _LOCK, _quiet(), tempfile.TemporaryDirectory(prefix="dlprune-") as folder:
            given, ready = Path(folder) / "given.onnx", Path(folder) / "ready.onnx"
            ir.save(model, given)  # of a model in memory quant_pre_process may lose weights
            quant_pre_process(given, ready, skip_symbolic_shape=True)
            proto = onnx.load(ready)
            if precision == "float16":
                _require_half(proto)
                proto = convert_float_to_float16(proto, keep_io_types=True, op_block_list=_FLOAT_ONLY)
            elif precision == "int8":
                proto = _quantised(ir.from_proto(proto), classifier, batches, calibration, Path(folder) / "int8.onnx")
    except HOperatorError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise _unsupported(f"ONNX Runtime cannot convert this model: {type(error).__name__}: {text}") from error
    fresh = Classifier.from_proto(proto, "The converted model")
    fresh.model.graph.sort()  # the float16 converter puts its casts at the end
    passes.RemoveUnusedOpsetsPass()(fresh.model)
    result = classifier.with_model(fresh.model)
    result.ir_version = max(classifier.ir_version, 8)
    if not result.is_classification or result.head is None or classifier.head is None:
        raise _unsupported(f"the converted model is no classifier any more ({result.reason})")
    if result.head.activation != classifier.head.activation:
        raise _unsupported("the conversion has changed the activation at the end")
    result.params.precision_is_converted = "true"
    return result


def _require_half(proto: onnx.ModelProto) -> None:
    """Raise HOperatorError 7912 if a weight is too large for float16, which the converter would cut off."""
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            largest = np.abs(onnx.numpy_helper.to_array(tensor)).max(initial=0.0)
            if largest > _HALF:
                raise _unsupported(f"weight {tensor.name!r} holds {largest:g}; float16 ends at {_HALF:g}")


def _quantised(
    model: ir.Model, classifier: Classifier, batches: Iterable[Array], calibration: Calibration, path: Path
) -> onnx.ModelProto:
    present = {node.name for node in model.graph}
    gone = [name for name in calibration.exclude_layers if name not in present]
    if gone:
        raise bad_value("exclude_layers", gone[0], "this layer is fused with the one before it; exclude that one")
    behind = _behind_logits(model, classifier.output_name)
    _separate_biases(model.graph)
    quantize_static(
        ir.to_proto(model),
        path,
        _Batches(classifier.input_name, batches),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        reduce_range=calibration.reduce_range,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=[*calibration.exclude_layers, *behind],
        calibrate_method=METHODS[calibration.calibration_method],
        # Logits in 256 steps would make classes equal that are not.
        extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"]},
    )
    return onnx.load(path)


def _separate_biases(graph: ir.Graph) -> None:
    """Give each layer a bias of its own, one number per kernel: the quantizer takes no shared and no broadcast ones."""
    for node in graph:
        weight, bias = input_at(node, 1), input_at(node, 2)
        if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or weight is None or bias is None:
            continue
        if weight.const_value is None or bias.const_value is None:
            continue
        second = node.op_type == "ConvTranspose" or (node.op_type == "Gemm" and not int_attribute(node, "transB", 0))
        width = weight.const_value.shape.numpy()[int(second)]
        width *= int_attribute(node, "group", 1) if node.op_type == "ConvTranspose" else 1
        numbers = bias.const_value.numpy().ravel()
        if (bias.const_value.shape.numpy() == (width,) and len(bias.uses()) == 1) or numbers.size not in (1, width):
            continue
        own = ir.val(f"{bias.name}_of_{node.name}", const_value=ir.tensor(np.broadcast_to(numbers, (width,)).copy()))
        graph.register_initializer(own)
        node.replace_input_with(2, own)


def _behind_logits(model: ir.Model, output_name: str) -> list[str]:
    """Return the names of the nodes behind the logits: a softmax in integers would give a few confidences only."""
    value = next(one for one in model.graph.outputs if one.name == output_name)
    logits = find_head(model, value).logits_name
    names: list[str] = []
    while value.name != logits:
        node = value.producer()
        assert node is not None
        assert node.inputs[0] is not None
        names.append(node.name or "")
        value = node.inputs[0]
    return names


class _Batches(CalibrationDataReader):  # type: ignore[misc]
    """Hands batches to the quantizer."""

    def __init__(self, name: str, batches: Iterable[Array]) -> None:
        self._feeds: Iterator[dict[str, Array]] = ({name: batch} for batch in batches)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next feed, None at the end."""
        return next(self._feeds, None)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the tools print and warn of from the user: the report tells what matters."""
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)  # without any, logging would set up one for the whole process
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeHandler(handler)


def _unsupported(reason: str) -> HOperatorError:
    return HOperatorError(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, f"{reason[0].upper()}{reason[1:]}.")
