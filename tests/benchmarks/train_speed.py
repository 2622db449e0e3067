"""How exact and how fast are training steps? dlprune (stock ONNX Runtime) against PyTorch, on the same nets.

- *gradients*: every weight's gradient on one batch, BatchNormalization frozen and in training mode, against PyTorch in
  double precision; the largest difference of an element, relative to the weight's largest gradient.
- *curves*: losses of 50 steps (SGD, momentum 0.9) on random images, beside PyTorch's; the yardstick is how far two
  layouts of PyTorch itself (NCHW and channels_last) drift apart.
- *speed*: one step of SGD with momentum (forward, backward, update), contenders in turn, so that a disturbance hits
  both; medians, and the ratio of paired steps. PyTorch runs eagerly. Two threads each. On both sides threads sleep when
  they wait: those of PyTorch would go on spinning in dlprune's turn.
- *alone*: as users run it, each in processes of its own, in turn; threads spin while they wait for the next operator
  (PyTorch: OMP_WAIT_POLICY=ACTIVE or as is the default, whichever is faster).
- *memory*: peak of the process while training with one of them alone (``--memory-of``).

Needs torch 2.13.0 (the peer) beside dlprune::

    python tests/benchmarks/train_speed.py [--nets ResNet-20 VGG] [--repetitions 15] [--threads 2]
"""

from __future__ import annotations

import argparse
import copy
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

if "--alone-of" not in sys.argv:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import nets
import numpy as np
import onnxruntime as ort
import torch
from topologies_torch import build
from torch import nn
from torch.nn import functional
from weights import randomise

from dlprune.classifier import Classifier
from dlprune.staticsession import static_session
from dlprune.training import runner
from dlprune.training.recipe import Rates
from dlprune.training.steps import recipe_of, train_step
from dlprune.training.trainer import trainer_of

MOMENTUM = 0.9
PARTS = ["gradients", "curves", "speed"]


@dataclass(frozen=True)
class Net:
    """A net, the shape of a batch, and a learning rate that suits its random weights."""

    make: Callable[[], nn.Module]
    shape: tuple[int, int, int, int]
    rate: float


def small(make: Callable[[], nn.Module]) -> nn.Module:
    """Return a net for 28×28 grey images with its weights drawn."""
    torch.manual_seed(0)
    module = make()
    randomise(module, (1, 28, 28))
    return module


NETS = {
    "ResNet-20": Net(lambda: small(nets.ResNet20), (64, 1, 28, 28), 0.01),
    "VGG": Net(lambda: small(nets.Vgg), (64, 1, 28, 28), 0.01),
    "MobileNetV3-like": Net(lambda: small(nets.MobileNetV3), (64, 1, 28, 28), 0.01),
    "ResNet-18": Net(lambda: build("ResNet-18"), (8, 3, 224, 224), 0.001),
    "MobileNetV2": Net(lambda: build("MobileNetV2"), (8, 3, 224, 224), 0.001),
}


