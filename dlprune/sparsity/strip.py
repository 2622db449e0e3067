"""The copy of a model that is sparse for good; kernels without a weight left may leave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..analysis import analysis_of
from ..classifier import Classifier
from ..errors import H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, HOperatorError
from ..facts import gather_facts
from ..structure import FIXED, Structure
from ..surgery import SurgeryError, remove_units
from ..training.trainer import trainer_of
from .masks import Mask
from .weights import SparseWeight, prunable_weights


@dataclass(frozen=True)
class Stripped:
    """A plain classifier with zeros in its weights, and the units that have left it, bool [U]."""

    classifier: Classifier
    gone: NDArray[np.bool_]


def sparse_copy(
    classifier: Classifier, weights: Sequence[SparseWeight], masks: Mapping[str, Mask], *, remove_empty: bool
) -> Stripped:
    """Return a copy whose weights are zero where masks say so.

    Args:
        classifier: the model; it stays as it is.
        weights: what masks may be made for.
        masks: by name of the weight, True = kept.
        remove_empty: whether kernels without a weight left are removed, with the slices that read their channels.

    Raises:
        HOperatorError 7912: the surgery cannot give a node its new shape.
    """
    model = multiplied(classifier.model, masks)
    structure = analysis_of(classifier).structure
    gone = empty_units(structure, weights, masks) if remove_empty else np.zeros(structure.unit_num, np.bool_)
    if gone.any():
        try:
            model = _without(classifier, model, gone)
        except SurgeryError as error:
            raise HOperatorError(
                H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, f"Empty kernels cannot be removed from this model: {error}."
            ) from error
    pruned = classifier.with_model(model)
    shape = pruned.input_shape(classifier.params.batch_size)
    pruned.confidences(np.zeros(shape, np.float32))  # it must run before anybody gets it
    return Stripped(pruned, gone)


def multiplied(model: ir.Model, masks: Mapping[str, Mask], *, ones: bool = False) -> ir.Model:
    """Return a copy of a model with masked weights; with `ones` the masks themselves take the weights' place."""
    copy = model.clone()
    for name, mask in masks.items():
        value = copy.graph.initializers[name]
        old = value.const_value
        assert old is not None
        array = old.numpy()
        new = mask.astype(array.dtype) if ones else np.where(mask, array, array.dtype.type(0))
        value.const_value = ir.tensor(new, dtype=old.dtype, name=name)
    return copy


def _without(classifier: Classifier, model: ir.Model, gone: NDArray[np.bool_]) -> ir.Model:
    """Remove units from a graph that is that of a classifier with other numbers in its weights."""
    analysis = analysis_of(classifier)
    shape = analysis.facts.shape(classifier.input_name)
    assert shape is not None
    facts = gather_facts(model, {classifier.input_name: shape})
    return remove_units(model, facts, analysis.structure, gone, analysis.other_shapes)


def kept_kernels(mask: Mask, weight: SparseWeight) -> NDArray[np.bool_]:
    """Return for each kernel (or feature) whether its mask keeps any weight, bool [O]."""
    matrix = weight.view.matrix(mask)
    if weight.groups > 1:  # a ConvTranspose stores the kernels of all groups in the same columns
        matrix = matrix.reshape(-1, weight.groups, weight.view.inputs // weight.groups, matrix.shape[1])
        return np.asarray(matrix.any(axis=(0, 2)).reshape(-1))
    return np.asarray(matrix.any(axis=0))


def empty_units(structure: Structure, weights: Sequence[SparseWeight], masks: Mapping[str, Mask]) -> NDArray[np.bool_]:
    """Return the units all of whose masked kernels and features are empty, bool [U]; one of each layer stays."""
    has_mask = np.zeros(structure.unit_num, np.bool_)
    is_used = np.zeros(structure.unit_num, np.bool_)
    by_output = {output: weight for weight in weights for output in weight.outputs}
    for layer in structure.all_layers:
        weight = by_output.get(layer.output)
        own = layer.units != FIXED
        if weight is None or weight.name not in masks:
            continue
        kept = kept_kernels(masks[weight.name], weight)
        if len(kept) != len(layer.units):  # features in some other order: none of them leaves
            is_used[layer.units[own]] = True
            continue
        has_mask[layer.units[own]] = True
        is_used[layer.units[own & kept]] = True
    gone = has_mask & ~is_used
    for members in structure.constraints:
        if gone[members].all():
            gone[members[0]] = False
    return gone


def zero_share(classifier: Classifier) -> float:
    """Return the share of zeros in all weights that magnitude pruning takes, 0…1."""
    zeros = total = 0
    for weight in prunable_weights(classifier):
        tensor = classifier.model.graph.initializers[weight.name].const_value
        assert tensor is not None
        array = tensor.numpy()
        zeros += array.size - int(np.count_nonzero(array))
        total += array.size
    return zeros / max(total, 1)


def carry_masks(classifier: Classifier, pruned: Classifier, gone: NDArray[np.bool_]) -> None:
    """Let masks that hold a classifier's weights at zero hold those of a copy that has lost units.

    The masks go through the same surgery as the weights. What a refit has filled in becomes zero again.
    """
    with classifier.lock:
        trainer = classifier.trainer
        masks = {} if trainer is None else {name: mask > 0 for name, mask in trainer.masks.items()}
        if not masks:
            return
        small = multiplied(classifier.model, masks, ones=True)
        if gone.any():
            small = _without(classifier, small, gone)
    other = trainer_of(pruned)
    shapes = {name: array.shape for name, array in other.snapshot().weights.items()}
    found: dict[str, NDArray[np.float32]] = {}
    for name in masks:
        value = small.graph.initializers.get(name)
        tensor = None if value is None else value.const_value
        if tensor is not None and shapes.get(name) == tuple(tensor.shape.numpy()):
            found[name] = tensor.numpy().astype(np.float32)
    other.set_masks(found)
