"""Rank correlation of the oracle score, and of cheaper or dearer ones, with switching every unit off in turn.

For each trained net of nets.py the modes of ``create_dl_pruning`` score the same images; the truth is 'exact_oracle':
the mean absolute change of a sample's loss when one unit is taken out. Images are drawn from the training set and, for
comparison, from the test set (nothing is chosen by the result)::

    python tests/benchmarks/correlation.py FOLDER --nets resnet20 vgg mobilenet --seeds 0 1 2

Prints a Markdown table with mean and range over the seeds. ResNet-20 takes about a minute per seed and set of images.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np
from accuracy import NETS, SEEDS, Case

import dlprune as ha

MODES = ("oracle", "linear_logits", "l2", "random")
BATCH = 64


def scored(case: Case, mode: str, images: np.ndarray, labels: np.ndarray) -> ha.HHandle:
    """Return a pruning handle that has seen all images."""
    model = ha.read_dl_model(str(case.path))
    ha.set_dl_model_param(model, "batch_size", BATCH)
    pruning = ha.create_dl_pruning(model, mode, [])
    for start in range(0, len(images), BATCH):
        samples = []
        for image, label in zip(images[start : start + BATCH], labels[start : start + BATCH], strict=True):
            sample = ha.create_dict()
            ha.set_dict_object(ha.himage_from_numpy_array(image[0]), sample, "image")
            ha.set_dict_tuple(sample, "image_label_id", int(label))
            samples.append(sample)
        ha.add_dl_pruning_batch(model, pruning, samples)
    return pruning


def images_of(case: Case, source: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = case.arrays[f"{source}_images"], case.arrays[f"{source}_labels"]
    chosen = np.random.default_rng(case.seed).choice(len(images), number, replace=False)
    return images[chosen], labels[chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=NETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--images", type=int, default=512)
    options = parser.parse_args()
    print("| net | images | " + " | ".join(f"'{mode}'" for mode in MODES) + " |")
    print("|---" * (2 + len(MODES)) + "|")
    for net in options.nets:
        for source in ("train", "test"):
            found: dict[str, list[float]] = {mode: [] for mode in MODES}
            for seed in options.seeds:
                case = Case(options.folder, net, seed)
                images, labels = images_of(case, source, options.images)
                truth = scored(case, "exact_oracle", images, labels)
                for mode in MODES:
                    result = ha.compare_dl_pruning_scores(scored(case, mode, images, labels), truth)
                    found[mode].append(float(ha.get_dict_tuple_s(result, "correlation")))
            cells = [
                f"{statistics.mean(values):.3f} ({min(values):.3f}–{max(values):.3f})" for values in found.values()
            ]
            print(f"| {net} | {options.images} of {source} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