def classifier_of(module: nn.Module, shape: tuple[int, ...]) -> Classifier:
    """Export a net with its BatchNormalization and read it."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "net.onnx"
        torch.onnx.export(
            copy.deepcopy(module).eval(),
            (torch.zeros(2, *shape[1:]),),
            str(path),
            dynamo=False,
            opset_version=17,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        )
        classifier = Classifier.read(str(path))
    classifier.set("batch_size", (shape[0],))
    return classifier


def batch_of(shape: tuple[int, ...], classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return random images and labels."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape).astype(np.float32), rng.integers(0, classes, shape[0])


def torch_gradients(
    module: nn.Module, images: np.ndarray, labels: np.ndarray, dtype: torch.dtype, *, training: bool
) -> dict[str, np.ndarray]:
    """Return the gradient of every parameter."""
    own = copy.deepcopy(module).to(dtype).train(training)
    functional.cross_entropy(own(torch.from_numpy(images).to(dtype)), torch.from_numpy(labels)).backward()
    return {name: parameter.grad.numpy() for name, parameter in own.named_parameters() if parameter.grad is not None}


def compare_gradients(net: Net) -> None:
    """Print the largest relative error of any element beside PyTorch in float32, for the middle one of five batches.

    Batches are small, and there are five: wherever the input of a ReLU is nearer to zero than rounding its gradient may
    flip, on either side, and with it all gradients before it.
    """
    module = net.make()
    shape = (4, *net.shape[1:])
    for training in (False, True):
        errors: dict[str, list[float]] = {"dlprune": [], "PyTorch float32": []}
        for seed in range(5):
            classifier = classifier_of(module, shape)
            images, labels = batch_of(shape, classifier.class_num, seed)
            classifier.set("batchnorm_frozen", ("false" if training else "true",))
            train_step(classifier, images, labels, rates=Rates(1.0, momentum=0.0))
            found = {name: -array for name, array in trainer_of(classifier).snapshot().states["velocity"].items()}
            single = torch_gradients(module, images, labels, torch.float32, training=training)
            truth = torch_gradients(module, images, labels, torch.float64, training=training)
            assert found.keys() == truth.keys(), found.keys() ^ truth.keys()
            errors["dlprune"].append(worst_error(found, truth))
            errors["PyTorch float32"].append(worst_error(single, truth))
        texts = [f"{who} {statistics.median(found):.1e} (at best {min(found):.1e})" for who, found in errors.items()]
        print(f"    largest gradient error, {'training BN' if training else 'frozen BN'}: {', '.join(texts)}")


def worst_error(gradients: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> float:
    """Return the largest difference of an element, relative to the weight's largest gradient."""
    largest = max(float(np.abs(gradient).max()) for gradient in truth.values())
    # A bias before a BatchNormalization has a gradient of zero but for rounding.
    return max(
        float(np.abs(gradient - gradients[name]).max()) / max(float(np.abs(gradient).max()), 1e-4 * largest)
        for name, gradient in truth.items()
    )


class Peer:
    """PyTorch's training step."""

    def __init__(self, module: nn.Module, rate: float, *, channels_last: bool = False) -> None:
        self.module = module.train()
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.module.to(memory_format=self.format)
        self.optimiser = torch.optim.SGD(self.module.parameters(), rate, momentum=MOMENTUM)

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Forward, backward, update; return the loss."""
        batch = torch.from_numpy(images).contiguous(memory_format=self.format)
        loss = functional.cross_entropy(self.module(batch), torch.from_numpy(labels))
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        return float(loss.detach())


def compare_curves(net: Net, steps: int) -> None:
    """Print how far losses of 50 steps are apart."""
    module = net.make()
    classifier = classifier_of(module, net.shape)
    peers = [Peer(copy.deepcopy(module), net.rate), Peer(copy.deepcopy(module), net.rate, channels_last=True)]
    rows = []
    for step in range(steps):
        images, labels = batch_of(net.shape, classifier.class_num, step % 8)
        mine = train_step(classifier, images, labels, rates=Rates(net.rate, MOMENTUM)).total_loss
        rows.append([mine, *(peer.step(images, labels) for peer in peers)])
    losses = np.array(rows)
    ours = np.abs(losses[:, 0] - losses[:, 1]) / losses[:, 1]
    theirs = np.abs(losses[:, 2] - losses[:, 1]) / losses[:, 1]
    print(
        f"    losses of {steps} steps: {losses[0, 1]:.3f} to {losses[-1, 1]:.3f}; relative difference to PyTorch NCHW, "
        f"largest and mean: dlprune {ours.max():.1e}, {ours.mean():.1e}; channels_last {theirs.max():.1e}, "
        f"{theirs.mean():.1e}"
    )


def compare_speed(net: Net, repetitions: int) -> None:
    """Print medians of alternating steps."""
    module = net.make()
    classifier = classifier_of(module, net.shape)
    images, labels = batch_of(net.shape, classifier.class_num)
    start = time.perf_counter()
    recipe, rates = recipe_of(classifier), Rates(1e-5, MOMENTUM)
    with patch.object(runner, "_session", lambda model: static_session(model, 0, planned_memory=False)):
        train_step(classifier, images, labels, recipe=recipe, rates=rates)
    first = time.perf_counter() - start
    peer = Peer(copy.deepcopy(module), 1e-5)
    runs: dict[str, Callable[[], object]] = {
        "dlprune": lambda: train_step(classifier, images, labels, recipe=recipe, rates=rates),
        "torch": lambda: peer.step(images, labels),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repetition in range(repetitions + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if repetition:
                times[name].append(1e3 * (time.perf_counter() - start))
    mine, theirs = times["dlprune"], times["torch"]
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    print(
        f"    ms per step, median (fastest): dlprune {statistics.median(mine):.1f} ({min(mine):.1f}), PyTorch "
        f"{statistics.median(theirs):.1f} ({min(theirs):.1f}); ratio {statistics.median(ratios):.2f} "
        f"({min(mine) / min(theirs):.2f}); first step {first:.1f} s"
    )


def time_alone(name: str, contender: str, repetitions: int) -> None:
    """Print the median milliseconds of one contender's steps."""
    run = _steps(NETS[name], contender)
    times = []
    for repetition in range(repetitions + 2):
        start = time.perf_counter()
        run()
        if repetition > 1:
            times.append(1e3 * (time.perf_counter() - start))
    print(statistics.median(times))


