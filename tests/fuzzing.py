"""Runs mutants through the operators, in processes of limited memory that may die without harm.

python tests/fuzzing.py 0 20000            # these mutants, in two processes; prints what broke the rule
python tests/fuzzing.py --worker 17 18     # one mutant, in this process
"""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Address space of a process: ONNX Runtime and NumPy take 1 GB of it by themselves.
MEMORY = 3 << 30
#: Seconds of processor time for one mutant.
PATIENCE = 20.0
#: Seconds of real time after which a process counts as stuck; the machine may be busy with other things.
STUCK = 240.0


@dataclass
class Report:
    """How often each outcome occurred, and the mutants that broke the rule: (seed, what happened)."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, str]] = field(default_factory=list)


# --- in the worker ----------------------------------------------------------------------------------------------------


def attempt(seed: int, folder: Path) -> str:
    """Take one mutant through the operators; return how far it came. Raises whatever the operators raise."""
    import numpy as np
    from mutations import mutant

    import dlprune as ha

    path = mutant(seed).write(folder)
    try:
        model = ha.read_dl_model(str(path))
    except ha.HError as error:
        return "not read (unforeseen)" if " failed: " in str(error) else "not read"
    try:
        if ha.get_dl_model_param_s(model, "type") != "classification":
            return "generic"
        width, height, channels = ha.get_dl_model_param(model, "image_dimensions")
        batch_size = ha.get_dl_model_param_s(model, "batch_size")
        pruning = ha.create_dl_pruning(model, "oracle", ha.from_python_dict({"percentage": 40, "step_percentage": 25}))
        if width * height * channels * batch_size > 1 << 20:
            return "huge image"
        if seed % 4:
            ha.set_dl_pruning_param(pruning, "compensation", "none")
        rng = np.random.default_rng(seed)
        samples = []
        for _ in range(batch_size):
            sample = ha.create_dict()
            ha.set_dict_object(rng.standard_normal((height, width, channels)).astype(np.float32), sample, "image")
            samples.append(sample)
        ha.add_dl_pruning_batch(model, pruning, samples)
        pruned = ha.gen_dl_pruned_model(model, pruning)
        ha.write_dl_model(pruned, str(folder / "pruned.onnx"))
        again = ha.read_dl_model(str(folder / "pruned.onnx"))
        results = [ha.apply_dl_model(handle, samples, []) for handle in (pruned, again)]
    except ha.HError as error:
        unforeseen = " failed: " in str(error)
        return "refused (unforeseen)" if unforeseen else f"refused {getattr(error, 'error_code', '')}"
    first, second = (
        np.array([sorted(ha.get_dict_tuple(one, "classification_confidences")) for one in result]) for result in results
    )
    assert np.allclose(first, second, atol=1e-5, equal_nan=True), "writing and reading changes the result"
    if seed % 4:
        compare(model, pruned, pruning, rng)
    return "pruned"


def compare(model: Any, pruned: Any, pruning: Any, rng: Any) -> None:
    """What came through must be right: the original with masked consumers."""
    import numpy as np
    from exactness import masked
    from netchecks import TOLERANCE, logits, run64

    from dlprune.analysis import analysis_of
    from dlprune.handle import unwrap
    from dlprune.model import unwrap_model
    from dlprune.pruningdata import PruningData

    classifier, found = unwrap_model(model, 1), analysis_of(unwrap_model(model, 1))
    gone = unwrap(pruning, "dl_pruning", PruningData, 1).removed
    truth = masked(classifier.model, found.facts, found.structure, gone)
    images = rng.standard_normal(classifier.input_shape()).astype(np.float32)
    name = classifier.logits_name
    try:
        expected = logits(truth, images, name)
    except Exception:
        return  # what is wrong with it lies in a part that the optimiser leaves out
    actual = logits(unwrap_model(pruned, 1).model, images, name)
    if not np.isfinite(expected).all() or np.abs(expected).max() > 1e12:
        return  # e.g. infinite weights: there is no truth to compare with
    scale = max(float(np.abs(expected).max()), 1e-12)
    if np.abs(expected - actual).max() > TOLERANCE * scale:
        expected, actual = (run64(one, images, name) for one in (truth, unwrap_model(pruned, 1).model))
        error = float(np.abs(expected - actual).max()) / scale
        assert error <= TOLERANCE, f"logits differ by {error:.1e}"


def work(first: int, last: int) -> None:
    """Take a range of mutants and print one line of JSON before and after each."""
    here = Path(__file__).parent
    sys.path[:0] = [] if os.fspath(here) in sys.path else [os.fspath(here)]
    import numpy as np
    import onnxruntime

    import dlprune  # noqa: F401

    onnxruntime.set_default_logger_severity(4)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    for seed in range(first, last):
        _say({"start": seed})
        signal.setitimer(signal.ITIMER_PROF, PATIENCE)  # kills the process
        if os.environ.get("DLPRUNE_FUZZ_KILL") == str(seed):
            os.kill(os.getpid(), signal.SIGSEGV)  # as a crash inside a native library would
        try:
            with tempfile.TemporaryDirectory() as folder:
                found = {"outcome": attempt(seed, Path(folder))}
        except BaseException as error:
            where = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[-6:]]
            text = " ".join(str(error).split())[:300]
            found = {"violation": f"{type(error).__name__}: {text} ({' '.join(where)})"}
        _say({"seed": seed, **found})


def _say(message: dict[str, Any]) -> None:
    print("\n" + json.dumps(message), flush=True)


# --- in the parent ----------------------------------------------------------------------------------------------------


def fuzz(first: int, last: int, workers: int = 2) -> Report:
    """Take a range of mutants through the operators in several processes.

    A process that dies or hangs is blamed on the mutant that it was at; another one carries on behind it.
    """
    report, lock = Report(), threading.Lock()
    size = -(-(last - first) // workers)
    threads = [
        threading.Thread(target=_watch, args=(start, min(start + size, last), report, lock))
        for start in range(first, last, size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report.violations.sort()
    return report


def _watch(first: int, last: int, report: Report, lock: threading.Lock) -> None:
    at = first
    while at < last:
        command = [sys.executable, __file__, "--worker", str(at), str(last)]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            lines: queue.Queue[str | None] = queue.Queue()
            reader = threading.Thread(target=_forward, args=(process, lines))
            reader.start()
            stuck, at = _follow(lines, at, report, lock)
            process.kill()
            code = process.wait()
            reader.join()
            errors.seek(0)
            tail = " ".join(errors.read()[-300:].split())
        if at < last:
            slow = f"takes more than {PATIENCE:g} s of processor time"
            what = "is stuck" if stuck else slow if code == -signal.SIGPROF else f"kills the process ({code}): {tail}"
            with lock:
                report.violations.append((at, what))
            at += 1


def _follow(lines: queue.Queue[str | None], at: int, report: Report, lock: threading.Lock) -> tuple[bool, int]:
    """Read what a process says until it ends; return whether it is stuck and the mutant that it was at."""
    while True:
        try:
            line = lines.get(timeout=STUCK)
        except queue.Empty:
            return True, at
        if line is None:
            return False, at
        if not line.startswith("{"):
            continue
        message = json.loads(line)
        if "start" in message:
            at = message["start"]
            continue
        with lock:
            if "violation" in message:
                report.violations.append((message["seed"], message["violation"]))
            else:
                report.counts[message["outcome"]] += 1
        at = message["seed"] + 1


def _forward(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put(None)


def main(first: int, last: int) -> None:
    """Take a range of mutants and print what broke the rule."""
    from mutations import mutant

    began = time.monotonic()
    report = fuzz(first, last)
    for seed, what in report.violations:
        print(f"{seed}: {what}\n    [{mutant(seed).story}]")
    print(f"{len(report.violations)} violations, {time.monotonic() - began:.0f} s, {dict(report.counts)}")


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        work(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
