"""Damaged and hostile files: the operators work exactly or raise HError, in bounded memory and time."""

from __future__ import annotations

import pytest
from fuzzing import Report, fuzz
from mutations import mutant

FEW, ALL = 2000, 20000


def told(report: Report) -> str:
    return "\n".join(f"{seed} [{mutant(seed).story}]: {what}" for seed, what in report.violations)


def test_mutants_work_or_are_refused() -> None:
    """No other exception, no crash, no endless loop, no allocation beyond the limit of the process."""
    report = fuzz(0, FEW)
    assert not report.violations, told(report)
    assert report.counts.total() == FEW
    assert report.counts["pruned"] >= FEW // 20, f"hardly any mutant gets anywhere: {report.counts}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, ALL, FEW))
def test_many_mutants_work_or_are_refused(first: int) -> None:
    report = fuzz(first, first + FEW)
    assert not report.violations, told(report)


def test_a_mutant_that_kills_its_process_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer itself is put to the test: a process dies, another one carries on behind the mutant."""
    monkeypatch.setenv("DLPRUNE_FUZZ_KILL", "3")
    report = fuzz(0, 6, workers=1)
    assert [seed for seed, _ in report.violations] == [3]
    assert "kills the process" in report.violations[0][1]
    assert report.counts.total() == 5


def test_a_mutant_is_the_same_for_the_same_seed() -> None:
    assert [mutant(seed).data for seed in range(20)] == [mutant(seed).data for seed in range(20)]
