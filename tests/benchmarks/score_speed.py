"""How fast are scores? dlprune's score graph against PyTorch and against ONNX Runtime's plain forward pass.

One batch 8×3×224×224 on two threads. Contenders run in turn, so that a disturbance hits all of them; medians are
compared.

- *score*: dlprune, forward, loss, activation gradients and the scores of all kernels, in one ONNX graph.
- *full backward*: PyTorch, forward and backward with the gradients of activations and weights, as training needs them.
- *activation gradients*: PyTorch with frozen weights, forward and backward to every activation; no score is computed.
- *forward*: ONNX Runtime on the classifier's own file.

PyTorch runs the network in evaluation mode, as it comes (with BatchNormalization) or with ``--fold`` with
BatchNormalization folded into the convolutions, which its users rarely do. Waiting threads do not spin on either side:
where PyTorch's do, they take the cores from whatever runs next (2 to 8 times slower here beside other work).
The scores of both sides are compared as well: at this size the kinks of ReLU flip by rounding, so that either side
differs from a float64 computation by some 0.5 %. Then the seconds for structure and surgery of ResNet-50 follow.

Needs torch 2.13.0 (the peer) beside dlprune::

    python tests/benchmarks/score_speed.py [--repetitions 15] [--fold]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
from topologies_torch import build
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

import dlprune as ha
from dlprune.facts import gather_facts
from dlprune.scoregraph import ScoreGraph
from dlprune.structure import analyse

SHAPE = (8, 3, 224, 224)
THREADS = 2


def export(module: nn.Module, path: Path) -> None:
    """Write a network as the TorchScript exporter does, BatchNormalization folded, with a dynamic batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.zeros(2, *SHAPE[1:]),),
            str(path),
            dynamo=False,
            opset_version=17,
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        )


def fold(module: nn.Module) -> None:
    """Fold every BatchNormalization into its convolution but the first, whose output `activation_gradients` holds."""
    pairs = [layer for layer in module.modules() if isinstance(layer, nn.Sequential) and len(layer) == 2]
    for pair in pairs[1:]:
        conv, norm = pair
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            pair[0], pair[1] = fuse_conv_bn_eval(conv, norm), nn.Identity()


class TorchPeer:
    """Forward and backward of PyTorch for one batch."""

    def __init__(self, module: nn.Module, images: Tensor, labels: Tensor) -> None:
        self.module, self.images, self.labels = module, images, labels
        convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
        self.stem = convolutions[0]
        self.mixing: list[nn.Module] = [layer for layer in convolutions[1:] if layer.groups < layer.in_channels]
        self.mixing += [layer for layer in module.modules() if isinstance(layer, nn.Linear)]

    def full_backward(self) -> None:
        """Gradients of activations and weights."""
        self.module.requires_grad_(True)
        self.module.zero_grad(set_to_none=True)
        self._loss().backward()

    def activation_gradients(self) -> None:
        """Gradients of the activations alone: what the first convolution gives is the leaf, weights are frozen."""
        self.module.requires_grad_(False)
        hook = self.stem.register_forward_hook(lambda _layer, _inputs, output: output.requires_grad_())
        self._loss().backward()
        hook.remove()

    def scores(self) -> list[np.ndarray]:
        """Activation × gradient through each mixing layer alone, summed over space: [N, C], in order of execution."""
        self.module.requires_grad_(True)
        inputs: dict[nn.Module, Tensor] = {}
        found: dict[nn.Module, np.ndarray] = {}

        def keep_input(layer: nn.Module, arguments: tuple[Tensor, ...], _output: Tensor) -> None:
            # The next activation may overwrite its input in place, not this one.
            inputs[layer] = arguments[0].detach().clone()

        def score(layer: nn.Module, gradients: tuple[Tensor | None, ...], _outputs: tuple[Tensor, ...]) -> None:
            assert gradients[0] is not None
            terms = inputs[layer] * gradients[0]
            found[layer] = terms.reshape(*terms.shape[:2], -1).sum(2).numpy()

        hooks = [layer.register_forward_hook(keep_input) for layer in self.mixing]
        hooks += [layer.register_full_backward_hook(score) for layer in self.mixing]
        self._loss().backward()
        for hook in hooks:
            hook.remove()
        return [found[layer] for layer in inputs]

    def _loss(self) -> Tensor:
        # The sum: each sample's own loss, undivided.
        return functional.cross_entropy(self.module(self.images), self.labels, reduction="sum")


