"""Parameters of models and devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from models import model, plain, saved

import dlprune as ha
from dlprune.model import unwrap_model

FLATTENED = """<ir_version: 8, opset_import: ["" : 17]>
flattened (float[N,3,H,W] x) => (float[N,4] y) <float[2,3,1,1] w, float[72,4] v> {
  c = Conv(x, w)
  f = Flatten(c)
  y = MatMul(f, v)
}"""


@pytest.fixture
def handle(tmp_path: Path) -> ha.HHandle:
    return ha.read_dl_model(saved(plain(), tmp_path / "a.onnx"))


DEFAULTS = {
    "type": ["classification"],
    "batch_size": [1],
    "batch_size_multiplier": [1],
    "class_ids": [0, 1, 2, 3, 4],
    "class_names": ["class_0", "class_1", "class_2", "class_3", "class_4"],
    "class_output": ["y"],
    "image_dimensions": [8, 8, 3],
    "image_height": [8],
    "image_width": [8],
    "image_num_channels": [3],
    "image_range_min": [-127.0],
    "image_range_max": [128.0],
    "learning_rate": [0.001],
    "momentum": [0.9],
    "weight_prior": [0.0],
    "solver_type": ["sgd"],
    "adam_beta1": [0.9],
    "adam_beta2": [0.999],
    "adam_epsilon": [1e-8],
    "optimize_for_inference": ["false"],
    "runtime": ["cpu"],
    "gpu": [0],
    "num_trainable_params": [6 * 27 + 6 + 8 * 54 + 8 * 5 + 5],
    "precision": ["float32"],
    "precision_is_converted": ["false"],
    "min_version": ["0.1"],
    "layer_names": ["Conv_0", "Relu_0", "Conv_1", "Relu_1", "GlobalAveragePool_0", "Flatten_0", "Gemm_0", "Identity_0"],
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(handle: ha.HHandle, name: str):
    assert ha.get_dl_model_param(dlmodel_handle=handle, gen_param_name=name) == DEFAULTS[name]
    if len(DEFAULTS[name]) == 1:
        assert ha.get_dl_model_param_s(dlmodel_handle=handle, gen_param_name=name) == DEFAULTS[name][0]


CHANGES = {
    "batch_size": 8,
    "batch_size_multiplier": 2,
    "class_ids": [10, 20, 30, 40, 0],
    "class_names": ["a", "b", "c", "d", "ß ∞"],
    "image_range_min": 0.0,
    "image_range_max": 1.0,
    "learning_rate": 0.01,
    "momentum": 0.5,
    "weight_prior": 0.1,
    "solver_type": "adam",
    "adam_beta1": 0.8,
    "adam_beta2": 0.9,
    "adam_epsilon": 1e-5,
    "optimize_for_inference": "true",
    "type": "generic",
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_set_is_got_and_survives_writing(handle: ha.HHandle, name: str, tmp_path: Path):
    value = CHANGES[name]
    ha.set_dl_model_param(dlmodel_handle=handle, gen_param_name=name, gen_param_value=value)
    ha.write_dl_model(handle, str(tmp_path / "b.onnx"))
    for one in (handle, ha.read_dl_model(str(tmp_path / "b.onnx"))):
        assert ha.get_dl_model_param(one, name) == (value if isinstance(value, list) else [value])


def test_meta_data_is_a_dictionary_of_strings_that_survives_writing(handle: ha.HHandle, tmp_path: Path):
    ha.set_dl_model_param(handle, "meta_data", ha.from_python_dict({"station": "7", "ä": "ö"}))
    ha.write_dl_model(handle, str(tmp_path / "b.onnx"))
    again = ha.read_dl_model(str(tmp_path / "b.onnx"))
    assert ha.as_python_dict_s(ha.get_dl_model_param_s(again, "meta_data")) == {"station": "7", "ä": "ö"}


def test_input_dimensions_are_listed_by_input(handle: ha.HHandle):
    assert ha.as_python_dict(ha.get_dl_model_param_s(handle, "input_dimensions")) == {"x": [8, 8, 3]}


def test_summary_has_a_line_for_every_layer_and_the_sum(handle: ha.HHandle):
    lines = ha.get_dl_model_param(handle, "summary")
    assert len(lines) == 9
    assert lines[0].startswith("Conv_0; Conv")
    assert lines[-1].endswith(str(DEFAULTS["num_trainable_params"][0]))


def test_batchnorm_momentum_and_runtime_init_can_be_set_but_not_read(handle: ha.HHandle):
    ha.set_dl_model_param(handle, "batchnorm_momentum", 0.5)
    ha.set_dl_model_param(handle, "runtime_init", "immediately")
    for name in ("batchnorm_momentum", "runtime_init"):
        with pytest.raises(ha.HOperatorError) as caught:
            ha.get_dl_model_param(handle, name)
        assert caught.value.error_code == 7788


BAD_VALUES = [
    ("batch_sizes", 1, 7911),
    ("", 1, 7911),
    (3, 1, 1202),
    (["batch_size", "gpu"], 1, 1402),
    ("summary", "x", 7788),
    ("image_num_channels", 3, 7788),
    ("layer_names", "x", 7788),
    ("batch_size", 0, 7914),
    ("batch_size", -1, 7914),
    ("batch_size", 1.5, 1203),
    ("batch_size", "x", 1203),
    ("batch_size", [1, 2], 1403),
    ("batch_size", [], 1403),
    ("batch_size_multiplier", 0, 7914),
    ("image_height", 9, 7914),
    ("image_width", 0, 7914),
    ("image_dimensions", [8, 8], 7914),
    ("image_dimensions", [8, 8, 1], 7914),
    ("image_dimensions", [8, 9, 3], 7914),
    ("image_dimensions", [0, 8, 3], 7914),
    ("image_dimensions", ["x", 8, 3], 1203),
    ("image_range_min", "x", 1203),
    ("image_range_max", float("nan"), 7914),
    ("class_ids", [0, 1], 7914),
    ("class_ids", [0, 1, 2, 3, 3], 7792),
    ("class_ids", [0, 1, 2, 3, -3], 7793),
    ("class_ids", [0, 1, 2, 3, "x"], 1203),
    ("class_names", ["a"], 7914),
    ("class_names", [1, 2, 3, 4, 5], 1203),
    ("class_output", "z", 7914),
    ("class_output", 1, 1203),
    ("type", "detection", 7914),
    ("learning_rate", -0.1, 7914),
    ("learning_rate", 0, 7914),
    ("learning_rate", float("inf"), 7914),
    ("learning_rate", "fast", 1203),
    ("momentum", 1.0, 7914),
    ("weight_prior", -1, 7914),
    ("adam_beta1", 1, 7914),
    ("adam_epsilon", 0, 7914),
    ("batchnorm_momentum", 1.5, 7914),
    ("solver_type", "lbfgs", 7914),
    ("solver_type", 1, 1203),
    ("optimize_for_inference", "yes", 7914),
    ("runtime", "fpga", 7914),
    ("runtime_init", "later", 7914),
    ("gpu", -1, 7914),
    ("device", 1, 1203),
    ("meta_data", "x", 1203),
]


@pytest.mark.parametrize(("name", "value", "code"), BAD_VALUES)
def test_bad_parameters_have_their_code_a_helpful_text_and_no_effect(handle: ha.HHandle, name, value, code: int):
    before = unwrap_model(handle, 1).params.copy()
    with pytest.raises(ha.HOperatorError) as caught:
        ha.set_dl_model_param(handle, name, value)
    assert caught.value.error_code == code
    assert len(caught.value.extended_error_message) > 15
    assert unwrap_model(handle, 1).params == before


@pytest.mark.parametrize("value", [True, None, [[1]], {"a": 1}])
def test_values_that_are_no_tuples_are_refused(handle: ha.HHandle, value):
    with pytest.raises(ha.HTupleConversionError):
        ha.set_dl_model_param(handle, "batch_size", value)


def test_meta_data_takes_strings_only(handle: ha.HHandle):
    for content in ({"a": 1}, {"a": ["x", "y"]}, {1: "x"}):
        with pytest.raises(ha.HOperatorError) as caught:
            ha.set_dl_model_param(handle, "meta_data", ha.from_python_dict(content))
        assert caught.value.error_code == 1203


def test_unknown_parameter_cannot_be_read_and_scalar_form_needs_one_value(handle: ha.HHandle):
    with pytest.raises(ha.HOperatorError) as caught:
        ha.get_dl_model_param(handle, "batch_sizes")
    assert caught.value.error_code == 7911
    assert "'batch_size'" in caught.value.extended_error_message
    with pytest.raises(ha.HTupleConversionError):
        ha.get_dl_model_param_s(handle, "class_ids")


def test_fixed_batch_is_the_batch_size_and_stays(tmp_path: Path):
    handle = ha.read_dl_model(saved(plain(batch=4), tmp_path / "a.onnx"))
    assert ha.get_dl_model_param(handle, "batch_size") == [4]
    ha.set_dl_model_param(handle, "batch_size", 4)
    with pytest.raises(ha.HOperatorError, match="dynamic") as caught:
        ha.set_dl_model_param(handle, "batch_size", 8)
    assert caught.value.error_code == 7914


def test_open_image_size_can_be_set_and_survives_writing(tmp_path: Path):
    handle = ha.read_dl_model(saved(plain(size="S"), tmp_path / "a.onnx"))
    assert ha.get_dl_model_param(handle, "image_dimensions") == [224, 224, 3]
    ha.set_dl_model_param(handle, "image_dimensions", [20, 10, 3])
    ha.set_dl_model_param(handle, "image_height", 12)
    ha.write_dl_model(handle, str(tmp_path / "b.onnx"))
    assert ha.get_dl_model_param(ha.read_dl_model(str(tmp_path / "b.onnx")), "image_dimensions") == [20, 12, 3]


def test_open_image_size_that_the_graph_narrows_down_is_unset_until_the_user_tells(tmp_path: Path):
    handle = ha.read_dl_model(saved(model(FLATTENED), tmp_path / "a.onnx"))
    assert ha.get_dl_model_param(handle, "image_dimensions") == [0, 0, 3]
    sample = ha.create_dict()
    with pytest.raises(ha.HOperatorError, match="image_dimensions") as caught:
        ha.apply_dl_model(handle, sample, [])
    assert caught.value.error_code == 7788
    ha.set_dl_model_param(handle, "image_dimensions", [6, 6, 3])
    assert unwrap_model(handle, 1).input_shape() == (1, 3, 6, 6)


def test_image_parameters_of_a_model_without_image_are_not_available(tmp_path: Path):
    proto = model('<ir_version: 8, opset_import: ["" : 17]> t (float[N,10] a) => (float[N,10] y) { y = Relu(a) }')
    handle = ha.read_dl_model(saved(proto, tmp_path / "a.onnx"))
    assert ha.get_dl_model_param(handle, "type") == ["generic"]
    for name in ("image_width", "image_dimensions", "image_num_channels", "input_dimensions"):
        with pytest.raises(ha.HOperatorError) as caught:
            ha.get_dl_model_param(handle, name)
        assert caught.value.error_code == 7788
    with pytest.raises(ha.HOperatorError) as caught:
        ha.set_dl_model_param(handle, "image_width", 3)
    assert caught.value.error_code == 7912


def test_cpu_device_is_found_and_can_be_set(handle: ha.HHandle):
    devices = ha.query_available_dl_devices([], [])
    cpu = ha.query_available_dl_devices_s(gen_param_name=["runtime", "id"], gen_param_value=["cpu", 0])
    assert ha.get_dl_device_param(cpu, "type") == ["cpu"]
    assert ha.get_dl_device_param_s(dldevice_handle=devices[-1], gen_param_name="name")
    ha.set_dl_model_param(handle, "device", cpu)
    assert ha.tuple_sem_type(ha.get_dl_model_param(handle, "device")) == "dl_device"
    assert ha.query_available_dl_devices("runtime", "npu") == []
    with pytest.raises(ha.HTupleConversionError):
        ha.query_available_dl_devices_s("runtime", "npu")


def test_mistakes_with_devices_have_their_codes():
    cpu = ha.query_available_dl_devices_s("runtime", "cpu")
    calls = [
        (lambda: ha.query_available_dl_devices("speed", 1), 1301),
        (lambda: ha.query_available_dl_devices(["id", "type"], 1), 1402),
        (lambda: ha.get_dl_device_param(cpu, "speed"), 1302),
        (lambda: ha.get_dl_device_param(ha.create_dict(), "id"), 2404),
    ]
    for call, code in calls:
        with pytest.raises(ha.HOperatorError) as caught:
            call()
        assert caught.value.error_code == code
