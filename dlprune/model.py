"""The operators on models: reading, writing, parameters, applying."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import devices, parameters
from .classifier import Classifier
from .dictionary import Dictionary, unwrap_dict
from .errors import (
    H_ERR_DL_INVALID_OUTPUT,
    H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
    H_ERR_DL_READ_ONNX,
    H_ERR_DL_WRITE_ONNX,
    H_ERR_NO_SERIALIZED_ITEM,
    H_ERR_WIPT3,
    HOperatorError,
)
from .guard import guarded
from .handle import HHandle, new_handle, unwrap
from .image import HObject, himage_from_numpy_array
from .samples import images, read_samples
from .serialization import deserialize_handle, register_serializer, serialize_handle
from .tuples import Element, HTuple, TupleLike, scalar, to_file_name, to_str, to_strings, to_tuple

register_serializer("dl_model", Classifier, Classifier.to_bytes, Classifier.from_bytes)


def unwrap_model(handle: object, index: int) -> Classifier:
    """Return the classifier behind a handle of type 'dl_model'; errors as in `handle.unwrap`."""
    return unwrap(handle, "dl_model", Classifier, index)


@guarded(H_ERR_DL_READ_ONNX)
def read_dl_model(file_name: str | os.PathLike[str]) -> HHandle:
    """Read a classifier from an ONNX file.

    Parameters: `file_name` (str or path, ends in .onnx; opset 7 and up; external data beside the file). Parameters that
    write_dl_model stored come back; otherwise class ids are 0, 1, …, class names 'class_0', …, the image range
    −127…128. The batch size of the file if it is fixed, else 1; a height and width that the file leaves open are 224
    if the graph runs with that, else unset. 'type' is 'classification' if the graph has one float image input with
    four axes and one output of the form batch × classes, else 'generic'; set 'class_output' where several outputs fit.
    Returns a handle of type 'dl_model'. Raises HOperatorError 5200 (no such file) or 7801 (folder, .hdl, empty,
    truncated, no valid ONNX model, NaN in a weight). Source: HALCON operator read_dl_model.

    Example:
        >>> import dlprune as ha
        >>> ha.read_dl_model(ha.demo_model_file())
        HHandle('dl_model')
    """
    return new_handle("dl_model", Classifier.read(to_file_name(file_name, "file_name", 1)))


@guarded(H_ERR_DL_WRITE_ONNX)
def write_dl_model(dlmodel_handle: HHandle, file_name: str | os.PathLike[str]) -> None:
    """Check a model and write it to an ONNX file in one step; nothing half-written remains if it fails.

    The opset stays as it was read. All parameters but 'device', 'gpu' and 'runtime' are stored with it. Weights of more
    than 1.9 GB go into a second file, file_name + '.data'.

    Parameters: `dlmodel_handle` ('dl_model'), `file_name` (str or path, ends in .onnx). Raises HOperatorError 7803
    (other format, missing folder, no permission, invalid model), 2404/2454 (unsuitable handle).
    Source: HALCON operator write_dl_model.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "copy.onnx")
        >>> ha.write_dl_model(model, path)
        >>> ha.get_dl_model_param(ha.read_dl_model(path), "type")
        ['classification']
    """
    unwrap_model(dlmodel_handle, 1).write(to_file_name(file_name, "file_name", 2))


@guarded(H_ERR_DL_WRITE_ONNX)
def serialize_dl_model(dlmodel_handle: HHandle) -> HHandle:
    """Write a model into a serialized item, with the same content as write_dl_model.

    Parameters: `dlmodel_handle` ('dl_model'). Returns a handle of type 'serialized_item'. Raises HOperatorError 7803
    (invalid model, or more than 1.9 GB), 2404/2454 (unsuitable handle). Source: HALCON operator serialize_dl_model.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> ha.serialize_dl_model(model)
        HHandle('serialized_item')
    """
    unwrap_model(dlmodel_handle, 1)
    return serialize_handle(dlmodel_handle)


@guarded(H_ERR_DL_READ_ONNX)
def deserialize_dl_model(serialized_item_handle: HHandle) -> HHandle:
    """Make a model from a serialized item.

    Parameters: `serialized_item_handle` ('serialized_item'). Returns a handle of type 'dl_model'. Raises
    HOperatorError 9580 (no item, or not of a model), 9581 (truncated), 2404/2454 (unsuitable handle).
    Source: HALCON operator deserialize_dl_model.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> ha.deserialize_dl_model(ha.serialize_dl_model(model))
        HHandle('dl_model')
    """
    handle = deserialize_handle(serialized_item_handle)
    if handle.sem_type != "dl_model":
        raise HOperatorError(H_ERR_NO_SERIALIZED_ITEM, f"The item holds a {handle.sem_type!r}, not a 'dl_model'.")
    return handle


def clear_dl_model(dlmodel_handle: HHandle) -> None:
    """Free a model at once; its handles raise error 2454 afterwards.

    Parameters: `dlmodel_handle` ('dl_model'). Raises HOperatorError 2404/2454 for an unsuitable handle.
    Source: HALCON operator clear_dl_model.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> ha.clear_dl_model(model)
        >>> model
        HHandle('dl_model', cleared)
    """
    unwrap_model(dlmodel_handle, 1)
    handle = dlmodel_handle if isinstance(dlmodel_handle, HHandle) else dlmodel_handle[0]
    handle.clear()


# --- Parameters ------------------------------------------------------------------------------------------------------


def set_dl_model_param(dlmodel_handle: HHandle, gen_param_name: str, gen_param_value: TupleLike) -> None:
    """Set a parameter of a model; if an error is raised, nothing has changed.

    Parameters: `dlmodel_handle` ('dl_model'); `gen_param_name`; `gen_param_value`:
    'batch_size' (int ≥ 1, unless the file fixes it), 'batch_size_multiplier' (int ≥ 1), 'class_ids' (different ints
    ≥ 0, one per class), 'class_names' (str, one per class), 'class_output' (ours: name of the output with the classes,
    where the file has several), 'device' ('dl_device' handle), 'image_dimensions' ([width, height, channels]),
    'image_height', 'image_width' (int ≥ 1, unless the file fixes them), 'image_range_min', 'image_range_max' (numbers),
    'learning_rate' (> 0), 'weight_prior' (≥ 0), 'momentum', 'adam_beta1', 'adam_beta2' (0 ≤ x < 1), 'adam_epsilon'
    (> 0), 'batchnorm_momentum' (0 ≤ x ≤ 1), 'batchnorm_frozen' (ours: 'true' = training uses the running statistics and
    leaves them alone), 'frozen_weights' (ours: names of weights that training leaves alone, also patterns like
    'stage1.*'), 'solver_type' ('sgd', 'adam'), 'optimize_for_inference' ('true', 'false'),
    'runtime' ('cpu', 'gpu'), 'gpu' (int ≥ 0), 'runtime_init' ('immediately'), 'meta_data' (dict of strings),
    'type' ('classification' if the graph fits, 'generic').
    Raises HOperatorError 7911 (unknown), 7788 (can only be read), 7914 (value not possible), 7792/7793 (class ids
    repeated/negative), 7913 (no such runtime), 1203/1403 (type/number of values), HTupleConversionError.
    Source: HALCON operator set_dl_model_param.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> ha.set_dl_model_param(model, "batch_size", 8)
        >>> ha.get_dl_model_param(model, "batch_size")
        [8]
    """
    classifier = unwrap_model(dlmodel_handle, 1)
    name = to_str(gen_param_name, "gen_param_name", 2)
    values = to_tuple(gen_param_value, "gen_param_value")
    if name == "device":
        device = _device(values)
        classifier.set("runtime", (device.runtime,))
        classifier.set("gpu", (device.id,))
    elif name == "meta_data":
        classifier.params.meta_data = _meta_data(values)
    elif name == "runtime_init":
        parameters.choice("immediately")(name, values)
        classifier.session()
    else:
        classifier.set(name, values)


def _device(values: HTuple) -> devices.Device:
    return unwrap(parameters.one("device", values), "dl_device", devices.Device, 3)


def _meta_data(values: HTuple) -> dict[str, str]:
    content = unwrap_dict(parameters.one("meta_data", values), 3).entries
    result: dict[str, str] = {}
    for key, value in content.items():
        if isinstance(value, HObject) or len(value) != 1 or not isinstance(value[0], str) or not isinstance(key, str):
            raise HOperatorError(H_ERR_WIPT3, f"'meta_data' needs one string under each string key, not so {key!r}.")
        result[key] = value[0]
    return result


def get_dl_model_param(dlmodel_handle: HHandle, gen_param_name: str) -> list[Element]:
    """Return a parameter of a model as a list.

    Parameters: `dlmodel_handle` ('dl_model'); `gen_param_name`: any of set_dl_model_param but 'batchnorm_momentum' and
    'runtime_init', and 'image_num_channels', 'input_dimensions' (dict: input name → [width, height, channels]),
    'layer_names', 'min_version', 'num_trainable_params' (without the statistics of BatchNormalization and
    'frozen_weights'), 'precision', 'precision_is_converted' ('true' after
    optimize_dl_model_for_inference), 'summary' (one line per layer), 'type'.
    Raises HOperatorError 7911 (unknown), 7788 (can only be set, or this model has none), 2404/2454 (unsuitable handle).
    Source: HALCON operator get_dl_model_param.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> ha.get_dl_model_param(model, "image_dimensions")
        [16, 16, 1]
    """
    classifier = unwrap_model(dlmodel_handle, 1)
    name = to_str(gen_param_name, "gen_param_name", 2)
    if name == "device":
        fitting = [device for device in devices.available() if device.runtime == classifier.params.runtime]
        return [new_handle("dl_device", device) for device in fitting[:1]]
    if name == "meta_data":
        entries: dict[str | int, HTuple | HObject] = {
            key: (value,) for key, value in classifier.params.meta_data.items()
        }
        return [new_handle("dict", Dictionary(entries))]
    if name == "input_dimensions":
        size = tuple(classifier.get("image_dimensions"))
        return [new_handle("dict", Dictionary({classifier.input_name: size}))]
    return classifier.get(name)


def get_dl_model_param_s(dlmodel_handle: HHandle, gen_param_name: str) -> Element:
    """Return a parameter of a model as a scalar; raises HTupleConversionError unless it has one value.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> ha.get_dl_model_param_s(model, "type")
        'classification'
    """
    return scalar(get_dl_model_param(dlmodel_handle, gen_param_name), f"The parameter {gen_param_name!r}")


# --- Applying --------------------------------------------------------------------------------------------------------


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def apply_dl_model(
    dlmodel_handle: HHandle, dlsample_batch: Sequence[HHandle] | HHandle, outputs: Sequence[str] | str
) -> list[HHandle]:
    """Apply a model to samples.

    Parameters: `dlmodel_handle` ('dl_model'); `dlsample_batch` (any number of 'dict' handles, each with 'image':
    float32 of the model's size and channels; worked off in batches of 'batch_size', the last one padded); `outputs`:
    [] for the result of the model, or names of outputs and layers, whose values are returned instead (four axes: an
    image object, else a tuple; the class output as below).
    Returns one 'dict' per sample. For a classification model: 'classification_class_ids', 'classification_class_names',
    'classification_confidences', best class first; softmax is applied where the graph ends in logits. For a generic
    model: each output under its name.
    Raises HOperatorError 7783 (no image), 7790/7791 (type/value of an image), 7787 (unknown output), 7912 (the graph
    cannot be run), 7788 (image size not set), 2404/2454 (unsuitable handle). Source: HALCON operator apply_dl_model.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> sample = ha.demo_samples("test")[0]
        >>> (result,) = ha.apply_dl_model(model, sample, [])
        >>> ha.get_dict_tuple(result, "classification_class_ids")[0] == ha.get_dict_tuple_s(sample, "image_label_id")
        True
    """
    classifier = unwrap_model(dlmodel_handle, 1)
    samples = read_samples(dlsample_batch, 2)
    names = _requested(classifier, to_strings(outputs, "outputs", 3))
    size = classifier.params.batch_size
    results: list[HHandle] = []
    for first in range(0, len(samples), size):
        part = samples[first : first + size]
        batch = images(part, classifier, first)
        if len(part) < size:
            batch = np.concatenate([batch, np.repeat(batch[-1:], size - len(part), axis=0)])
        values = dict(zip(names, classifier.run(batch, list(names.values())), strict=True))
        results.extend(_results(classifier, values, size)[: len(part)])
    return results


def _requested(classifier: Classifier, outputs: list[str]) -> dict[str, str]:
    """Map what the user asked for to names of values in the graph."""
    graph_outputs = [value.name for value in classifier.model.graph.outputs if value.name]
    if not outputs:
        chosen = [classifier.output_name] if classifier.is_classification else graph_outputs
        return {name: name for name in chosen}
    layers = {node.name: node.outputs[0].name for node in classifier.model.graph if node.outputs}
    inner = {value.name for node in classifier.model.graph for value in node.outputs if value.name}
    found: dict[str, str] = {}
    for name in outputs:
        value = name if name in graph_outputs else layers.get(name) or (name if name in inner else None)
        if not value:
            raise HOperatorError(
                H_ERR_DL_INVALID_OUTPUT,
                f"The model has no output or layer {name!r}; its outputs are {graph_outputs}, for its layers see "
                "get_dl_model_param 'layer_names'.",
            )
        found[name] = value
    return found


def _results(classifier: Classifier, values: dict[str, npt.NDArray[Any]], size: int) -> list[HHandle]:
    """Return one dictionary per image of a batch."""
    entries: list[dict[str | int, HTuple | HObject]] = [{} for _ in range(size)]
    for name, array in values.items():
        if array.ndim == 0 or len(array) != size:
            raise HOperatorError(
                H_ERR_DL_INVALID_OUTPUT, f"{name!r} has the shape {array.shape}: no first axis for {size} images."
            )
        if classifier.is_classification and name == classifier.output_name:
            rows = classifier.confidences_from(array)
            for entry, row in zip(entries, rows, strict=True):
                entry.update(_ranking(classifier, row))
        else:
            for entry, one in zip(entries, array, strict=True):
                entry[name] = _layer_value(one)
    return [new_handle("dict", Dictionary(entry)) for entry in entries]


def _ranking(classifier: Classifier, confidences: npt.NDArray[np.float32]) -> dict[str | int, HTuple | HObject]:
    order = np.argsort(-confidences, kind="stable")
    params = classifier.params
    return {
        "classification_class_ids": tuple(params.class_ids[i] for i in order),
        "classification_class_names": tuple(params.class_names[i] for i in order),
        "classification_confidences": tuple(float(confidences[i]) for i in order),
    }


def _layer_value(value: npt.NDArray[Any]) -> HTuple | HObject:
    if value.ndim == 3 and value.dtype.kind == "f":
        return himage_from_numpy_array(np.ascontiguousarray(value.transpose(1, 2, 0), np.float32))
    if value.dtype.kind == "b":
        value = value.astype(np.int64)
    return to_tuple(value.ravel())
