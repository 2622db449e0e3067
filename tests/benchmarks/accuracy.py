"""Accuracy after pruning without retraining: dlprune, Torch-Pruning and onnxsim, at equal kernels and at equal MACs.

Every net of ``nets.py`` is pruned by 10, 20, 30, 50 and 70 per cent of its removable kernels, and down to 80, 60, 40
and 25 per cent of its multiply-accumulates. All methods get the same 512 training images; all results are ONNX models,
measured by ONNX Runtime on the full test set. Where a method cannot hit the goal, the result nearest to it on the
careful side counts (never more kernels removed or fewer operations left than asked for).

- *dlprune*: through the five operators; any settings of the pruning handle can be passed under a name of your own.
- *Torch-Pruning* 1.6.1, GroupTaylor and GroupMagnitude as they come: global pruning on the torch module with the same
  weights, in one step; only convolutions are pruned (dense layers hold no kernels), the cross-entropy of the 512 images
  gives the gradients.
- *onnxsim* 0.8.1: ``apply_structured_pruning`` (weight norm) and ``apply_structured_wanda_pruning`` (norm of weight
  times norm of activation), with the same share for every layer; they cut the layers that their pattern search finds.
- *the peers' choice with dlprune's compensation*: the same kernels leave, the rest is dlprune's.

Results are kept in ``peers.json`` and ``dlprune.json`` in the folder of the nets; what is there is not computed again.

Needs, beside the nets, torch, torch-pruning, onnxsim for ``peers``, dlprune for ``dlprune``, matplotlib for a plot::

    python tests/benchmarks/accuracy.py FOLDER peers
    python tests/benchmarks/accuracy.py FOLDER dlprune --name dlprune --settings '{}'
    python tests/benchmarks/accuracy.py FOLDER dlprune --name "dlprune, plain" --settings '{"compensation": "none"}'
    python tests/benchmarks/accuracy.py FOLDER dlprune --choice "TP GroupMagnitude"
    python tests/benchmarks/accuracy.py FOLDER table --plot accuracy.png
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

NETS = ("resnet20", "mobilenet", "vgg", "densenet")
SEEDS = (0, 1, 2)
CALIBRATION = 512
KERNEL_GOALS = (10, 20, 30, 50, 70)
MACS_GOALS = (80, 60, 40, 25)
#: Probes on the way to a goal are multiples of one over this share.
GRID = 500
COMPENSATED = "{} choice + dlprune compensation"


# --- what a model costs and how good it is ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Kernels of all Conv nodes and multiply-accumulates of Conv and Gemm nodes for one image."""

    kernels: int
    macs: int


def cost_of(model: onnx.ModelProto) -> Cost:
    """Count kernels and operations from the shapes alone, independently of dlprune."""
    model = copy.deepcopy(model)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    graph = onnx.shape_inference.infer_shapes(model).graph
    spatial = {
        value.name: math.prod(dim.dim_value for dim in value.type.tensor_type.shape.dim[2:])
        for value in (*graph.value_info, *graph.output)
    }
    sizes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    convs = [node for node in graph.node if node.op_type == "Conv"]
    dense = sum(math.prod(sizes[node.input[1]]) for node in graph.node if node.op_type == "Gemm")
    return Cost(
        kernels=sum(sizes[node.input[1]][0] for node in convs),
        macs=dense + sum(math.prod(sizes[node.input[1]]) * spatial[node.output[0]] for node in convs),
    )


