"""Operators on dictionaries."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlprune as ha

SCALARS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
)
DICTS = st.recursive(
    st.dictionaries(st.text(max_size=5), st.lists(SCALARS, max_size=4), max_size=4),
    lambda inner: st.dictionaries(st.text(max_size=5), st.lists(inner, min_size=1, max_size=2), max_size=3),
    max_leaves=4,
)


def test_all_operators_work_by_keyword_with_halcons_names():
    d = ha.create_dict()
    ha.set_dict_tuple(dict_handle=d, key="a", tuple=[1, 2])
    ha.set_dict_tuple_at(dict_handle=d, key="a", index=0, value=5)
    ha.set_dict_object(object=np.zeros((2, 2), np.uint8), dict_handle=d, key="i")
    assert ha.get_dict_tuple(dict_handle=d, key="a") == [5, 2]
    assert ha.get_dict_object(dict_handle=d, key="i").array.shape == (2, 2)
    assert ha.get_dict_param(dict_handle=d, gen_param_name="keys", key=[]) == ["a", "i"]
    assert ha.get_dict_param_s(dict_handle=d, gen_param_name="key_exists", key="z") == 0
    c = ha.copy_dict(dict_handle=d, gen_param_name=[], gen_param_value=[])
    ha.remove_dict_key(dict_handle=c, key="i")
    ha.set_dict_tuple(dict_handle=c, key="a", tuple="x")
    assert ha.get_dict_tuple_s(dict_handle=c, key="a") == "x"
    assert ha.get_dict_tuple(d, "a") == [5, 2]


def test_copy_shares_nested_dictionaries():
    inner = ha.create_dict()
    d = ha.from_python_dict({"inner": inner})
    c = ha.copy_dict(d, [], [])
    ha.set_dict_tuple(inner, "a", 1)
    assert c != d
    assert ha.as_python_dict_s(c) == {"inner": {"a": 1}}


def test_keys_are_listed_in_order_with_their_types():
    d = ha.from_python_dict({"z": 1, 7: "x", "i": np.zeros((2, 2), np.uint8)})
    assert ha.get_dict_param(d, "keys", []) == ["z", 7, "i"]
    assert ha.get_dict_param(d, "key_data_type", ["z", 7, "i"]) == ["tuple", "tuple", "object"]
    assert ha.get_dict_param(d, "key_exists", ["i", "q", 7]) == [1, 0, 1]


def test_scalar_twin_needs_exactly_one_value():
    d = ha.from_python_dict({"none": [], "one": 1, "two": [1, 2]})
    assert ha.get_dict_tuple_s(d, "one") == 1
    for key in ("none", "two"):
        with pytest.raises(ha.HTupleConversionError):
            ha.get_dict_tuple_s(d, key)


def test_set_tuple_at_replaces_and_appends():
    d = ha.from_python_dict({"a": [1, 2, 3]})
    ha.set_dict_tuple_at(d, "a", [0, 2], ["x", "y"])
    ha.set_dict_tuple_at(d, "a", [0, 1], 9)
    ha.set_dict_tuple_at(d, "a", 3, 2.5)
    assert ha.get_dict_tuple(d, "a") == [9, 9, "y", 2.5]


def test_failed_removal_removes_nothing():
    d = ha.from_python_dict({"a": 1, "b": 2})
    with pytest.raises(ha.HOperatorError):
        ha.remove_dict_key(d, ["a", "missing"])
    ha.remove_dict_key(d, ["a", "a"])
    assert ha.as_python_dict_s(d) == {"b": 2}


BAD_CALLS = [
    (lambda d: ha.get_dict_tuple(d, "missing"), 2894),
    (lambda d: ha.get_dict_tuple_s(d, "missing"), 2894),
    (lambda d: ha.get_dict_object(d, "missing"), 2894),
    (lambda d: ha.remove_dict_key(d, "missing"), 2894),
    (lambda d: ha.set_dict_tuple_at(d, "missing", 0, 1), 2894),
    (lambda d: ha.get_dict_param(d, "key_data_type", "missing"), 2894),
    (lambda d: ha.get_dict_tuple(d, "image"), 2460),
    (lambda d: ha.get_dict_object(d, "a"), 2461),
    (lambda d: ha.set_dict_tuple_at(d, "a", 3, 1), 2897),
    (lambda d: ha.set_dict_tuple_at(d, "a", -1, 1), 2897),
    (lambda d: ha.set_dict_tuple_at(d, "a", "x", 1), 1203),
    (lambda d: ha.set_dict_tuple_at(d, "a", [0, 1], [1, 2, 3]), 1404),
    (lambda d: ha.get_dict_param(d, "sizes", []), 1302),
    (lambda d: ha.get_dict_param(d, 3, []), 1202),
    (lambda d: ha.get_dict_param(d, "keys", "a"), 1403),
    (lambda d: ha.set_dict_tuple(d, 1.5, 1), 1202),
    (lambda d: ha.set_dict_tuple(d, ["a", "b"], 1), 1402),
    (lambda d: ha.set_dict_tuple(d, [], 1), 1402),
    (lambda d: ha.copy_dict(d, "deep", "true"), 1302),
    (lambda d: ha.copy_dict(d, [], "true"), 1403),
    (lambda d: ha.dict_to_json(d, [], []), 1301),
    (lambda d: ha.write_dict(d, "x.hdict", "a", "b"), 1303),
    (lambda d: ha.write_dict(d, 3, [], []), 1202),
    (lambda d: ha.read_dict("x.hdict", "a", "b"), 1302),
    (lambda d: ha.read_dict("missing.hdict", [], []), 5200),
    (lambda d: ha.read_dict("", [], []), 5200),
    (lambda d: ha.read_dict("\0", [], []), 5200),
    (lambda d: ha.json_to_dict("[1]", [], []), 1301),
    (lambda d: ha.json_to_dict("{", [], []), 1301),
    (lambda d: ha.json_to_dict('{"a": [[1]]}', [], []), 1301),
    (lambda d: ha.json_to_dict("{}", "a", []), 1302),
]


@pytest.mark.parametrize(("call", "code"), BAD_CALLS)
def test_mistakes_have_their_code_a_helpful_text_and_no_effect(call, code: int):
    d = ha.from_python_dict({"a": [1, 2], "image": np.zeros((2, 2), np.uint8)})
    before = ha.as_python_dict(d)
    with pytest.raises(ha.HOperatorError) as caught:
        call(d)
    assert caught.value.error_code == code
    assert len(caught.value.extended_error_message) > 15
    assert ha.as_python_dict(d) == before


@given(DICTS)
def test_python_dict_comes_back_equal(content):
    assert ha.as_python_dict(ha.from_python_dict(content)) == content


@given(DICTS)
def test_json_and_scalar_form_agree(content):
    d = ha.from_python_dict(content)
    again = ha.json_to_dict(ha.dict_to_json(d, [], []), [], [])
    assert ha.as_python_dict_s(again) == ha.as_python_dict_s(d)


def test_json_true_false_null_become_one_zero_and_an_empty_tuple():
    d = ha.json_to_dict('{"t": true, "f": [false, 2], "n": null, "d": {"x": 1}}', [], [])
    assert ha.as_python_dict(d) == {"t": [1], "f": [0, 2], "n": [], "d": [{"x": [1]}]}


@pytest.mark.parametrize("value", [{"a": True}, {"a": None}, {1.5: 1}, {True: 1}, {"a": [[1]]}, {"a": object()}, [1]])
def test_python_values_without_counterpart_are_refused(value):
    with pytest.raises(ha.HTupleConversionError):
        ha.from_python_dict(value)


def test_python_dict_that_contains_itself_is_refused():
    content: dict[str, object] = {}
    content["self"] = content
    with pytest.raises(ha.HTupleConversionError):
        ha.from_python_dict(content)


def test_python_dict_may_hold_images_handles_and_lists_of_dicts():
    image, inner = np.zeros((2, 3, 3), np.uint8), ha.create_dict()
    d = ha.from_python_dict({"i": image, "h": inner, "l": [{"a": 1}, {"a": 2}], "v": np.array([1.5])})
    result = ha.as_python_dict_s(d)
    assert isinstance(result["i"], ha.HObject)
    assert result["l"] == [{"a": 1}, {"a": 2}]
    assert result["h"] == {}
    assert result["v"] == 1.5
    assert ha.get_dict_tuple_s(d, "h") == inner


def test_written_dictionary_is_read_back_with_everything_in_it(tmp_path: Path):
    path = tmp_path / "ä b.hdict"
    image = np.arange(12, dtype=np.uint16).reshape(3, 4)
    d = ha.from_python_dict({"i": image, "n": {"x": [1, 2.5, "ß"]}, 3: [], "inf": float("inf")})
    ha.write_dict(d, str(path), [], [])
    again = ha.read_dict(str(path), [], [])
    np.testing.assert_array_equal(ha.himage_as_numpy_array(ha.get_dict_object(again, "i")), image)
    ha.remove_dict_key(d, "i")
    ha.remove_dict_key(again, "i")
    assert ha.as_python_dict(again) == ha.as_python_dict(d)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HALCON\x00dict",
        b"{",
        b"{}",
        b'{"format": "other"}',
        b'{"format": "dlprune-dict", "version": 99}',
        b'{"format": "dlprune-dict", "version": 1, "entries": [["a", {"tuple": [true]}]]}',
        b'{"format": "dlprune-dict", "version": 1, "entries": [["a", {"tuple": [{"handle": "eHg="}]}]]}',
        b'{"format": "dlprune-dict", "version": 1, "entries": [["a", {"image": {"dtype": "O", "shape": [1, 1]}}]]}',
        b'{"format": "dlprune-dict", "version": 1, "entries": [["a"]]}',
        b"[" * 100000,
        b"\xff{",
    ],
)
def test_foreign_or_damaged_dictionary_files_raise_9580(tmp_path: Path, data: bytes):
    path = tmp_path / "a.hdict"
    path.write_bytes(data)
    with pytest.raises(ha.HOperatorError) as caught:
        ha.read_dict(str(path), [], [])
    assert caught.value.error_code == 9580


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    path = tmp_path / "a.hdict"
    d = ha.from_python_dict({"a": 1})
    ha.write_dict(d, str(path), [], [])
    ha.set_dict_tuple(d, "device", ha.query_available_dl_devices_s("runtime", "cpu"))
    with pytest.raises(ha.HOperatorError) as caught:
        ha.write_dict(d, str(path), [], [])
    assert caught.value.error_code == 2455
    for bad in (tmp_path / "no" / "folder.hdict", tmp_path):
        with pytest.raises(ha.HOperatorError) as caught:
            ha.write_dict(ha.create_dict(), str(bad), [], [])
        assert caught.value.error_code == 3142
    assert ha.as_python_dict_s(ha.read_dict(str(path), [], [])) == {"a": 1}
    assert os.listdir(tmp_path) == ["a.hdict"]
