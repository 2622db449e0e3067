"""Operators beyond HALCON that look into pruning: how criteria agree, and which layers can spare kernels."""

from __future__ import annotations

import numpy as np

from .dictionary import from_python_dict
from .errors import H_ERR_DL_PRUNING_WRONG_DATA, HOperatorError
from .handle import HHandle, unwrap
from .pruning import SEM_TYPE
from .pruningdata import PruningData
from .rankcorrelation import rank_correlation
from .structure import FIXED


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
        unwrap(handle, SEM_TYPE, PruningData, index)
        for index, handle in enumerate((dlpruning_handle, dlpruning_handle_other), 1)
    )
    if first.signature != second.signature:
        raise HOperatorError(
            H_ERR_DL_PRUNING_WRONG_DATA,
            "The pruning data belong to two architectures; only scores of the same network can be compared.",
        )
    for number, data in enumerate((first, second), 1):
        if not data.is_scored:
            raise HOperatorError(
                H_ERR_DL_PRUNING_WRONG_DATA,
                f"Pruning data {number} hold no scores yet; call add_dl_pruning_batch with at least one batch first.",
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


def _tuple(value: float | None) -> list[float]:
    return [] if value is None else [value]
