"""The procedures that make samples and preprocess them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import plain, saved

import dlprune as ha
from dlprune.model import unwrap_model
from dlprune.preprocessing import Preprocessing, store_preprocessing

RNG = np.random.default_rng(7)


def param(normalization: str = "none", channels: int = 1, size: tuple[int, int] = (4, 3), **gen: Any) -> ha.HHandle:
    low, high = gen.pop("low", -127), gen.pop("high", 128)
    extra = ha.from_python_dict(gen) if gen else []
    return ha.create_dl_preprocess_param(
        "classification", *size, channels, low, high, normalization, "full_domain", [], [], [], extra
    )


def preprocessed(image: np.ndarray, param_handle: ha.HHandle) -> np.ndarray:
    samples = ha.gen_dl_samples_from_images(ha.himage_from_numpy_array(image))
    ha.preprocess_dl_samples(samples, param_handle)
    return ha.himage_as_numpy_array(ha.get_dict_object(samples[0], "image"))


def image(*shape: int, dtype: type = np.uint8) -> np.ndarray:
    return RNG.integers(3, 250, shape).astype(dtype)


def test_signatures_are_halcons():
    """Names in HALCON's order, nothing has a default."""
    names = {
        "gen_dl_samples_from_images": "images",
        "preprocess_dl_samples": "dlsample_batch dlpreprocess_param",
        "create_dl_preprocess_param": "dlmodel_type image_width image_height image_num_channels image_range_min "
        "image_range_max normalization_type domain_handling ignore_class_ids set_background_id class_ids_background "
        "gen_param",
        "create_dl_preprocess_param_from_model": "dlmodel_handle normalization_type domain_handling "
        "set_background_id class_ids_background gen_param",
        "read_image": "file_name",
        "write_image": "image format fill_color file_name",
    }
    for name, expected in names.items():
        parameters = inspect.signature(getattr(ha, name)).parameters
        assert list(parameters) == expected.split()
        assert all(one.default is inspect.Parameter.empty for one in parameters.values())


def test_none_maps_grey_values_to_the_range():
    """0 becomes image_range_min, 255 image_range_max, in between it is linear."""
    source = image(3, 4)
    np.testing.assert_allclose(preprocessed(source, param()), source.astype(np.float64) - 127, atol=1e-4)
    np.testing.assert_allclose(preprocessed(source, param(low=0, high=1)), source / 255.0, atol=1e-6)


def test_first_channel_and_all_channels_stretch_the_contrast():
    """The reference is computed in double precision, pixel by pixel."""
    source = image(3, 4, 3)
    values = source.astype(np.float64)
    first = (values - values[..., 0].min()) / np.ptp(values[..., 0]) * 255 - 127
    each = (values - values.min((0, 1))) / np.ptp(values, axis=(0, 1)) * 255 - 127
    np.testing.assert_allclose(preprocessed(source, param("first_channel", 3)), first, atol=1e-3)
    np.testing.assert_allclose(preprocessed(source, param("all_channels", 3)), each, atol=1e-3)


def test_an_image_of_one_value_becomes_the_lower_end_of_the_range():
    flat = np.full((3, 4), 77, np.uint8)
    np.testing.assert_array_equal(preprocessed(flat, param("all_channels")), np.full((3, 4), -127.0))


def test_constant_values_subtract_the_mean_and_divide_by_the_deviation():
    source = image(3, 4, 3)
    imagenet = (source - np.array([123.675, 116.28, 103.53])) / np.array([58.395, 57.12, 57.375])
    np.testing.assert_allclose(preprocessed(source, param("constant_values", 3)), imagenet, atol=1e-5)
    own = param("constant_values", mean_values_normalization=100.0, deviation_values_normalization=50.0)
    np.testing.assert_allclose(preprocessed(source[..., 0], own), (source[..., 0] - 100.0) / 50, atol=1e-5)


def test_size_and_channels_are_adapted():
    source = np.full((6, 8, 3), (255, 0, 0), np.uint8)
    found = preprocessed(source, param(channels=1))
    assert found.shape == (3, 4)
    np.testing.assert_allclose(found, 255 * 0.299 - 127, atol=1e-3)
    assert preprocessed(image(6, 8), param(channels=3)).shape == (3, 4, 3)


def test_preprocessing_twice_changes_nothing_more():
    """Floating-point images count as preprocessed."""
    once = preprocessed(image(3, 4), param())
    np.testing.assert_array_equal(preprocessed(once, param()), once)


def test_parameters_from_a_model_fit_the_model(tmp_path: Path):
    """Raw images, preprocessed with them, can be applied."""
    handle = ha.read_dl_model(saved(plain(), tmp_path / "a.onnx"))
    ha.set_dl_model_param(handle, "image_range_min", 0)
    ha.set_dl_model_param(handle, "image_range_max", 1)
    found = ha.create_dl_preprocess_param_from_model(handle, "none", "full_domain", [], [], [])
    expected = param(channels=3, size=(8, 8), low=0, high=1)
    assert ha.as_python_dict(found) == ha.as_python_dict(expected)
    samples = ha.gen_dl_samples_from_images(image(20, 30))
    ha.preprocess_dl_samples(samples, found)
    assert len(ha.apply_dl_model(handle, samples, [])) == 1


