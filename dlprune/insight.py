"""Operators beyond HALCON that look into pruning: how criteria agree, and which layers can spare kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .dictionary import from_python_dict
from .errors import (
    H_ERR_DL_INPUT_WRONG_BS,
    H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED,
    H_ERR_DL_PRUNING_WRONG_DATA,
    HOperatorError,
)
from .fit import scored_data
from .guard import guarded
from .handle import HHandle
from .model import unwrap_model
from .parameters import bad_value, number
from .rankcorrelation import rank_correlation
from .removal import sensitivity_of
from .samples import read_batch
from .structure import FIXED
from .tuples import TupleLike, to_tuple


def compare_dl_pruning_scores(dlpruning_handle: HHandle, dlpruning_handle_other: HHandle) -> HHandle:
    """Compare the orders in which two pruning data, e.g. of two modes, put the kernels.

    Parameters: `dlpruning_handle` and `dlpruning_handle_other` (type 'dl_pruning', of the same architecture, both with
    scores).
    Returns a dict handle: 'correlation' (Spearman's rank correlation, −1…1, of the scores of all units that can leave;
    kernels that only leave together are one unit); 'unit_num' (how many these are); 'layers' (for each convolution that
    can lose kernels, in graph order, a dict with 'name', 'kernel_num' and 'correlation' over its own kernels). A
    correlation is an empty tuple where all scores are equal.
    Raises HOperatorError 7980 (other architecture, or no scores), 2404/2454 (handle).

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> a, b = (ha.create_dl_pruning(model, mode, []) for mode in ("l1", "l2"))
        >>> found = ha.compare_dl_pruning_scores(a, b)
        >>> layers = ha.get_dict_tuple(found, "layers")
        >>> 0 < ha.get_dict_tuple_s(found, "correlation") < ha.get_dict_tuple_s(layers[0], "correlation") < 1
        True
    """
    first, second = (
        scored_data(handle, index) for index, handle in enumerate((dlpruning_handle, dlpruning_handle_other), 1)
    )
    if first.signature != second.signature:
        raise HOperatorError(
            H_ERR_DL_PRUNING_WRONG_DATA,
            "The pruning data belong to two architectures; only scores of the same network can be compared.",
        )
    for position, data in enumerate((first, second), 1):
        if not data.is_scored:
            raise HOperatorError(
                H_ERR_DL_PRUNING_WRONG_DATA,
                f"Pruning data {position} hold no scores yet; call add_dl_pruning_batch with at least one batch first.",
            )
    a, b = first.scores(), second.scores()
    layers = [(layer.name, layer.units[layer.units != FIXED]) for layer in first.layers if not layer.reason]
    pooled = np.unique(np.concatenate([units for _, units in layers]))
    return from_python_dict(
        {
            "correlation": _tuple(rank_correlation(a[pooled], b[pooled])),
            "unit_num": len(pooled),
            "layers": [
                {
                    "name": name,
                    "kernel_num": len(units),
                    "correlation": _tuple(rank_correlation(a[units], b[units])),
                }
                for name, units in layers
            ],
        }
    )


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def get_dl_pruning_sensitivity(
    dlmodel_handle: HHandle, dlpruning_handle: HHandle, dlsample_batch: Sequence[HHandle], percentages: TupleLike
) -> HHandle:
    """Tell how accuracy and loss suffer when kernels leave one group of coupled layers alone.

    For every group and percentage the model is pruned as gen_dl_pruned_model would do it ('compensation', 'selection',
    'exclude_layers', … as set; 'percentage', 'target' and 'max_layer_percentage' do not matter; in one step), but all
    other layers keep their kernels. Neither the model nor the pruning data are changed. Takes about as long as pruning
    the model groups × percentages times in one step.

    Parameters: `dlmodel_handle` (type 'classification'), `dlpruning_handle` (type 'dl_pruning', with scores of this
    architecture), `dlsample_batch` (any number of sample dicts to measure on, best others than were scored; without
    labels the model's own decisions count as the truth), `percentages` (one or more numbers in [0, 100], of the kernels
    that can leave a group).
    Returns a dict handle: 'percentages'; 'accuracy' (0…1) and 'loss' (mean cross-entropy) of the model as it is;
    'groups', in graph order a dict each with 'layer_names' (convolutions whose kernels leave together), 'kernel_num',
    'prunable_kernel_num', and with one value per percentage 'pruned_kernel_num', 'accuracy' and 'loss'.
    Raises HOperatorError 7914 (percentages), 7980 (other architecture, no scores or no images for the compensation),
    7784 (no sample), 7783/7790/7791/7793 (entries of a sample), 7912 (type 'generic'), 2404/2454 (handle).

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> pruning = ha.create_dl_pruning(model, "l2", ha.from_python_dict({"compensation": "none"}))
        >>> found = ha.get_dl_pruning_sensitivity(model, pruning, ha.demo_samples("test")[:50], [50])
        >>> groups = [ha.as_python_dict_s(group) for group in ha.get_dict_tuple(found, "groups")]
        >>> all(group["pruned_kernel_num"] <= group["prunable_kernel_num"] / 2 for group in groups)
        True
    """
    classifier = unwrap_model(dlmodel_handle, 1)
    data = scored_data(dlpruning_handle, 2)
    classifier.require_classification("get_dl_pruning_sensitivity")
    batch = read_batch(dlsample_batch, classifier, 3)
    if not len(batch.images):
        raise HOperatorError(H_ERR_DL_INPUT_WRONG_BS, "No samples were given; at least one is needed.")
    values = to_tuple(percentages, "percentages")
    if not values:
        raise bad_value("percentages", [], "at least one number in [0, 100] is needed")
    shares = [number(0, 100)("percentages", (value,)) for value in values]
    found = sensitivity_of(classifier, data, (batch.images, batch.labels), shares)
    return from_python_dict(
        {
            "percentages": list(found.percentages),
            "accuracy": found.original.accuracy,
            "loss": found.original.loss,
            "groups": [
                {
                    "layer_names": list(group.layers),
                    "kernel_num": group.kernel_num,
                    "prunable_kernel_num": group.prunable_kernel_num,
                    "pruned_kernel_num": list(group.pruned_kernel_nums),
                    "accuracy": [quality.accuracy for quality in group.qualities],
                    "loss": [quality.loss for quality in group.qualities],
                }
                for group in found.groups
            ],
        }
    )


def _tuple(value: float | None) -> list[float]:
    return [] if value is None else [value]
