"""Error codes, their texts and the exceptions."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

import dlprune as ha
from dlprune import errors


def codes() -> dict[str, int]:
    return {name: getattr(errors, name) for name in vars(errors) if name.startswith("H_ERR_")}


def test_every_code_has_a_text_of_its_own():
    texts = [ha.get_error_text(code) for code in codes().values()]
    assert len(set(texts)) == len(texts) == len(set(codes().values()))
    assert not [text for text in texts if text.startswith("No text") or text.endswith(".")]


@pytest.mark.parametrize("position", range(1, 21))
def test_type_and_value_codes_are_numbered_by_parameter(position: int):
    assert getattr(errors, f"H_ERR_WIPT{position}") == 1200 + position
    assert getattr(errors, f"H_ERR_WIPV{position}") == 1300 + position
    assert str(position) in ha.get_error_text(1200 + position)


def test_unknown_code_says_so_and_other_types_are_refused():
    assert "123456" in ha.get_error_text(123456)
    assert ha.get_error_text(np.int64(5200)) == ha.get_error_text(5200)
    for value in (True, "5200", 1.5, None):
        with pytest.raises(ha.HTupleConversionError):
            ha.get_error_text(value)  # type: ignore[arg-type]


def test_operator_error_carries_code_message_and_extended_message():
    error = ha.HOperatorError(errors.H_ERR_FNF, "No 'a.onnx'.", 7)
    assert (error.error_code, error.extended_error_code, error.extended_error_message) == (5200, 7, "No 'a.onnx'.")
    assert error.message == ha.get_error_text(5200)
    assert str(error) == f"{error.message}: No 'a.onnx'."
    assert str(ha.HOperatorError(5200)) == ha.get_error_text(5200)


def test_operator_error_survives_pickling():
    """Worker processes hand exceptions over by pickle."""
    error = pickle.loads(pickle.dumps(ha.HOperatorError(7914, "x", 3)))
    assert (error.error_code, error.extended_error_message, error.extended_error_code) == (7914, "x", 3)


def test_all_exceptions_are_caught_as_herror():
    for kind in (ha.HOperatorError, ha.HTupleConversionError, ha.HInteropError):
        assert issubclass(kind, ha.HError)


def test_import_exports_exactly_what_it_lists():
    assert len(set(ha.__all__)) == len(ha.__all__)
    for name in ha.__all__:
        assert getattr(ha, name) is not None
    assert set(ha.__all__) <= set(dir(ha))
    with pytest.raises(AttributeError):
        _ = ha.read_dl_modell  # type: ignore[attr-defined]


def test_import_is_light():
    """Half of the time of a full import goes into the graph library, which only operators on models need.

    What extras bring is not imported either.
    """
    heavy = ("onnx", "onnx_ir", "onnxruntime", "PIL", "distributed", "matplotlib", "rich", "typer")
    code = f"import sys, dlprune; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
