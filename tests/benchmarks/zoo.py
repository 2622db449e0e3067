"""Structure and surgery on real topologies beside Torch-Pruning and onnxsim: what can leave, is it right, how fast.

Reads the files that topologies.py writes; results are kept in ``zoo.json`` beside them::

    python tests/benchmarks/topologies.py FOLDER
    python tests/benchmarks/zoo.py FOLDER measure             # all networks
    python tests/benchmarks/zoo.py FOLDER time resnet18 dla34 # seconds of some, on a quiet machine
    python tests/benchmarks/zoo.py FOLDER table

Needs torch, torchvision, timm, torch-pruning and onnxsim (tried with 2.14.1, 0.29.1, 1.0.31, 1.6.0, 0.8.1).

- *dlprune*: kernels are chosen by random scores, this is no matter of accuracy. Both exporters' files are measured.
- *Torch-Pruning*: ``MagnitudePruner`` on the torch module with the same weights, 30 % of every layer but the class
  layer. Its seconds cover what ours do: find the structure, and remove.
- *onnxsim*: ``apply_structured_pruning`` at sparsity 0.3 on the TorchScript file.

Everybody's result is compared with the original whose consumers are masked for just the kernels that are gone: "error"
is the largest difference of the logits relative to the largest logit. A peer that removes a kernel and leaves others
that cannot be told from it any more (the other end of a sum) has no such truth: its result is wrong.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from exactness import Mask, assert_valid, masked, run
from topologies import EXPORTERS, TOPOLOGIES, build, file_name

from dlprune.analysis import Analysis, analysis_of
from dlprune.classifier import Classifier
from dlprune.cost import cost_of
from dlprune.selection import choose_units, dense_features, removable, removable_kernels
from dlprune.structure import FIXED
from dlprune.surgery import remove_units

#: Keeps what was found of a network.
Save = Callable[[str, dict[str, Any]], None]

REPETITIONS = 3
#: Largest error that counts as exact.
EXACT = 1e-4


def fresh_analysis(classifier: Classifier) -> Analysis:
    """Find the structure anew."""
    classifier.derived.clear()
    return analysis_of(classifier)


def choice(found: Analysis, percentage: float) -> Mask:
    """Choose units by random scores; features of dense layers where no kernel can leave."""
    structure = found.structure
    values = np.random.default_rng(0).random(structure.unit_num)
    if removable_kernels(structure):
        return choose_units(structure, values, int(removable_kernels(structure) * percentage / 100))
    features = dense_features(structure.kernels, structure.features)
    gone = removable(features, structure.constraints, values=values)
    gone[np.flatnonzero(gone)[int(gone.sum() * percentage / 100) :]] = False
    return gone


def images_for(classifier: Classifier) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(classifier.input_shape(2)).astype(np.float32)


def error_of(classifier: Classifier, found: Analysis, gone: Mask, actual: np.ndarray) -> float:
    """Return the relative difference of logits to those of the masked original, on noise."""
    truth = masked(classifier.model, found.facts, found.structure, gone)
    expected = run(truth, images_for(classifier), classifier.logits_name)
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


# --- dlprune ----------------------------------------------------------------------------------------------------------


def measure(path: Path) -> dict[str, Any]:
    """Return what dlprune finds in one file and what it makes of it."""
    classifier = Classifier.read(str(path))
    found = fresh_analysis(classifier)
    structure, before = found.structure, cost_of(classifier)
    entry: dict[str, Any] = {
        "convolutions": len(structure.layers),
        "prunable": sum(not layer.reason for layer in structure.layers),
        "removable": removable_kernels(structure),
        "reasons": sorted({layer.reason.rsplit(" '", 1)[0] for layer in structure.layers if layer.reason}),
    }
    for percentage in (30, 50):
        gone = choice(found, percentage)
        pruned = remove_units(classifier.model, found.facts, structure, gone, found.other_shapes)
        assert_valid(pruned)
        after = cost_of(classifier.with_model(pruned))
        entry[f"parameters {percentage}"] = after.parameters / before.parameters
        entry[f"macs {percentage}"] = after.macs / before.macs
        logits = run(pruned, images_for(classifier), classifier.logits_name)
        entry[f"error {percentage}"] = error_of(classifier, found, gone, logits)
    return entry


def our_seconds(classifier: Classifier) -> float:
    """Return the seconds that structure, choice and surgery of 30 % take, with all checks."""
    start = time.perf_counter()
    found = fresh_analysis(classifier)
    remove_units(classifier.model, found.facts, found.structure, choice(found, 30), found.other_shapes)
    return time.perf_counter() - start


# --- peers ------------------------------------------------------------------------------------------------------------


def judged(classifier: Classifier, found: Analysis, stays: Sequence[np.ndarray], actual: np.ndarray) -> dict[str, Any]:
    """Return how many kernels a peer has removed, and its error; `stays` is what it left of every layer."""
    structure = found.structure
    layers = structure.all_layers[: len(stays)]
    gone = np.zeros(structure.unit_num, np.bool_)
    kept = np.zeros(structure.unit_num, np.bool_)
    lost = 0
    for layer, stay in zip(layers, stays, strict=True):
        lost += int((~stay).sum()) if layer in structure.layers else 0
        free = layer.units != FIXED
        gone[layer.units[free & ~stay]] = True
        kept[layer.units[free & stay]] = True
        if not stay[~free].all():
            return {"removed": lost, "result": "wrong (removes what cannot leave)"}
    if (gone & kept).any():
        return {"removed": lost, "result": "wrong (tears coupled kernels apart)"}
    error = error_of(classifier, found, gone, actual)
    return {"removed": lost, "error": error, "result": "exact" if error < EXACT else "wrong"}


def torch_pruner(net: Any, example: Any) -> Any:
    """Build Torch-Pruning's graph of a network."""
    import torch
    import torch_pruning as tp

    heads = [module for module in net.modules() if isinstance(module, torch.nn.Linear) and module.out_features == 1000]
    heads += [m for m in net.modules() if isinstance(m, torch.nn.Conv2d) and m.out_channels == 1000]
    importance = tp.importance.GroupMagnitudeImportance()
    return tp.pruner.MagnitudePruner(net, example, importance, pruning_ratio=0.3, ignored_layers=heads)


