"""What the tests of structures share: networks written as the body of an ONNX text, and the questions asked of each."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from exactness import Mask, assert_prunable, assert_same, assert_valid, random_images, run
from models import model
from numpy.typing import NDArray

import dlprune as ha
from dlprune.analysis import analysis_of
from dlprune.classifier import Classifier
from dlprune.handle import new_handle, unwrap
from dlprune.model import unwrap_model
from dlprune.pruningdata import PruningData
from dlprune.selection import choose_units, removable_kernels
from dlprune.structure import Structure

CLASSES = 5


def net(
    body: str,
    weights: str,
    head: tuple[str, int] | None = None,
    *,
    stem: int | None = None,
    image: str = "N,3,8,8",
    opset: int = 17,
    ir_version: int = 8,
    imports: str = "",
    functions: str = "",
    seed: int = 0,
) -> onnx.ModelProto:
    """Write a classifier of 5 classes `y` of the image `x`.

    `stem` is the number of kernels of a first convolution `a`, 3x3 with bias, that the body reads; without it the body
    begins at `x` itself. `head` names the last feature map and its number of channels, for global pooling and a Gemm;
    without it the body ends in `y` itself.
    """
    if stem is not None:
        body = f"\n a = Conv<pads = [1,1,1,1]>(x, w1, b1){body}"
        weights = f"float[{stem},3,3,3] w1, float[{stem}] b1, {weights}"
    if head is not None:
        name, width = head
        body += f"\n head_g = GlobalAveragePool({name})\n head_f = Flatten(head_g)\n y = Gemm(head_f, head_w, head_b)"
        weights += f", float[{width},{CLASSES}] head_w, float[{CLASSES}] head_b"
    batch = image.split(",")[0]
    return model(
        f'<ir_version: {ir_version}, opset_import: ["" : {opset}{imports}]>\n'
        f"net (float[{image}] x) => (float[{batch},{CLASSES}] y)\n<{weights}>\n{{{body}\n}}\n{functions}",
        seed,
    )


def check(
    proto: onnx.ModelProto,
    *,
    kernels: int,
    convolutions: int,
    silence: bool = True,
    shares: tuple[float, ...] = (0.2, 0.5, 1.0),
    rtol: float = 1e-4,
) -> dict[str, str]:
    """Find the expected numbers, prune exactly at several shares, and find silenced kernels by their scores.

    Args:
        proto: the classifier.
        kernels: how many kernels 100 percent would remove, worked out by hand.
        convolutions: how many convolutions can lose one, worked out by hand.
        silence: also silence half of the kernels and expect exactly those to go first (only where every activation
            between a kernel and its consumers maps 0 to 0, and no weight serves two layers).
        shares: shares of the removable kernels to remove, 0…1.
        rtol: error of the logits that is allowed.

    Returns:
        The reason of every convolution that cannot be pruned, by its output's name.
    """
    classifier = Classifier.from_proto(proto)
    structure = analysis_of(classifier).structure
    found = removable_kernels(structure), sum(not layer.reason for layer in structure.layers)
    assert found == (kernels, convolutions), [(layer.output, layer.units.tolist()) for layer in structure.layers]
    assert_prunable(classifier, shares, rtol)
    pruning, data = scored(classifier)
    assert_compensated_in_steps(classifier, pruning)
    if silence and kernels > 1:
        assert_silenced_go_first(classifier, data.scores())
    return {layer.output: layer.reason for layer in structure.layers if layer.reason}


def assert_compensated_in_steps(classifier: Classifier, pruning: ha.HHandle) -> None:
    """Let the operator prune with its default settings, which refit what is left after each of several steps."""
    ha.set_dl_pruning_param(pruning, "percentage", 50)
    ha.set_dl_pruning_param(pruning, "step_percentage", 25)
    pruned = unwrap_model(ha.gen_dl_pruned_model(new_handle("dl_model", classifier), pruning), 1)
    assert_valid(pruned.model)
    number, all_number = (ha.get_dl_pruning_param_s(pruning, f"{word}_kernel_num") for word in ("pruned", "prunable"))
    assert number <= all_number / 2
    logits = pruned.logits(random_images(pruned))
    assert np.isfinite(logits).all()


def assert_silenced_go_first(classifier: Classifier, scores: NDArray[np.float64]) -> None:
    """Silence half of the removable kernels, then let the operators remove as many: exactly those are gone.

    `scores` are those of the units before; units that are without effect anyway, or become so, belong to the half.
    """
    structure = analysis_of(classifier).structure
    values = np.random.default_rng(7).random(structure.unit_num)
    half = removable_kernels(structure) // 2
    for _ in range(4):
        silent = scores == 0
        gone = choose_units(structure, values - silent, max(half, int(structure.kernels[silent].sum())))
        quiet = classifier.with_model(silenced(classifier.model, structure, gone))
        pruning, data = scored(quiet)
        scores = data.scores()
        assert np.all(scores[gone] == 0), "a silenced unit has a score"
        if np.array_equal(scores[structure.kernels > 0] == 0, gone[structure.kernels > 0]):
            break
    else:
        raise AssertionError("the silent units cannot all leave; other weights are needed")
    wanted = int(structure.kernels[gone].sum())
    ha.set_dl_pruning_param(pruning, "percentage", 100 * wanted / removable_kernels(structure))
    ha.set_dl_pruning_param(pruning, "compensation", "none")
    ha.set_dl_pruning_param(pruning, "max_layer_percentage", 100)
    pruned = unwrap_model(ha.gen_dl_pruned_model(new_handle("dl_model", quiet), pruning), 1)
    assert ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num") == wanted
    for info in ha.get_dl_pruning_layer_info(pruning):
        units = np.array(ha.get_dict_tuple(info, "unit_ids"))
        expected = np.flatnonzero((units >= 0) & gone[units]).tolist()
        found = ha.get_dict_tuple(info, "pruned_kernel_ids")
        scores = ha.get_dict_tuple(info, "kernel_scores")
        assert found == expected, (ha.get_dict_tuple(info, "name"), expected, found, scores)
    images = random_images(quiet, 2, seed=99)
    before, after = (run(c.model, images, c.logits_name) for c in (quiet, pruned))
    assert_same(after, before, 1e-4, "silenced kernels removed")


def scored(classifier: Classifier, mode: str = "oracle") -> tuple[ha.HHandle, PruningData]:
    """Score a few batches of noise through the operators; return the handle and what it holds."""
    fixed = classifier.image is not None and classifier.image.batch
    batch = fixed or 4
    classifier.set("batch_size", (batch,))
    handle = new_handle("dl_model", classifier)
    pruning = ha.create_dl_pruning(handle, mode, [])
    for seed in range(8 // batch):
        samples = []
        images = random_images(classifier, batch, seed)
        for number, pixels in enumerate(images.transpose(0, 2, 3, 1) if classifier.layout == "NCHW" else images):
            sample = ha.from_python_dict({"image_label_id": (number + seed) % CLASSES})
            ha.set_dict_object(np.ascontiguousarray(pixels), sample, "image")
            samples.append(sample)
        ha.add_dl_pruning_batch(handle, pruning, samples)
    return pruning, unwrap(pruning, "dl_pruning", PruningData, 1)


def silenced(model: ir.Model, structure: Structure, gone: Mask) -> ir.Model:
    """Return a copy in which the kernels, biases and scales and shifts of some units are zero."""
    copy = model.clone()
    layers = {layer.output for layer in structure.layers}
    for node in copy.graph:
        found = structure.kept(node.outputs[0].name or "", gone)
        if found is None:
            continue
        axis, keep = found
        if node.outputs[0].name in layers:
            _silence_slices(node.inputs[1], keep, 0 if node.op_type == "Conv" else 1)
            _silence_vector(node.inputs[2] if len(node.inputs) > 2 else None, keep)
        elif node.op_type in ("BatchNormalization", "GroupNormalization", "InstanceNormalization"):
            for value in node.inputs[1:3]:
                _silence_vector(value, keep)
        elif node.op_type in ("Add", "Sub") and axis == 1:
            for value in node.inputs:
                _silence_vector(value, keep)
    return copy


def _silence_slices(value: ir.Value | None, keep: Mask, axis: int) -> None:
    assert value is not None
    assert value.const_value is not None, "only weights in initializers can be silenced"
    array = value.const_value.numpy().copy()
    np.moveaxis(array, axis, 0)[~keep] = 0
    value.const_value = ir.tensor(array, name=value.name)


def _silence_vector(value: ir.Value | None, keep: Mask) -> None:
    """Zero elements of a vector, also where a Reshape stands between it and its reader."""
    while value is not None and (maker := value.producer()) is not None:
        if maker.op_type not in ("Reshape", "Unsqueeze", "Identity"):
            return
        value = maker.inputs[0]
    if value is not None and value.const_value is not None and value.const_value.size == len(keep):
        array = value.const_value.numpy().copy()
        array.reshape(-1)[~keep] = 0
        value.const_value = ir.tensor(array, name=value.name)
