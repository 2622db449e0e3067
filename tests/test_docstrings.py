"""The examples in the docstrings."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

import dlprune as ha

MODULES = sorted({one.__module__ for one in (getattr(ha, name) for name in ha.__all__) if hasattr(one, "__module__")})
OPERATORS = [name for name in ha.__all__ if inspect.isfunction(getattr(ha, name)) and not name.endswith("_s")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name: str):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_has_an_example(name: str):
    assert "Example" in (getattr(ha, name).__doc__ or "")
