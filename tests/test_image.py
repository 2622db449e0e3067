"""Image objects and NumPy arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dlprune as ha

DTYPES = [np.uint8, np.int8, np.uint16, np.int16, np.int32, np.float32]
SHAPES = st.one_of(
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=5), hnp.array_shapes(min_dims=3, max_dims=3, max_side=5)
)


@given(st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES)))
def test_array_comes_back_with_the_same_pixels(array):
    back = ha.himage_as_numpy_array(ha.himage_from_numpy_array(array))
    expected = array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
    assert back.dtype == expected.dtype
    np.testing.assert_array_equal(back, expected)


def test_both_directions_copy():
    array = np.zeros((2, 3), np.uint8)
    image = ha.himage_from_numpy_array(array)
    array[:] = 9
    out = ha.himage_as_numpy_array(image)
    out[:] = 7
    assert ha.himage_as_numpy_array(image).sum() == 0


def test_strided_and_byte_swapped_arrays_are_taken_as_they_read():
    array = np.arange(24, dtype=">f4").reshape(4, 6)[::-1, ::2]
    back = ha.himage_as_numpy_array(ha.himage_from_numpy_array(array))
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((2, 2)),
        np.zeros((2, 2), bool),
        np.zeros((2, 2), np.int64),
        np.zeros((2, 2), np.float16),
        np.zeros(4, np.uint8),
        np.zeros((1, 2, 2, 3), np.uint8),
        np.zeros((0, 4), np.uint8),
        [[1, 2]],
        None,
        "image",
    ],
)
def test_what_is_no_image_raises_an_interop_error(value):
    with pytest.raises(ha.HInteropError):
        ha.himage_from_numpy_array(value)
    with pytest.raises(ha.HInteropError):
        ha.himage_as_numpy_array(value)
    d = ha.create_dict()
    with pytest.raises(ha.HInteropError):
        ha.set_dict_object(value, d, "image")
    assert ha.get_dict_param(d, "keys", []) == []


def test_float64_error_says_how_to_convert():
    with pytest.raises(ha.HInteropError, match=r"astype\(numpy.float32\)"):
        ha.himage_from_numpy_array(np.zeros((2, 2)))


def test_repr_tells_width_height_channels_and_type():
    assert repr(ha.himage_from_numpy_array(np.zeros((4, 6, 3), np.uint8))) == "HObject(image 6×4, 3 channels, uint8)"
