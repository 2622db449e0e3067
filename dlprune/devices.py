"""The devices that ONNX Runtime can compute on here."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass

from dlprune.errors import H_ERR_WIPN2, H_ERR_WIPV1, H_ERR_WIPV2, HOperatorError
from dlprune.handle import HHandle, new_handle, unwrap
from dlprune.tuples import Element, TupleLike, scalar, to_str, to_strings, to_tuple


@dataclass(frozen=True)
class Device:
    """What a handle of type 'dl_device' refers to; `runtime` is 'cpu' or 'gpu'."""

    runtime: str
    name: str
    id: int

    def get(self, name: str) -> Element | None:
        """Return a device parameter, None if there is none of that name."""
        values: dict[str, Element] = {
            "ai_accelerator_interface": "none",
            "id": self.id,
            "inference_only": "false",
            "name": self.name,
            "precisions": "float32",
            "runtime": self.runtime,
            "type": self.runtime,
        }
        return values.get(name)


_NAMES = "'ai_accelerator_interface', 'id', 'inference_only', 'name', 'precisions', 'runtime' and 'type'"


def available() -> list[Device]:
    """Return the devices, GPUs first, as far as the installed ONNX Runtime serves them."""
    import onnxruntime as ort

    devices = [Device("cpu", platform.processor() or platform.machine() or "CPU", 0)]
    if "CUDAExecutionProvider" in ort.get_available_providers():
        devices.insert(0, Device("gpu", "CUDA", 0))
    return devices


def query_available_dl_devices(gen_param_name: TupleLike, gen_param_value: TupleLike) -> list[HHandle]:
    """Return the devices that fit the given conditions.

    Parameters: `gen_param_name` (device parameters, see get_dl_device_param; [] for all devices), `gen_param_value`
    (one value for each name; a name that occurs several times allows each of its values). Returns a list of handles
    of type 'dl_device', possibly empty. Raises HOperatorError 1301 (unknown name), 1402 (numbers differ).
    Source: HALCON operator query_available_dl_devices.

    Example:
        >>> [get_dl_device_param_s(d, "type") for d in query_available_dl_devices("runtime", "cpu")]
        ['cpu']
    """
    names, values = to_strings(gen_param_name, "gen_param_name", 1), to_tuple(gen_param_value, "gen_param_value")
    if len(names) != len(values):
        raise HOperatorError(H_ERR_WIPN2, f"{len(names)} names but {len(values)} values were given.")
    wanted: dict[str, list[Element]] = {}
    for name, value in zip(names, values, strict=True):
        wanted.setdefault(name, []).append(value)
    devices = available()
    for name in wanted:
        if devices[-1].get(name) is None:
            raise HOperatorError(H_ERR_WIPV1, f"There is no device parameter {name!r}; possible are {_NAMES}.")
    return [
        new_handle("dl_device", device)
        for device in devices
        if all(device.get(name) in possible for name, possible in wanted.items())
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

    Parameters: `dldevice_handle` ('dl_device'), `gen_param_name` ('ai_accelerator_interface', 'id', 'inference_only',
    'name', 'precisions', 'runtime' or 'type'). Returns a list. Raises HOperatorError 1302 (unknown name), 2404/2454
    (unsuitable handle). Source: HALCON operator get_dl_device_param.

    Example: see query_available_dl_devices.
    """
    device = unwrap(dldevice_handle, "dl_device", Device, 1)
    name = to_str(gen_param_name, "gen_param_name", 2)
    value = device.get(name)
    if value is None:
        raise HOperatorError(H_ERR_WIPV2, f"There is no device parameter {name!r}; possible are {_NAMES}.")
    return [value]


def get_dl_device_param_s(dldevice_handle: HHandle, gen_param_name: str) -> Element:
    """Return a parameter of a device as a scalar (see get_dl_device_param).

    Example: see query_available_dl_devices.
    """
    return scalar(get_dl_device_param(dldevice_handle, gen_param_name), f"The parameter {gen_param_name!r}")
