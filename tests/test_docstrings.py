"""The examples in the docstrings."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import dlprune as ha

PACKAGE = Path(ha.__file__).parent


def modules() -> list[str]:
    """Return the names of all modules whose source shows an example."""
    sources = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in sources]
    return [name.removesuffix(".__init__") for name in names]


OPERATORS = [name for name in ha.__all__ if inspect.isfunction(getattr(ha, name)) and not name.endswith("_s")]


@pytest.mark.parametrize("name", modules())
def test_examples_give_what_they_show(name: str):
    result = doctest.testmod(importlib.import_module(name), extraglobs={one: getattr(ha, one) for one in ha.__all__})
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_has_an_example(name: str):
    assert "Example" in (getattr(ha, name).__doc__ or "")
