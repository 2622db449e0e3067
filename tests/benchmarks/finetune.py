"""Is a pruned model as good after training with dlprune as after training with PyTorch? The same net, images, steps.

Every net of ``nets.py`` loses 50 % of its removable kernels (the five operators, default settings, 512 training images
scored), then the pruned file is trained three epochs, with the weights as they are in it (BatchNormalization folded):

- *dlprune*: ``finetune_dl_model``'s steps, inside ONNX Runtime;
- *PyTorch*: the same file as a torch module (``onnx_torch.py``), eagerly;
- *dlprune, distilled*: with the unpruned model's logits as soft targets.

Both sides see the same 4,000 images in the same order with the same learning rates: SGD, momentum 0.9, batches of 64,
one epoch of warm-up, cosine, no augmentation. Weights of the last epoch, full test set. They take their steps in turn,
so that a disturbance of the machine hits both; the ratio is the median over the pairs of steps.

Results are kept in ``finetune.json`` in the folder of the nets; what is there is not computed again. Needs torch beside
dlprune; on two cores about two minutes for each::

    python tests/benchmarks/finetune.py FOLDER [--nets resnet20 mobilenet vgg] [--images 4000]
    python tests/benchmarks/finetune.py FOLDER --table
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import onnx
import torch
from accuracy import SEEDS, Case
from onnx_torch import OnnxModule
from torch.nn import functional

import dlprune as ha
from dlprune.classifier import Classifier
from dlprune.handle import HHandle
from dlprune.model import unwrap_model
from dlprune.training.data import ArrayData
from dlprune.training.finetune import Plan, Progress, finetune
from dlprune.training.schedule import Schedule

NETS = ("resnet20", "mobilenet", "vgg")
PERCENTAGE = 50
BATCH = 64
EPOCHS = 3
MOMENTUM = 0.9
#: The highest learning rate, for all nets: small, as BatchNormalization is folded.
RATE = 0.003


def pruned_model(case: Case) -> tuple[HHandle, onnx.ModelProto]:
    """Return the original's handle and the pruned file."""
    original = ha.read_dl_model(str(case.path))
    ha.set_dl_model_param(original, "batch_size", BATCH)
    images, labels = case.calibration()
    samples = [
        ha.from_python_dict({"image": ha.himage_from_numpy_array(image[0]), "image_label_id": int(label)})
        for image, label in zip(images, labels, strict=True)
    ]
    pruned, _, _ = ha.prune_dl_model(original, samples, PERCENTAGE)
    return original, proto_of(pruned)


def proto_of(handle: HHandle) -> onnx.ModelProto:
    """Return what is written for a model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        ha.write_dl_model(handle, str(path))
        return onnx.load(path)


def handle_of(model: onnx.ModelProto) -> tuple[HHandle, Classifier]:
    """Read a model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        handle = ha.read_dl_model(str(path))
    return handle, unwrap_model(handle, 1)


