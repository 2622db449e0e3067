"""Removing kernels from a classifier as its pruning data tell, and what that costs group by group."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np

from .calibration import Images, Labels
from .classifier import Classifier
from .criteria import Tally, Weighed
from .errors import H_ERR_DL_PRUNING_WRONG_DATA, HOperatorError
from .fit import require_fit
from .imagescores import network_of, understandable
from .limits import multiple_of
from .mark import mark_of, warn_stale
from .plan import Plan, Pruned, Watch
from .progress import Progress
from .pruningdata import PruningData
from .selection import Limits
from .sensitivity import Sensitivity, measure_sensitivity
from .sparsity.strip import carry_masks
from .steps import Stepper


def _plan(data: PruningData) -> Plan:
    settings = data.settings
    percentage = float(settings.percentage)
    share = settings.max_layer_percentage
    automatic = "score" if settings.compensation == "none" else data.criterion.selection
    by_score = "score" in (settings.selection, automatic if settings.selection == "auto" else "")
    # Who chooses by the score alone needs a limit, or whole layers collapse; the remaining error needs none.
    cap = (None if by_score else 1.0) if share == "auto" else float(share) / 100
    return Plan(
        percentage=percentage,
        step=float(settings.step_percentage),
        target=settings.target,
        dense=data.prunes_dense,
        limits=Limits(held=data.held, floors=data.floors, multiple=multiple_of(settings.kernel_multiple)),
        cap=cap,
        selection="score" if by_score else "reconstruction",
        normalization=settings.normalization,
        compensation=settings.compensation,
        reestimate=settings.batchnorm == "reestimate",
        distillation_steps=settings.distillation_steps,
        choices=None if isinstance(settings.choice_num, str) else settings.choice_num,
        joint=None if settings.joint_refit == "auto" else settings.joint_refit == "true",
    )


def generate(
    classifier: Classifier,
    data: PruningData,
    progress: Progress = lambda _name, _share: None,
    watch: Watch | None = None,
) -> tuple[Classifier, Pruned]:
    """Prune a classifier that fits the data, and write into the data what that came to; see gen_dl_pruned_model."""
    plan = _plan(data)
    if data.mark not in ("", mark_of(classifier)):
        warn_stale("they are used to prune it all the same")
    images, labels = _images(classifier, data, plan)
    held_out = None
    if plan.target == "accuracy_drop":
        images, labels, held_out = _split(data, images, labels)
    with understandable():
        tally = _tally(classifier, data, images, labels)
        stepper = Stepper(classifier, images, labels, data.criterion, tally, progress, held_out, watch)
        result = stepper.run(plan)
    pruned = classifier.with_model(result.model)
    carry_masks(classifier, pruned, result.gone)
    pruned.confidences(images[:1].repeat(classifier.params.batch_size, axis=0))  # it must run before anybody gets it
    data.finish(result.gone, result.reached, [step.entry() for step in result.history])
    if plan.percentage > 0 and plan.limits.multiple > 1 and not result.gone.any():
        warnings.warn(
            f"No kernel was removed: with 'kernel_multiple' {data.settings.kernel_multiple!r} layers keep multiples of "
            f"{plan.limits.multiple} kernels, and within 'percentage' {plan.percentage:g} of 'target' {plan.target!r} "
            "none can lose as many as that takes. Set a smaller 'kernel_multiple' or a higher 'percentage'.",
            stacklevel=3,
        )
    return pruned, result


def sensitivity_of(
    classifier: Classifier,
    data: PruningData,
    test: tuple[Images, Labels],
    percentages: Sequence[float],
    progress: Callable[[float], None] = lambda _: None,
) -> Sensitivity:
    """Prune each group of layers alone, as the parameters in the data tell; see get_dl_pruning_sensitivity.

    Args:
        classifier: the original.
        data: what gen_dl_pruned_model would prune it by; left as they are.
        test, percentages, progress: see measure_sensitivity.
    """
    require_fit(classifier, data)
    with data.lock:
        plan = _plan(data)
        images, labels = _images(classifier, data, plan)
        with understandable():
            stepper = Stepper(classifier, images, labels, data.criterion, _tally(classifier, data, images, labels))
    with understandable():
        return measure_sensitivity(classifier, stepper, plan, test, percentages, progress)


def _tally(classifier: Classifier, data: PruningData, images: Images, labels: Labels) -> Tally:
    """Return what the criterion has found so far; one that looks at weights does so now."""
    criterion = data.criterion
    if isinstance(criterion, Weighed):
        return criterion.measure(network_of(classifier), images, labels)
    return data.tally()


def _split(data: PruningData, images: Images, labels: Labels) -> tuple[Images, Labels, tuple[Images, Labels]]:
    """Share out the remembered images: those with the smallest content hashes for the refit, the others held out."""
    settings = data.settings
    wanted = settings.calibration_image_num + settings.held_out_image_num
    fitted = min(max(len(images) * settings.calibration_image_num // wanted, 1), settings.calibration_image_num)
    if len(images) < 2 or not len(data.calibration):
        raise HOperatorError(
            H_ERR_DL_PRUNING_WRONG_DATA,
            "With 'target' 'accuracy_drop' accuracy is measured on remembered images that nothing is fitted to, but "
            f"the pruning data holds {len(data.calibration)} images; add a batch of several images first.",
        )
    return images[:fitted], labels[:fitted], (images[fitted:], labels[fitted:])


def _images(classifier: Classifier, data: PruningData, plan: Plan) -> tuple[Images, Labels]:
    """Return the remembered images. Raises HOperatorError 7980 if there are none but some are needed."""
    mode = data.settings.mode
    if len(data.calibration):
        return data.calibration.arrays()
    if not isinstance(data.criterion, Weighed):
        raise HOperatorError(
            H_ERR_DL_PRUNING_WRONG_DATA,
            "The pruning data holds no scores yet; call add_dl_pruning_batch with at least one batch first.",
        )
    if not plan.is_plain:
        raise HOperatorError(
            H_ERR_DL_PRUNING_WRONG_DATA,
            f"Mode {mode!r} scores without images, but 'compensation' {plan.compensation!r} and 'selection' "
            f"{plan.selection!r} work on images and the pruning data holds none; call add_dl_pruning_batch with at "
            "least one batch, or set 'compensation' to 'none' for plain removal.",
        )
    return np.zeros(classifier.input_shape(1), np.float32), np.zeros(1, np.int64)  # only to try the result
