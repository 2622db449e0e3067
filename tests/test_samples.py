"""Samples as batches of numbers, and the checks on them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import plain
from test_model_files import nhwc

import dlprune as ha
from dlprune.classifier import Classifier
from dlprune.samples import read_batch

COLOUR = Classifier.from_proto(plain(size=4))
GRAY = Classifier.from_proto(plain(channels=1, size=4))


def sample(image=None, **entries) -> ha.HHandle:
    d = ha.from_python_dict(entries)
    if image is not None:
        ha.set_dict_object(image, d, "image")
    return d


def image(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 100, shape).astype(dtype)


@settings(max_examples=10)
@given(st.integers(1, 5))
def test_images_land_in_the_layout_of_the_model(count: int):
    for classifier, size in ((COLOUR, (4, 4)), (Classifier.from_proto(nhwc()), (12, 10))):
        pixels = [np.random.default_rng(i).standard_normal((*size, 3)).astype(np.float32) for i in range(count)]
        batch = read_batch([sample(one) for one in pixels], classifier, 1)
        stacked = np.stack(pixels)
        np.testing.assert_array_equal(
            batch.images, stacked.transpose(0, 3, 1, 2) if classifier.layout == "NCHW" else stacked
        )
        assert batch.images.dtype == np.float32
        assert batch.labels.tolist() == [-1] * count


def test_single_channel_images_may_have_two_or_three_axes():
    for shape in ((4, 4), (4, 4, 1)):
        assert read_batch([sample(image(*shape))], GRAY, 1).images.shape == (1, 1, 4, 4)


def test_labels_become_class_positions():
    classifier = Classifier.from_proto(plain(size=4))
    classifier.set("class_ids", (10, 20, 30, 40, 50))
    batch = read_batch([sample(image(4, 4, 3), image_label_id=i) for i in (30, 10, 50)], classifier, 1)
    assert batch.labels.tolist() == [2, 0, 4]
    assert batch.labels.dtype == np.int64


def test_a_single_handle_counts_as_a_batch_of_one():
    assert read_batch(sample(image(4, 4, 3)), COLOUR, 1, 1).images.shape == (1, 3, 4, 4)


NAN = image(4, 4, 3)
NAN[1, 2, 0] = np.nan
INFINITE = image(4, 4, 3)
INFINITE[3, 3, 2] = -np.inf

BAD_SAMPLES = [
    (lambda: sample(), 7783, "no 'image'"),
    (lambda: sample(images=1), 7783, "'images'"),
    (lambda: sample(image_label_id=1), 7783, "'image'"),
    (lambda: ha.from_python_dict({"image": [1, 2]}), 7790, "tuple"),
    (lambda: sample(image(4, 4)), 7791, "1 channels.*3 channels"),
    (lambda: sample(image(4, 5, 3)), 7791, "width 5, height 4.*width 4, height 4"),
    (lambda: sample(image(3, 4, 4)), 7791, "height 3"),
    (lambda: sample(image(4, 4, 3, dtype=np.uint8)), 7791, "uint8.*float32"),
    (lambda: sample(image(4, 4, 3, dtype=np.int16)), 7791, "int16"),
    (lambda: sample(NAN), 7791, "nan at row 1, column 2, channel 0"),
    (lambda: sample(INFINITE), 7791, "inf at row 3, column 3, channel 2"),
    (lambda: sample(image(4, 4, 3), image_label_id=5), 7793, r"found 5.*\[0, 1, 2, 3, 4\]"),
    (lambda: sample(image(4, 4, 3), image_label_id=-1), 7793, "found -1"),
    (lambda: sample(image(4, 4, 3), image_label_id=1.0), 7790, "found 1.0"),
    (lambda: sample(image(4, 4, 3), image_label_id="1"), 7790, "found '1'"),
    (lambda: sample(image(4, 4, 3), image_label_id=[]), 7791, "0 values"),
    (lambda: sample(image(4, 4, 3), image_label_id=[1, 2]), 7791, "2 values"),
    (lambda: sample(image(4, 4, 3), image_label_id=image(4, 4)), 7790, "found an image"),
    (lambda: sample(image(4, 4, 3)), 7783, "image_label_id"),
    (lambda: 3, 1202, "position 1"),
    (ha.HHandle, 2453, "Sample 1"),
    (lambda: ha.serialize_handle(ha.create_dict()), 2404, "Sample 1"),
]


@pytest.mark.parametrize(("make", "code", "words"), BAD_SAMPLES)
def test_bad_sample_is_named_with_key_found_and_expected(make, code: int, words: str):
    with pytest.raises(ha.HOperatorError, match=words) as caught:
        read_batch([sample(image(4, 4, 3), image_label_id=0), make()], COLOUR, 2)
    assert caught.value.error_code == code
    if 7783 <= code <= 7793:
        assert "Sample 1" in caught.value.extended_error_message


def test_cleared_sample_raises_2454():
    d = sample(image(4, 4, 3))
    ha.clear_handle(d)
    with pytest.raises(ha.HOperatorError, match="Sample 0") as caught:
        read_batch(d, COLOUR, 2)
    assert caught.value.error_code == 2454


def test_wrong_batch_length_raises_7784():
    for count in (0, 1, 3):
        with pytest.raises(ha.HOperatorError, match=f"{count} samples.* 2 ") as caught:
            read_batch([sample(image(4, 4, 3))] * count, COLOUR, 3, 2)
        assert caught.value.error_code == 7784


@pytest.mark.parametrize("value", [True, None, [None], [[1]]])
def test_batches_that_are_no_tuples_are_refused(value):
    with pytest.raises(ha.HTupleConversionError):
        read_batch(value, COLOUR, 2)