def torch_pruning(name: str, classifier: Classifier, found: Analysis) -> dict[str, Any]:
    """Prune the torch module, and judge the result."""
    import torch

    net, shape = build(name)
    with torch.no_grad():
        images = torch.from_numpy(images_for(classifier))
        kinds = (torch.nn.Conv2d, torch.nn.Linear)
        stays = {m: np.ones(m.weight.shape[0], np.bool_) for m in net.modules() if isinstance(m, kinds)}
        order: list[Any] = []
        hooks = [module.register_forward_hook(lambda module, *_: order.append(module)) for module in stays]
        net(images[:1])
        for hook in hooks:
            hook.remove()
    pruner = torch_pruner(net, torch.randn(1, *shape))
    for group in pruner.step(interactive=True):
        for dependency, indices in group:
            module = dependency.target.module
            if module in stays and pruner.DG.is_out_channel_pruning_fn(dependency.handler):
                # Indices are those of the moment: a layer may be pruned in several groups.
                stays[module][np.flatnonzero(stays[module])[indices]] = False
        group.prune()
    with torch.no_grad():
        actual = net(images).numpy()
    convolutions = [stays[m] for m in order if isinstance(m, torch.nn.Conv2d)]
    dense = [stays[m] for m in order if isinstance(m, torch.nn.Linear)]
    expected = [layer.kernel_num for layer in found.structure.all_layers]
    if [len(stay) for stay in convolutions + dense] != expected:
        return {"result": "not comparable"}
    return judged(classifier, found, convolutions + dense, actual)


def onnxsim_pruning(path: Path, classifier: Classifier, found: Analysis) -> dict[str, Any]:
    """Prune the ONNX file, and judge the result."""
    import onnxsim

    before = onnx.load(path)
    after = onnxsim.apply_structured_pruning(before, sparsity=0.3)
    session = ort.InferenceSession(after.SerializeToString(), providers=["CPUExecutionProvider"])
    (actual,) = session.run(None, {session.get_inputs()[0].name: images_for(classifier)})
    old, new = ({node.output[0]: node.input for node in model.graph.node} for model in (before, after))
    tensors = [{t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer} for model in (before, after)]
    stays = []
    for layer in found.structure.layers:
        first, last = (t[inputs[layer.output][-1]] for t, inputs in zip(tensors, (old, new), strict=True))
        stays.append(_matching(first, last))
    return judged(classifier, found, stays, actual)


