"""Structure and surgery of large networks: seconds of each phase, and its peak of memory against the bytes of weights.

Each network beside a smaller one of its kind: DenseNet-121 and -264, EfficientNet-B0 and -B7, and chains of residual
blocks of 1,024 channels with 0.25 and 1 GB of weights. The phases: read and check the file, find the structure, choose
30 % of the kernels and remove them with all checks, run the result once, write it.

Every network has a process of its own. The peak of a phase is the most that the process holds in it beyond what it held
before the first one, in bytes of all weights: with the model alone it is 1, with another one of the same size beside it
2. "Growth" compares a network with the smaller one: logarithm of the ratio of processor seconds over that of nodes, and
of weights; 1 means in proportion.

DenseNet and EfficientNet need torch and torchvision for the files that are missing in the folder. Results are kept in
``large.json`` there, what is there already is not measured again::

    python tests/benchmarks/large.py folder
    python tests/benchmarks/large.py folder chain_small chain_large
"""

from __future__ import annotations

import argparse
import json
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from growth import Case, network
from machine import Kept, Phases, alone, markdown, where

IMAGE = 224
PHASES = ("read", "structure", "surgery", "run", "write")


def torchvision_file(make: str, path: Path, **options: Any) -> None:
    """Export a network of torchvision without trained weights."""
    import torch
    import torchvision.models as tv

    torch.manual_seed(0)
    net = tv.DenseNet(**options) if make == "densenet" else tv.get_model(make, weights=None, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net.eval(),
            (torch.zeros(1, 3, IMAGE, IMAGE),),
            str(path),
            dynamo=False,
            opset_version=17,
            input_names=["image"],
            dynamic_axes={"image": {0: "batch"}},
        )


def chain_file(path: Path, depth: int) -> None:
    """Write a chain of residual blocks of two convolutions of 38 MB each, for small images."""
    onnx.save(network(Case(depth=depth, width=1024, size=8)), path)


NETWORKS: dict[str, Callable[[Path], None]] = {
    "densenet121": lambda path: torchvision_file("densenet121", path),
    "densenet264": lambda path: torchvision_file("densenet", path, block_config=(6, 12, 64, 48)),
    "efficientnet_b0": lambda path: torchvision_file("efficientnet_b0", path),
    "efficientnet_b7": lambda path: torchvision_file("efficientnet_b7", path),
    "chain_small": lambda path: chain_file(path, 3),
    "chain_large": lambda path: chain_file(path, 13),
}
#: Each network with the smaller one of its kind.
PAIRS = {"densenet264": "densenet121", "efficientnet_b7": "efficientnet_b0", "chain_large": "chain_small"}


def measure(path: Path) -> dict[str, Any]:
    """Go through all phases with one file."""
    from dlprune import onnxfile
    from dlprune.analysis import analysis_of
    from dlprune.classifier import Classifier
    from dlprune.selection import choose_units, removable_kernels
    from dlprune.surgery import remove_units

    phases = Phases()
    with phases.phase("read"):
        classifier = Classifier.read(str(path))
    with phases.phase("structure"):
        found = analysis_of(classifier)
    with phases.phase("surgery"):
        structure = found.structure
        values = np.random.default_rng(0).random(structure.unit_num)
        gone = choose_units(structure, values, int(removable_kernels(structure) * 0.3))
        model = remove_units(classifier.model, found.facts, structure, gone, found.other_shapes)
    with phases.phase("run"):
        pruned = classifier.with_model(model)
        pruned.confidences(np.zeros(pruned.input_shape(1), np.float32))
    pruned.weights_changed()  # the session goes
    written = path.with_suffix(".pruned.onnx")
    with phases.phase("write"):
        onnxfile.write(pruned.model, str(written))
    os.remove(written)
    return phases.entry() | {
        "nodes": len(classifier.model.graph),
        "weights": onnxfile.weight_bytes(classifier.model) / 1e6,
        "weights left": onnxfile.weight_bytes(pruned.model) / 1e6,
        "units": structure.unit_num,
    }


def table(kept: Kept, names: list[str]) -> str:
    """Return a row per network, and how seconds grow from the smaller to the larger one of a kind."""
    head = ["network", "nodes", "weights, MB", *(f"{phase}: s (peak)" for phase in PHASES)]
    rows = []
    for name in names:
        one = kept.found[name]
        cells = [
            f"{one['seconds'][phase]:.2f} ({(one['peaks'][phase] - one['before']) / one['weights']:.1f})"
            for phase in PHASES
        ]
        rows.append([name, f"{one['nodes']:,}", f"{one['weights']:.0f}", *cells])
    growth = []
    for large, small in PAIRS.items():
        if large in names and small in names:
            one, other = kept.found[large], kept.found[small]
            more = {what: math.log(one[what] / other[what]) for what in ("nodes", "weights")}
            cells = [
                " and ".join(f"{math.log(one[clock][phase] / other[clock][phase]) / more[what]:.1f}" for what in more)
                for clock, phase in (("processor", phase) for phase in PHASES)
            ]
            growth.append([f"*{large}: growth by nodes and weights*", "", "", *cells])
    return markdown(head, [*rows, *growth])


def main() -> None:
    """Measure what is missing and print the table, or measure a single file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the ONNX files are; missing ones are added")
    parser.add_argument("names", nargs="*", default=list(NETWORKS), metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--job", choices=("export", "measure"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.job:
        path = arguments.folder / f"{arguments.names[0]}.onnx"
        export = arguments.job == "export"
        print(json.dumps(NETWORKS[arguments.names[0]](path) if export else measure(path)))
        return
    kept = Kept(arguments.folder / "large.json", where())
    for name in arguments.names:
        if name in kept.found:
            continue
        if not (arguments.folder / f"{name}.onnx").exists():
            alone(__file__, arguments.folder, name, "--job", "export")
        kept.save(name, alone(__file__, arguments.folder, name, "--job", "measure"))
    print(f"{where()}; peaks of memory in bytes of all weights.\n\n{table(kept, list(arguments.names))}")


if __name__ == "__main__":
    main()
