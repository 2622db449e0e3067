"""Operators that score and evaluate many images on many processors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..dictionary import from_python_dict
from ..errors import H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED
from ..evaluation import Contestant, Evaluation, LabelledImages
from ..fit import require_fit, scored_data
from ..guard import guarded
from ..handle import HHandle
from ..imagefiles import ImagesError
from ..mark import note_weights
from ..model import unwrap_model
from ..progress import Progress
from ..pruningdata import PruningData
from ..samples import images_per_run
from .crew import Workers, check_workers, in_order
from .jobs import EvaluationJob, ScoringJob, ScoringPart
from .parts import parts
from .source import SamplesOrFiles, open_source


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def add_dl_pruning_batches(
    dlmodel_handle_to_prune: HHandle,
    dlpruning_handle: HHandle,
    samples_or_files: SamplesOrFiles,
    client: Workers = None,
    *,
    labels: Sequence[int] | None = None,
    skip_bad: bool = False,
    preprocess_param: HHandle | None = None,
    progress: Progress | None = None,
) -> dict[str, str]:
    """Score any number of images, on as many processors as there are, and add the scores to the pruning data.

    What add_dl_pruning_batch does for one batch, for a whole archive (beyond HALCON). Images are streamed: files are
    read by the workers, and only a few batches are in memory at any time. The model travels once to each worker. The
    images are cut into parts of about 64 in one way, and the scores of parts are added in their order, so the result
    does not depend on the workers; one that dies is replaced by the others. Call it again to add more images.

    Parameters: `dlmodel_handle_to_prune` (type 'classification'), `dlpruning_handle` (type 'dl_pruning'),
    `samples_or_files`: samples as in add_dl_pruning_batch, any number of them; or the name of a folder with one
    sub-folder per class, of an .npz archive or of a list of files; or a list of names of image files; or a dataset of
    read_dl_dataset_classification, whose raw images are then read. Reading files takes Pillow (extra `images`).
    `client`: who works. None: threads of this process; an integer: so many processes of this machine (the script then
    needs `if __name__ == "__main__":`); or a connected `distributed.Client` (extra `dask`). The workers of a cluster
    need dlprune and, under the same path, the files. One worker process with one thread per machine is best, since
    ONNX Runtime uses all cores itself.
    `labels` (class id of each file in a list of names; None: the model's own decision counts), `skip_bad` (leave
    unreadable files out instead of raising an error), `preprocess_param` (dict of create_dl_preprocess_param: how files
    are prepared, to the size and channels of the model; None: as the dataset, else the model's metadata tell),
    `progress` (called with 'score' and the share done, 0…1; with a task of rich's Progress, e.g.,
    `lambda _, share: bar.update(task, completed=share)`).
    Returns the images that were left out, name → reason.
    Raises HOperatorError as add_dl_pruning_batch does, 1303/1203/1403 (samples_or_files), 1204/1304 (client), 7913 (the
    workers failed); ImagesError (nothing there, unreadable files). Then nothing has changed.

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> pruning = ha.create_dl_pruning(model, "oracle", [])
        >>> ha.add_dl_pruning_batches(model, pruning, ha.demo_samples()[:100])
        {}
        >>> ha.get_dl_pruning_param_s(pruning, "scored_image_num")
        100
    """
    classifier = unwrap_model(dlmodel_handle_to_prune, 1)
    data = scored_data(dlpruning_handle, 2)
    classifier.require_classification("add_dl_pruning_batches")
    require_fit(classifier, data)
    source = open_source(samples_or_files, labels, skip_bad, classifier, 3, preprocess_param)
    check_workers(client, 4)
    job = ScoringJob(source.contestant(classifier), data.fresh(), images_per_run(classifier, len(source.data)))
    note_weights(classifier, data)
    data.merge(_score(job, source.data, client, progress or (lambda _name, _share: None)))
    return {one.name: one.reason for one in source.data.skipped.values()}


def _score(job: ScoringJob, images: LabelledImages, client: Workers, progress: Progress) -> PruningData:
    """Return pruning data that have seen all the images."""
    total, done = job.empty.fresh(), 0
    cut = (ScoringPart(part, total.calibration.bound) for part in parts(images, range(len(images)), job.batch))
    progress("score", 0.0)
    for scored in in_order(client, job, cut):
        total.absorb(scored.findings)
        images.skipped.update(scored.skipped)
        done += scored.findings.count + len(scored.skipped)
        progress("score", done / len(images))
    if not total.count:
        raise ImagesError("There is no readable image to score.")
    return total


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def evaluate_dl_model_batches(
    dlmodel_handle: HHandle,
    samples_or_files: SamplesOrFiles,
    client: Workers = None,
    *,
    labels: Sequence[int] | None = None,
    skip_bad: bool = False,
    preprocess_param: HHandle | None = None,
    progress: Progress | None = None,
) -> HHandle:
    """Apply a classifier to any number of images, on as many processors as there are (beyond HALCON).

    Parameters: `dlmodel_handle` (type 'classification'); all others as in add_dl_pruning_batches; `progress` is called
    with 'evaluate' and the share done.
    Returns a dict handle: 'image_num' (images that could be read), 'image_ids' (their positions, from 0 on),
    'classification_class_ids' and 'classification_confidences' (per image, of the best class); where images have
    classes also 'accuracy' (0…1) and 'confusion_matrix' (row after row: images of class i taken for class j, in the
    order of the model's 'class_ids'); 'skipped' (names of images that were left out).
    Raises HOperatorError 7912 (type 'generic', or it cannot be run), 1302/1202/1402 (samples_or_files), 1203/1303
    (client), 7913 (the workers failed), as add_dl_pruning_batch does for samples; ImagesError (files).

    Example:
        >>> import dlprune as ha
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> result = ha.evaluate_dl_model_batches(model, ha.demo_samples("test"))
        >>> f"{ha.get_dict_tuple_s(result, 'accuracy'):.4f}"
        '0.9983'
    """
    classifier = unwrap_model(dlmodel_handle, 1)
    classifier.require_classification("evaluate_dl_model_batches")
    source = open_source(samples_or_files, labels, skip_bad, classifier, 2, preprocess_param)
    check_workers(client, 3)
    found = evaluate_images([source.contestant(classifier)], source.data, None, client, progress)
    result: dict[str, Any] = {
        "image_num": len(found.indices),
        "image_ids": found.indices.tolist(),
        "classification_class_ids": found.decisions[0].tolist(),
        "classification_confidences": found.confidences[0].tolist(),
        "skipped": list(source.data.skipped),
    }
    (accuracy,) = found.accuracies
    if accuracy is not None:
        result["accuracy"] = accuracy
        result["confusion_matrix"] = found.confusion(classifier.params.class_ids).ravel().tolist()
    return from_python_dict(result)


def evaluate_images(
    contestants: Sequence[Contestant],
    data: LabelledImages,
    indices: Sequence[int] | None = None,
    client: Workers = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Apply classifiers to images, as evaluation.evaluate does, on the workers of `client`.

    Raises what evaluation.evaluate raises, and HOperatorError 7913 (the workers failed).
    """
    chosen = range(len(data)) if indices is None else indices
    batch = max(one.classifier.params.batch_size for one in contestants)
    report = progress or (lambda _name, _share: None)
    found: list[Evaluation] = [Evaluation.nothing(len(contestants))]
    done = 0
    report("evaluate", 0.0)
    for decided in in_order(client, EvaluationJob(contestants), parts(data, chosen, batch)):
        found.append(decided.evaluation)
        data.skipped.update(decided.skipped)
        done += len(decided.evaluation.indices) + len(decided.skipped)
        report("evaluate", done / len(chosen))
    return Evaluation.joined(found)
