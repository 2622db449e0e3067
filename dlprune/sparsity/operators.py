"""Operators of magnitude pruning, and the names of TensorFlow's two libraries for them."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from ..dictionary import from_python_dict
from ..errors import H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, H_ERR_DL_PRUNING_WRONG_DATA, H_ERR_WIPT2, HOperatorError
from ..guard import guarded
from ..handle import HHandle, new_handle
from ..model import unwrap_model
from ..payload import SEM_TYPE, payload_of
from ..quantised import refuse_converted
from ..tuples import to_file_name
from .magnitude import MagnitudeData
from .masks import Pooling
from .recipe import Recipe
from .schedule import ConstantSparsity, Schedule


def magnitude_of(handle: HHandle, index: int) -> MagnitudeData:
    """Return what is behind a handle of mode 'magnitude'. Raises HOperatorError 7980 for other modes."""
    data = payload_of(handle, index)
    if not isinstance(data, MagnitudeData):
        raise HOperatorError(
            H_ERR_DL_PRUNING_WRONG_DATA,
            f"This needs pruning data of mode 'magnitude', not {data.get('mode')[0]!r}; masks belong to that mode.",
        )
    return data


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def update_dl_pruning_masks(dlmodel_handle: HHandle, dlpruning_handle: HHandle) -> None:
    """Update the masks of magnitude pruning if the schedule asks for it at this step, and zero what they hide.

    Call it after every train_dl_model_batch; between updates it does nothing. Weights that a mask has zeroed stay zero
    while training goes on, until a later update lets them go. For a run that is resumed from serialized items call it
    once before the first step: the masks, the step and the solver's memory then come back to the model.

    Parameters: `dlmodel_handle` (type 'classification'; its weights are changed), `dlpruning_handle` (type
    'dl_pruning', mode 'magnitude', created for this model, or for the one that this one was pruned from).
    Raises HOperatorError 7980 (other mode; other weights), 7912 (type 'generic'), 2404/2454 (handle).
    Source: Pruning.conditional_mask_update_op of tf.contrib.model_pruning.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> ha.set_dl_model_param(model, "batch_size", 8)
        >>> hparams = ha.parse_pruning_hparams("pruning_frequency=1,sparsity_function_end_step=2")
        >>> pruning = ha.create_dl_pruning(model, "magnitude", hparams)
        >>> for _ in range(2):
        ...     _ = ha.train_dl_model_batch(model, ha.demo_samples()[:8])
        ...     ha.update_dl_pruning_masks(model, pruning)
        >>> [round(share, 2) for share in ha.get_dl_pruning_param(pruning, "weight_sparsity")][:2]
        [0.5, 0.5]
    """
    classifier = unwrap_model(dlmodel_handle, 1)
    data = magnitude_of(dlpruning_handle, 2)
    classifier.require_classification("update_dl_pruning_masks")
    data.update(classifier)


def get_dl_pruning_masks(dlpruning_handle: HHandle) -> HHandle:
    """Return the masks of magnitude pruning as they are now.

    Parameters: `dlpruning_handle` (type 'dl_pruning', mode 'magnitude').
    Returns a handle of type 'dict': by name of the weight a dict with 'shape' (integers) and 'mask' (the mask row by
    row, 1 = kept, 0 = zero). It is empty before the first update. In Python dlprune.sparsity.get_masks returns arrays.
    Raises HOperatorError 7980 (other mode), 2404/2454 (handle).
    Source: get_masks of tf.contrib.model_pruning.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> pruning = ha.create_dl_pruning(model, "magnitude", ha.get_pruning_hparams())
        >>> ha.get_dict_param(ha.get_dl_pruning_masks(pruning), "keys", [])
        []
    """
    found = get_masks(dlpruning_handle)
    return from_python_dict(
        {
            name: {"shape": list(mask.shape), "mask": mask.reshape(-1).astype(np.int64).tolist()}
            for name, mask in found.items()
        }
    )


def get_masks(dlpruning_handle: HHandle) -> dict[str, NDArray[np.bool_]]:
    """Return copies of the masks by name of the weight, bool in its shape, True = kept; see get_dl_pruning_masks.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> pruning = prune_low_magnitude(model, ConstantSparsity(0.5, 0))
        >>> update_pruning_step(model, pruning)
        >>> all(0.49 < mask.mean() < 0.51 for mask in get_masks(pruning).values())
        True
    """
    data = magnitude_of(dlpruning_handle, 1)
    with data.lock:
        return {name: mask.copy() for name, mask in data.masks.items()}


def create_magnitude_pruning(dlmodel_handle: HHandle, recipe: Recipe) -> HHandle:
    """Return fresh pruning data of mode 'magnitude'; errors as create_dl_pruning."""
    classifier = unwrap_model(dlmodel_handle, 1)
    classifier.require_classification("Magnitude pruning")
    refuse_converted(classifier)
    return new_handle(SEM_TYPE, MagnitudeData.of(classifier, recipe))


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def prune_low_magnitude(
    dlmodel_handle: HHandle,
    pruning_schedule: Schedule | None = None,
    block_size: tuple[int, int] = (1, 1),
    block_pooling_type: Pooling = "AVG",
    sparsity_m_by_n: tuple[int, int] | None = None,
) -> HHandle:
    """Create the data for magnitude pruning of a model by a schedule; the model is trained as before.

    Unlike in TensorFlow the model is not wrapped: call update_pruning_step after every train_dl_model_batch.

    Parameters: `dlmodel_handle` (type 'classification'), `pruning_schedule` (ConstantSparsity or PolynomialDecay;
    None: ConstantSparsity(0.5, 0)), `block_size` (height and width of blocks that leave together, in the matrix that
    View describes, also for convolutions; −1 = full size), `block_pooling_type` ('AVG' or 'MAX': what counts of a
    block's magnitudes), `sparsity_m_by_n` (e.g. (2, 4): two zeros in every four weights along the input channels,
    whatever sparsity the schedule has; its steps count).
    Returns a handle of type 'dl_pruning', mode 'magnitude'. Raises HOperatorError 7914 (a parameter), 7981 (nothing to
    prune), 7912 (type 'generic', or quantised), 1202 (no schedule).
    Source: tfmot.sparsity.keras.prune_low_magnitude.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> pruning = prune_low_magnitude(model, ConstantSparsity(0.5, 0), sparsity_m_by_n=(2, 4))
        >>> ha.get_dl_pruning_param_s(pruning, "mode")
        'magnitude'
    """
    schedule = ConstantSparsity(0.5, 0) if pruning_schedule is None else pruning_schedule
    if not isinstance(schedule, Schedule):
        raise HOperatorError(
            H_ERR_WIPT2, f"{schedule!r} is no schedule; ConstantSparsity or PolynomialDecay is needed."
        )
    block = (block_size[0], block_size[1])
    m_by_n = None if sparsity_m_by_n is None else (sparsity_m_by_n[0], sparsity_m_by_n[1])
    return create_magnitude_pruning(dlmodel_handle, Recipe(schedule, block, block_pooling_type, m_by_n))


def update_pruning_step(dlmodel_handle: HHandle, dlpruning_handle: HHandle) -> None:
    """Do what the callback UpdatePruningStep does, after a training step; see update_dl_pruning_masks.

    Source: tfmot.sparsity.keras.UpdatePruningStep.

    Example: see get_masks.
    """
    update_dl_pruning_masks(dlmodel_handle, dlpruning_handle)


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def strip_pruning(dlmodel_handle: HHandle, dlpruning_handle: HHandle, remove_empty_kernels: bool = False) -> HHandle:
    """Return a plain copy of a model: zeros in its weights, no masks. The same as gen_dl_pruned_model.

    Parameters: `dlmodel_handle` (the model that was trained), `dlpruning_handle` (mode 'magnitude'),
    `remove_empty_kernels` (whether kernels without a weight left leave the model).
    Returns a handle of type 'dl_model'. Raises HOperatorError 7980, 7912, 2404/2454.
    Source: tfmot.sparsity.keras.strip_pruning.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> pruning = prune_low_magnitude(model, ConstantSparsity(0.5, 0))
        >>> update_pruning_step(model, pruning)
        >>> strip_pruning(model, pruning)
        HHandle('dl_model')
    """
    classifier = unwrap_model(dlmodel_handle, 1)
    data = magnitude_of(dlpruning_handle, 2)
    if remove_empty_kernels:
        data.set("remove_empty_kernels", ("true",))
    return new_handle("dl_model", data.generate(classifier))


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def write_sparse_model(dlmodel_handle: HHandle, file_name: str | os.PathLike[str]) -> None:
    """Write a model like write_dl_model, with ONNX's sparse storage for each weight where that takes fewer bytes.

    That is where more than two thirds of a weight are zero: a position takes eight bytes. read_dl_model, ONNX Runtime
    and onnx.checker read such files; some other tools do not know sparse initializers, so plain files are the default.
    Models of a format before IR version 6 or with more weights than one file takes are written plainly.

    Parameters: `dlmodel_handle` (type 'dl_model'), `file_name` (str, ending in .onnx).
    Raises HOperatorError 7803 (cannot be written), 1202 (no string), 2404/2454 (handle).

    Example:
        >>> import os, tempfile
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> pruning = prune_low_magnitude(model, ConstantSparsity(0.9, 0))
        >>> update_pruning_step(model, pruning)
        >>> path = os.path.join(tempfile.mkdtemp(), "sparse.onnx")
        >>> write_sparse_model(model, path)
        >>> os.path.getsize(path) < 0.5 * os.path.getsize(ha.demo_model_file())
        True
    """
    unwrap_model(dlmodel_handle, 1).write(to_file_name(file_name, "file_name", 2), sparse=True)


def pruning_summaries(dlpruning_handle: HHandle) -> HHandle:
    """Return how sparse each weight is and what threshold it has.

    Parameters: `dlpruning_handle` (type 'dl_pruning', mode 'magnitude').
    Returns a handle of type 'dict': 'global_step', 'last_mask_update_step', 'sparsity' (wanted at this step),
    'weights' (one dict per weight: 'name', 'nodes', 'size', 'target', 'sparsity' (of its mask), 'threshold').
    Raises HOperatorError 7980, 2404/2454.
    Source: add_pruning_summaries of tf.contrib.model_pruning, PruningSummaries of TFMOT.

    Example:
        >>> import dlprune as ha
        >>> pruning = prune_low_magnitude(ha.read_dl_model(ha.demo_model_file()))
        >>> ha.get_dict_tuple_s(pruning_summaries(pruning), "global_step")
        0
    """
    data = magnitude_of(dlpruning_handle, 1)
    with data.lock:
        schedule = data.recipe.schedule
        weights = []
        for weight in data.weights:
            target = data.treatments[weight.name].target
            weights.append(
                {
                    "name": weight.name,
                    "nodes": list(weight.nodes),
                    "size": weight.size,
                    "target": schedule.target if target is None else target,
                    "sparsity": data.sparsity_of(weight.name),
                    "threshold": data.thresholds.get(weight.name, 0.0),
                }
            )
        return from_python_dict(
            {
                "global_step": data.global_step,
                "last_mask_update_step": data.last_update or 0,
                "sparsity": schedule.sparsity(data.global_step),
                "weights": weights,
            }
        )
