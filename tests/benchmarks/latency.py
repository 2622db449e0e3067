"""Are pruned models faster? ONNX Runtime's time relative to the original, beside the multiply-accumulates left.

10, 20, … 70 % of the kernels leave by their L1 norm (random weights, nothing refitted: this is no matter of accuracy),
with 'kernel_multiple' 1, 8, 16 and 'auto'. One image at a time. The original and the models of one percentage run in
turn, so that a disturbance hits all; the ratio is the median over rounds. Waiting threads do not spin, or they would
take the processor from whatever runs next. With ``--threads 1`` the processor time of the thread counts, which other
work on the machine disturbs little.

Needs torch, torchvision and timm for the files that are missing in the folder. Results are kept in ``latency.json``
there, what is there already is not measured again::

    python tests/benchmarks/latency.py zoo_dir                      # four networks
    python tests/benchmarks/latency.py zoo_dir resnet18 --seconds 0.5 --percentages 10 30
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from machine import Kept, in_turn, markdown, ratio, where

import dlprune as ha
from dlprune.classifier import Classifier
from dlprune.cost import cost_of

NETWORKS = ("resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0")
PERCENTAGES = (10, 20, 30, 40, 50, 60, 70)
MULTIPLES: tuple[int | str, ...] = (1, 8, 16, "auto")
LEAST_ROUNDS, MOST_ROUNDS = 9, 200


def ensure(path: Path) -> None:
    """Export the network that a file is named after, unless the file is there."""
    if not path.exists():
        from topologies import export

        path.parent.mkdir(parents=True, exist_ok=True)
        export(path.stem, "torchscript", path)


def pruned_file(model: ha.HHandle, percentage: float, multiple: int | str, path: Path) -> None:
    """Write the model without so many percent of its kernels."""
    pruning = ha.create_dl_pruning(model, "l1", ha.from_python_dict({"compensation": "none"}))
    ha.set_dl_pruning_param(pruning, "percentage", percentage)
    ha.set_dl_pruning_param(pruning, "kernel_multiple", multiple)
    ha.write_dl_model(ha.gen_dl_pruned_model(model, pruning), str(path))


def run_of(path: Path, threads: int) -> Callable[[], object]:
    """Return a function that runs a file on one image of noise."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    shape = [size if isinstance(size, int) else 1 for size in entry.shape]
    feeds = {entry.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    return lambda: session.run(None, feeds)


def measure(
    path: Path, percentage: float, multiples: Sequence[int | str], seconds: float, threads: int
) -> dict[str, Any]:
    """Return for each multiple the time relative to the original, and the share of operations left."""
    model = ha.read_dl_model(str(path))
    before = cost_of(Classifier.read(str(path))).macs
    runs, macs = {"original": run_of(path, threads)}, {}
    with tempfile.TemporaryDirectory() as folder:
        for multiple in multiples:
            smaller = Path(folder) / f"{multiple}.onnx"
            pruned_file(model, percentage, multiple, smaller)
            macs[str(multiple)] = cost_of(Classifier.read(str(smaller))).macs / before
            runs[str(multiple)] = run_of(smaller, threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    round_seconds = sum(values[0] for values in in_turn(runs, 1, clock).values())
    rounds = min(max(int(seconds * len(runs) / round_seconds), LEAST_ROUNDS), MOST_ROUNDS)
    times = in_turn(runs, rounds, clock)
    original = times.pop("original")
    return {
        "rounds": rounds,
        "original seconds": statistics.median(original),
        "time": {name: ratio(values, original) for name, values in times.items()},
        "macs": macs,
    }


def table(kept: Kept, names: Sequence[str], percentages: Sequence[float], multiples: Sequence[int | str]) -> str:
    """Return a row per network and percentage: time and, behind it, operations left."""
    head = ["network", "kernels removed", *(f"multiple {multiple}: time (MACs)" for multiple in multiples)]
    rows = []
    for name in names:
        for percentage in percentages:
            entry = kept.found.get(f"{name} {percentage:g}")
            if entry:
                cells = [f"{entry['time'][str(m)]:.2f} ({entry['macs'][str(m)]:.2f})" for m in multiples]
                rows.append([name, f"{percentage:g} %", *cells])
    return markdown(head, rows)


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where topologies.py has written its files; missing ones are added")
    parser.add_argument("names", nargs="*", default=NETWORKS)
    parser.add_argument("--percentages", type=float, nargs="+", default=PERCENTAGES)
    parser.add_argument("--multiples", nargs="+", default=MULTIPLES, type=lambda t: int(t) if t.isdecimal() else t)
    parser.add_argument("--seconds", type=float, default=1.0, help="about the time to spend on each model")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    kept = Kept(arguments.folder / "latency.json", where())
    for name in arguments.names:
        path = arguments.folder / f"{name}.onnx"
        ensure(path)
        for percentage in arguments.percentages:
            key = f"{name} {percentage:g}"
            if not kept.found.get(key, {}).get("time", {}).keys() >= set(map(str, arguments.multiples)):
                kept.save(key, measure(path, percentage, arguments.multiples, arguments.seconds, arguments.threads))
    print(
        f"{where()}; one image, {arguments.threads} threads, medians of ratios to the original, about "
        f"{arguments.seconds:g} s per model.\n"
    )
    print(table(kept, arguments.names, arguments.percentages, arguments.multiples))


if __name__ == "__main__":
    main()
