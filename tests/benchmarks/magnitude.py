"""Gradual magnitude pruning: accuracy and compressed size at 50, 75 and 87.5 per cent of zeros, beside PyTorch.

The table of TensorFlow's overview in kind. A net of ``nets.py`` with its BatchNormalization is trained on for some
epochs while a cubic schedule (PolynomialDecay from 0, over the first two thirds of the steps) zeroes its weights:

- *dlprune*: train steps in ONNX Runtime, ``update_pruning_step`` after each.
- *PyTorch*: the same weights, images in the same order, solver (Adam), learning rate (cosine) and schedule; masks by
  torch.topk over |w|, and weights multiplied by them after every step.
- *dense*: dlprune with the same training and no masks, so that the training itself is no part of the comparison.

What is measured: accuracy on the whole test set; share of zeros in the pruned weights; gzip of the written file, as a
multiple of the dense file as it is ("times smaller") and of its own gzip. Results are kept in ``magnitude.json`` in the
folder of the nets; what is there is not computed again. Points of accuracy that TensorFlow's InceptionV3 loses on
ImageNet are printed for comparison: 0.1, 2.0 and 3.5.

Needs torch 2.13.0 beside dlprune, and nets that ``nets.py`` has trained::

    python tests/benchmarks/magnitude.py FOLDER [--nets resnet20 vgg] [--seeds 0 1 2] [--epochs 6] [--images 20000]
    python tests/benchmarks/magnitude.py FOLDER --table
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nets import RECIPES, load_net
from torch import nn
from torch.nn import functional

import dlprune as ha
from dlprune.model import unwrap_model
from dlprune.sparsity import (
    PolynomialDecay,
    compressed_size,
    get_masks,
    prune_low_magnitude,
    strip_pruning,
    update_pruning_step,
)
from dlprune.training.schedule import Schedule
from dlprune.training.steps import rates_of, train_step

SPARSITIES = (0.5, 0.75, 0.875)
INCEPTION = {0.5: 0.1, 0.75: 2.0, 0.875: 3.5}
DENSE, OURS, PEER = "dense", "dlprune", "PyTorch"


@dataclass(frozen=True)
class Task:
    """What is trained: a net, a seed, and how."""

    net: str
    seed: int
    epochs: int
    batch: int
    rate: float
    images: int
    updates: int


@dataclass(frozen=True)
class Outcome:
    """What one run came to: accuracy in per cent, share of zeros, bytes plain and gzipped, seconds."""

    accuracy: float
    zeros: float
    plain: int
    gzip: int
    seconds: float


def batches(task: Task, arrays: dict[str, np.ndarray]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield step, images and labels; the order follows from the seed alone."""
    images, labels = arrays["train_images"], arrays["train_labels"]
    number = min(task.images or len(labels), len(labels))
    step = 0
    for epoch in range(task.epochs):
        order = np.random.default_rng([task.seed, epoch]).permutation(number)
        for start in range(0, number - task.batch + 1, task.batch):
            chosen = order[start : start + task.batch]
            yield step, images[chosen], labels[chosen]
            step += 1


