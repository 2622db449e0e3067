"""What an operator does with an exception that nobody foresaw."""

from __future__ import annotations

import pytest

import dlprune as ha
from dlprune.errors import H_ERR_DL_READ_ONNX
from dlprune.guard import guarded


def test_an_unforeseen_exception_becomes_an_operator_error_that_keeps_its_cause():
    @guarded(H_ERR_DL_READ_ONNX)
    def broken() -> None:
        raise IndexError("the third of two")

    with pytest.raises(ha.HOperatorError, match="broken failed: IndexError: the third of two") as caught:
        broken()
    assert caught.value.error_code == H_ERR_DL_READ_ONNX
    assert isinstance(caught.value.__cause__, IndexError)


def test_the_cause_itself_is_shown_to_those_who_ask_for_it(monkeypatch: pytest.MonkeyPatch):
    """DLPRUNE_DEBUG lets the original exception through."""

    @guarded(H_ERR_DL_READ_ONNX)
    def broken() -> None:
        raise IndexError("the third of two")

    monkeypatch.setenv("DLPRUNE_DEBUG", "1")
    with pytest.raises(IndexError, match=r"^the third of two$"):
        broken()


def test_errors_of_ours_pass_as_they_are():
    @guarded(H_ERR_DL_READ_ONNX)
    def refused() -> None:
        raise ha.HTupleConversionError("no tuple")

    with pytest.raises(ha.HTupleConversionError, match="no tuple"):
        refused()


def test_a_wrong_call_stays_a_type_error():
    with pytest.raises(TypeError, match="missing"):
        ha.read_dl_model()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword"):
        ha.create_dl_pruning(model=1)  # type: ignore[call-arg]
