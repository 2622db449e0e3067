"""The whole job in one call: score, prune, refit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .classifier import Classifier
from .dictionary import Dictionary, create_dict, set_dict_tuple
from .fit import require_fit, scored_data
from .handle import HHandle, new_handle
from .imagescores import add_images
from .model import unwrap_model
from .progress import Progress
from .pruning import create_dl_pruning, set_dl_pruning_param
from .pruningdata import PruningData
from .removal import generate
from .samples import images, images_per_run, labels, read_samples
from .tuples import TupleLike


def prune_dl_model(
    dlmodel_handle: HHandle,
    samples: Sequence[HHandle],
    percentage: float,
    *,
    progress: Progress | None = None,
    dlpruning_handle: HHandle | None = None,
    **settings: TupleLike,
) -> tuple[HHandle, HHandle, list[dict[str, Any]]]:
    """Score a model on samples, prune it and return what came out: the pruning operators in one call (beyond HALCON).

    The samples are worked off in batches, the last of which may be incomplete, also where the file fixes the batch
    size. Nothing is lost when the call is interrupted (Ctrl-C): the scores so far are in `dlpruning_handle`, or, if
    none was given, in the attribute of that name of the exception. The same call with that handle goes on from there,
    as samples that the handle has scored already (as many as its 'scored_image_num', from the first one on) are left
    out; so is another call with another percentage almost free.

    Parameters: `dlmodel_handle` (type 'classification'; not changed), `samples` (sample dicts with 'image' and, in all
    or in none of them, 'image_label_id'), `percentage` (number in [0, 100]: share of the removable kernels, or of
    another target, to remove), `progress` (called with 'score' or 'prune' and the share done, 0…1; an exception that it
    raises ends the call), `dlpruning_handle` (type 'dl_pruning'; made by the call if None), `settings` (parameters
    of set_dl_pruning_param by name, e.g. target="macs", and mode="oracle").
    Returns the handle of the pruned model, that of the pruning data, and the history: one dict per step with
    'kernel_num' and 'feature_num' (what has left so far), 'target_reached' (percent of the target; for 'accuracy_drop'
    points lost on held-out images), 'least_squares' and 'bias' (layers that were refitted so), 'seconds', and 'kept'
    (False: the step lost too much and was taken back).
    Raises HOperatorError as create_dl_pruning, set_dl_pruning_param, add_dl_pruning_batch and gen_dl_pruned_model do.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> pruned, pruning, history = ha.prune_dl_model(model, ha.demo_samples()[:100], 30, calibration_image_num=64)
        >>> 28 < ha.get_dl_pruning_param_s(pruning, "pruned_percentage") <= 30
        True
        >>> history[-1]["kernel_num"] == ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num")
        True
    """
    classifier = unwrap_model(dlmodel_handle, 1)
    classifier.require_classification("prune_dl_model")
    found = read_samples(samples, 2)
    if dlpruning_handle is None:
        mode, gen_param = settings.pop("mode", "oracle"), create_dict()
        for name, value in settings.items():
            set_dict_tuple(gen_param, name, value)
        handle, settings = create_dl_pruning(dlmodel_handle, mode, gen_param), {}  # type: ignore[arg-type]
    else:
        handle = dlpruning_handle
    data = scored_data(handle, 5)
    require_fit(classifier, data)
    for name, value in {**settings, "percentage": percentage}.items():
        set_dl_pruning_param(handle, name, value)
    report = progress or (lambda _name, _share: None)
    try:
        _score(classifier, data, found, report)
        with data.lock:
            pruned, result = generate(classifier, data, report)
    except KeyboardInterrupt as interrupt:
        interrupt.dlpruning_handle = handle  # type: ignore[attr-defined]
        raise
    return new_handle("dl_model", pruned), handle, [step.entry() for step in result.history]


def _score(classifier: Classifier, data: PruningData, samples: list[Dictionary], progress: Progress) -> None:
    """Score all samples behind those that have been scored already."""
    size = images_per_run(classifier, len(samples))
    targets = labels(samples, classifier)
    progress("score", min(data.count / max(len(samples), 1), 1.0))
    while data.count < len(samples):
        start = data.count
        count = min(size, len(samples) - start)
        chosen = [start + min(i, count - 1) for i in range(size)]  # an incomplete batch repeats its last image
        batch = images([samples[i] for i in chosen], classifier, start)
        add_images(classifier, data, batch, targets[chosen], count)
        progress("score", data.count / len(samples))
