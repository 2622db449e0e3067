"""The operator that writes a report on a pruning (beyond HALCON)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from ..classifier import Classifier
from ..cost import latency
from ..errors import H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, H_ERR_DL_PRUNING_WRONG_DATA, HOperatorError
from ..fit import scored_data
from ..guard import guarded
from ..handle import HHandle
from ..model import unwrap_model
from ..parameters import bad_value
from ..pruningdata import PruningData
from ..samples import images, labels, read_samples
from ..tuples import to_file_name, to_int
from .content import Integers, Measures, Pair, Test, gather, test_of
from .files import report_path, write_report


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def write_dl_pruning_report(
    dlpruning_handle: HHandle,
    dlmodel_handle: HHandle,
    dlmodel_handle_pruned: HHandle,
    file_name: str | os.PathLike[str],
    *,
    samples: Sequence[HHandle] = (),
    curve: Sequence[tuple[float, float]] = (),
    latency_runs: int = 0,
    name: str = "",
    command: str = "",
) -> None:
    """Write a page that shows what was removed, what that saves and what it costs (beyond HALCON).

    One HTML file that needs no network: figures before and after, a bar for each convolution, coupled groups, scores,
    the steps of the removal, confusion matrices, a table that sorts, and how to repeat it. The same numbers go
    beside it into a .json and a .csv file of the same stem (one line per convolution); what was there is replaced.

    Parameters: `dlpruning_handle` (type 'dl_pruning', after gen_dl_pruned_model), `dlmodel_handle` (the original),
    `dlmodel_handle_pruned` (what the last gen_dl_pruned_model returned, also if written and read again), `file_name`
    (str, ends in .html), `samples` (sample dicts, best others than were scored, to measure the accuracy on; with
    'image_label_id' in all or in none of them), `curve` (measured points to draw: percent of the
    removable kernels that left, 0…100, and accuracy, 0…1),
    `latency_runs` (int ≥ 0: time so many runs of each model; 0: do not), `name` (title of the page), `command` (what
    repeats the work; if empty the page shows the operators with all their parameters).
    Raises HOperatorError 3142 (name without .html, missing folder, no permission), 7980 (handles that do not belong
    together, nothing removed yet, or mode 'magnitude', which removes no kernels), 7783/7790/7791/7793 (entries of a
    sample), 7914 (a point of the curve, number of runs), 2404/2454 (handle).

    Example:
        >>> import dlprune as ha
        >>> import pathlib, tempfile
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> settings = ha.from_python_dict({"percentage": 30, "compensation": "none"})
        >>> pruning = ha.create_dl_pruning(model, "l2", settings)
        >>> pruned = ha.gen_dl_pruned_model(model, pruning)
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> ha.write_dl_pruning_report(pruning, model, pruned, str(folder / "report.html"))
        >>> sorted(path.name for path in folder.iterdir())
        ['report.csv', 'report.html', 'report.json']
    """
    data = scored_data(dlpruning_handle, 1)
    classifier, pruned = unwrap_model(dlmodel_handle, 2), unwrap_model(dlmodel_handle_pruned, 3)
    path = report_path(to_file_name(file_name, "file_name", 4))
    for one in (classifier, pruned):
        one.require_classification("write_dl_pruning_report")
    _require_same_output(classifier, pruned)
    for point in curve:
        if len(point) != 2 or not (0 <= point[0] <= 100 and 0 <= point[1] <= 1):
            raise bad_value("curve", point, "pairs of a percentage in [0, 100] and an accuracy in [0, 1] are needed")
    runs = to_int(latency_runs, "latency_runs", 7)
    if runs < 0:
        raise bad_value("latency_runs", runs, "an integer of at least 0 is needed")
    # What does not belong together is told before anything is measured.
    report = gather(data, classifier, pruned, Measures(), name=name, curve=curve, command=command or _lines(data))
    times = latency((classifier, pruned), runs=runs).seconds if runs else (None, None)
    measures = Measures(
        file_size=Pair(len(classifier.to_bytes()), len(pruned.to_bytes())),
        latency=Pair(*times),
        latency_batch=(classifier.image.batch if classifier.image is not None else None) or 1,
        test=_test(classifier, pruned, samples) if len(samples) else None,
    )
    write_report(report.measured(measures), path)


def _require_same_output(classifier: Classifier, pruned: Classifier) -> None:
    if classifier.class_num != pruned.class_num:
        raise HOperatorError(
            H_ERR_DL_PRUNING_WRONG_DATA,
            f"The models do not belong together: {classifier.class_num} and {pruned.class_num} classes.",
        )


def _test(classifier: Classifier, pruned: Classifier, samples: Sequence[HHandle]) -> Test:
    """Let both models decide on the samples."""
    found = read_samples(samples, 5)
    truths = labels(found, classifier)
    decisions: list[list[Integers]] = [[], []]
    fixed = classifier.image.batch if classifier.image is not None else None
    size = fixed or max(classifier.params.batch_size, 16)
    for start in range(0, len(found), size):
        part = found[start : start + size]
        batch = images(part, classifier, start)
        if fixed and len(part) < size:
            batch = np.concatenate([batch, batch[-1:].repeat(size - len(part), axis=0)])
        for one, rows in zip((classifier, pruned), decisions, strict=True):
            rows.append(one.confidences(batch)[: len(part)].argmax(axis=1))
    return test_of(truths, [np.concatenate(rows) for rows in decisions], classifier.params.class_names)


def _lines(data: PruningData) -> str:
    """Return the operators that repeat a removal, for those who did not use the command line."""
    settings = {one: value for one, value in vars(data.settings).items() if one != "mode"}
    written = ", ".join(f"{one!r}: {list(v) if isinstance(v, tuple) else v!r}" for one, v in settings.items())
    lines = [
        "import dlprune as ha",
        'model = ha.read_dl_model("model.onnx")',
        f"settings = ha.from_python_dict({{{written}}})",
        f"pruning = ha.create_dl_pruning(model, {data.settings.mode!r}, settings)",
    ]
    if data.count:
        lines.append(f"for batch in batches:  # {data.count} images were scored")
        lines.append("    ha.add_dl_pruning_batch(model, pruning, batch)")
    return "\n".join([*lines, "pruned = ha.gen_dl_pruned_model(model, pruning)"])
