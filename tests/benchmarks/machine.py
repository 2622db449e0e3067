"""What benchmarks share: the machine and versions that they tell, runs in turn, results kept, Markdown tables."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def processor() -> str:
    """Name the processor, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def vector_width() -> str:
    """Name the widest vector instructions of the processor, where the system tells."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return "unknown"
    return next((name for name in ("avx512f", "avx2", "avx", "asimd") if name in flags), "none")


def installed(package: str) -> str:
    """Return a package's version, '' if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def source() -> str:
    """Return a digest of dlprune's source: between releases the version says little."""
    found = find_spec("dlprune")
    assert found is not None
    assert found.origin is not None
    digest = hashlib.sha256()
    for path in sorted(Path(found.origin).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def where(packages: Iterable[str] = ()) -> str:
    """Return machine and versions in one line."""
    named = [f"{name} {installed(name)}" for name in ("onnxruntime", *packages) if installed(name)]
    return (
        f"{processor()} ({vector_width()}), {os.cpu_count()} cores; Python {platform.python_version()}, "
        f"dlprune {installed('dlprune')} ({source()}), {', '.join(named)}"
    )


def in_turn(
    contenders: dict[str, Callable[[], object]], repetitions: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Run all contenders in turn, the first round unmeasured; return the seconds of each, round by round."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repetitions + 1):
        for name, run in contenders.items():
            start = clock()
            run()
            if turn:
                seconds[name].append(clock() - start)
    return seconds


def medians(contenders: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Run all contenders in turn; return the median seconds of each."""
    return {name: statistics.median(values) for name, values in in_turn(contenders, repetitions).items()}


def ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios of the same round."""
    return statistics.median(value / other for value, other in zip(values, others, strict=True))


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


class Kept:
    """Results of a benchmark in a JSON file: written whenever one is there, so that an interruption loses nothing.

    Args:
        path: the file; what it holds already stays, unless it was measured elsewhere or with other versions.
        place: where this is, as `where` tells.
    """

    def __init__(self, path: Path, place: str) -> None:
        self._path, self._place = path, place
        path.parent.mkdir(parents=True, exist_ok=True)
        stored = json.loads(path.read_text()) if path.exists() else {}
        self.found: dict[str, Any] = stored["results"] if stored.get("place") == place else {}

    def save(self, name: str, entry: Any) -> None:
        """Keep a result under a name."""
        self.found[name] = entry
        self._path.write_text(json.dumps({"place": self._place, "results": self.found}, indent=1))


def memory(field: str) -> float:
    """Return a field of this process's status in MB: VmRSS is the memory now, VmHWM its peak; NaN if not known."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return math.nan
    return next((int(line.split()[1]) / 1000 * 1.024 for line in lines if line.startswith(f"{field}:")), math.nan)


class Phases:
    """Seconds of the phases of a job, by the clock and of all processors, and the peak of memory in each, in MB."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.processor: dict[str, float] = {}
        self.peaks: dict[str, float] = {}
        self.before = memory("VmRSS")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure what is done within."""
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        start, busy = time.perf_counter(), time.process_time()
        yield
        self.seconds[name], self.processor[name] = time.perf_counter() - start, time.process_time() - busy
        self.peaks[name] = memory("VmHWM")

    def entry(self) -> dict[str, Any]:
        """Return everything as plain numbers."""
        return {
            "seconds": self.seconds,
            "processor": self.processor,
            "peaks": self.peaks,
            "before": self.before,
            "peak": max(self.peaks.values()),
        }


def alone(script: str, *arguments: object) -> dict[str, Any]:
    """Run a script in a process of its own, and return the JSON that its last line holds."""
    command = [sys.executable, script, *map(str, arguments)]
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
