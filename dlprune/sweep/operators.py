"""The operator that prunes a model in many ways (beyond HALCON)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..classifier import Classifier
from ..dictionary import create_dict, set_dict_tuple
from ..errors import H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED
from ..evaluation import LabelledImages
from ..fit import scored_data
from ..guard import guarded
from ..handle import HHandle
from ..model import unwrap_model
from ..parallel.crew import Workers, check_workers
from ..parallel.operators import add_dl_pruning_batches
from ..parallel.source import SamplesOrFiles, open_source
from ..parameters import bad_value, number
from ..pruning import create_dl_pruning, set_dl_pruning_param
from ..pruningdata import PruningData
from ..training.finetune import digest_weights
from ..tuples import TupleLike, to_int
from .run import Point, Setting, SweepFolder, SweepJob, TestImages, run_sweep


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def sweep_dl_pruning(
    dlmodel_handle: HHandle,
    samples_or_files: SamplesOrFiles,
    percentages: Sequence[float],
    criteria: Sequence[str] = ("oracle",),
    *,
    targets: Sequence[str] = ("kernels",),
    test: SamplesOrFiles = (),
    client: Workers = None,
    folder: str = "",
    latency_runs: int = 0,
    progress: Callable[[int, int], object] | None = None,
    **settings: TupleLike,
) -> list[dict[str, Any]]:
    """Prune a model by every criterion, target and percentage, and tell what each costs and saves (beyond HALCON).

    Scoring is done once per criterion. With a `folder` the points that are done are kept there (sweep.json, sweep.csv),
    and the same call goes on from them after an interruption, or adds others.

    Parameters: `dlmodel_handle` (type 'classification'; not changed), `samples_or_files` (images to score, see
    add_dl_pruning_batches), `percentages` (numbers in [0, 100]), `criteria` (modes of create_dl_pruning), `targets`
    (values of 'target'), `test` (images for the accuracy, best others than are scored; () = none), `client` (who
    works, see add_dl_pruning_batches; None: this process, one after the other), `folder` (str, '' = none),
    `latency_runs` (int ≥ 0: time so many runs of each model in turn with the original; 0: do not), `progress` (called
    with the number of models done and of all), `settings` (parameters of set_dl_pruning_param by name).
    Returns a dict per model, the original ('mode' '') first: 'mode', 'target', 'percentage', 'pruned_kernel_num',
    'pruned_percentage', 'target_reached', 'kernels', 'parameters', 'macs', 'file_size' (bytes), 'latency' (seconds or
    None), 'accuracy' (0…1 or None), 'seconds' (that pruning took), 'optimal' (of 'macs', 'latency' and 'file_size'
    those for which no other model is as accurate and cheaper, or more accurate and as cheap).
    Raises HOperatorError as create_dl_pruning, set_dl_pruning_param, add_dl_pruning_batches and gen_dl_pruned_model
    do, 7914 (percentages, criteria or targets empty; folder with other work), 3142 (folder cannot be written).

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> samples, test = ha.demo_samples()[:50], ha.demo_samples("test")[:100]
        >>> points = ha.sweep_dl_pruning(model, samples, [20, 40], ["l2", "oracle"], test=test, compensation="none")
        >>> [(point["mode"], point["percentage"]) for point in points]
        [('', 0.0), ('l2', 20.0), ('l2', 40.0), ('oracle', 20.0), ('oracle', 40.0)]
    """
    classifier = unwrap_model(dlmodel_handle, 1)
    classifier.require_classification("sweep_dl_pruning")
    for name, values in (("percentages", percentages), ("criteria", criteria), ("targets", targets)):
        if not len(values):
            raise bad_value(name, [], "at least one is needed")
    shares = [number(0, 100)("percentages", (value,)) for value in percentages]
    runs = to_int(latency_runs, "latency_runs", 8)
    if runs < 0:
        raise bad_value("latency_runs", runs, "an integer of at least 0 is needed")
    check_workers(client, 7)
    source = open_source(samples_or_files, None, False, classifier, 2)
    tested = open_source(test, None, False, classifier, 6) if isinstance(test, str) or len(test) else None  # type: ignore[arg-type]
    grid = [Setting(mode, target, share) for mode in criteria for target in targets for share in shares]
    keep = None
    done: list[Point] = []
    fresh = {mode: _fresh(dlmodel_handle, mode, targets, settings) for mode in criteria}  # wrong settings show at once
    if folder:
        images = [source.data] + ([] if tested is None else [tested.data])
        keep = SweepFolder(Path(folder), _task(classifier, images, settings, runs))
        done = keep.read()
    finished = {point.setting for point in done}
    scored: dict[str, PruningData] = {}
    for mode, handle in fresh.items():
        if any(setting.mode == mode and setting not in finished for setting in grid):
            add_dl_pruning_batches(dlmodel_handle, handle, samples_or_files, client)
            scored[mode] = scored_data(handle, 2)
    job = SweepJob(
        classifier,
        scored,
        None if tested is None else TestImages(tested.data, range(len(tested.data)), tested.preprocessing),
        runs,
    )

    def report(points: list[Point]) -> None:
        if keep is not None:
            keep.write(points)
        if progress is not None:
            progress(len(points), len(set(grid)) + 1)

    return [asdict(point) for point in run_sweep(job, grid, done, workers=client, report=report)]


def _fresh(model: HHandle, mode: str, targets: Sequence[str], settings: dict[str, TupleLike]) -> HHandle:
    parameters = create_dict()
    for name, value in settings.items():
        set_dict_tuple(parameters, name, value)
    handle = create_dl_pruning(model, mode, parameters)
    # 'accuracy_drop' needs images held out from the first batch on; it comes last, so it stays where it is asked for.
    for target in sorted(targets, key=lambda one: one == "accuracy_drop"):
        set_dl_pruning_param(handle, "target", target)
    return handle


def _task(classifier: Classifier, images: Sequence[LabelledImages], settings: dict[str, TupleLike], runs: int) -> str:
    """Return a digest of what the points depend on."""
    params = classifier.params
    digest = hashlib.sha256(digest_weights(classifier).encode())
    described = [classifier.input_shape(), params.image_range_min, params.image_range_max, sorted(settings.items())]
    digest.update(repr([*described, runs > 0, *(list(one.images.names) for one in images)]).encode())
    for one in images:
        digest.update(one.class_ids.tobytes())
    return digest.hexdigest()[:32]