def medians(contenders: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Run all contenders in turn, the first two rounds unmeasured; return the median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repetitions + 2):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


@dataclass(frozen=True)
class Speed:
    """Median seconds by contender, and the greatest deviation of a layer's scores from PyTorch's, relative in norm."""

    seconds: dict[str, float]
    deviation: float


def measure(name: str, folder: Path, repetitions: int, folded: bool) -> Speed:
    """Measure one network."""
    module = build(name)
    path = folder / f"{name}.onnx"
    export(module, path)
    rng = np.random.default_rng(0)
    images = rng.standard_normal(SHAPE).astype(np.float32)
    labels = rng.integers(0, 1000, SHAPE[0])
    peer = TorchPeer(module, torch.from_numpy(images), torch.from_numpy(labels))

    model = ir.load(path)
    structure = analyse(model, gather_facts(model, {"image": SHAPE}))
    graph = ScoreGraph(model, "image", "logits", SHAPE, structure.consumers, threads=THREADS)
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    forward = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    ours = [term for term in graph.run(images, labels) if np.any(term)]
    theirs = peer.scores()
    if folded:
        fold(module)
    # Both lists follow the order of execution; those of the layer that reads the image are zero and left out.
    deviation = max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(ours, theirs, strict=True))
    seconds = medians(
        {
            "score": lambda: graph.run(images, labels),
            "full backward": peer.full_backward,
            "activation gradients": peer.activation_gradients,
            "forward": lambda: forward.run(None, {"image": images}),
        },
        repetitions,
    )
    return Speed(seconds, deviation)


def structure_and_surgery(folder: Path, name: str, repetitions: int) -> tuple[float, float]:
    """Return the median seconds of create_dl_pruning and of gen_dl_pruned_model at 30 percent."""
    path = folder / f"{name}.onnx"
    export(build(name), path)
    sample = ha.from_python_dict({"image_label_id": 0})
    image = np.random.default_rng(0).standard_normal((*SHAPE[2:], SHAPE[1])).astype(np.float32)
    ha.set_dict_object(ha.himage_from_numpy_array(image), sample, "image")
    structure, surgery = [], []
    for _ in range(repetitions):
        model = ha.read_dl_model(str(path))
        ha.set_dl_model_param(model, "batch_size", 1)
        start = time.perf_counter()
        pruning = ha.create_dl_pruning(model, "oracle", [])
        structure.append(time.perf_counter() - start)
        ha.add_dl_pruning_batch(model, pruning, [sample])
        ha.set_dl_pruning_param(pruning, "percentage", 30)
        start = time.perf_counter()
        ha.gen_dl_pruned_model(model, pruning)
        surgery.append(time.perf_counter() - start)
    return statistics.median(structure), statistics.median(surgery)


def processor() -> str:
    """Name the processor, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--fold", action="store_true", help="fold BatchNormalization for PyTorch, too")
    arguments = parser.parse_args()
    if "OMP_WAIT_POLICY" not in os.environ:
        # Read when PyTorch's OpenMP library is loaded, which has happened: begin anew.
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"OMP_WAIT_POLICY": "passive"})
    torch.set_num_threads(THREADS)
    print(
        f"{processor()}, {os.cpu_count()} cores, {THREADS} threads; Python {platform.python_version()}, "
        f"torch {torch.__version__}, onnxruntime {ort.__version__}, dlprune {ha.__version__}; "
        f"medians of {arguments.repetitions} alternating runs, batch {'×'.join(map(str, SHAPE))}, "
        f"PyTorch with BatchNormalization {'folded' if arguments.fold else 'as it comes'}\n"
    )
    print("| network | score | ÷ PyTorch full backward | ÷ PyTorch activation gradients | ÷ ORT forward | deviation |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in ("ResNet-18", "MobileNetV2"):
            speed = measure(name, folder, arguments.repetitions, arguments.fold)
            score = speed.seconds["score"]
            ratios = (score / speed.seconds[peer] for peer in ("full backward", "activation gradients", "forward"))
            cells = " | ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"| {name} | {1000 * score:.0f} ms | {cells} | {speed.deviation:.0e} |", flush=True)
        structure, surgery = structure_and_surgery(folder, "ResNet-50", min(5, arguments.repetitions))
    print(f"\nResNet-50: structure {structure:.2f} s, surgery with all checks {surgery:.2f} s.")


if __name__ == "__main__":
    main()
