"""Handles, control parameters and serialized items."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import plain, saved

import dlprune as ha
from dlprune.handle import unwrap

SCALARS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(st.characters(codec="utf-8"), max_size=8)
)


def test_handles_are_equal_if_they_mean_the_same_object():
    a, b, holder = ha.create_dict(), ha.create_dict(), ha.create_dict()
    ha.set_dict_tuple(holder, "a", a)
    again = ha.get_dict_tuple_s(holder, "a")
    assert a == again
    assert hash(a) == hash(again)
    assert a != b
    assert len({a, again, b}) == 2
    assert a != "a"
    assert copy.deepcopy(a) == a


def test_repr_shows_the_semantic_type_also_after_clearing():
    handle = ha.create_dict()
    assert "dict" in repr(handle)
    ha.clear_handle(handle)
    assert "dict" in repr(handle)
    assert "cleared" in repr(handle)
    assert repr(ha.HHandle()) == "HHandle()"


def test_object_is_freed_with_its_last_handle():
    inner, outer = ha.create_dict(), ha.create_dict()
    ha.set_dict_tuple(outer, "inner", inner)
    alive = weakref.ref(inner._native)
    del inner
    assert alive() is not None
    ha.remove_dict_key(outer, "inner")
    gc.collect()
    assert alive() is None


def test_clear_handle_empties_the_object_for_all_its_handles_and_may_be_repeated():
    a, b, holder = ha.create_dict(), ha.create_dict(), ha.create_dict()
    ha.set_dict_tuple(holder, "a", a)
    ha.clear_handle([a, b])
    ha.clear_handle(a)
    ha.clear_handle([])
    assert ha.tuple_is_valid_handle([a, b, holder, ha.get_dict_tuple_s(holder, "a")]) == [0, 0, 1, 0]


def test_validity_is_told_for_each_element():
    assert ha.tuple_is_valid_handle([]) == []
    assert ha.tuple_is_valid_handle([1, "a", ha.HHandle(), ha.create_dict()]) == [0, 0, 0, 1]
    assert ha.tuple_is_valid_handle_s(ha.create_dict()) == 1
    with pytest.raises(ha.HTupleConversionError):
        ha.tuple_is_valid_handle_s([])


def test_semantic_types_of_tuples():
    d = ha.create_dict()
    expected = [
        ([], "any"),
        (1, "integer"),
        ([1.5, 2.0], "real"),
        ("a", "string"),
        ([1, "a"], "mixed"),
        ([d, d], "dict"),
    ]
    for value, name in expected:
        assert ha.tuple_sem_type(value) == name
    ha.clear_handle(d)
    assert ha.tuple_sem_type(d) == "handle"


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: 1, 1201),
        (lambda: "dict", 1201),
        (lambda: None, 1201),
        (ha.HHandle, 2453),
        (lambda: ha.serialize_handle(ha.create_dict()), 2404),
    ],
)
def test_unsuitable_handle_raises_the_code_that_tells_why(make, code: int):
    with pytest.raises(ha.HOperatorError) as caught:
        ha.get_dict_param(make(), "keys", [])
    assert caught.value.error_code == code
    assert caught.value.extended_error_message


def test_cleared_handle_raises_2454_everywhere(tmp_path: Path):
    d, m = ha.create_dict(), ha.read_dl_model(saved(plain(), tmp_path / "a.onnx"))
    ha.clear_handle(d)
    ha.clear_dl_model(m)
    calls = [
        lambda: ha.get_dict_tuple(d, "a"),
        lambda: ha.set_dict_tuple(d, "a", 1),
        lambda: ha.serialize_handle(d),
        lambda: ha.get_dl_model_param(m, "type"),
        lambda: ha.write_dl_model(m, "b.onnx"),
        lambda: ha.clear_dl_model(m),
        lambda: ha.apply_dl_model(m, [], []),
    ]
    for call in calls:
        with pytest.raises(ha.HOperatorError) as caught:
            call()
        assert caught.value.error_code == 2454


def test_a_sequence_of_one_handle_works_where_a_handle_is_needed():
    d = ha.create_dict()
    ha.set_dict_tuple([d], "a", 1)  # type: ignore[arg-type]
    assert ha.get_dict_tuple(d, "a") == [1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], []),
        ((), []),
        (np.array([]), []),
        (5, [5]),
        ((1, 2.5, "x"), [1, 2.5, "x"]),
        (range(3), [0, 1, 2]),
        (np.int32(4), [4]),
        (np.float32(0.5), [0.5]),
        (np.str_("a"), ["a"]),
        (np.array(3), [3]),
        (np.array([1, 2], np.uint8), [1, 2]),
        ([np.int64(1), np.float64(2)], [1, 2.0]),
        ({"a": 1}.keys(), ["a"]),
    ],
)
def test_values_become_tuples_of_plain_python_scalars(value, expected):
    d = ha.create_dict()
    ha.set_dict_tuple(d, "a", value)
    result = ha.get_dict_tuple(d, "a")
    assert result == expected
    assert [type(one) for one in result] == [type(one) for one in expected]


@pytest.mark.parametrize(
    "value",
    [
        True,
        None,
        [1, None],
        [[1]],
        [True],
        np.array([True]),
        np.array([[1, 2]]),
        b"x",
        {"a": 1},
        1j,
        object(),
        2**63,
        [-(2**63) - 1],
        (i for i in range(3)),
        np.array([1j]),
    ],
)
def test_values_that_halcon_tuples_lack_are_refused(value):
    d = ha.from_python_dict({"a": 7})
    with pytest.raises(ha.HTupleConversionError):
        ha.set_dict_tuple(d, "a", value)
    assert ha.get_dict_tuple(d, "a") == [7]


@given(st.lists(SCALARS, max_size=6))
def test_serialized_dictionary_comes_back_equal(values):
    d = ha.from_python_dict({"values": values, "nested": {"x": values}})
    data = ha.serialized_item_as_bytes(ha.serialize_handle(d))
    again = ha.deserialize_handle(ha.serialized_item_from_bytes(data))
    assert again != d
    assert ha.as_python_dict(again) == ha.as_python_dict(d)


def test_serialized_dictionary_keeps_images_models_and_odd_numbers(tmp_path: Path):
    model = ha.read_dl_model(saved(plain(), tmp_path / "a.onnx"))
    image = np.arange(12, dtype=np.int16).reshape(2, 2, 3)
    d = ha.from_python_dict({"m": model, "i": image, "f": [float("nan"), float("inf"), -float("inf")], 3: "x"})
    again = ha.deserialize_handle(ha.serialize_handle(d))
    assert (ha.himage_as_numpy_array(ha.get_dict_object(again, "i")) == image).all()
    assert ha.tuple_sem_type(ha.get_dict_tuple(again, "m")) == "dl_model"
    assert str(ha.get_dict_tuple(again, "f")) == "[nan, inf, -inf]"
    assert ha.get_dict_tuple(again, 3) == ["x"]


@given(st.data())
def test_damaged_items_raise_9580_or_9581_and_nothing_else(data):
    good = ha.serialized_item_as_bytes(ha.serialize_handle(ha.from_python_dict({"a": [1, 2], "b": "x"})))
    cut = data.draw(st.integers(0, len(good) - 1))
    position = data.draw(st.integers(0, len(good) - 1))
    changed = good[:position] + bytes([good[position] ^ data.draw(st.integers(1, 255))]) + good[position + 1 :]
    for bad, codes in ((good[:cut], {9581}), (changed, {9580, 9581}), (good + b"x", {9580}), (b"nonsense" * 9, {9580})):
        with pytest.raises(ha.HOperatorError) as caught:
            ha.deserialize_handle(ha.serialized_item_from_bytes(bad))
        assert caught.value.error_code in codes


def test_dictionary_that_contains_itself_raises_2456():
    a = ha.create_dict()
    b = ha.from_python_dict({"a": a})
    ha.set_dict_tuple(a, "b", b)
    for call in (ha.serialize_handle, ha.as_python_dict, lambda d: ha.dict_to_json(d, [], [])):
        with pytest.raises(ha.HOperatorError) as caught:
            call(a)
        assert caught.value.error_code == 2456


def test_types_without_serializer_raise_2455_and_no_handle_1201():
    for value, code in ((ha.query_available_dl_devices_s("runtime", "cpu"), 2455), (1, 1201), (ha.HHandle(), 2453)):
        with pytest.raises(ha.HOperatorError) as caught:
            ha.serialize_handle(value)  # type: ignore[arg-type]
        assert caught.value.error_code == code
    with pytest.raises(ha.HOperatorError) as caught:
        ha.serialized_item_from_bytes("x")  # type: ignore[arg-type]
    assert caught.value.error_code == 1201


def test_handles_cannot_be_pickled_by_accident():
    with pytest.raises(TypeError, match="serialize_handle"):
        pickle.dumps(ha.create_dict())


def test_unwrap_checks_the_python_class_too():
    with pytest.raises(ha.HOperatorError) as caught:
        unwrap(ha.create_dict(), "dict", int, 3)
    assert caught.value.error_code == 2404
