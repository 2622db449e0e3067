"""The parameters of a classifier in the metadata of its ONNX file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from . import onnxfile, parameters
from .tuples import HTuple

if TYPE_CHECKING:
    from .classifier import Classifier

METADATA_KEY: Final = "dlprune"
_VERSION: Final = 1
# Written to the file beside the parameters in parameters.PLAIN.
_STORED: Final = (
    "batch_size",
    "class_output",
    "class_ids",
    "class_names",
    "type",
    "meta_data",
    "precision_is_converted",
)


def metadata_of(classifier: Classifier) -> str:
    """Return the text of the entry METADATA_KEY."""
    params, image = classifier.params, classifier.image
    values: dict[str, Any] = {
        name: list(getattr(params, name)) if isinstance(getattr(params, name), tuple) else getattr(params, name)
        for name in (*parameters.PLAIN, *_STORED)
        if name not in parameters.NOT_STORED
    }
    if not classifier.class_num:
        values = {name: value for name, value in values.items() if not name.startswith("class_")}
    if image is not None and params.image_height and params.image_width:
        if image.height is None:
            values["image_height"] = params.image_height
        if image.width is None:
            values["image_width"] = params.image_width
    return json.dumps({"version": _VERSION, "parameters": values}, ensure_ascii=False)


def load_metadata(classifier: Classifier, data: str, what: str) -> None:
    """Apply the parameters stored in a file, each through the check of Classifier.set.

    Raises HOperatorError 7801; `what` begins the sentence.
    """
    try:
        values = json.loads(data)["parameters"]
        first = ("image_height", "image_width", "class_output", "class_ids")
        for name in sorted(values, key=lambda one: (first.index(one) if one in first else len(first), one)):
            value = values[name]
            if name == "meta_data":
                classifier.params.meta_data = {str(key): str(text) for key, text in value.items()}
            elif name == "precision_is_converted":
                check = parameters.choice("false", "true")
                classifier.params.precision_is_converted = check(name, _plain_tuple(value))
            elif name in (parameters.SET_AND_GET | parameters.SET_ONLY) - parameters.NOT_STORED:
                classifier.set(name, _plain_tuple(value))
    except Exception as error:
        raise onnxfile.unreadable(
            f"{what}: the model parameters in the metadata entry {METADATA_KEY!r} are damaged ({error}); "
            "remove the entry to read the model with default parameters."
        ) from None


def _plain_tuple(value: Any) -> HTuple:
    values = tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(one, (int, float, str)) and not isinstance(one, bool) for one in values):
        raise ValueError(f"{value!r} is no parameter value")
    return values
