"""One small network as PyTorch's exporters write it in their variants, for tests/exports.

Needs torch and onnxscript (tried with 2.14.1 and 0.7.2)::

    python tests/benchmarks/exports.py tests/exports
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from weights import randomise

CHANNELS, CLASSES, SIZE = 8, 5, 12


class Net(nn.Module):
    """A stem, a residual block with squeeze and excitation, a ShuffleNetV2 unit, a classifier of hidden features."""

    def __init__(self) -> None:
        super().__init__()
        half = CHANNELS // 2
        self.stem = nn.Sequential(nn.Conv2d(3, CHANNELS, 3, 2, 1, bias=False), nn.BatchNorm2d(CHANNELS), nn.ReLU())
        self.inner = nn.Sequential(nn.Conv2d(CHANNELS, 6, 1), nn.BatchNorm2d(6), nn.Hardswish())
        self.outer = nn.Sequential(nn.Conv2d(6, CHANNELS, 3, 1, 1), nn.BatchNorm2d(CHANNELS))
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(CHANNELS, 4, 1), nn.ReLU(), nn.Conv2d(4, CHANNELS, 1), nn.Sigmoid()
        )
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False),
            nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.SiLU(),
        )
        self.last = nn.Conv2d(CHANNELS, 7, 1)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.outer(self.inner(x))
        x = torch.relu(x + y * self.gate(y))
        kept, worked = x.chunk(2, dim=1)
        x = torch.cat([kept, self.branch(worked)], dim=1)
        n, c, h, w = x.size()
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        return self.head(torch.relu(self.last(x)).mean([2, 3]).flatten(1))


def drop_stack_traces(path: Path) -> None:
    """Take out where the exporter's Python files lay on the machine that it ran on."""
    model = onnx.load(path, load_external_data=False)
    for part in (*model.graph.node, *model.graph.value_info, *(n for f in model.functions for n in f.node)):
        for entry in [e for e in part.metadata_props if "stack_trace" in e.key]:
            part.metadata_props.remove(entry)
    path.write_bytes(model.SerializeToString())


def main(folder: Path) -> None:
    """Write every variant."""
    torch.manual_seed(0)
    net = Net()
    randomise(net, (3, SIZE, SIZE))
    net.eval()
    images = torch.randn(2, 3, SIZE, SIZE)
    names: dict[str, Any] = {"input_names": ["image"], "output_names": ["logits"]}
    batch = {"dynamic_axes": {"image": {0: "batch"}, "logits": {0: "batch"}}}
    sizes = {"dynamic_axes": {"image": {0: "batch", 2: "height", 3: "width"}, "logits": {0: "batch"}}}
    old: dict[str, dict[str, Any]] = {
        **{f"torchscript_opset{n}": {"opset_version": n, **batch} for n in (9, 11, 13, 17, 20)},
        "torchscript_fixed_batch": {"opset_version": 17},
        "torchscript_open_size": {"opset_version": 17, **sizes},
        "torchscript_unfolded": {"opset_version": 17, "do_constant_folding": False, **batch},
        "torchscript_batchnorm": {"opset_version": 17, "training": torch.onnx.TrainingMode.PRESERVE, **batch},
        "torchscript_inputs": {"opset_version": 9, "keep_initializers_as_inputs": True, **batch},
    }
    free = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    new: dict[str, dict[str, Any]] = {
        "dynamo_opset18": {"opset_version": 18, **free},
        "dynamo_opset20": {"opset_version": 20, **free},
        "dynamo_unoptimised": {"optimize": False, **free},
        "dynamo_external": {"external_data": True, **free},
    }
    folder.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, options in old.items():
            torch.onnx.export(net, (images,), str(folder / f"{name}.onnx"), dynamo=False, **names, **options)
        for name, options in new.items():
            options = {"external_data": False, "verbose": False, **options}
            torch.onnx.export(net, (images,), str(folder / f"{name}.onnx"), dynamo=True, **names, **options)
            drop_stack_traces(folder / f"{name}.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
