"""Which processor computes; a GPU is pretended, as the machines that run the tests have none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import dlprune as ha

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
REAL = ort.InferenceSession


class PretendedGpu:
    """Stands for onnxruntime's InferenceSession: notes the providers asked for, and computes on the CPU."""

    def __init__(self, working: bool) -> None:
        self.working = working
        self.asked: list[Any] = []

    def __call__(self, source: Any, options: Any = None, providers: Any = None) -> Any:
        self.asked.append(providers)
        session = REAL(source, options, providers=[CPU])
        names = [one if isinstance(one, str) else one[0] for one in providers]
        session.get_providers = lambda: names if self.working else [CPU]
        return session


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PretendedGpu:
    pretended = PretendedGpu(working=True)
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(ort, "InferenceSession", pretended)
    return pretended


@pytest.fixture
def model() -> ha.HHandle:
    handle = ha.read_dl_model(ha.demo_model_file())
    ha.set_dl_model_param(handle, "batch_size", 8)
    return handle


def confidences(handle: ha.HHandle) -> list[Any]:
    results = ha.apply_dl_model(handle, ha.demo_samples("test")[:8], [])
    return [ha.get_dict_tuple(one, "classification_confidences") for one in results]


def test_the_gpu_comes_first_among_the_devices(gpu: PretendedGpu):
    devices = ha.query_available_dl_devices([], [])
    assert [ha.get_dl_device_param_s(one, "type") for one in devices] == ["gpu", "cpu"]
    chosen = ha.query_available_dl_devices_s("precisions", "int8")
    assert ha.get_dl_device_param_s(chosen, "type") == "cpu"
    assert len(ha.query_available_dl_devices(["runtime", "runtime"], ["gpu", "cpu"])) == 2


def test_runtime_gpu_applies_a_model_with_cuda(gpu: PretendedGpu, model: ha.HHandle):
    """The number of the GPU is handed over, and the CPU stays as second choice."""
    before = confidences(model)
    ha.set_dl_model_param(model, "runtime", "gpu")
    ha.set_dl_model_param(model, "gpu", 1)
    assert confidences(model) == before
    assert gpu.asked[-1] == [(CUDA, {"device_id": 1}), CPU]


def test_a_device_chooses_the_provider_as_well(gpu: PretendedGpu, model: ha.HHandle):
    for runtime, first in (("gpu", (CUDA, {"device_id": 0})), ("cpu", CPU)):
        device = ha.query_available_dl_devices_s("runtime", runtime)
        ha.set_dl_model_param(model, "device", device)
        ha.set_dl_model_param(model, "runtime_init", "immediately")
        assert gpu.asked[-1][0] == first
        assert ha.get_dl_model_param_s(model, "runtime") == runtime
        found = ha.get_dl_model_param_s(model, "device")
        assert ha.get_dl_device_param(found, "type") == [runtime]


def test_scores_are_computed_with_cuda_and_equal_those_of_the_cpu(gpu: PretendedGpu, model: ha.HHandle):
    handles = []
    for runtime in ("cpu", "gpu"):
        ha.set_dl_model_param(model, "runtime", runtime)
        handles.append(ha.create_dl_pruning(model, "oracle", []))
        gpu.asked.clear()
        ha.add_dl_pruning_batch(model, handles[-1], ha.demo_samples()[:8])
        assert all((one[0] == CPU) == (runtime == "cpu") for one in gpu.asked)
        assert gpu.asked
    counts = []
    for handle in handles:
        ha.set_dl_pruning_param(handle, "compensation", "none")
        pruned = ha.gen_dl_pruned_model(model, handle)
        counts.append([int(np.prod(one)) for one in _shapes(pruned)])
    assert counts[0] == counts[1]


def _shapes(handle: ha.HHandle) -> list[tuple[int, ...]]:
    from dlprune.model import unwrap_model

    weights = unwrap_model(handle, 1).model.graph.initializers.values()
    return [one.const_value.shape.numpy() for one in weights]


def test_a_gpu_that_does_not_start_is_an_error_not_a_slow_success(gpu: PretendedGpu, model: ha.HHandle):
    """ONNX Runtime itself would tacitly go on with the CPU."""
    gpu.working = False
    pruning = ha.create_dl_pruning(model, "oracle", [])
    ha.set_dl_model_param(model, "runtime", "gpu")
    for call in (
        lambda: confidences(model),
        lambda: ha.add_dl_pruning_batch(model, pruning, ha.demo_samples()[:8]),
    ):
        with pytest.raises(ha.HOperatorError, match="could not start") as caught:
            call()
        assert caught.value.error_code == 7913


def test_int8_is_refused_for_the_gpu(gpu: PretendedGpu, model: ha.HHandle):
    device = ha.query_available_dl_devices_s("runtime", "gpu")
    with pytest.raises(ha.HOperatorError, match="float16") as caught:
        ha.optimize_dl_model_for_inference(model, device, "int8", ha.demo_samples()[:8], [])
    assert caught.value.error_code == 1303


def test_without_cuda_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, model: ha.HHandle):
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CPU])
    assert ha.query_available_dl_devices("runtime", "gpu") == []
    with pytest.raises(ha.HOperatorError, match="onnxruntime-gpu") as caught:
        ha.set_dl_model_param(model, "runtime", "gpu")
    assert caught.value.error_code == 7913
    assert ha.get_dl_model_param(model, "runtime") == ["cpu"]


def test_every_device_parameter_has_a_value():
    cpu = ha.query_available_dl_devices_s("runtime", "cpu")
    expected = {
        "ai_accelerator_interface": ["none"],
        "calibration_precisions": ["int8"],
        "cast_precisions": ["float32", "float16"],
        "conversion_supported": ["true"],
        "id": [0],
        "inference_only": ["false"],
        "precisions": ["float32", "float16", "int8"],
        "runtime": ["cpu"],
        "type": ["cpu"],
    }
    for name, values in expected.items():
        assert ha.get_dl_device_param(cpu, name) == values
    assert ha.get_dl_device_param_s(cpu, "name")
    assert ha.as_python_dict_s(ha.get_dl_device_param_s(cpu, "settable_device_params")) == {}
    params = ha.get_dl_device_param_s(cpu, "optimize_for_inference_params")
    model = ha.read_dl_model(ha.demo_model_file())
    ha.set_dict_tuple(params, "latency_runs", 0)
    ha.optimize_dl_model_for_inference(model, cpu, "int8", ha.demo_samples()[:4], params)