def compare_alone(name: str, repetitions: int, threads: int) -> None:
    """Print medians of three processes of each contender."""
    policies = {"dlprune": ["PASSIVE"], "PyTorch": ["ACTIVE", ""]}
    medians: dict[tuple[str, str], list[float]] = {}
    for _ in range(3):
        for contender, ways in policies.items():
            for way in ways:
                environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
                environment |= {"OMP_WAIT_POLICY": way} if way else {}
                command = [sys.executable, __file__, "--alone-of", name, contender]
                command += ["--repetitions", str(repetitions), "--threads", str(threads)]
                done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
                medians.setdefault((contender, way), []).append(float(done.stdout.split()[-1]))
    mine = statistics.median(medians["dlprune", "PASSIVE"])
    theirs = min(statistics.median(medians["PyTorch", way]) for way in policies["PyTorch"])
    print(f"    alone, ms per step: dlprune {mine:.1f}, PyTorch {theirs:.1f}; ratio {mine / theirs:.2f}")


def _steps(net: Net, contender: str) -> Callable[[], object]:
    """Return one contender's training step."""
    module = net.make()
    classifier = classifier_of(module, net.shape)
    images, labels = batch_of(net.shape, classifier.class_num)
    if contender == "dlprune":
        return lambda: train_step(classifier, images, labels, rates=Rates(1e-5, MOMENTUM))
    peer = Peer(module, 1e-5)
    return lambda: peer.step(images, labels)


def measure_memory(name: str, contender: str) -> None:
    """Train a few steps with one contender and print the peak memory of the process."""
    run = _steps(NETS[name], contender)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(4):
        run()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{name}, {contender}: peak {peak / 1024:.0f} MB, {(peak - before) / 1024:.0f} MB above the start")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--parts", nargs="+", choices=[*PARTS, "alone"], default=PARTS)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory-of", nargs=2, metavar=("NET", "CONTENDER"))
    parser.add_argument("--alone-of", nargs=2, metavar=("NET", "CONTENDER"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        measure_memory(*arguments.memory_of)
        return
    if arguments.alone_of:
        time_alone(*arguments.alone_of, arguments.repetitions)
        return
    print(
        f"{platform.machine()}, {arguments.threads} threads, torch {torch.__version__}, onnxruntime {ort.__version__}"
    )
    for name in arguments.nets:
        print(f"{name}, {'×'.join(map(str, NETS[name].shape))}")
        if "gradients" in arguments.parts:
            compare_gradients(NETS[name])
        if "curves" in arguments.parts:
            compare_curves(NETS[name], 50 if NETS[name].shape[2] < 100 else 10)
        if "speed" in arguments.parts:
            compare_speed(NETS[name], arguments.repetitions)
        if "alone" in arguments.parts:
            compare_alone(name, arguments.repetitions, arguments.threads)


if __name__ == "__main__":
    main()
