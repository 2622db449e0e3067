"""How fast are scores, structure and surgery? One command writes one Markdown table.

Batch 8×3×224×224 on two threads. Contenders run in turn, so that a disturbance hits all of them; medians are compared.

- *score*: dlprune, forward, loss, activation gradients and the scores of all kernels.
- *forward*: ONNX Runtime on the classifier's own file.
- *full backward*: PyTorch, forward and backward with the gradients of activations and weights, which Torch-Pruning's
  Taylor criterion needs; in evaluation mode, BatchNormalization as it comes.
- *structure and surgery*: find the units, remove 30 % of the kernels with all checks; beside it Torch-Pruning's graph
  building and pruning of the same network by magnitude.

Waiting threads do not spin on either side: they would take the processor from whatever runs next.

Needs torch, torchvision, timm and torch-pruning beside dlprune::

    python tests/benchmarks/speed.py zoo_dir speed.md                        # the five networks of the README
    python tests/benchmarks/speed.py zoo_dir speed.md resnet18 --repetitions 15
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from machine import medians, where
from topologies import build, export
from torch.nn import functional
from zoo import choice, fresh_analysis, peer_seconds

from dlprune.analysis import analysis_of
from dlprune.classifier import Classifier
from dlprune.criteria import Network
from dlprune.surgery import remove_units

BATCH, THREADS = 8, 2
NETWORKS = ("resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0", "densenet121")
HEAD = """| network | score ÷ ONNX Runtime forward | score ÷ PyTorch full backward | structure and surgery \
| Torch-Pruning |
|---|---|---|---|---|"""


def scoring(name: str, path: Path, repetitions: int) -> dict[str, float]:
    """Return the median seconds of the three contenders for scoring."""
    module, shape = build(name)
    classifier = Classifier.read(str(path))
    rng = np.random.default_rng(0)
    images = rng.standard_normal((BATCH, *shape)).astype(np.float32)
    labels = rng.integers(0, 1000, BATCH)
    graph = Network(classifier, analysis_of(classifier).structure, BATCH).score_graph()
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    forward = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    torch_images, torch_labels = torch.from_numpy(images), torch.from_numpy(labels)

    def full_backward() -> None:
        module.zero_grad(set_to_none=True)
        functional.cross_entropy(module(torch_images), torch_labels).backward()

    return medians(
        {
            "score": lambda: graph.run(images, labels),
            "forward": lambda: forward.run(None, {classifier.input_name: images}),
            "full backward": full_backward,
        },
        repetitions,
    )


def structure_and_surgery(name: str, path: Path, repetitions: int) -> dict[str, float]:
    """Return the median seconds of dlprune's and Torch-Pruning's way to the pruned network."""
    classifier = Classifier.read(str(path))
    shape = classifier.input_shape(1)

    def ours() -> None:
        found = fresh_analysis(classifier)
        gone = choice(found, 30)
        remove_units(classifier.model, found.facts, found.structure, gone, found.other_shapes)

    theirs = []
    ours()
    mine = []
    for _ in range(repetitions):
        start = time.perf_counter()
        ours()
        mine.append(time.perf_counter() - start)
        theirs.append(peer_seconds(name, shape))
    return {"ours": statistics.median(mine), "theirs": statistics.median(theirs)}


def main() -> None:
    """Measure, and write the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where topologies.py has written its files; missing ones are added")
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=NETWORKS)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--prunings", type=int, default=3, help="repetitions of structure and surgery")
    arguments = parser.parse_args()
    if "OMP_WAIT_POLICY" not in os.environ:
        # Read when PyTorch's OpenMP library is loaded, which has happened: begin anew.
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"OMP_WAIT_POLICY": "passive"})
    torch.set_num_threads(THREADS)
    title = (
        f"{where(('torch', 'torch-pruning'))}; {THREADS} threads, medians of {arguments.repetitions} alternating runs, "
        f"batch {BATCH}×3×224×224; structure and surgery in seconds, medians of {arguments.prunings}.\n\n{HEAD}\n"
    )
    arguments.out.write_text(title)
    for name in arguments.names:
        path = arguments.folder / f"{name}.onnx"
        if not path.exists():
            export(name, "torchscript", path)
        seconds = scoring(name, path, arguments.repetitions)
        removal = structure_and_surgery(name, path, arguments.prunings)
        score = seconds["score"]
        row = (
            f"| {name} | {score / seconds['forward']:.2f} | {score / seconds['full backward']:.2f} "
            f"| {removal['ours']:.2f} | {removal['theirs']:.2f} |"
        )
        print(row, {key: round(1000 * value) for key, value in seconds.items()}, flush=True)
        with arguments.out.open("a") as file:
            file.write(row + "\n")


if __name__ == "__main__":
    main()