class Peer:
    """PyTorch, step by step on the images that dlprune takes."""

    def __init__(self, model: onnx.ModelProto, data: ArrayData, plan: Plan) -> None:
        self.module = OnnxModule(model).train()
        self._data, self._plan = data, plan
        self._optimiser = torch.optim.SGD(self.module.parameters(), plan.learning_rate, momentum=MOMENTUM)
        steps = len(data.labels) // plan.batch
        self._schedule = Schedule(plan.learning_rate, plan.epochs * steps, round(plan.warmup * steps), plan.schedule)
        #: Seconds of every step.
        self.seconds: list[float] = []

    def step(self, epoch: int, step: int) -> None:
        """Take a step, both counted from 1."""
        start = time.perf_counter()
        order = np.random.default_rng([self._plan.seed, epoch]).permutation(len(self._data.labels))
        numbers = order[(step - 1) * self._plan.batch : step * self._plan.batch]
        images, labels = (torch.from_numpy(a[numbers]) for a in (self._data.pixels, self._data.labels))
        self._optimiser.param_groups[0]["lr"] = self._schedule.at(len(self.seconds))
        loss = functional.cross_entropy(self.module(images), labels)
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        self.seconds.append(time.perf_counter() - start)

    @torch.no_grad()
    def accuracy(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Return the percentage of images whose best class is the label."""
        self.module.eval()
        hits = sum(
            int(
                (
                    self.module(torch.from_numpy(images[start : start + 250])).argmax(1).numpy()
                    == labels[start : start + 250]
                ).sum()
            )
            for start in range(0, len(labels), 250)
        )
        return 100 * hits / len(labels)


class Turns:
    """Lets PyTorch take its step after each of dlprune's."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.seconds: list[float] = []
        self._start = time.perf_counter()

    def __call__(self, progress: Progress) -> None:
        """Note how long dlprune's step took; step with PyTorch."""
        self.seconds.append(time.perf_counter() - self._start)
        self._peer.step(progress.epoch, progress.step)
        self._start = time.perf_counter()

    def ratio(self) -> float:
        """Return the median of dlprune's times over PyTorch's; the first steps warm up."""
        pairs = zip(self.seconds[5:], self._peer.seconds[5:], strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


def compare(case: Case, rate: float, images: int) -> dict[str, Any]:
    """Train one net in all ways on so many images an epoch."""
    order = np.random.default_rng(1000 + case.seed).permutation(len(case.arrays["train_labels"]))
    chosen = order[:images]
    data = ArrayData(case.arrays["train_images"][chosen], case.arrays["train_labels"][chosen])
    test = case.arrays["test_images"], case.arrays["test_labels"]
    original, model = pruned_model(case)
    plan = Plan(epochs=EPOCHS, batch=BATCH, learning_rate=rate, seed=case.seed)
    found: dict[str, Any] = {"net": case.net, "seed": case.seed, "images": len(data.labels), "rate": rate}
    found["original"] = accuracy_of(unwrap_model(original, 1), *test)
    found["pruned"] = accuracy_of(handle_of(model)[1], *test)
    peer = Peer(model, data, plan)
    turns = Turns(peer)
    for name, teacher, progress in (("dlprune", None, turns), ("distilled", unwrap_model(original, 1), None)):
        handle, classifier = handle_of(model)
        ha.set_dl_model_param(handle, "momentum", MOMENTUM)
        finetune(classifier, plan, data, teacher=teacher, progress=progress)
        found[name] = accuracy_of(classifier, *test)
    found["PyTorch"] = peer.accuracy(*test)
    found["ratio"] = turns.ratio()
    return found


def accuracy_of(classifier: Classifier, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the percentage of images whose best class is the label."""
    parts = [classifier.logits(images[start : start + 250]).argmax(1) for start in range(0, len(labels), 250)]
    return 100 * float((np.concatenate(parts) == labels).mean())


COLUMNS = ("original", "pruned", "PyTorch", "dlprune", "distilled")


def print_table(results: Sequence[dict[str, Any]]) -> None:
    """Print means over the seeds."""
    print("| net (seeds) | " + " | ".join(COLUMNS) + " | step time ÷ PyTorch |\n" + "|---" * (len(COLUMNS) + 2) + "|")
    for net in NETS:
        rows = [row for row in results if row["net"] == net]
        if rows:
            cells = [f"{statistics.mean(row[column] for row in rows):.2f}" for column in COLUMNS]
            cells.append(f"{statistics.median(row['ratio'] for row in rows):.2f}")
            print(f"| {net} ({len(rows)}) | " + " | ".join(cells) + " |")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of nets.py")
    parser.add_argument("--nets", nargs="+", choices=NETS, default=NETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--images", type=int, default=4_000, help="training images per epoch, at most")
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--table", action="store_true", help="only print the table")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = options.results or options.folder / "finetune.json"
    results: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    for seed in () if options.table else options.seeds:
        for net in options.nets:
            case = Case(options.folder, net, seed)
            if any((row["net"], row["seed"]) == (net, seed) for row in results):
                continue
            results.append(compare(case, options.rate, options.images))
            path.write_text(json.dumps(results, indent=1))
            print(results[-1], flush=True)
    print_table(results)


if __name__ == "__main__":
    main()
