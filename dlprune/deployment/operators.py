"""The operator that prepares a model for inference on a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..classifier import Array, Classifier
from ..cost import latency
from ..devices import Device
from ..dictionary import Dictionary, from_python_dict
from ..errors import (
    H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
    H_ERR_WIPN4,
    H_ERR_WIPV3,
    HOperatorError,
)
from ..guard import guarded
from ..handle import HHandle, new_handle, unwrap
from ..model import unwrap_model
from ..onnxfile import weight_bytes
from ..parameters import bad_value, choice, count, text
from ..procedures.settings import Check, read_settings, switch
from ..quantised import refuse_converted
from ..samples import images, labels, read_samples
from ..summary import precision as precision_of
from ..training.evaluation import logits_of
from ..tuples import HTuple, to_str
from .conversion import METHODS, Calibration, convert

_PRECISIONS: Final = ("float32", "float16", "int8")
_BATCH: Final = 16
#: Seconds to spend on the latency of each model.
_SECONDS: Final = 0.3


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def optimize_dl_model_for_inference(
    dlmodel_handle: HHandle,
    dldevice_handle: HHandle | Sequence[HHandle],
    precision: str,
    dlsamples: Sequence[HHandle],
    gen_param: HHandle | Sequence[HHandle],
) -> tuple[HHandle, HHandle]:
    """Convert a classifier for inference on a device, by ONNX Runtime's own tools; the model is not changed.

    'float32': constants are folded and BatchNormalization goes into the convolutions. 'float16': weights and
    computations have half precision, input and output stay as they are. On most processors ONNX Runtime computes such a
    model in float32: it is smaller, not faster, and activations beyond 65504 overflow only on the target. 'int8':
    static quantization in QDQ form; weights have a scale per kernel, the ranges of activations come from the samples;
    the layers behind the logits and the logits themselves stay float32.

    The result has 'precision_is_converted' 'true' and the device's 'runtime'. It can be applied, written and read
    again; pruning and training refuse it with 7912, so prune first.

    Parameters: `dlmodel_handle` (type 'classification', float32); `dldevice_handle` (see query_available_dl_devices);
    `precision` (one of the device's 'precisions'); `dlsamples` (preprocessed samples like those of production, from the
    training images; 'int8' needs them, 10 to 20 per class are enough; where all have 'image_label_id' the accuracy on
    them is told; [] is possible for the other precisions); `gen_param` ([] or dict, ours, see the device's
    'optimize_for_inference_params': 'calibration_method' ('min_max', 'entropy', 'percentile'), 'reduce_range' ('true'
    for processors with AVX2 or AVX-512 but without VNNI, whose sums would overflow), 'exclude_layers' (names of layers
    that stay float32), 'latency_runs' (runs to time; 0 = none; default: about a third of a second's worth)).

    Returns the handle of the converted model, and a 'dict' handle, whose content is ours (in HALCON it depends on the
    device): 'precision', 'num_samples', 'weight_bytes', 'weight_bytes_before'; 'latency', 'latency_before' (median
    seconds per run at 'latency_batch' images, in alternating runs); with samples 'agreement' (share of them that both
    models decide alike); with labels 'accuracy', 'accuracy_before'.

    Raises HOperatorError 1303 (precision unknown, or not of this device), 1404 (no samples for 'int8'), 7783, 7790,
    7791, 7793 (samples), 7911/7914 (gen_param), 7912 (type 'generic', converted already, other floats, a graph that the
    tools cannot convert, a weight that float16 cannot hold), 2404/2454 (handles).
    Source: HALCON operator optimize_dl_model_for_inference.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> device = ha.query_available_dl_devices_s("runtime", "cpu")
        >>> small, report = ha.optimize_dl_model_for_inference(model, device, "int8", ha.demo_samples()[:60], [])
        >>> ha.get_dl_model_param(small, "precision"), ha.get_dl_model_param(small, "precision_is_converted")
        (['int8'], ['true'])
        >>> ha.get_dict_tuple_s(report, "agreement") > 0.9
        True
    """
    classifier = unwrap_model(dlmodel_handle, 1)
    classifier.require_classification("optimize_dl_model_for_inference")
    device = unwrap(dldevice_handle, "dl_device", Device, 2)
    name = to_str(precision, "precision", 3)
    if name not in device.precisions:
        raise HOperatorError(
            H_ERR_WIPV3, f"precision is {name!r}; this device ({device.name}) has {list(device.precisions)}."
        )
    samples = read_samples(dlsamples, 4)
    truth = labels(samples, classifier)
    settings = read_settings(gen_param, 5, _checks(classifier))
    runs = settings.pop("latency_runs", None)
    refuse_converted(classifier)
    if precision_of(classifier.model) != "float32":
        raise HOperatorError(
            H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
            f"The weights of this model are {precision_of(classifier.model)}; a float32 model is needed.",
        )
    if name == "int8" and not samples:
        raise HOperatorError(
            H_ERR_WIPN4, "'int8' needs samples to find the ranges of activations; give 10 to 20 per class."
        )
    converted = convert(classifier, name, _batches(classifier, samples), Calibration(**settings))
    converted.set("runtime", (device.runtime,))
    converted.set("gpu", (device.id,))
    report = {
        "precision": name,
        **_compare(classifier, converted, samples, truth),
        **_time(classifier, converted, runs),
    }
    return new_handle("dl_model", converted), from_python_dict(report)


def optimization_defaults() -> dict[str, Any]:
    """Return the generic parameters of optimize_dl_model_for_inference with their defaults."""
    return {"calibration_method": "min_max", "reduce_range": "false", "exclude_layers": []}


def _checks(classifier: Classifier) -> dict[str, Check]:
    def layers(name: str, values: HTuple) -> tuple[str, ...]:
        found = tuple(text(name, value) for value in values)
        known = {node.name for node in classifier.model.graph}
        for one in found:
            if one not in known:
                raise bad_value(name, one, "the layers of the model are in 'layer_names'")
        return found

    return {
        "calibration_method": choice(*METHODS),
        "reduce_range": switch,
        "exclude_layers": layers,
        "latency_runs": lambda name, values: count(name, values, 0),
    }


def _batches(classifier: Classifier, samples: Sequence[Dictionary]) -> Iterator[Array]:
    """Yield the images of the samples in batches of one size, as the quantizer wants; the last one is filled up."""
    fixed = classifier.image.batch if classifier.image is not None else None
    size = fixed or min(_BATCH, len(samples))
    for first in range(0, len(samples), size or 1):
        part = images(samples[first : first + size], classifier, first)
        yield np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])


def _compare(
    before: Classifier, after: Classifier, samples: Sequence[Dictionary], truth: NDArray[np.int64]
) -> dict[str, Any]:
    """Return sizes, and what both models make of the samples."""
    result: dict[str, Any] = {
        "num_samples": len(samples),
        "weight_bytes": weight_bytes(after.model),
        "weight_bytes_before": weight_bytes(before.model),
    }
    decisions: list[NDArray[np.intp]] = []
    for classifier in (before, after):
        found = [logits_of(classifier, part) for part in _batches(classifier, samples)]
        rows = np.concatenate(found)[: len(samples)] if found else np.zeros((0, 1), np.float32)
        decisions.append(rows.argmax(axis=1))
    if samples:
        result["agreement"] = float(np.mean(decisions[0] == decisions[1]))
        if truth[0] >= 0:
            right = [float(np.mean(one == truth)) for one in decisions]
            result |= {"accuracy_before": right[0], "accuracy": right[1]}
    return result


def _time(before: Classifier, after: Classifier, runs: int | None) -> dict[str, Any]:
    if runs == 0:
        return {}
    found = latency([before, after], _SECONDS, runs)
    fixed = before.image.batch if before.image is not None else None
    return {"latency_before": found.seconds[0], "latency": found.seconds[1], "latency_batch": fixed or 1}
