"""A whole job on ResNet-50 beside Torch-Pruning: seconds, passes of the images, peak memory.

- *dlprune*: read the ONNX file, score all images in batches of 8, prune 30 % of the kernels with the default settings
  (least squares), write, check (ONNX's checker, and a run of the written file).
- *Torch-Pruning*: read the module, trace it, sum up gradients over the same images (forward and full backward, batches
  of 8) for its Taylor importance, prune 30 %, export to ONNX.

Each works in a fresh process; imports are not counted, the peak is that of the process (VmHWM). A *pass* is what one
forward run of ONNX Runtime over the same images takes, in a process of its own: before and after Torch-Pruning's job,
and before and after scoring and each step of dlprune's, which waits meanwhile (the speed of a shared machine drifts).
The pruning goes in steps; what is not in a step is the look at the original before, and the run of the result.

Needs torch, torchvision, timm and torch-pruning. Results are kept in ``whole_job.json`` in the folder, what is there
already is not measured again::

    python tests/benchmarks/whole_job.py zoo_dir
    python tests/benchmarks/whole_job.py zoo_dir --images 16 --name resnet18
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from machine import Kept, Phases, alone, markdown, where

BATCH, THREADS, PERCENTAGE, CLASSES = 8, 2, 30, 1000
SHAPE = (3, 224, 224)


def prepare(folder: Path, name: str, number: int) -> Phases:
    """Write the network, as an ONNX file and as a module, and images with labels, unless they are there."""
    import torch
    from topologies import build, export

    phases = Phases()
    with phases.phase("prepare"):
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / f"{name}.onnx").exists():
            export(name, "torchscript", folder / f"{name}.onnx")
        torch.save(build(name)[0], folder / f"{name}.pt")
        rng = np.random.default_rng(0)
        with (folder / f"images{number}.bin").open("wb") as stream:
            for _ in range(number):
                stream.write(rng.standard_normal(SHAPE).astype(np.float32).tobytes())
    return phases


def batches(folder: Path, number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Read images batch by batch; labels are drawn."""
    labels = np.random.default_rng(1).integers(0, CLASSES, number)
    size = int(np.prod(SHAPE))
    with (folder / f"images{number}.bin").open("rb") as stream:
        for start in range(0, number, BATCH):
            count = min(BATCH, number - start)
            yield np.fromfile(stream, np.float32, count * size).reshape(count, *SHAPE), labels[start : start + count]


def forward(folder: Path, name: str, number: int) -> Phases:
    """Run the network over all images."""
    import onnxruntime as ort

    phases, options = Phases(), ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
    feed = session.get_inputs()[0].name
    session.run(None, {feed: next(batches(folder, number))[0]})
    with phases.phase("pass"):
        for images, _ in batches(folder, number):
            session.run(None, {feed: images})
    return phases


def ours(folder: Path, name: str, number: int) -> Phases:
    """Do the job with dlprune's operators."""
    import onnx
    import onnxruntime as ort

    import dlprune as ha
    from dlprune.handle import new_handle, unwrap
    from dlprune.model import unwrap_model
    from dlprune.pruningdata import PruningData
    from dlprune.removal import generate

    passes: list[float] = []

    def look_at_clock(*_: object) -> None:
        passes.append(alone(__file__, *settings(folder, name, number), "forward")["seconds"]["pass"])

    phases, written = Phases(), folder / f"{name}_pruned.onnx"
    with phases.phase("read"):
        model = ha.read_dl_model(str(folder / f"{name}.onnx"))
        ha.set_dl_model_param(model, "batch_size", BATCH)
        pruning = ha.create_dl_pruning(model, "oracle", [])
        ha.set_dl_pruning_param(pruning, "percentage", PERCENTAGE)
    look_at_clock()
    with phases.phase("score"):
        for images, labels in batches(folder, number):
            samples = [
                ha.from_python_dict(
                    {
                        "image": ha.himage_from_numpy_array(np.ascontiguousarray(image.transpose(1, 2, 0))),
                        "image_label_id": int(label),
                    }
                )
                for image, label in zip(images, labels, strict=True)
            ]
            ha.add_dl_pruning_batch(model, pruning, samples)
    look_at_clock()
    data = unwrap(pruning, "dl_pruning", PruningData, 1)
    with phases.phase("prune"):
        result, _ = generate(unwrap_model(model, 1), data, watch=look_at_clock)
        pruned = new_handle("dl_model", result)
    with phases.phase("write"):
        ha.write_dl_model(pruned, str(written))
    with phases.phase("check"):
        onnx.checker.check_model(str(written), full_check=True)
        session = ort.InferenceSession(str(written), providers=["CPUExecutionProvider"])
        session.run(None, {session.get_inputs()[0].name: np.zeros((1, *SHAPE), np.float32)})
    steps = [float(step["seconds"]) for step in data.history]
    phases.seconds["prune"] -= sum(passes[2:])
    phases.seconds["beside steps"] = phases.seconds["prune"] - sum(steps)
    phases.seconds |= {f"step {index}": seconds for index, seconds in enumerate(steps, 1)}
    phases.seconds |= {f"pass {index}": seconds for index, seconds in enumerate(passes)}
    return phases


