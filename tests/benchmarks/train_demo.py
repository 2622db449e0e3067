"""Train the embedded demo classifier and write ``dlprune/data/digits.onnx`` and ``dlprune/data/digits.npz``.

Provenance: scikit-learn's ``load_digits``, 1,797 handwritten digits of 8×8 pixels with 17 grey levels. It is the test
part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine Learning Repository,
CC BY 4.0), which scikit-learn distributes under its BSD licence. Here the images are enlarged to 16×16 (bilinear, the
17 levels kept). The network and its weights are this project's own work and under its licence.

The split is by a fixed permutation: 600 images to test, never seen in training; 1,197 to train, of which the first 600
are also embedded as calibration images. Images are stored as uint8 0…255; the classifier takes
``float32(image) - 127``, HALCON's default range −127…128.

Needs torch, onnx, scikit-learn and pillow (run with 2.14.1, 1.23.2, 1.9.1, 13.0.0); about three minutes on one core::

    python tests/benchmarks/train_demo.py
"""

from __future__ import annotations

import argparse
import io
import json
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

DATA = Path(__file__).resolve().parents[2] / "dlprune" / "data"
SIZE = 16
TEST, CALIBRATION = 600, 600


class ConvNorm(nn.Sequential):
    """Convolution without bias, then BatchNormalization."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs)


class Residual(nn.Module):
    """Two 3×3 convolutions around an identity, or around a projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first = ConvNorm(inputs, outputs, 3, stride)
        self.second = ConvNorm(outputs, outputs, 3)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, outputs, 1, stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.second(self.relu(self.first(x))) + self.shortcut(x))


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution and projection around an identity."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.expand = ConvNorm(channels, hidden, 1)
        self.depthwise = ConvNorm(hidden, hidden, 3, groups=hidden)
        self.project = ConvNorm(hidden, channels, 1)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.project(self.relu(self.depthwise(self.relu(self.expand(x)))))


class DigitsNet(nn.Module):
    """A small residual network: 16×16 grey image in, ten logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(1, 24, 3)
        self.relu = nn.ReLU()
        self.stage1 = Residual(24, 24)
        self.stage2 = Residual(24, 48, stride=2)
        self.stage3 = InvertedResidual(48, 144)
        self.stage4 = Residual(48, 56, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classes = nn.Linear(56, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.relu(self.stem(image))
        x = self.stage4(self.stage3(self.stage2(self.stage1(x))))
        return self.classes(self.pool(x).flatten(1))


def load_images() -> tuple[np.ndarray, np.ndarray]:
    """Return all digits as uint8 [N, 16, 16] and their labels, in the order of the split."""
    digits = load_digits()
    enlarged = [
        np.asarray(Image.fromarray(image.astype(np.float32)).resize((SIZE, SIZE), Image.Resampling.BILINEAR))
        for image in digits.images
    ]
    images = np.round(np.round(np.stack(enlarged)) * (255 / 16)).astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(images))
    return images[order], digits.target[order].astype(np.uint8)


def augment(images: Tensor) -> Tensor:
    """Turn, scale, shear and shift every image a little; the background keeps its value."""
    n = len(images)
    angle, shear = (torch.rand(2, n) - 0.5) * 0.45
    scale = 1 + (torch.rand(2, n) - 0.5) * 0.3
    shift = (torch.rand(2, n) - 0.5) * 0.3
    cos, sin = torch.cos(angle), torch.sin(angle)
    rows = torch.stack([cos * scale[0], -sin + shear, shift[0], sin, cos * scale[1], shift[1]], dim=1)
    grid = functional.affine_grid(rows.view(n, 2, 3), list(images.shape), align_corners=False)
    contrast = 1 + (torch.rand(n, 1, 1, 1) - 0.5) * 0.4
    # grid_sample fills with 0: the images are moved so that the background is 0.
    return functional.grid_sample(images + 127 / 128, grid, align_corners=False) * contrast - 127 / 128


def train(images: Tensor, labels: Tensor, epochs: int) -> DigitsNet:
    """Train on images scaled to −1…1, then fold the scale into the first weights: the result takes −127…128."""
    torch.manual_seed(0)
    net = DigitsNet()
    batch = 64
    steps = epochs * (len(images) // batch)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=0.1, total_steps=steps)
    # Smoothed labels keep the logits, and so the gradients that a pruning score needs, from dying out.
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images))[: len(images) // batch * batch].view(-1, batch):
            loss = loss_of(net(augment(images[chosen])), labels[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    with torch.no_grad():
        net.stem.conv.weight /= 128
    return net.eval()


def export(net: DigitsNet, path: Path) -> None:
    """Write the network with BatchNormalization left as it is, so that the demo shows how it is handled."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (torch.zeros(2, 1, SIZE, SIZE),),
            buffer,
            dynamo=False,
            opset_version=17,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        )
    model = onnx.load_from_string(buffer.getvalue())
    for node in model.graph.node:
        # The exporter's /stage1/first/conv/Conv becomes stage1.first.conv, /stage1/Add becomes stage1.Add.
        parts = node.name.strip("/").split("/")
        name = ".".join(parts if node.op_type in ("Add", "Flatten") else parts[:-1])
        # Identity nodes, by which the exporter shares equal initializers, come without a name.
        node.name = name or node.output[0]
    # What write_dl_model would add: the parameters of the model that are not HALCON's defaults.
    parameters = {"class_names": [str(digit) for digit in range(10)]}
    onnx.helper.set_model_props(model, {"dlprune": json.dumps({"version": 1, "parameters": parameters})})
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))


def main() -> None:
    """Train, report the accuracy and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=120)
    epochs = parser.parse_args().epochs
    torch.set_num_threads(1)
    images, labels = load_images()
    x = torch.from_numpy(images.astype(np.float32) - 127)[:, None]
    y = torch.from_numpy(labels.astype(np.int64))
    net = train(x[TEST:] / 128, y[TEST:], epochs)
    with torch.no_grad():
        correct = net(x).argmax(1) == y
    print(f"test accuracy {correct[:TEST].double().mean():.4f}, training {correct[TEST:].double().mean():.4f}")
    DATA.mkdir(exist_ok=True)
    export(net, DATA / "digits.onnx")
    np.savez_compressed(
        DATA / "digits.npz",
        calibration_images=images[TEST : TEST + CALIBRATION],
        calibration_labels=labels[TEST : TEST + CALIBRATION],
        test_images=images[:TEST],
        test_labels=labels[:TEST],
    )
    for path in (DATA / "digits.onnx", DATA / "digits.npz"):
        print(f"{path.name} {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
