"""Whether a handle's pruning data can be used for what is asked: their mode scores kernels, and the model is theirs."""

from __future__ import annotations

from .analysis import analysis_of
from .classifier import Classifier
from .errors import H_ERR_DL_PRUNING_WRONG_DATA, HOperatorError
from .handle import HHandle
from .payload import payload_of
from .pruningdata import PruningData
from .quantised import refuse_converted


def scored_data(handle: HHandle, index: int) -> PruningData:
    """Return what is behind a handle whose mode scores kernels. Raises HOperatorError 7980 for mode 'magnitude'."""
    data = payload_of(handle, index)
    if not isinstance(data, PruningData):
        raise HOperatorError(
            H_ERR_DL_PRUNING_WRONG_DATA,
            "Pruning data of mode 'magnitude' scores no kernels and takes no batches here: train the model with "
            "train_dl_model_batch, call update_dl_pruning_masks after each step, then gen_dl_pruned_model.",
        )
    return data


def require_fit(classifier: Classifier, data: PruningData) -> None:
    """Raise HOperatorError 7980 unless the data belong to the architecture of a classifier, 7912 if it is converted."""
    refuse_converted(classifier)
    analysis = analysis_of(classifier)
    if analysis.signature != data.signature:
        raise HOperatorError(
            H_ERR_DL_PRUNING_WRONG_DATA,
            f"The pruning data was created for a network of {len(data.layers)} convolutions and "
            f"{len(data.kernels)} units; this model has another architecture "
            f"({len(analysis.structure.layers)} convolutions, {analysis.structure.unit_num} units). "
            "Create new pruning data for it.",
        )