def session_of(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def accuracy_of(model: onnx.ModelProto, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the percentage of images whose best class is the label."""
    session = session_of(model)
    name = session.get_inputs()[0].name
    hits = 0
    for start in range(0, len(images), 250):
        (logits,) = session.run(None, {name: images[start : start + 250]})
        hits += int((logits.argmax(1) == labels[start : start + 250]).sum())
    return 100 * hits / len(labels)


# --- one net, and the goals -------------------------------------------------------------------------------------------


@cache
def arrays_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


@dataclass(frozen=True)
class Case:
    """One trained net."""

    folder: Path
    net: str
    seed: int

    @property
    def path(self) -> Path:
        return self.folder / f"{self.net}_seed{self.seed}.onnx"

    @property
    def record(self) -> dict[str, Any]:
        return dict(json.loads(self.path.with_suffix(".json").read_text()))

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return arrays_of(self.folder / f"{self.record['data']}.npz")

    def model(self) -> onnx.ModelProto:
        return onnx.load(self.path)

    def calibration(self, number: int = CALIBRATION) -> tuple[np.ndarray, np.ndarray]:
        """Return training images and labels, drawn by the seed of the net."""
        images, labels = self.arrays["train_images"], self.arrays["train_labels"]
        chosen = np.random.default_rng(self.seed).choice(len(images), number, replace=False)
        return images[chosen], labels[chosen]

    def accuracy(self, model: onnx.ModelProto) -> float:
        return accuracy_of(model, self.arrays["test_images"], self.arrays["test_labels"])


@dataclass(frozen=True)
class Goal:
    """Percentage of the removable kernels to remove, or of the operations to keep."""

    kind: str
    value: float

    def __str__(self) -> str:
        return f"{self.kind}/{self.value:g}"


@dataclass(frozen=True)
class Scale:
    """The original's costs; what goals are measured against."""

    original: Cost
    removable: int

    def removed(self, cost: Cost) -> float:
        """Kernels removed in per cent of the removable ones."""
        return 100 * (self.original.kernels - cost.kernels) / self.removable

    def kept(self, cost: Cost) -> float:
        """Operations kept in per cent."""
        return 100 * cost.macs / self.original.macs

    def slack(self, cost: Cost, goal: Goal) -> float:
        """How far the cost is from the goal; negative beyond it."""
        if goal.kind == "kernels":
            return goal.value - self.removed(cost) + 1e-9
        return self.kept(cost) - goal.value + 1e-9


@dataclass
class Probe:
    """A pruned model, its cost and which kernels stayed: per Conv in graph order a string of 0 and 1."""

    model: onnx.ModelProto
    cost: Cost
    choice: list[str] | None = None


def packed(stays: np.ndarray) -> str:
    """Return a mask as a string of 0 and 1."""
    return "".join(map(str, stays.astype(int)))


def search(prune: Callable[[float], Probe], scale: Scale, goals: list[Goal]) -> Iterator[tuple[Goal, Probe]]:
    """Find for each goal the probe that comes nearest without going beyond; shares are bisected on a grid."""
    probes: dict[int, Probe] = {}

    def probe(step: int) -> Probe:
        if step not in probes:
            probes[step] = prune(step / GRID)
        return probes[step]

    for goal in goals:
        low, high = 0, GRID
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if scale.slack(probe(middle).cost, goal) >= 0 else (low, middle)
        probe(low)
        fitting = [found for found in probes.values() if scale.slack(found.cost, goal) >= 0]
        yield goal, min(fitting, key=lambda found: scale.slack(found.cost, goal))


# --- results ----------------------------------------------------------------------------------------------------------


class Results:
    """A JSON file of results by 'method/net/seed/kind/value'; safe against another process that adds to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, dict[str, Any]]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def missing(self, method: str, case: Case, goals: list[Goal]) -> list[Goal]:
        known = self.read()
        return [goal for goal in goals if f"{method}/{case.net}/{case.seed}/{goal}" not in known]

    def add(self, method: str, case: Case, goal: Goal, scale: Scale, probe: Probe, seconds: float = 0.0) -> None:
        entry = {
            "method": method,
            "net": case.net,
            "seed": case.seed,
            "kind": goal.kind,
            "value": goal.value,
            "accuracy": case.accuracy(probe.model),
            "original": case.record["test_accuracy"],
            "removed": scale.removed(probe.cost),
            "macs": scale.kept(probe.cost),
            "seconds": round(seconds, 1),
            "choice": probe.choice,
        }
        known = self.read()
        known[f"{method}/{case.net}/{case.seed}/{goal}"] = entry
        unfinished = self.path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(known, indent=0))
        unfinished.replace(self.path)
        print(
            f"{method}, {case.net} seed {case.seed}, {goal}: {entry['accuracy']:.2f} of {entry['original']:.2f} %"
            f" (removed {entry['removed']:.1f} %, MACs {entry['macs']:.1f} %, {seconds:.0f} s)",
            flush=True,
        )


# --- peers ------------------------------------------------------------------------------------------------------------


def torch_pruning(case: Case, importance: str) -> Callable[[float], Probe]:
    """Return Torch-Pruning as a function of its pruning ratio."""
    import nets
    import torch
    import torch_pruning as tp

    net = nets.load_net(case.folder, case.net, case.seed)
    images, labels = (torch.from_numpy(array) for array in case.calibration())
    torch.nn.functional.cross_entropy(net(images), labels).backward()
    gradients = [parameter.grad for parameter in net.parameters()]

    def prune(ratio: float) -> Probe:
        pruned = copy.deepcopy(net)
        for parameter, gradient in zip(pruned.parameters(), gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        convs = {m: np.ones(m.out_channels, bool) for m in pruned.modules() if isinstance(m, torch.nn.Conv2d)}
        order: list[torch.nn.Module] = []
        hooks = [conv.register_forward_hook(lambda module, *_: order.append(module)) for conv in convs]
        with torch.no_grad():
            pruned(images[:1])
        for hook in hooks:
            hook.remove()
        pruner = tp.pruner.BasePruner(
            pruned,
            images[:1],
            importance=getattr(tp.importance, f"{importance}Importance")(),
            global_pruning=True,
            pruning_ratio=ratio,
            ignored_layers=[module for module in pruned.modules() if isinstance(module, torch.nn.Linear)],
        )
        for group in pruner.step(interactive=True):
            for dependency, indices in group:
                if dependency.target.module in convs and pruner.DG.is_out_channel_pruning_fn(dependency.handler):
                    convs[dependency.target.module][indices] = False
            group.prune()
        for conv, stays in convs.items():
            if int(stays.sum()) != conv.out_channels:
                raise RuntimeError("the kernels that Torch-Pruning removed were not followed")
        pruned.zero_grad()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pruned.onnx"
            nets.export(pruned, images[:2], path)
            model = onnx.load(path)
        return Probe(model, cost_of(model), [packed(convs[conv]) for conv in order])

    return prune


def onnxsim_pruning(case: Case, function: str) -> Callable[[float], Probe]:
    """Return one of onnxsim's structured prunings as a function of its sparsity."""
    import onnxsim

    extra: dict[str, Any] = {}
    if "wanda" in function:
        images, _ = case.calibration()
        extra["calibration_data"] = [{case.model().graph.input[0].name: part} for part in np.split(images, 8)]

    def biases(model: onnx.ModelProto) -> dict[str, np.ndarray]:
        tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        convs = [node for node in model.graph.node if node.op_type == "Conv" and len(node.input) == 3]
        return {node.output[0]: onnx.numpy_helper.to_array(tensors[node.input[2]]) for node in convs}

    before = case.model()

    def choice(after: onnx.ModelProto) -> list[str] | None:
        """Tell what stayed by the biases, which slicing does not change; None where that is not clear."""
        kernels = {tensor.name: tensor.dims[0] for tensor in before.graph.initializer if tensor.dims}
        left = {tensor.name: tensor.dims[0] for tensor in after.graph.initializer if tensor.dims}
        inputs = {node.output[0]: node.input for node in after.graph.node}
        old, new, found = biases(before), biases(after), []
        for node in before.graph.node:
            if node.op_type != "Conv":
                continue
            name = node.output[0]
            stays = np.ones(kernels[node.input[1]], bool)
            if left[inputs[name][1]] != len(stays):
                stays = np.isin(old[name], new[name]) if name in old and name in new else ~stays
            if stays.sum() != left[inputs[name][1]]:
                return None
            found.append(packed(stays))
        return found

    def prune(sparsity: float) -> Probe:
        model = getattr(onnxsim, function)(case.model(), sparsity=sparsity, **extra)
        return Probe(model, cost_of(model), choice(model))

    return prune


PEERS: dict[str, Callable[[Case], Callable[[float], Probe]]] = {
    "TP GroupTaylor": lambda case: torch_pruning(case, "GroupTaylor"),
    "TP GroupMagnitude": lambda case: torch_pruning(case, "GroupMagnitude"),
    "onnxsim": lambda case: onnxsim_pruning(case, "apply_structured_pruning"),
    "onnxsim wanda": lambda case: onnxsim_pruning(case, "apply_structured_wanda_pruning"),
}


def run_peers(case: Case, goals: list[Goal], results: Results, methods: list[str]) -> None:
    """Prune one net with every peer."""
    for method in methods:
        missing = results.missing(method, case, goals)
        if missing:
            scale = Scale(cost_of(case.model()), removable_kernels(case))
            prune = PEERS[method](case)
            if abs(accuracy_of_original(case, prune) - case.record["test_accuracy"]) > 0.05:
                raise RuntimeError(f"{method} does not start from the same network")
            for goal, probe in search(prune, scale, missing):
                results.add(method, case, goal, scale, probe)


def accuracy_of_original(case: Case, prune: Callable[[float], Probe]) -> float:
    return case.accuracy(prune(0.0).model)


def removable_kernels(case: Case) -> int:
    """Return what 100 per cent means: dlprune's count, which leaves one kernel in every layer."""
    import dlprune as ha

    pruning = ha.create_dl_pruning(ha.read_dl_model(str(case.path)), "oracle", [])
    return int(ha.get_dl_pruning_param_s(pruning, "prunable_kernel_num"))


# --- dlprune ----------------------------------------------------------------------------------------------------------


class Ours:
    """dlprune through its five operators; scored once, then generated for each goal."""

    def __init__(self, case: Case, settings: dict[str, Any], number: int) -> None:
        import dlprune as ha

        self.ha, self.case = ha, case
        self.model = ha.read_dl_model(str(case.path))
        batch = math.gcd(number, 64)
        ha.set_dl_model_param(self.model, "batch_size", batch)
        self.pruning = ha.create_dl_pruning(self.model, "oracle", [])
        self.set(settings)
        samples = [self._sample(image, label) for image, label in zip(*case.calibration(number), strict=True)]
        for start in range(0, len(samples), batch):
            ha.add_dl_pruning_batch(self.model, self.pruning, samples[start : start + batch])

    def _sample(self, image: np.ndarray, label: int) -> Any:
        sample = self.ha.create_dict()
        self.ha.set_dict_object(self.ha.himage_from_numpy_array(image[0]), sample, "image")
        self.ha.set_dict_tuple(sample, "image_label_id", int(label))
        return sample

    def set(self, settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            self.ha.set_dl_pruning_param(self.pruning, name, value)

    def generate(self) -> Probe:
        pruned = self.ha.gen_dl_pruned_model(self.model, self.pruning)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "pruned.onnx")
            self.ha.write_dl_model(pruned, path)
            model = onnx.load(path)
        self.ha.clear_handle(pruned)
        return Probe(model, cost_of(model), self._choice())

    def _choice(self) -> list[str]:
        layers = []
        for layer in self.ha.get_dl_pruning_layer_info(self.pruning):
            stays = np.ones(int(self.ha.get_dict_tuple_s(layer, "kernel_num")), bool)
            stays[self.ha.get_dict_tuple(layer, "pruned_kernel_ids")] = False
            layers.append(packed(stays))
        return layers

    def at(self, goal: Goal, scale: Scale) -> Probe:
        """Return the model for a goal; operations by 'target' if dlprune has it, else by bisection."""
        if goal.kind == "kernels":
            self.set({"percentage": goal.value})
            return self.generate()
        try:
            self.set({"target": "macs"})
        except self.ha.HOperatorError:
            return self._bisect(goal, scale)
        self.set({"percentage": 100 - goal.value})
        probe = self.generate()
        self.set({"target": "kernels"})
        return probe

    def _bisect(self, goal: Goal, scale: Scale) -> Probe:
        low, high = 0.0, 100.0
        best = None
        while high - low > 0.5:
            self.set({"percentage": (low + high) / 2})
            probe = self.generate()
            if scale.slack(probe.cost, goal) >= 0:
                low, best = (low + high) / 2, probe
            else:
                high = (low + high) / 2
        if best is None:
            raise RuntimeError(f"no percentage keeps {goal.value} % of the operations")
        return best

    def impose(self, choice: list[str]) -> Probe:
        """Remove these kernels and no others: their scores become 0, all others 1."""
        from dlprune.handle import unwrap
        from dlprune.pruningdata import PruningData

        data = unwrap(self.pruning, "dl_pruning", PruningData, 1)
        sums = np.ones_like(data.sums)
        for layer, stays in zip(data.layers, choice, strict=True):
            gone = layer.units[np.array(list(stays)) == "0"]
            if (gone < 0).any():
                raise RuntimeError(f"dlprune holds kernels of {layer.name} that the peer removed")
            sums[gone] = 0
        data.sums[:] = sums * data.count
        kernels = int(data.kernels[sums == 0].sum())
        self.set({"percentage": 100 * kernels / data.prunable_kernel_num})
        self.set({"normalization": "none", "max_layer_percentage": 100})
        for name, value in (("selection", "score"), ("step_percentage", 100)):
            try:
                self.set({name: value})
            except self.ha.HOperatorError as error:
                print(f"'{name}' is not set: {error}", file=sys.stderr)
        probe = self.generate()
        if probe.choice != choice:
            raise RuntimeError("dlprune removed other kernels than the peer's")
        return probe


def run_ours(case: Case, goals: list[Goal], results: Results, name: str, settings: dict[str, Any], number: int) -> None:
    """Prune one net with dlprune."""
    missing = results.missing(name, case, goals)
    if missing:
        scale = Scale(cost_of(case.model()), removable_kernels(case))
        ours = Ours(case, settings, number)
        for goal in missing:
            start = time.perf_counter()
            probe = ours.at(goal, scale)
            results.add(name, case, goal, scale, probe, time.perf_counter() - start)


def run_choice(
    case: Case, goals: list[Goal], results: Results, peers: Results, method: str, settings: dict[str, Any], number: int
) -> None:
    """Let dlprune remove and compensate what a peer chose."""
    name = COMPENSATED.format(method)
    missing = results.missing(name, case, goals)
    known = peers.read()
    choices = {goal: known.get(f"{method}/{case.net}/{case.seed}/{goal}", {}).get("choice") for goal in missing}
    if any(choices.values()):
        scale = Scale(cost_of(case.model()), removable_kernels(case))
        ours = Ours(case, settings, number)
        for goal, choice in choices.items():
            if choice:
                start = time.perf_counter()
                probe = ours.impose(choice)
                results.add(name, case, goal, scale, probe, time.perf_counter() - start)


# --- table and plot ---------------------------------------------------------------------------------------------------


def gathered(
    folder: Path, nets: list[str], seeds: list[int]
) -> dict[tuple[str, str, str, float], list[dict[str, Any]]]:
    """Return the results by net, method, kind and value."""
    cells: dict[tuple[str, str, str, float], list[dict[str, Any]]] = {}
    for name in ("dlprune.json", "peers.json"):
        for entry in Results(folder / name).read().values():
            if entry["net"] in nets and entry["seed"] in seeds:
                cells.setdefault((entry["net"], entry["method"], entry["kind"], entry["value"]), []).append(entry)
    return cells


def ordered(methods: Iterable[str]) -> list[str]:
    """Return dlprune under its several names, the peers' choices compensated, the peers as they come."""
    last = [*map(COMPENSATED.format, PEERS), *PEERS]
    distinct = list(dict.fromkeys(methods))
    return [name for name in distinct if name not in last] + [name for name in last if name in distinct]


def spread(values: list[float]) -> float:
    """Return half the range."""
    return (max(values) - min(values)) / 2


def cell(entries: list[dict[str, Any]], goal: Goal) -> str:
    """Return mean ± half the range, and what was reached where that is not the goal."""
    if not entries:
        return "–"
    accuracies = [entry["accuracy"] for entry in entries]
    text = f"{statistics.mean(accuracies):.1f}"
    if len(accuracies) > 1:
        text += f" ± {spread(accuracies):.1f}"
    reached = statistics.mean(entry["removed" if goal.kind == "kernels" else "macs"] for entry in entries)
    return text if abs(reached - goal.value) <= 2 else f"{text} (at {reached:.0f} %)"


def print_table(folder: Path, nets: list[str], seeds: list[int]) -> None:
    """Print one Markdown table per net and kind of goal."""
    cells = gathered(folder, nets, seeds)
    methods = ordered(method for _, method, _, _ in cells)
    for net in nets:
        originals = {
            entry["seed"]: entry["original"] for key, found in cells.items() if key[0] == net for entry in found
        }
        if not originals:
            continue
        reached = list(originals.values())
        print(f"\n{net}: {statistics.mean(reached):.2f} ± {spread(reached):.2f} % before, {len(reached)} seeds")
        for kind, values, head in (
            ("kernels", KERNEL_GOALS, "per cent of the kernels removed"),
            ("macs", MACS_GOALS, "per cent of the MACs kept"),
        ):
            print(f"\n| {head} | {' | '.join(map(str, values))} |\n|---|{'---|' * len(values)}")
            for method in methods:
                row = [cell(cells.get((net, method, kind, value), []), Goal(kind, value)) for value in values]
                if any(text != "–" for text in row):
                    print(f"| {method} | {' | '.join(row)} |")


def draw(folder: Path, nets: list[str], seeds: list[int], path: Path) -> None:
    """Draw accuracy over what was really removed or kept, one column per net."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    cells = gathered(folder, nets, seeds)
    nets = [net for net in nets if any(key[0] == net for key in cells)]
    figure, axes = pyplot.subplots(2, len(nets), figsize=(4 * len(nets), 7), sharey="col", squeeze=False)
    methods = ordered(method for _, method, _, _ in cells)
    for column, net in enumerate(nets):
        for row, (kind, values, measure) in enumerate(
            (("kernels", KERNEL_GOALS, "removed"), ("macs", MACS_GOALS, "macs"))
        ):
            axis = axes[row][column]
            for number, method in enumerate(methods):
                found = [cells[net, method, kind, value] for value in values if (net, method, kind, value) in cells]
                if not found:
                    continue
                original = statistics.mean(entry["original"] for entry in found[0])
                x = [0.0 if kind == "kernels" else 100.0]
                x += [statistics.mean(entry[measure] for entry in entries) for entries in found]
                runs = [[entry["accuracy"] for entry in entries] for entries in found]
                y = [original, *map(statistics.mean, runs)]
                style = "-" if method.startswith("dlprune") else ":" if "dlprune" in method else "--"
                axis.plot(x, y, style, marker="o", markersize=3, color=f"C{number}", label=method)
                axis.fill_between(
                    x, [original, *map(min, runs)], [original, *map(max, runs)], color=f"C{number}", alpha=0.15
                )
            axis.set_xlabel("kernels removed / %" if kind == "kernels" else "MACs kept / %")
            axis.grid(alpha=0.3)
            if kind == "macs":
                axis.invert_xaxis()
        axes[0][column].set_title(net)
    axes[0][0].set_ylabel("test accuracy / %")
    axes[1][0].set_ylabel("test accuracy / %")
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    columns = min(len(nets), len(handles))
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=columns, frameon=False)
    figure.tight_layout(rect=(0, 0.03 + 0.03 * math.ceil(len(handles) / columns), 1, 1))
    figure.savefig(path, dpi=120)


# --- command line -----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where nets.py has put nets and images")
    parser.add_argument("what", choices=["peers", "dlprune", "table"])
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=NETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--kernels", nargs="*", type=float, default=list(KERNEL_GOALS), help="per cent to remove")
    parser.add_argument("--macs", nargs="*", type=float, default=list(MACS_GOALS), help="per cent to keep")
    parser.add_argument("--methods", nargs="+", default=list(PEERS), choices=list(PEERS), help="for peers")
    parser.add_argument("--name", default="dlprune", help="for dlprune: what the results are called")
    parser.add_argument("--settings", type=json.loads, default={}, help="for dlprune: JSON, set_dl_pruning_param")
    parser.add_argument("--choice", choices=list(PEERS), help="for dlprune: whose choice of kernels to compensate")
    parser.add_argument("--calibration", type=int, default=CALIBRATION, help="for dlprune: number of images")
    parser.add_argument("--plot", type=Path, help="for table: image file to draw")
    options = parser.parse_args()
    if options.what == "table":
        print_table(options.folder, options.nets, options.seeds)
        if options.plot:
            draw(options.folder, options.nets, options.seeds, options.plot)
        return
    if options.what == "peers":
        import torch

        torch.set_num_threads(1)
    goals = [Goal("kernels", value) for value in options.kernels] + [Goal("macs", value) for value in options.macs]
    peers, ours = Results(options.folder / "peers.json"), Results(options.folder / "dlprune.json")
    for seed in options.seeds:
        for net in options.nets:
            case = Case(options.folder, net, seed)
            if options.what == "peers":
                run_peers(case, goals, peers, options.methods)
            elif options.choice:
                run_choice(case, goals, ours, peers, options.choice, options.settings, options.calibration)
            else:
                run_ours(case, goals, ours, options.name, options.settings, options.calibration)


if __name__ == "__main__":
    main()
