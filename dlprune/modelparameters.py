"""The parameters of a classifier by name: what setting one checks and changes, and what reading one gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import devices, parameters
from .errors import H_ERR_DL_PARAM_NOT_AVAILABLE, HOperatorError
from .summary import precision, summary, trainable_parameters
from .tuples import Element, HTuple

if TYPE_CHECKING:
    from .classifier import Classifier


def set_parameter(classifier: Classifier, name: str, values: HTuple) -> None:
    """Set a parameter; see Classifier.set."""
    params = classifier.params
    if name in parameters.PLAIN:
        setattr(params, name, parameters.PLAIN[name](name, values))
        if name == "gpu":
            classifier.drop_sessions()
    elif name == "batch_size":
        _set_batch_size(classifier, parameters.count(name, values))
    elif name in ("image_height", "image_width"):
        size = {name: parameters.count(name, values)}
        _set_image_size(classifier, size.get("image_height"), size.get("image_width"))
    elif name == "image_dimensions":
        _set_image_dimensions(classifier, values)
    elif name == "class_ids":
        params.class_ids = parameters.class_ids(name, values, classifier.class_num)
    elif name == "class_names":
        params.class_names = parameters.class_names(name, values, classifier.class_num)
    elif name == "class_output":
        _set_class_output(classifier, parameters.text(name, parameters.one(name, values)))
    elif name == "type":
        _set_type(classifier, parameters.choice("classification", "generic")(name, values))
    elif name == "runtime":
        wanted = parameters.choice("cpu", "gpu")(name, values)
        devices.require_runtime(wanted)
        params.runtime = wanted
    elif name in parameters.GET_ONLY:
        raise HOperatorError(H_ERR_DL_PARAM_NOT_AVAILABLE, f"{name!r} can be read but not set.")
    else:
        raise parameters.unknown_parameter(name, parameters.SET_AND_GET | parameters.SET_ONLY)


def _set_batch_size(classifier: Classifier, size: int) -> None:
    fixed = classifier.image.batch if classifier.image is not None else None
    if fixed is not None and size != fixed:
        raise parameters.bad_value(
            "batch_size",
            size,
            f"the file fixes it to {fixed}; export the model with a dynamic batch axis to change it",
        )
    classifier.params.batch_size = size


def _set_image_size(classifier: Classifier, height: int | None, width: int | None) -> None:
    image, params = classifier.image_input(), classifier.params
    for name, size, fixed in (("image_height", height, image.height), ("image_width", width, image.width)):
        if size is not None and fixed is not None and size != fixed:
            raise parameters.bad_value(
                name,
                size,
                f"the file fixes it to {fixed}; scale the images, or export the model with open image axes",
            )
    classifier.size_assumed = False
    params.image_height = height or params.image_height
    params.image_width = width or params.image_width
    if not classifier.class_num:  # the number of classes may only be known for a definite size
        classifier.find_classes()


def _set_image_dimensions(classifier: Classifier, values: HTuple) -> None:
    name = "image_dimensions"
    sizes = [parameters.integer(name, value) for value in values]
    if len(sizes) != 3 or min(sizes) < 1:
        raise parameters.bad_value(name, list(values), "[width, height, channels] is needed, all above 0")
    if sizes[2] != classifier.channels:
        raise parameters.bad_value(name, list(values), f"the model needs {classifier.channels} channels")
    _set_image_size(classifier, sizes[1], sizes[0])


def _set_class_output(classifier: Classifier, name: str) -> None:
    known_names = [value.name for value in classifier.model.graph.outputs]
    if name not in known_names:
        raise parameters.bad_value("class_output", name, f"the outputs of the model are {known_names}")
    before = classifier.params.copy()
    classifier.params.class_output = name
    classifier.find_classes()
    if not classifier.is_classification:
        reason = classifier.reason
        classifier.params = before
        classifier.find_classes()
        raise parameters.bad_value("class_output", name, reason)


def _set_type(classifier: Classifier, wanted: str) -> None:
    if wanted == "generic":
        classifier.params.type = "generic"
        return
    classifier.find_classes()
    if not classifier.is_classification:
        raise parameters.bad_value("type", wanted, classifier.reason)


def get_parameter(classifier: Classifier, name: str) -> list[Element]:
    """Return a parameter as a list; see Classifier.get."""
    params, known = classifier.params, parameters.SET_AND_GET | parameters.GET_ONLY
    if name in parameters.SET_ONLY:
        raise HOperatorError(H_ERR_DL_PARAM_NOT_AVAILABLE, f"{name!r} can be set but not read.")
    if name.startswith("image_") and "range" not in name and name in known and classifier.image is None:
        raise HOperatorError(H_ERR_DL_PARAM_NOT_AVAILABLE, f"{name!r} needs an image input: {classifier.reason}.")
    if name == "image_dimensions":
        return [params.image_width, params.image_height, classifier.channels]
    if name == "image_num_channels":
        return [classifier.channels]
    if name in ("class_ids", "class_names", "frozen_weights"):
        return list(getattr(params, name))
    if name == "class_output":
        return [params.class_output] if params.class_output else []
    if name == "layer_names":
        return [node.name or "" for node in classifier.model.graph]
    if name == "num_trainable_params":
        return [trainable_parameters(classifier.model, params.frozen_weights)]
    if name == "precision":
        return [precision(classifier.model)]
    if name == "min_version":
        return [parameters.MIN_VERSION]
    if name == "summary":
        return [*summary(classifier.model)]
    if name in parameters.SET_AND_GET or name == "precision_is_converted":
        value: Element = getattr(params, name)
        return [value]
    raise parameters.unknown_parameter(name, known)