def theirs(folder: Path, name: str, number: int) -> Phases:
    """Do the job with PyTorch and Torch-Pruning."""
    import warnings

    import torch
    import torch_pruning as tp
    from torch.nn import functional

    torch.set_num_threads(THREADS)
    phases = Phases()
    with phases.phase("read"):
        net = torch.load(folder / f"{name}.pt", weights_only=False)
    with phases.phase("trace"):
        pruner = tp.pruner.BasePruner(
            net,
            torch.zeros(1, *SHAPE),
            importance=tp.importance.GroupTaylorImportance(),
            global_pruning=True,
            pruning_ratio=PERCENTAGE / 100,
            ignored_layers=[module for module in net.modules() if isinstance(module, torch.nn.Linear)],
        )
    with phases.phase("score"):
        for images, labels in batches(folder, number):
            loss = functional.cross_entropy(net(torch.from_numpy(images)), torch.from_numpy(labels), reduction="sum")
            (loss / number).backward()
    with phases.phase("prune"):
        pruner.step()
    with phases.phase("write"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.zero_grad()
        torch.onnx.export(
            net,
            (torch.zeros(2, *SHAPE),),
            str(folder / f"{name}_torch_pruned.onnx"),
            dynamo=False,
            opset_version=17,
            input_names=["image"],
            dynamic_axes={"image": {0: "batch"}},
        )
    return phases


PHASES = ("read", "trace", "score", "prune", "write", "check")
JOBS: dict[str, Callable[[Path, str, int], Phases]] = {
    "prepare": prepare,
    "forward": forward,
    "dlprune": ours,
    "Torch-Pruning": theirs,
}
#: The forward pass is the measure of the job between; dlprune's has passes of its own.
ORDER = ("dlprune", "forward", "Torch-Pruning", "forward again")


def settings(folder: Path, name: str, number: int) -> tuple[object, ...]:
    """Return the arguments of a job, but for which."""
    return folder, "--name", name, "--images", number, "--job"


def amount(seconds: float | None, unit: float) -> tuple[str, str]:
    """Return seconds, and how many passes that is."""
    return ("–", "–") if seconds is None else (f"{seconds:.2f}", f"{seconds / unit:.1f}")


def table(kept: Kept, name: str, number: int) -> str:
    """Return seconds and passes of every phase of both, and their memory."""
    mine, first, peer, second = (kept.found[f"{name} {number} {what}"] for what in ORDER)
    seconds = mine["seconds"]
    passes = [seconds[key] for key in seconds if key.startswith("pass")]
    around = [statistics.mean(pair) for pair in pairwise(passes)]
    steps = [key for key in seconds if key.startswith("step")]
    theirs_unit = statistics.mean(one["seconds"]["pass"] for one in (first, second))
    units = {"score": around[0], **dict(zip(steps, around[1:], strict=True))}
    rows = []
    for phase in (*PHASES[:4], "beside steps", *steps, *PHASES[4:]):
        own, other = (one["seconds"].get(phase) for one in (mine, peer))
        texts = [*amount(own, units.get(phase, statistics.mean(passes))), *amount(other, theirs_unit)]
        rows.append([f"*{phase}*" if "step" in phase else phase, *texts])
    totals = [sum(one["seconds"].get(phase, 0.0) for phase in PHASES) for one in (mine, peer)]
    rows.append(["**all**", *(text for total in totals for text in (f"{total:.1f}", ""))])
    for what, value in (("peak memory, MB", lambda one: one["peak"]), ("of it imports, MB", lambda one: one["before"])):
        rows.append([what, *(text for one in (mine, peer) for text in (f"{value(one):.0f}", ""))])
    head = [f"{name}, {number} images", "dlprune, s", "passes", "Torch-Pruning, s", "passes"]
    taken = [seconds[step] / units[step] for step in steps]
    notes = [
        f"A pass takes {min(passes):.1f} to {max(passes):.1f} s beside dlprune, {theirs_unit:.1f} s beside the peer.",
        f"A step of pruning takes {statistics.mean(taken):.1f} passes in the mean, {max(taken):.1f} at most.",
        f"dlprune ÷ Torch-Pruning: time {totals[0] / totals[1]:.2f}, memory {mine['peak'] / peer['peak']:.2f}.",
    ]
    return "\n".join([markdown(head, rows), "", *notes])


def main() -> None:
    """Measure what is missing and print the table, or do a single job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where topologies.py has written its files; missing ones are added")
    parser.add_argument("--name", default="resnet50", help="a network of topologies.py with images of 224×224")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(JOBS[arguments.job](arguments.folder, arguments.name, arguments.images).entry()))
        return
    place = where(("torch", "torch-pruning"))
    kept = Kept(arguments.folder / "whole_job.json", place)
    job = settings(arguments.folder, arguments.name, arguments.images)
    missing = [what for what in ORDER if f"{arguments.name} {arguments.images} {what}" not in kept.found]
    for what in ["prepare", *missing] if missing else []:
        found = alone(__file__, *job, what.removesuffix(" again"))
        if what != "prepare":
            kept.save(f"{arguments.name} {arguments.images} {what}", found)
    print(f"{place}; {THREADS} threads.\n\n{table(kept, arguments.name, arguments.images)}")


if __name__ == "__main__":
    main()