def _matching(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Tell which kernels are left, by their biases, or by some numbers of theirs where inputs are gone too."""
    stay = np.zeros(len(before), np.bool_)
    rows = before.reshape(len(before), -1)
    for kernel in after.reshape(len(after), -1)[:, :12]:
        stay[np.isin(rows, kernel).sum(axis=1).argmax()] = True
    return stay


def guarded(peer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a peer gives; whatever it stumbles over belongs into the table."""
    try:
        return peer()
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        return {"result": f"fails ({type(error).__name__})", "message": text}


# --- what to do -------------------------------------------------------------------------------------------------------


def measure_all(folder: Path, names: Sequence[str], save: Save) -> None:
    """Everything but seconds."""
    for name in names:
        entry: dict[str, Any] = {e: measure(folder / file_name(name, e)) for e in EXPORTERS}
        path = folder / file_name(name, "torchscript")
        classifier = Classifier.read(str(path))
        found = analysis_of(classifier)
        entry["Torch-Pruning"] = guarded(lambda: torch_pruning(name, classifier, found))  # noqa: B023
        entry["onnxsim"] = guarded(lambda: onnxsim_pruning(path, classifier, found))  # noqa: B023
        save(name, entry)


def peer_seconds(name: str, shape: Sequence[int]) -> float:
    """Return the seconds that Torch-Pruning takes to build its graph and prune 30 %, NaN if it fails."""
    import torch

    net = TOPOLOGIES[name].build().eval()
    start = time.perf_counter()
    try:
        torch_pruner(net, torch.randn(*shape)).step()
    except Exception:
        return float("nan")
    return time.perf_counter() - start


def time_all(folder: Path, names: Sequence[str], save: Save) -> None:
    """Seconds of dlprune and Torch-Pruning, in turn."""
    for name in names:
        classifier = Classifier.read(str(folder / file_name(name, "torchscript")))
        shape = classifier.input_shape(1)
        ours, theirs = [], []
        for _ in range(REPETITIONS):
            ours.append(our_seconds(classifier))
            theirs.append(peer_seconds(name, shape))
        save(name, {"seconds": [statistics.median(ours), statistics.median(theirs)]})


def table(names: Sequence[str], results: dict[str, Any]) -> None:
    """Print a row per network, and below where the two exporters' files differ."""
    heads = ["network", "convolutions prunable", "kernels removable", "parameters / MACs left at 30 %", "at 50 %"]
    heads += ["error", "seconds", "Torch-Pruning, seconds", "its error", "onnxsim: kernels removed", "its error"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    differences = []
    for name in names:
        entry = results[name]
        one, other = (entry[exporter] for exporter in EXPORTERS)
        seconds = [f"{number:.2f}" if number == number else "–" for number in entry.get("seconds", [])] or ["", ""]
        cells = [name, f"{one['prunable']} / {one['convolutions']}", f"{one['removable']:,}"]
        cells += [f"{one[f'parameters {p}']:.0%} / {one[f'macs {p}']:.0%}" for p in (30, 50)]
        cells.append(f"{max(e[f'error {p}'] for e in (one, other) for p in (30, 50)):.0e}")
        peer, simplifier = entry["Torch-Pruning"], entry["onnxsim"]
        cells += [*seconds, _verdict(peer), f"{simplifier.get('removed', 0):,}", _verdict(simplifier)]
        print("| " + " | ".join(cells) + " |")
        keys = ("convolutions", "prunable", "removable")
        differences += [f"{name}: {key} {one[key]} and {other[key]}" for key in keys if one[key] != other[key]]
    print("\nTorchScript and dynamo differ:", "; ".join(differences) or "nowhere")
    for name in names:
        one = results[name][EXPORTERS[0]]
        if one["prunable"] < 0.95 * one["convolutions"]:
            print(f"{name}: {'; '.join(one['reasons'])}")


def _verdict(peer: dict[str, Any]) -> str:
    return f"{peer['error']:.0e}" if peer["result"] == "exact" else str(peer["result"])


def main() -> None:
    """Parse the command line, do it, keep the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("job", choices=("measure", "time", "table"))
    parser.add_argument("names", nargs="*", default=list(TOPOLOGIES), metavar="NAME")
    arguments = parser.parse_args()
    store = arguments.folder / "zoo.json"

    def results() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}
        return found

    def save(name: str, entry: dict[str, Any]) -> None:
        known = results()
        known.setdefault(name, {}).update(entry)
        store.write_text(json.dumps(known, indent=1))
        print(name, json.dumps(entry), flush=True)

    if arguments.job == "table":
        known = results()
        table([name for name in arguments.names if name in known], known)
    else:
        (measure_all if arguments.job == "measure" else time_all)(arguments.folder, arguments.names, save)


if __name__ == "__main__":
    main()
