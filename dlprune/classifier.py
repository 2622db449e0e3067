"""The classifier behind a handle of type 'dl_model': a graph, its parameters and a session to run it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from . import onnxfile
from .errors import (
    H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
    H_ERR_DL_PARAM_NOT_AVAILABLE,
    HError,
    HOperatorError,
)
from .facts import Facts, gather_facts
from .interface import (
    ClassHead,
    ImageInput,
    Layout,
    class_candidates,
    class_count,
    find_head,
    find_image_input,
)
from .metadata import METADATA_KEY, load_metadata, metadata_of
from .modelparameters import get_parameter, set_parameter
from .normal import normalise, refuse_bytes, refuse_nan
from .parameters import Parameters
from .sessions import open_session
from .tuples import Element, HTuple

if TYPE_CHECKING:
    import onnxruntime as ort

    from .training.trainer import Trainer

Array = npt.NDArray[np.float32]

# Tried for graphs that leave height and width open and were never told a size.
_DEFAULT_SIZE: Final = 224
# A dynamic batch is looked at with so many images: with one, batch and channel axes are hard to tell apart.
_NOMINAL_BATCH: Final = 2


class Classifier:
    """An ONNX classifier in memory, and everything a 'dl_model' handle knows.

    `model` is the user's graph in its own opset. All values and nodes have names, Constant nodes are initializers,
    initializers are no inputs, functions are inlined. `params` are the settable parameters (read them freely, change
    them through `set`). Whoever changes `model` in place calls `weights_changed` afterwards. While a classifier is
    trained its weights are with the trainer; they return to `model` as soon as somebody reads it.
    """

    def __init__(self, model: ir.Model, params: Parameters | None = None, ir_version: int | None = None) -> None:
        """Analyse a graph that `normalise` has prepared; `ir_version` is the one to write (default: the graph's)."""
        self._model = model
        self.trainer: Trainer | None = None  # see training.trainer_of
        self.ir_version = model.ir_version if ir_version is None else ir_version
        self.params = Parameters() if params is None else params.copy()
        self.lock = threading.RLock()
        self._sessions: dict[tuple[str, ...], ort.InferenceSession] = {}
        self._derived: dict[object, Any] = {}
        found = find_image_input(model)
        self.image: ImageInput | None = None if isinstance(found, str) else found
        self.head: ClassHead | None = None
        self.class_num = 0
        self.size_assumed = False  # neither the file nor the user told the image size
        self.has_metadata = params is not None  # the file, or whoever made it, told the parameters
        self.reason = found if isinstance(found, str) else ""  # why the model is no classification model
        self._run_error = ""  # why the model could not be run when its output shapes were looked for
        if self.image is not None:
            self._adopt_image(self.image)
        self.find_classes()
        if params is not None and params.type == "generic":
            self.params.type = "generic"

    # --- making one ---------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: str) -> Classifier:
        """Return the classifier in an .onnx file. Raises HOperatorError 5200 or 7801 (see onnxfile.read)."""
        return cls.from_proto(onnxfile.read(path), repr(path))

    @classmethod
    def from_bytes(cls, data: bytes) -> Classifier:
        """Return the classifier in the bytes of an ONNX model. Raises HOperatorError 7801."""
        return cls.from_proto(onnxfile.parse(data, "The model"), "The model")

    @classmethod
    def from_proto(cls, proto: onnx.ModelProto, what: str = "The model") -> Classifier:
        """Return the classifier in a checked protobuf model. Raises HOperatorError 7801."""
        try:
            model = ir.from_proto(proto)
            ir_version = model.ir_version
            refuse_bytes(model, what)
            normalise(model)
            metadata = model.metadata_props.pop(METADATA_KEY, None)
            refuse_nan(model, what)
            classifier = cls(model, ir_version=ir_version)
        except HError:
            raise
        except Exception as error:
            raise onnxfile.unreadable(f"{what} cannot be understood: {type(error).__name__}: {error}") from error
        if metadata is not None:
            load_metadata(classifier, metadata, what)
            classifier.has_metadata = True
        return classifier

    def with_model(self, model: ir.Model) -> Classifier:
        """Return a classifier with the same parameters for another graph (e.g. the pruned one), analysed anew."""
        return Classifier(model, self.params, self.ir_version)

    def clone(self) -> Classifier:
        """Return an independent copy; unchanged weights are shared, they are never written to."""
        with self.lock:
            return self.with_model(self.model.clone())

    # --- the graph and what was made of it ----------------------------------------------------------------------------

    @property
    def model(self) -> ir.Model:
        """The graph with the present weights."""
        with self.lock:
            self._settle()
            return self._model

    @property
    def derived(self) -> dict[object, Any]:
        """What other modules have worked out of `model`, each under a key of its own; emptied when weights change."""
        with self.lock:
            self._settle()
            return self._derived

    def _settle(self) -> None:
        """Bring the weights of a training step home."""
        if self.trainer is not None and self.trainer.ahead:
            self.trainer.store(self._model)
            self._forget()

    def _forget(self) -> None:
        self.drop_sessions()
        self._derived.clear()

    def drop_sessions(self) -> None:
        """Forget the sessions, because they would now run elsewhere."""
        self._sessions.clear()

    def nominal_shape(self) -> tuple[int, int, int, int]:
        """Return the input shape that the graph is analysed at: two images where the batch size is open."""
        return self.input_shape(self.image_input().batch or _NOMINAL_BATCH)

    def facts(self) -> Facts:
        """Return shapes and constants at the nominal input shape, worked out once.

        Raises HOperatorError 7912 (no image input, or a tensor that no memory would hold) or 7788 (image size not set).
        """
        shape = self.nominal_shape()
        with self.lock:
            key = ("facts", shape)
            if key not in self.derived:
                found = gather_facts(self.model, {self.input_name: shape})
                oversized = found.oversized()
                if oversized:
                    raise HOperatorError(
                        H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, f"This model would fill the memory: {oversized}."
                    )
                self.derived[key] = found
            facts = self.derived[key]
            assert isinstance(facts, Facts)
            return facts

    def weights_changed(self) -> None:
        """Drop the sessions, all that was derived, and the trainer; call this after a change of `model`."""
        with self.lock:
            self._forget()
            self.trainer = None

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def input_name(self) -> str:
        """Name of the image input. Raises HOperatorError 7912 if there is none."""
        return self.image_input().name

    @property
    def output_name(self) -> str:
        """Name of the class output. Raises HOperatorError 7912 if there is none."""
        self.require_classification("This step")
        return self.params.class_output

    @property
    def logits_name(self) -> str:
        """Name of the value before the final (log-)softmax or sigmoid; the class output if there is none."""
        self.require_classification("This step")
        assert self.head is not None
        return self.head.logits_name

    @property
    def layout(self) -> Layout:
        """'NCHW' or 'NHWC'. Raises HOperatorError 7912 if there is no image input."""
        return self.image_input().layout

    @property
    def channels(self) -> int:
        """Number of image channels. Raises HOperatorError 7912 if there is no image input."""
        return self.image_input().channels

    @property
    def is_classification(self) -> bool:
        """Whether 'type' is 'classification'."""
        return self.params.type == "classification"

    def require_classification(self, operator: str) -> None:
        """Raise HOperatorError 7912 unless this is a classification model; `operator` begins the sentence."""
        if not self.is_classification:
            reason = self.reason or "'type' was set to 'generic'"
            raise HOperatorError(
                H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
                f"{operator} needs a model of type 'classification' but this one is 'generic': {reason}.",
            )

    def image_input(self) -> ImageInput:
        """Return the image input. Raises HOperatorError 7912 if there is none."""
        if self.image is None:
            raise HOperatorError(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, f"An image input is needed: {self.reason}.")
        return self.image

    def input_shape(self, batch_size: int | None = None) -> tuple[int, int, int, int]:
        """Return the input shape in the layout of the model; `batch_size` None means the parameter of that name.

        Raises HOperatorError 7912 (no image input) or 7788 (image size open and not set yet).
        """
        image, params = self.image_input(), self.params
        batch = params.batch_size if batch_size is None else batch_size
        if not params.image_height or not params.image_width:
            raise HOperatorError(
                H_ERR_DL_PARAM_NOT_AVAILABLE,
                "The model leaves the image size open; set 'image_dimensions' ([width, height, channels]) first.",
            )
        if image.layout == "NHWC":
            return batch, params.image_height, params.image_width, image.channels
        return batch, image.channels, params.image_height, params.image_width

    # --- analysis -----------------------------------------------------------------------------------------------------

    def _adopt_image(self, image: ImageInput) -> None:
        params = self.params
        params.batch_size = image.batch or params.batch_size
        params.image_height = image.height or params.image_height
        params.image_width = image.width or params.image_width
        if not params.image_height or not params.image_width:
            params.image_height = params.image_height or _DEFAULT_SIZE
            params.image_width = params.image_width or _DEFAULT_SIZE
            self.size_assumed = True
            if self._output_shapes() is None:  # the graph asks for another size, only the user knows which
                params.image_height, params.image_width = image.height or 0, image.width or 0

    def _output_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """Run the graph once on a black image and return the output shapes, None if it cannot be run."""
        image = self.image_input()
        try:
            shape = self.input_shape(image.batch or 1)
            session = self.session()
            feed = {image.name: np.zeros(shape, image.dtype.numpy())}
            return {
                out.name: np.shape(a) for out, a in zip(session.get_outputs(), session.run(None, feed), strict=True)
            }
        except Exception as error:
            self._run_error = " ".join(str(error).split())[:300]
            return None

    def find_classes(self) -> None:
        """Find the class output (the one named in params, or the only candidate) and count its classes."""
        params = self.params
        params.type = "generic"
        self.head, self.class_num = None, 0
        if self.image is None:
            return
        counts = {value.name: class_count(value.shape) for value in class_candidates(self.model)}
        if 0 in counts.values():
            shapes = self._output_shapes()
            counts = {
                name: number or (class_count(shapes[name]) if shapes and name in shapes else None)
                for name, number in counts.items()
            }
        fitting = {name: number for name, number in counts.items() if number and name is not None}
        if params.class_output:
            fitting = {name: number for name, number in fitting.items() if name == params.class_output}
        if len(fitting) != 1:
            outputs = ", ".join(f"{value.name!r} {value.shape}" for value in self.model.graph.outputs)
            self.reason = (
                f"several outputs may hold the classes ({outputs}); name one with set_dl_model_param 'class_output', "
                "on the command line with --class-output"
                if fitting
                else f"no output has the form batch × classes (outputs: {outputs})"
            )
            if self._run_error:
                self.reason += f"; the model cannot be run ({self._run_error})"
            return
        (name, number), *_ = fitting.items()
        assert number is not None
        output = next(value for value in self.model.graph.outputs if value.name == name)
        params.class_output, self.class_num, self.reason = name, number, ""
        params.type = "classification"
        self.head = find_head(self.model, output)
        if len(params.class_ids) != number:
            params.class_ids = tuple(range(number))
        if len(params.class_names) != number:
            params.class_names = tuple(f"class_{i}" for i in range(number))

    # --- running ------------------------------------------------------------------------------------------------------

    def session(self, extra: Sequence[str] = ()) -> ort.InferenceSession:
        """Return a cached session of the graph that also outputs the values named in `extra`.

        Raises HOperatorError 7912 if ONNX Runtime cannot run the graph.
        """
        key = (self.params.runtime, *extra)
        with self.lock:
            self._settle()
            if key not in self._sessions:
                self._sessions[key] = self._new_session(tuple(extra))
            return self._sessions[key]

    def _new_session(self, extra: tuple[str, ...]) -> ort.InferenceSession:
        if self.image is not None and self.params.image_height and self.params.image_width:
            self.facts()  # refuses what would fill the memory
        return open_session(self.model, extra, self.params.runtime, self.params.gpu)

    def run(self, batch: Array, names: Sequence[str]) -> list[npt.NDArray[Any]]:
        """Return the values called `names` (outputs or any inner values) for a batch in the model's layout.

        Raises HOperatorError 7912 if ONNX Runtime cannot run the graph.
        """
        image = self.image_input()
        outputs = {value.name for value in self.model.graph.outputs}
        session = self.session(sorted(set(names) - outputs))
        try:
            feed = {image.name: batch.astype(image.dtype.numpy(), copy=False)}
            return [np.asarray(one) for one in session.run(list(names), feed)]
        except Exception as error:
            raise HOperatorError(
                H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, f"ONNX Runtime cannot run this model: {error}"
            ) from error

    def confidences(self, batch: Array) -> Array:
        """Return float32 [N, K], each row adding up to 1 (except after a final sigmoid), for a batch of images."""
        name = self.output_name
        return self.confidences_from(self.run(batch, [name])[0])

    def confidences_from(self, output: npt.NDArray[Any]) -> Array:
        """Turn the class output into confidences: softmax only where the graph ends in logits."""
        assert self.head is not None
        rows = output.reshape(len(output), self.class_num).astype(np.float64)
        if self.head.activation == "log_softmax":
            rows = np.exp(rows)
        elif self.head.activation == "none":
            rows = np.exp(rows - rows.max(axis=1, keepdims=True))
            rows /= rows.sum(axis=1, keepdims=True)
        return rows.astype(np.float32)

    def logits(self, batch: Array) -> Array:
        """Return float32 [N, K]: what goes into the final softmax, or the class output where there is none."""
        (values,) = self.run(batch, [self.logits_name])
        return values.reshape(len(batch), self.class_num).astype(np.float32)

    # --- parameters ---------------------------------------------------------------------------------------------------

    def set(self, name: str, values: HTuple) -> None:
        """Set a parameter; those that take handles (`device`, `meta_data`) and `runtime_init` are the operators' work.

        Raises HOperatorError 7911, 7788, 7914, 7792, 7793, 7913, 1203 or 1403; then nothing has changed.
        """
        with self.lock:
            set_parameter(self, name, values)

    def get(self, name: str) -> list[Element]:
        """Return a parameter as a list; `device`, `input_dimensions`, `meta_data` are the operators' work.

        Raises HOperatorError 7911 (unknown) or 7788 (can only be set, or not available for this model).
        """
        return get_parameter(self, name)

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, path: str, *, sparse: bool = False) -> None:
        """Check the model and write it to an .onnx file, parameters included; `sparse` as in onnxfile.write.

        Raises HOperatorError 7803.
        """
        onnxfile.write(self._for_writing(), path, sparse=sparse)

    def to_bytes(self) -> bytes:
        """Return the checked model with its parameters as bytes. Raises HOperatorError 7803."""
        model = self._for_writing()
        if onnxfile.weight_bytes(model) > onnxfile.EXTERNAL_DATA_BYTES:
            raise onnxfile.unwritable("The model is too big for a serialized item; use write_dl_model.")
        return onnxfile.to_bytes(model)

    def __reduce__(self) -> tuple[Callable[[bytes], Classifier], tuple[bytes]]:
        return Classifier.from_bytes, (self.to_bytes(),)

    def _for_writing(self) -> ir.Model:
        with self.lock:
            model = self.model.clone()
            model.metadata_props[METADATA_KEY] = metadata_of(self)
            model.ir_version = self.ir_version
        if self.ir_version < 4:  # where initializers had to be inputs as well
            passes.AddInitializersToInputsPass()(model)
        return model
