"""How time and memory grow with the number of images, the batch, the depth and the width of a network.

Residual networks of plain convolutions on images 3×32×32, each case in a process of its own; seconds of processor time,
so that other work does not count, and the peak of memory. The slope is that of a line through the logarithms: 1 means
proportional, 0 means that it does not grow. Needs nothing beside dlprune (and matplotlib for ``--plot``)::

    python tests/benchmarks/growth.py growth.md [--plot growth.png]
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

CLASSES = 10


@dataclass(frozen=True)
class Case:
    """Residual blocks, channels, images per batch, images in all, and their height and width."""

    depth: int = 10
    width: int = 16
    batch: int = 8
    images: int = 8
    size: int = 32


AXES = {"images": (8, 80, 800), "batch": (8, 32, 128), "depth": (10, 40, 160), "width": (16, 32, 64)}
WHAT = ("structure", "scoring", "surgery", "memory")


def network(case: Case) -> onnx.ModelProto:
    """Return a chain of residual blocks: 5 nodes each."""
    rng, weights = np.random.default_rng(0), []

    def weight(name: str, *shape: int) -> str:
        array = (rng.standard_normal(shape) * np.sqrt(1 / np.prod(shape[1:]))).astype(np.float32)
        weights.append(numpy_helper.from_array(array, name))
        return name

    w, pads = case.width, {"pads": [1, 1, 1, 1]}
    nodes = [helper.make_node("Conv", ["x", weight("stem", w, 3, 3, 3)], ["t0"], **pads)]
    for i in range(case.depth):
        nodes += [
            helper.make_node("Conv", [f"t{i}", weight(f"a{i}", w, w, 3, 3)], [f"p{i}"], **pads),
            helper.make_node("Relu", [f"p{i}"], [f"q{i}"]),
            helper.make_node("Conv", [f"q{i}", weight(f"b{i}", w, w, 3, 3)], [f"r{i}"], **pads),
            helper.make_node("Add", [f"r{i}", f"t{i}"], [f"s{i}"]),
            helper.make_node("Relu", [f"s{i}"], [f"t{i + 1}"]),
        ]
    nodes += [
        helper.make_node("GlobalAveragePool", [f"t{case.depth}"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", weight("head", CLASSES, w)], ["y"], transB=1),
    ]
    image = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 3, case.size, case.size])
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", CLASSES])
    graph = helper.make_graph(nodes, "chain", [image], [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure(case: Case) -> tuple[float, ...]:
    """Return processor seconds of structure, scoring (session included) and surgery, and the peak of memory in MB."""
    from dlprune.analysis import analysis_of
    from dlprune.classifier import Classifier
    from dlprune.criteria import Network, make_criterion
    from dlprune.selection import choose_units, removable_kernels
    from dlprune.surgery import remove_units

    classifier = Classifier.from_proto(network(case))
    classifier.derived.clear()
    times = [time.process_time()]
    found = analysis_of(classifier)
    times.append(time.process_time())
    scorer = make_criterion("oracle").scorer(Network(classifier, found.structure, case.batch))  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    scores = np.zeros(found.structure.unit_num)
    for _ in range(0, max(case.images, case.batch), case.batch):
        images = rng.standard_normal((case.batch, 3, case.size, case.size)).astype(np.float32)
        scores += scorer(images, np.full(case.batch, -1), case.batch)
    times.append(time.process_time())
    count = int(removable_kernels(found.structure) * 0.3)
    gone = choose_units(found.structure, scores, count)
    remove_units(classifier.model, found.facts, found.structure, gone, found.other_shapes)
    times.append(time.process_time())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (*np.diff(times), peak)


def slope(sizes: tuple[int, ...], values: list[float]) -> float:
    """Return the slope of a line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def main() -> None:
    """Measure all cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--quick", action="store_true", help="only the two smallest sizes of each")
    arguments = parser.parse_args()
    found: dict[str, list[tuple[float, ...]]] = {}
    lines = ["| | structure, s | scoring, s | surgery, s | memory, MB |", "|---|---|---|---|---|"]
    axes = {axis: sizes[:2] for axis, sizes in AXES.items()} if arguments.quick else AXES
    for axis, sizes in axes.items():
        found[axis] = []
        for size in sizes:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                row = pool.apply(measure, (replace(Case(), **{axis: size}),))
            found[axis].append(row)
            lines.append(f"| {axis} {size} | {row[0]:.2f} | {row[1]:.2f} | {row[2]:.2f} | {row[3]:.0f} |")
            print(lines[-1], file=sys.stderr, flush=True)
        slopes = (slope(sizes, [row[index] for row in found[axis]]) for index in range(len(WHAT)))
        lines.append(f"| *slope by {axis}* | " + " | ".join(f"{value:.2f}" for value in slopes) + " |")
    arguments.out.write_text("\n".join(lines) + "\n")
    if arguments.plot is not None:
        plot(axes, found, arguments.plot)


def plot(measured: dict[str, tuple[int, ...]], found: dict[str, list[tuple[float, ...]]], path: Path) -> None:
    """Draw all growths, each relative to its first case, on logarithmic axes."""
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator, NullLocator

    figure, axes = pyplot.subplots(1, len(measured), figsize=(12, 3), sharey=True, layout="constrained")
    for one, (axis, sizes) in zip(axes, measured.items(), strict=True):
        for index, what in enumerate(WHAT):
            one.loglog(sizes, [row[index] / found[axis][0][index] for row in found[axis]], marker="o", label=what)
        one.set_xlabel(axis)
        one.set_xticks(sizes, map(str, sizes))
        one.xaxis.set_minor_locator(NullLocator())
        one.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        one.yaxis.set_major_formatter("{x:g}")
        one.yaxis.set_minor_locator(NullLocator())
        one.grid(alpha=0.3)
    axes[0].set_ylabel("relative to the first")
    axes[0].legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