def test_preprocessing_stored_with_a_model_is_taken_over(tmp_path: Path):
    """The command line keeps it in the meta data; gen_param has the last word."""
    handle = ha.read_dl_model(saved(plain(), tmp_path / "a.onnx"))
    store_preprocessing(unwrap_model(handle, 1), Preprocessing(fit="pad", mean=(1.0,), std=(2.0,)))
    gen_param = ha.from_python_dict({"fit": "crop"})
    found = ha.create_dl_preprocess_param_from_model(handle, "none", "full_domain", [], [], gen_param)
    assert {name: ha.get_dict_tuple(found, name) for name in ("fit", "mean", "std")} == {
        "fit": ["crop"],
        "mean": [1.0],
        "std": [2.0],
    }
    other = ha.create_dl_preprocess_param_from_model(handle, "all_channels", "full_domain", [], [], [])
    assert ha.get_dict_param(other, "key_exists", ["fit", "mean"]) == [0, 0]


def _create(position: int, value: object) -> ha.HHandle:
    arguments: list[Any] = ["classification", 4, 4, 1, [], [], "none", "full_domain", [], [], [], []]
    arguments[position - 1] = value
    return ha.create_dl_preprocess_param(*arguments)


BAD = [
    (1, "segmentation", 1301),
    (1, 5, 1201),
    (2, 0, 1302),
    (2, "x", 1202),
    (2, [1, 2], 1402),
    (3, -1, 1303),
    (4, 1.5, 1204),
    (5, "x", 1205),
    (5, 200, 7914),
    (6, [1, 2], 1406),
    (7, "other", 1307),
    (8, "half", 1308),
    (9, [1], 1309),
    (10, 0, 1310),
    (11, 0, 1311),
    (12, ha.from_python_dict({"colour": 1}), 7911),
    (12, ha.from_python_dict({"fit": "twist"}), 7914),
    (12, ha.from_python_dict({"mean": [1.0, 2.0]}), 7914),
    (12, ha.from_python_dict({"std": 0.0}), 7914),
    (12, ha.from_python_dict({"mean_values_normalization": "x"}), 1203),
    (12, ha.from_python_dict({"fit": np.zeros((2, 2), np.uint8)}), 2460),
    (12, 1, 1212),
]


@pytest.mark.parametrize(("position", "value", "code"), BAD)
def test_bad_parameters_have_the_number_of_the_parameter_in_their_code(position: int, value: object, code: int):
    with pytest.raises(ha.HOperatorError) as caught:
        _create(position, value)
    assert caught.value.error_code == code
    assert len(caught.value.extended_error_message) > 15


def test_one_bad_sample_leaves_all_as_they_were():
    samples = ha.gen_dl_samples_from_images([image(3, 4), image(3, 4, 5)])
    before = [ha.get_dict_object(one, "image") for one in samples]
    for extra, code in (([], 7791), ([ha.create_dict()], 7783), ([ha.from_python_dict({"image": 1})], 7790)):
        batch = samples if code == 7791 else [samples[0], *extra]
        with pytest.raises(ha.HOperatorError, match="Sample 1") as caught:
            ha.preprocess_dl_samples(batch, param())
        assert caught.value.error_code == code
    assert [ha.get_dict_object(one, "image") for one in samples] == before


def test_changed_parameters_are_checked_again():
    found = param()
    ha.set_dict_tuple(found, "image_width", 0)
    with pytest.raises(ha.HOperatorError) as caught:
        preprocessed(image(3, 4), found)
    assert caught.value.error_code == 7914
    ha.remove_dict_key(found, "image_width")
    with pytest.raises(ha.HOperatorError, match="image_width") as caught:
        preprocessed(image(3, 4), found)
    assert caught.value.error_code == 2894


def test_python_dicts_are_samples_where_nothing_is_written_to_them(tmp_path: Path):
    """Beyond HALCON: they are taken as from_python_dict takes them; preprocess_dl_samples says what to do instead."""
    handle = ha.read_dl_model(saved(plain(), tmp_path / "a.onnx"))
    sample = {"image": image(8, 8, 3, dtype=np.float32), "image_label_id": 1}
    (by_dict,) = ha.apply_dl_model(handle, sample, [])  # type: ignore[arg-type]
    (by_handle,) = ha.apply_dl_model(handle, [ha.from_python_dict(sample)], [])
    assert ha.as_python_dict(by_dict) == ha.as_python_dict(by_handle)
    with pytest.raises(ha.HTupleConversionError, match="from_python_dict"):
        ha.preprocess_dl_samples([sample], param())  # type: ignore[list-item]


def test_an_image_of_the_wrong_size_tells_whether_the_model_could_take_it(tmp_path: Path):
    """Where the file leaves the size open the message names 'image_dimensions'."""
    for size, open_size in ((8, False), ("S", True)):
        handle = ha.read_dl_model(saved(plain(size=size), tmp_path / "a.onnx"))
        with pytest.raises(ha.HOperatorError) as caught:
            ha.apply_dl_model(handle, ha.gen_dl_samples_from_images(image(9, 9, 3, dtype=np.float32)), [])
        assert caught.value.error_code == 7791
        assert ("image_dimensions" in caught.value.extended_error_message) == open_size
