"""Real classifier topologies as ONNX files, with weights that leave nothing trivial.

The networks come from torchvision and timm without pretrained weights; module ``weights`` says how theirs are drawn.

Needs torch, torchvision, timm, onnx and onnxscript (tried with 2.14.1, 0.29.1, 1.0.31, 1.23.2, 0.7.2)::

    python tests/benchmarks/topologies.py zoo_dir                    # everything, both exporters
    python tests/benchmarks/topologies.py zoo_dir resnet18 dla34     # some
"""

from __future__ import annotations

import argparse
import time
import warnings
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import timm
import torch
import torchvision.models as tv
from torch import nn
from weights import randomise

Exporter = Literal["torchscript", "dynamo"]

EXPORTERS: tuple[Exporter, ...] = ("torchscript", "dynamo")


@dataclass(frozen=True)
class Topology:
    """How to build one network and the height and width of its images."""

    build: Callable[[], nn.Module]
    size: int = 224


def _torchvision(name: str, size: int = 224, **options: Any) -> Topology:
    return Topology(lambda: tv.get_model(name, weights=None, **options), size)


def _timm(name: str) -> Topology:
    return Topology(lambda: timm.create_model(name, pretrained=False))


TOPOLOGIES: dict[str, Topology] = {
    "resnet18": _torchvision("resnet18"),
    "mobilenet_v2": _torchvision("mobilenet_v2"),
    "resnet50": _torchvision("resnet50"),
    "resnext50_32x4d": _torchvision("resnext50_32x4d"),
    "wide_resnet50_2": _torchvision("wide_resnet50_2"),
    "mobilenet_v3_small": _torchvision("mobilenet_v3_small"),
    "mnasnet1_0": _torchvision("mnasnet1_0"),
    "efficientnet_b0": _torchvision("efficientnet_b0"),
    "regnet_y_400mf": _torchvision("regnet_y_400mf"),
    "densenet121": _torchvision("densenet121"),
    "googlenet": _torchvision("googlenet", aux_logits=False, init_weights=False),
    "inception_v3": _torchvision("inception_v3", size=299, aux_logits=False, init_weights=False),
    "squeezenet1_1": _torchvision("squeezenet1_1"),
    "shufflenet_v2_x1_0": _torchvision("shufflenet_v2_x1_0"),
    "vgg11_bn": _torchvision("vgg11_bn"),
    "alexnet": _torchvision("alexnet"),
    "convnext_tiny": _torchvision("convnext_tiny"),
    "res2net50": _timm("res2net50_26w_4s"),
    "cspresnet50": _timm("cspresnet50"),
    "dla34": _timm("dla34"),
    "ghostnet_100": _timm("ghostnet_100"),
    "repvgg_a0": _timm("repvgg_a0"),
    "lcnet_100": _timm("lcnet_100"),
    "seresnet18": _timm("seresnet18"),
}


def build(name: str) -> tuple[nn.Module, tuple[int, int, int]]:
    """Return the named network in evaluation mode, with its weights drawn, and the shape (C, H, W) of one image."""
    topology = TOPOLOGIES[name]
    # A seed of the name's own: a network is the same whichever others are exported beside it.
    torch.manual_seed(zlib.crc32(name.encode()))
    module = topology.build()
    shape = (3, topology.size, topology.size)
    randomise(module, shape)
    return module.eval(), shape


def export(name: str, exporter: Exporter, path: Path | str) -> None:
    """Write the named network to ``path`` with a dynamic batch: opset 17 by TorchScript, the default one by dynamo."""
    module, shape = build(name)
    images = torch.randn(2, *shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "torchscript":
            torch.onnx.export(
                module,
                (images,),
                str(path),
                dynamo=False,
                opset_version=17,
                input_names=["image"],
                output_names=["logits"],
                dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
            )
        else:
            torch.onnx.export(
                module,
                (images,),
                str(path),
                dynamo=True,
                verbose=False,
                input_names=["image"],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )


def file_name(name: str, exporter: Exporter) -> str:
    """Return NAME.onnx for TorchScript, NAME.dynamo.onnx for dynamo."""
    return f"{name}.onnx" if exporter == "torchscript" else f"{name}.dynamo.onnx"


def export_all(folder: Path, names: Iterable[str], exporters: Iterable[Exporter]) -> None:
    """Write every missing file of the zoo into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    exporters = tuple(exporters)
    for name in names:
        for exporter in exporters:
            path = folder / file_name(name, exporter)
            if path.exists():
                continue
            start = time.perf_counter()
            export(name, exporter, path)
            print(f"{path.name:32} {time.perf_counter() - start:6.1f} s", flush=True)


def main() -> None:
    """Parse the command line and export."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(TOPOLOGIES), metavar="NAME", help=", ".join(TOPOLOGIES))
    parser.add_argument("--exporter", choices=EXPORTERS, action="append", help="default: both")
    arguments = parser.parse_args()
    export_all(arguments.folder, arguments.names, arguments.exporter or EXPORTERS)


if __name__ == "__main__":
    main()
