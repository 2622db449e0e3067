"""ResNet-18, ResNet-50 and MobileNetV2 in plain torch, layer by layer as torchvision has them.

For benchmarks against a torch release that no torchvision release fits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from weights import randomise


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution without bias, then BatchNormalization."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class ResidualBlock(nn.Module):
    """Convolutions around an identity or a projection: 3×3, 3×3, or with ``bottleneck`` 1×1, 3×3, 1×1."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            parts = [conv_norm(inputs, width, 1), conv_norm(width, width, 3, stride), conv_norm(width, outputs, 1)]
        else:
            parts = [conv_norm(inputs, width, 3, stride), conv_norm(width, outputs, 3)]
        self.parts = nn.ModuleList(parts)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for part in self.parts[:-1]:
            y = self.relu(part(y))
        y = self.parts[-1](y)
        y += self.shortcut(x)
        return self.relu(y)


def resnet(blocks: tuple[int, int, int, int], bottleneck: bool) -> nn.Sequential:
    """Return a ResNet for 1,000 classes with the given number of blocks in each stage."""
    layers: list[nn.Module] = [conv_norm(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for index in range(count):
            layers.append(ResidualBlock(inputs, width, 2 if stage and not index else 1, bottleneck))
            inputs = 4 * width if bottleneck else width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(inputs, 1000))


class InvertedResidual(nn.Module):
    """Expansion 1×1, depthwise 3×3, projection 1×1, and an identity around them where the shape stays."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [conv_norm(inputs, hidden, 1), nn.ReLU6(inplace=True)]
        layers += [conv_norm(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6(inplace=True)]
        self.layers = nn.Sequential(*layers, conv_norm(hidden, outputs, 1))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


def mobilenet_v2() -> nn.Sequential:
    """Return MobileNetV2 of width 1.0 for 1,000 classes."""
    layers: list[nn.Module] = [conv_norm(3, 32, 3, 2), nn.ReLU6(inplace=True)]
    inputs = 32
    settings = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for expansion, outputs, count, first_stride in settings:
        for index in range(count):
            layers.append(InvertedResidual(inputs, outputs, 1 if index else first_stride, expansion))
            inputs = outputs
    layers += [conv_norm(inputs, 1280, 1), nn.ReLU6(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(1280, 1000))


TOPOLOGIES: dict[str, Callable[[], nn.Module]] = {
    "ResNet-18": lambda: resnet((2, 2, 2, 2), bottleneck=False),
    "ResNet-50": lambda: resnet((3, 4, 6, 3), bottleneck=True),
    "MobileNetV2": mobilenet_v2,
}


def build(name: str) -> nn.Module:
    """Return the named network in evaluation mode with its weights drawn."""
    torch.manual_seed(0)
    module = TOPOLOGIES[name]()
    randomise(module, (3, 224, 224))
    return module.eval()
