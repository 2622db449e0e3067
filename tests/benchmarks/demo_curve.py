"""Draw accuracy against the share of kernels removed for the embedded classifier: the picture of the README.

Scores with the 600 calibration images, shows the accuracy on the 600 test images, no training. Needs matplotlib; some
minutes::

    python tests/benchmarks/demo_curve.py [picture]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

import dlprune as ha
from dlprune.classifier import Classifier
from dlprune.cost import cost_of
from dlprune.demo import demo_images
from dlprune.model import unwrap_model

mpl.use("Agg")
from matplotlib import pyplot as plt

PICTURE = Path(__file__).resolve().parents[2] / "examples" / "accuracy.png"
PERCENTAGES = (10, 20, 30, 40, 50, 60, 70, 80)
BATCH_SIZE = 50
# Colours that colour-blind people can tell apart; the markers differ as well.
CURVES = {
    "least_squares": ("readers refitted (default)", "#0072B2", "o"),
    "bias": ("biases refitted only", "#E69F00", "s"),
    "none": ("plain removal", "#D55E00", "^"),
}


def accuracy(classifier: Classifier) -> float:
    """Return the share of the test images that are recognised."""
    images, labels = demo_images("test")
    pixels = images[:, np.newaxis].astype(np.float32) - 127
    return float(np.mean(classifier.confidences(pixels).argmax(axis=1) == labels))


def main(picture: Path = PICTURE) -> None:
    """Prune at every percentage in every way, print a table and draw it."""
    model = ha.read_dl_model(ha.demo_model_file())
    ha.set_dl_model_param(model, "batch_size", BATCH_SIZE)
    samples = ha.demo_samples("calibration")
    before = accuracy(unwrap_model(model, 1))
    macs = cost_of(unwrap_model(model, 1)).macs
    pruning = ha.create_dl_pruning(model, "oracle", [])
    for first in range(0, len(samples), BATCH_SIZE):
        ha.add_dl_pruning_batch(model, pruning, samples[first : first + BATCH_SIZE])

    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    print("| percentage | " + " | ".join(f"{title} (MACs)" for title, _, _ in CURVES.values()) + " |")
    columns = []
    for method, (title, colour, marker) in CURVES.items():
        ha.set_dl_pruning_param(pruning, "compensation", method)
        x, y, cells = [0.0], [100 * before], []
        for percentage in PERCENTAGES:
            ha.set_dl_pruning_param(pruning, "percentage", percentage)
            pruned = unwrap_model(ha.gen_dl_pruned_model(model, pruning), 1)
            x.append(float(ha.get_dl_pruning_param_s(pruning, "pruned_percentage")))
            y.append(100 * accuracy(pruned))
            cells.append(f"{y[-1]:.2f} % ({100 * cost_of(pruned).macs / macs:.0f} %)")
        columns.append(cells)
        axes.plot(x, y, color=colour, marker=marker, label=title, linewidth=2)
    for percentage, *cells in zip(PERCENTAGES, *columns, strict=True):
        print(f"| {percentage} | " + " | ".join(cells) + " |")
    axes.set(xlabel="removable kernels removed, %", ylabel="accuracy on test images, %", ylim=(0, 102), xlim=(0, 82))
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", frameon=False)
    figure.savefig(picture, dpi=110)
    print(f"written: {picture}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
