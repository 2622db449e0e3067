"""Budgets that are no numbers of kernels: points of accuracy, and time; on the trained nets of nets.py.

- 'accuracy_drop' of one point: kernels removed, points lost on the held-out images and on the whole test set.
- 'latency' of 30 per cent: time left at batch size 1, medians of runs in turn with the original (on a quiet machine)::

    python tests/benchmarks/budgets.py FOLDER accuracy_drop --seeds 0 1 2
    python tests/benchmarks/budgets.py FOLDER latency --seeds 0

Scored on 1,024 training images. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from accuracy import NETS, SEEDS, Case, Ours

import dlprune as ha
from dlprune.classifier import Classifier
from dlprune.cost import latency

IMAGES = 1024


def row(case: Case, target: str, percentage: float) -> list[str]:
    """Prune one net within a budget and return what that came to."""
    ours = Ours(case, {"target": target, "percentage": percentage}, IMAGES)
    probe = ours.generate()

    def reached(name: str) -> float:
        return float(ha.get_dl_pruning_param_s(ours.pruning, name))

    lost = case.record["test_accuracy"] - case.accuracy(probe.model)
    cells = [f"{case.net} {case.seed}", f"{reached('pruned_percentage'):.1f} %"]
    if target == "accuracy_drop":
        return [*cells, f"{reached('target_reached'):.2f}", f"{lost:.2f}"]
    left = 100 * latency([Classifier.from_proto(model) for model in (case.model(), probe.model)], seconds=2.0).ratio
    return [*cells, f"{100 - reached('target_reached'):.1f} %", f"{left:.1f} %", f"{lost:.2f}"]


HEADS = {
    "accuracy_drop": ["net, seed", "kernels removed", "points lost, held-out images", "points lost, test set"],
    "latency": ["net, seed", "kernels removed", "time left, foreseen", "time left, measured", "points lost, test set"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", choices=list(HEADS))
    parser.add_argument("--percentage", type=float, help="default 1 point, or 30 per cent of the time")
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=NETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    options = parser.parse_args()
    percentage = options.percentage or {"accuracy_drop": 1, "latency": 30}[options.target]
    heads = HEADS[options.target]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for net in options.nets:
        for seed in options.seeds:
            print(
                "| " + " | ".join(row(Case(options.folder, net, seed), options.target, percentage)) + " |", flush=True
            )


if __name__ == "__main__":
    main()
