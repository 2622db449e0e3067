"""The guides for those who come from other programs: their Python blocks run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import dlprune as ha
from dlprune.hparams import NAMES

EXAMPLES = Path(__file__).parents[1] / "examples"
GUIDES = ("porting.md", "porting_tensorflow.md")


def blocks(text: str) -> list[tuple[int, str]]:
    """Return the Python blocks of a page, each with the number of its first line."""
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, one.start(1)) + 1, one[1]) for one in found]


@pytest.mark.parametrize("name", GUIDES)
def test_the_blocks_of_a_guide_run_one_after_the_other(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one namespace and an empty folder; an error tells the line in the guide."""
    monkeypatch.chdir(tmp_path)
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    namespace: dict[str, object] = {}
    for line, code in blocks(text):
        exec(compile("\n" * (line - 1) + code, str(EXAMPLES / name), "exec"), namespace)
    assert len(blocks(text)) > 4


@pytest.mark.parametrize("name", GUIDES)
def test_every_operator_that_a_guide_names_exists(name: str) -> None:
    """Also in tables and remarks."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    named = set(re.findall(r"\bha\.(\w+)", text)) | set(re.findall(r"`(\w+_dl_\w+)[`(]", text))
    assert named <= {*ha.__all__, "dl_model"}


def test_the_guide_lists_every_hyperparameter_with_its_default() -> None:
    """The table of the guide for TensorFlow users is that of get_pruning_hparams."""
    text = (EXAMPLES / "porting_tensorflow.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    listed = {
        name.strip(): cell.strip().strip("'[]")
        for row in rows
        if len(row) == 7
        for names, cell in ((row[1], row[2]), (row[4], row[5]))
        for name in names.split(",")
        if name.strip() in NAMES
    }
    hparams = ha.as_python_dict_s(ha.get_pruning_hparams())
    assert set(listed) == set(NAMES)
    for name, value in hparams.items():
        shown = listed[name].replace("−", "-")
        assert shown == value or np.isclose(float(shown), value), name
