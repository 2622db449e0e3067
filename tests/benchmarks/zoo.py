"""Structure and surgery on real topologies: what can be pruned, whether it is exact, and how long it takes.

Reads the files that topologies.py writes. Where torch, torchvision, timm and torch-pruning (tried with 1.6.1) are
installed, Torch-Pruning builds its dependency graph for the same network and prunes as many percent by magnitude, in
turn with dlprune; its time covers what ours does: find the structure, and remove::

    python tests/benchmarks/topologies.py zoo_dir
    python tests/benchmarks/zoo.py zoo_dir                  # all
    python tests/benchmarks/zoo.py zoo_dir resnet18 dla34   # some

Kernels are chosen by random scores: this is no matter of accuracy. "error" is the largest difference of the logits
between the network pruned by 30 % and the original with masked consumers, relative to the largest logit.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from exactness import masked, run

from dlprune.analysis import Analysis, analysis_of
from dlprune.classifier import Classifier
from dlprune.cost import cost_of
from dlprune.selection import Mask, choose_units, removable_kernels
from dlprune.surgery import remove_units

REPETITIONS = 3
HAS_PEER = importlib.util.find_spec("torch_pruning") is not None


def fresh_analysis(classifier: Classifier) -> Analysis:
    """Find the structure anew."""
    classifier.derived.clear()
    return analysis_of(classifier)


def choice(found: Analysis, percentage: float) -> Mask:
    """Choose units by random scores."""
    structure = found.structure
    values = np.random.default_rng(0).random(structure.unit_num)
    return choose_units(structure, values, int(removable_kernels(structure) * percentage / 100))


def error_of(classifier: Classifier, found: Analysis, gone: Mask, pruned: Any) -> float:
    """Return the relative difference to the masked original on noise."""
    images = np.random.default_rng(1).standard_normal(classifier.input_shape(2)).astype(np.float32)
    truth = masked(classifier.model, found.facts, found.structure, gone)
    expected, actual = (run(model, images, classifier.logits_name) for model in (truth, pruned))
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def peer_seconds(name: str, size: int) -> float:
    """Return the seconds that Torch-Pruning takes to build its graph and prune 30 %."""
    import torch
    import torch_pruning as tp
    from topologies import TOPOLOGIES

    net = TOPOLOGIES[name].build().eval()
    example = torch.randn(1, 3, size, size)
    heads = [module for module in net.modules() if isinstance(module, torch.nn.Linear) and module.out_features == 1000]
    start = time.perf_counter()
    pruner = tp.pruner.MagnitudePruner(
        net, example, tp.importance.GroupMagnitudeImportance(), pruning_ratio=0.3, ignored_layers=heads
    )
    pruner.step()
    return time.perf_counter() - start


def row(path: Path) -> str:
    """Measure one file."""
    classifier = Classifier.read(str(path))
    seconds, peer = [], []
    name = path.name.removesuffix(".onnx").removesuffix(".dynamo")
    problem = ""
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        found = fresh_analysis(classifier)
        gone = choice(found, 30)
        pruned = remove_units(classifier.model, found.facts, found.structure, gone, found.other_shapes)
        seconds.append(time.perf_counter() - start)
        if HAS_PEER and not problem and ".dynamo" not in path.name:
            try:
                peer.append(peer_seconds(name, classifier.params.image_height))
            except Exception as error:  # whatever the peer stumbles over belongs into the table
                problem = f"fails ({type(error).__name__})"
    structure = found.structure
    before = cost_of(classifier)
    shares = []
    for percentage in (30, 50):
        mask = choice(found, percentage)
        smaller = remove_units(classifier.model, found.facts, structure, mask, found.other_shapes)
        after = cost_of(classifier.with_model(smaller))
        shares.append(f"{after.parameters / before.parameters:.0%} / {after.macs / before.macs:.0%}")
    ours = statistics.median(seconds)
    theirs = problem or (f"{statistics.median(peer):.2f}" if peer else "–")
    prunable = sum(not layer.reason for layer in structure.layers)
    cells = [
        path.name.removesuffix(".onnx"),
        f"{prunable} / {len(structure.layers)}",
        str(removable_kernels(structure)),
        *shares,
        f"{error_of(classifier, found, gone, pruned):.0e}",
        f"{ours:.2f}",
        theirs,
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    head = ["network", "convolutions prunable", "kernels removable", "parameters / MACs left at 30 %", "at 50 %"]
    head += ["error", "seconds", "Torch-Pruning, seconds"]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for path in sorted(arguments.folder.glob("*.onnx")):
        if not arguments.names or path.name.split(".")[0] in arguments.names:
            print(row(path), flush=True)


if __name__ == "__main__":
    main()
