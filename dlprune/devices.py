"""The devices that ONNX Runtime can compute on here, and how a session gets to them."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .dictionary import from_python_dict
from .errors import H_ERR_DL_MODEL_RUNTIME, H_ERR_WIPN2, H_ERR_WIPV1, H_ERR_WIPV2, HOperatorError
from .handle import HHandle, new_handle, unwrap
from .tuples import Element, HTuple, TupleLike, scalar, to_str, to_strings, to_tuple

if TYPE_CHECKING:
    import onnxruntime as ort

_CPU: Final = "CPUExecutionProvider"
_CUDA: Final = "CUDAExecutionProvider"
#: Number formats that models can be converted to, per runtime; ONNX Runtime has no int8 convolutions on CUDA.
_PRECISIONS: Final = {"cpu": ("float32", "float16", "int8"), "gpu": ("float32", "float16")}
#: Parameters that are dictionaries.
_DICTIONARIES: Final = ("optimize_for_inference_params", "settable_device_params")


@dataclass(frozen=True)
class Device:
    """What a handle of type 'dl_device' refers to; `runtime` is 'cpu' or 'gpu'."""

    runtime: str
    name: str
    id: int

    @property
    def precisions(self) -> tuple[str, ...]:
        """Number formats that models can be converted to."""
        return _PRECISIONS[self.runtime]

    def get(self, name: str) -> HTuple | None:
        """Return a device parameter, None if there is none of that name."""
        values: dict[str, HTuple] = {
            "ai_accelerator_interface": ("none",),
            "calibration_precisions": tuple(one for one in self.precisions if one == "int8"),
            "cast_precisions": tuple(one for one in self.precisions if one != "int8"),
            "conversion_supported": ("true",),
            "id": (self.id,),
            "inference_only": ("false" if self.runtime == "cpu" else "true",),
            "name": (self.name,),
            "precisions": self.precisions,
            "runtime": (self.runtime,),
            "type": (self.runtime,),
        }
        return values.get(name)


_NAMES = (
    "'ai_accelerator_interface', 'calibration_precisions', 'cast_precisions', 'conversion_supported', 'id', "
    "'inference_only', 'name', 'precisions', 'runtime' and 'type'"
)


def available() -> list[Device]:
    """Return the devices, GPUs first, as far as the installed ONNX Runtime serves them."""
    devices = [Device("cpu", platform.processor() or platform.machine() or "CPU", 0)]
    if _has_cuda():
        devices.insert(0, Device("gpu", "CUDA", 0))
    return devices


def _has_cuda() -> bool:
    import onnxruntime as ort

    return _CUDA in ort.get_available_providers()


def require_runtime(runtime: str) -> None:
    """Raise HOperatorError 7913 if the installed ONNX Runtime does not offer a runtime, 'cpu' or 'gpu'."""
    if runtime == "gpu" and not _has_cuda():
        raise HOperatorError(
            H_ERR_DL_MODEL_RUNTIME,
            "'gpu' needs ONNX Runtime with CUDA, which is not installed here (package onnxruntime-gpu); stay with "
            "'cpu'.",
        )


def providers(runtime: str, gpu: int) -> list[Any]:
    """Return what a session is to compute with, first choice first; `gpu` is the number of the GPU."""
    return [(_CUDA, {"device_id": gpu}), _CPU] if runtime == "gpu" else [_CPU]


def require_provider(session: ort.InferenceSession, runtime: str) -> None:
    """Raise HOperatorError 7913 if a session that was to compute on a GPU has tacitly fallen back to the CPU."""
    if runtime == "gpu" and _CUDA not in session.get_providers():
        raise HOperatorError(
            H_ERR_DL_MODEL_RUNTIME,
            "ONNX Runtime offers CUDA but could not start it; driver, CUDA or cuDNN are missing or do not fit its "
            "version. Set 'runtime' to 'cpu', or mend the installation.",
        )


def query_available_dl_devices(gen_param_name: TupleLike, gen_param_value: TupleLike) -> list[HHandle]:
    """Return the devices that fit the given conditions.

    Parameters: `gen_param_name` (device parameters that are no dictionaries, see get_dl_device_param; [] for all
    devices), `gen_param_value` (one value for each name; a name that occurs several times allows each of its values; of
    a parameter with several values one must fit). Returns a list of handles of type 'dl_device', GPUs first, possibly
    empty. Raises HOperatorError 1301 (unknown name), 1402 (numbers differ).
    Source: HALCON operator query_available_dl_devices.

    Example:
        >>> [get_dl_device_param_s(d, "type") for d in query_available_dl_devices("runtime", "cpu")]
        ['cpu']
    """
    names, values = to_strings(gen_param_name, "gen_param_name", 1), to_tuple(gen_param_value, "gen_param_value")
    if len(names) != len(values):
        raise HOperatorError(H_ERR_WIPN2, f"{len(names)} names but {len(values)} values were given.")
    wanted: dict[str, set[Element]] = {}
    for name, value in zip(names, values, strict=True):
        wanted.setdefault(name, set()).add(value)
    devices = available()
    for name in wanted:
        if devices[-1].get(name) is None:
            raise HOperatorError(H_ERR_WIPV1, f"{name!r} is nothing to choose devices by; possible are {_NAMES}.")
    return [
        new_handle("dl_device", device)
        for device in devices
        if all(possible.intersection(device.get(name) or ()) for name, possible in wanted.items())
    ]


def query_available_dl_devices_s(gen_param_name: TupleLike, gen_param_value: TupleLike) -> HHandle:
    """Return the only fitting device; raises HTupleConversionError unless there is exactly one (see the list form).

    Example:
        >>> query_available_dl_devices_s("runtime", "cpu")
        HHandle('dl_device')
    """
    value = scalar(query_available_dl_devices(gen_param_name, gen_param_value), "The result")
    assert isinstance(value, HHandle)
    return value


def get_dl_device_param(dldevice_handle: HHandle, gen_param_name: str) -> Sequence[Element]:
    """Return a parameter of a device.

    Parameters: `dldevice_handle` ('dl_device'); `gen_param_name`: 'ai_accelerator_interface' ('none': ONNX Runtime
    computes itself), 'calibration_precisions' and 'cast_precisions' (number formats to which models are converted with
    samples, and without), 'conversion_supported' ('true'), 'id' (number among the devices of its runtime),
    'inference_only' ('true' for a GPU: training runs on the CPU), 'name', 'optimize_for_inference_params' (dict:
    generic parameters of optimize_dl_model_for_inference with their defaults), 'precisions', 'runtime' and 'type'
    ('cpu' or 'gpu'), 'settable_device_params' (dict, empty: there are none).
    Returns a list. Raises HOperatorError 1302 (unknown name), 2404/2454 (unsuitable handle).
    Source: HALCON operator get_dl_device_param.

    Example:
        >>> get_dl_device_param(query_available_dl_devices_s("runtime", "cpu"), "precisions")
        ['float32', 'float16', 'int8']
    """
    device = unwrap(dldevice_handle, "dl_device", Device, 1)
    name = to_str(gen_param_name, "gen_param_name", 2)
    if name == "optimize_for_inference_params":
        from .deployment.operators import optimization_defaults

        return [from_python_dict(optimization_defaults())]
    if name == "settable_device_params":
        return [from_python_dict({})]
    value = device.get(name)
    if value is None:
        possible = f"{_NAMES}, {' and '.join(map(repr, _DICTIONARIES))}"
        raise HOperatorError(H_ERR_WIPV2, f"There is no device parameter {name!r}; possible are {possible}.")
    return list(value)


def get_dl_device_param_s(dldevice_handle: HHandle, gen_param_name: str) -> Element:
    """Return a parameter of a device as a scalar (see get_dl_device_param).

    Example: see query_available_dl_devices.
    """
    return scalar(get_dl_device_param(dldevice_handle, gen_param_name), f"The parameter {gen_param_name!r}")