def steps_of(task: Task, arrays: dict[str, np.ndarray]) -> int:
    """Return the number of steps."""
    number = min(task.images or len(arrays["train_labels"]), len(arrays["train_labels"]))
    return task.epochs * (number // task.batch)


def schedule_of(sparsity: float, steps: int, updates: int) -> PolynomialDecay:
    """Return the schedule: it ends on an update, after two thirds of the steps."""
    frequency = max(steps * 2 // 3 // updates, 1)
    return PolynomialDecay(0.0, sparsity, 0, frequency * updates, frequency=frequency)


def written(module: nn.Module, shape: tuple[int, ...], path: Path) -> None:
    """Export a net with its BatchNormalization."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            copy.deepcopy(module).eval(),
            (torch.zeros(2, *shape),),
            str(path),
            dynamo=False,
            opset_version=17,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        )


def run_ours(task: Task, module: nn.Module, arrays: dict[str, np.ndarray], sparsity: float | None) -> Outcome:
    """Train with dlprune, sparse or dense."""
    start = time.perf_counter()
    steps = steps_of(task, arrays)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        written(module, arrays["test_images"].shape[1:], path)
        handle = ha.read_dl_model(str(path))
        for name, value in {"batch_size": task.batch, "solver_type": "adam"}.items():
            ha.set_dl_model_param(handle, name, value)
        classifier = unwrap_model(handle, 1)
        rate = Schedule(task.rate, steps, 0, "cosine", [])
        pruning = None
        if sparsity is not None:
            pruning = prune_low_magnitude(handle, schedule_of(sparsity, steps, task.updates))
        rates = rates_of(classifier)
        for step, images, labels in batches(task, arrays):
            train_step(classifier, images, labels, rates=replace(rates, learning_rate=rate.at(step)))
            if pruning is not None:
                update_pruning_step(handle, pruning)
        zeros = 0.0
        if pruning is not None:
            masks = get_masks(pruning).values()
            zeros = 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.size for mask in masks)
            handle = strip_pruning(handle, pruning)
        ha.write_dl_model(handle, str(path))
        size = compressed_size(path)
        classifier = unwrap_model(handle, 1)
        tests, truth = arrays["test_images"], arrays["test_labels"]
        parts = range(0, len(truth), 500)
        right = sum(
            int((classifier.logits(tests[i : i + 500]).argmax(axis=1) == truth[i : i + 500]).sum()) for i in parts
        )
    return Outcome(100 * right / len(truth), zeros, size.plain, size.gzip, time.perf_counter() - start)


def run_torch(task: Task, module: nn.Module, arrays: dict[str, np.ndarray], sparsity: float) -> Outcome:
    """Train with PyTorch by the same schedule."""
    start = time.perf_counter()
    steps = steps_of(task, arrays)
    schedule, rate = schedule_of(sparsity, steps, task.updates), Schedule(task.rate, steps, 0, "cosine", [])
    net = copy.deepcopy(module).train()
    pruned = [
        layer.weight
        for layer in net.modules()
        if isinstance(layer, nn.Linear)
        or (isinstance(layer, nn.Conv2d) and not (layer.groups > 1 and layer.weight.shape[1] == 1))
    ]
    masks: list[torch.Tensor] = []
    solver = torch.optim.Adam(net.parameters(), task.rate)
    for step, images, labels in batches(task, arrays):
        solver.param_groups[0]["lr"] = rate.at(step)
        solver.zero_grad()
        functional.cross_entropy(net(torch.from_numpy(images)), torch.from_numpy(labels)).backward()
        solver.step()
        with torch.no_grad():
            if schedule.due(step + 1, None):
                wanted = schedule.sparsity(step + 1)
                masks = [top(weight, wanted) for weight in pruned]
            for weight, mask in zip(pruned, masks, strict=False):
                weight *= mask
    net.eval()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        tests, truth = torch.from_numpy(arrays["test_images"]), torch.from_numpy(arrays["test_labels"])
        right = sum(
            int((net(tests[i : i + 500]).argmax(1) == truth[i : i + 500]).sum()) for i in range(0, len(truth), 500)
        )
        path = Path(folder) / "net.onnx"
        written(net, arrays["test_images"].shape[1:], path)
        size = compressed_size(path)
    zeros = 1 - sum(float(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)
    return Outcome(100 * right / len(truth), zeros, size.plain, size.gzip, time.perf_counter() - start)


def top(weight: torch.Tensor, sparsity: float) -> torch.Tensor:
    """Return the mask of the largest weights."""
    number = max(round(weight.numel() * (1 - sparsity)), 1)
    mask = torch.zeros(weight.numel())
    mask[torch.topk(weight.abs().flatten(), number).indices] = 1
    return mask.reshape(weight.shape)


def print_table(results: dict[str, Any], names: list[str], seeds: list[int]) -> None:
    """Print means over the seeds, and the largest difference between two of them."""
    print("| net | zeros | InceptionV3 loses | method | accuracy | loses | gzip: times smaller than file, than gzip |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        dense = [results[f"{name}/{seed}/{DENSE}"] for seed in seeds if f"{name}/{seed}/{DENSE}" in results]
        if not dense:
            continue
        mean = statistics.mean(one["accuracy"] for one in dense)
        print(f"| {name} | 0 | | {DENSE} | {mean:.2f} | | {dense[0]['plain'] / dense[0]['gzip']:.2f}, 1 |")
        for sparsity in SPARSITIES:
            for method in (OURS, PEER):
                keys = [f"{name}/{seed}/{method}/{sparsity}" for seed in seeds]
                found = [results[key] for key in keys if key in results]
                if not found:
                    continue
                accuracies = [one["accuracy"] for one in found]
                reached = statistics.mean(accuracies)
                smaller = statistics.mean(dense[0]["plain"] / one["gzip"] for one in found)
                gzipped = statistics.mean(dense[0]["gzip"] / one["gzip"] for one in found)
                print(
                    f"| {name} | {100 * found[0]['zeros']:.1f} % | {INCEPTION[sparsity]} | {method} | {reached:.2f} "
                    f"(± {(max(accuracies) - min(accuracies)) / 2:.2f}) | {mean - reached:+.2f} | "
                    f"{smaller:.2f}, {gzipped:.2f} |"
                )


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nets", nargs="+", default=["resnet20", "vgg"], choices=sorted(RECIPES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--images", type=int, default=0, help="of the training set; 0 = all")
    parser.add_argument("--updates", type=int, default=40, help="of the masks, until the target is reached")
    parser.add_argument("--sparsities", nargs="+", type=float, default=list(SPARSITIES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="only print what is there")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    file = options.folder / "magnitude.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name in [] if options.table else options.nets:
        with np.load(options.folder / f"{RECIPES[name].data}.npz") as data:
            arrays = {key: data[key] for key in data.files}
        for seed in options.seeds:
            task = Task(name, seed, options.epochs, options.batch, options.rate, options.images, options.updates)
            module = load_net(options.folder, name, seed)
            todo: list[tuple[str, float | None]] = [(f"{name}/{seed}/{DENSE}", None)]
            todo += [(f"{name}/{seed}/{method}/{s}", s) for s in options.sparsities for method in (OURS, PEER)]
            for key, sparsity in todo:
                if key in results:
                    continue
                if sparsity is not None and f"/{PEER}/" in key:
                    outcome = run_torch(task, module, arrays, sparsity)
                else:
                    outcome = run_ours(task, module, arrays, sparsity)
                results[key] = asdict(outcome) | {"task": asdict(task)}
                print(f"{key}: {outcome}", flush=True)
                file.write_text(json.dumps(results, indent=1))
    print_table(results, options.nets, options.seeds)


if __name__ == "__main__":
    main()
