"""The procedure that tells how good a classifier is on a dataset."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..classifier import Classifier
from ..dictionary import from_python_dict
from ..errors import H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED, H_ERR_WIPV3, H_ERR_WIPV4, HOperatorError
from ..evaluation import Evaluation
from ..guard import guarded
from ..handle import HHandle
from ..model import unwrap_model
from ..parameters import bad_value, text
from ..training.data import LabelledData
from ..training.evaluation import logits_of
from ..tuples import HTuple, TupleLike, to_str, to_strings, to_tuple
from .dataset import SPLITS, Dataset, DatasetImages
from .settings import read_settings, switch

_BATCH: Final = 64
_METHODS: Final = ("split", "indices", "image_ids")
_PER_CLASS: Final = ("precision", "recall", "f_score")
_MATRICES: Final = ("absolute_confusion_matrix", "relative_confusion_matrix")
_ALL: Final = ("top1_error", "top2_error", "top3_error", *_PER_CLASS, *_MATRICES)
_TOP: Final = re.compile(r"top([1-9][0-9]*)_error")


@guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
def evaluate_dl_model(
    dldataset: HHandle,
    dlmodel_handle: HHandle,
    sample_select_method: str,
    sample_select_values: TupleLike,
    gen_param: HHandle | Sequence[HHandle],
) -> tuple[HHandle, HHandle]:
    """Apply a classifier to labelled samples of a dataset and compare its decisions with their classes.

    Images are read from the files of preprocess_dl_dataset; without them raw images are preprocessed by the dataset's
    'preprocess_param', or as create_dl_preprocess_param_from_model says for the model (beyond HALCON).

    Parameters: `dldataset`; `dlmodel_handle` (type 'classification'); `sample_select_method`: 'split', 'indices' (from
    0 on) or 'image_ids'; `sample_select_values` ('train', 'validation', 'test', several of them; or numbers);
    `gen_param` ([] or dict: 'measures' ('all', or some of 'top1_error' … 'topK_error', 'precision', 'recall',
    'f_score', 'absolute_confusion_matrix', 'relative_confusion_matrix'), 'show_progress' (changes nothing)).

    Returns two 'dict' handles. The first, the result: 'num_samples', 'class_ids', 'class_names'; 'global': a dict with
    'top1_error', … (share of the samples, 0…1, whose class is not among the K best) and 'mean_precision',
    'mean_recall', 'mean_f_score' (mean over the classes that occur among the samples); under the name of each class a
    dict with 'precision', 'recall' and 'f_score' (0.0 where there is nothing to divide by);
    'absolute_confusion_matrix': tuple of K·K integers, row by row, a row per decision and a column per true class;
    'relative_confusion_matrix': the same divided by the sum of its column. HALCON gives matrix handles, and its
    documentation leaves the rest open. The second, the parameters of the evaluation: 'measures',
    'sample_select_method', 'sample_select_values'.

    Raises HOperatorError 1303 (method), 1304 (no such samples), 2897 (index), 7783/7790/7791/7793 (samples), 7911/7914
    (generic parameter), 7912 (model). Source: HALCON procedure evaluate_dl_model.

    Example:
        >>> import os, tempfile
        >>> import dlprune as ha
        >>> folder = tempfile.mkdtemp()
        >>> from dlprune.demo import demo_images
        >>> images, labels = demo_images("test")
        >>> for i in range(40):
        ...     ha.write_image(images[i], "png", 0, os.path.join(folder, f"digit{labels[i]}-{i}"))
        >>> dataset = ha.read_dl_dataset_classification(folder, "file_name_remove_index")
        >>> model = ha.read_dl_model(ha.demo_model_file())
        >>> result, _ = ha.evaluate_dl_model(dataset, model, "indices", list(range(40)), [])
        >>> ha.as_python_dict_s(result)["global"]["top1_error"]
        0.0
    """
    dataset = Dataset.of(dldataset, 1)
    classifier = unwrap_model(dlmodel_handle, 2)
    classifier.require_classification("evaluate_dl_model")
    method = to_str(sample_select_method, "sample_select_method", 3)
    numbers = _selected(dataset, method, sample_select_values)
    settings = read_settings(gen_param, 5, {"measures": _measures, "show_progress": switch})
    measures = settings.get("measures", _ALL)
    data = DatasetImages(dataset, numbers, dlmodel_handle, classifier)
    result = from_python_dict(measure(classifier, data, measures))
    values = list(to_tuple(sample_select_values))
    params = {"measures": list(measures), "sample_select_method": method, "sample_select_values": values}
    return result, from_python_dict(params)


def _selected(dataset: Dataset, method: str, values: object) -> list[int]:
    """Return the indices of the chosen samples. Raises HOperatorError 1303, 1304, 2897, 1204."""
    if method == "indices":
        found = dataset.indices(values, 4)
    elif method == "split":
        names = to_strings(values, "sample_select_values", 4)
        strange = [name for name in names if name not in SPLITS]
        if strange:
            raise HOperatorError(H_ERR_WIPV4, f"There is no split {strange[0]!r}; possible are {list(SPLITS)}.")
        found = sorted(number for name in set(names) for number in dataset.in_split(name))
    elif method == "image_ids":
        wanted = to_tuple(values, "sample_select_values")
        found = [i for i in range(len(dataset.samples)) if dataset.value(i, "image_id") in wanted]
    else:
        raise HOperatorError(
            H_ERR_WIPV3, f"sample_select_method is {method!r}; possible are {', '.join(map(repr, _METHODS))}."
        )
    if not found:
        raise HOperatorError(
            H_ERR_WIPV4, f"The dataset has no samples with {method} {values!r} (split_dl_dataset gives them a split)."
        )
    return found


def _measures(name: str, values: HTuple) -> tuple[str, ...]:
    names = [text(name, value) for value in values]
    if not names or names == ["all"]:
        return _ALL
    for one in names:
        if one not in (*_PER_CLASS, *_MATRICES) and not _TOP.fullmatch(one):
            raise bad_value(name, one, f"possible are 'all', {', '.join(map(repr, _ALL))}")
    return tuple(names)


def measure(classifier: Classifier, data: LabelledData, measures: Sequence[str] = _ALL) -> dict[str, Any]:
    """Return what evaluate_dl_model puts into its result."""
    ranks: list[NDArray[np.int64]] = []
    for first in range(0, len(data.labels), _BATCH):
        rows = logits_of(classifier, data.images(range(first, min(first + _BATCH, len(data.labels)))))
        ranks.append(np.argsort(-rows, axis=1, kind="stable"))
    order = np.concatenate(ranks)
    params = classifier.params
    ids = np.array(params.class_ids, np.int64)
    decisions = ids[order[:, 0]]
    every = np.arange(len(order))
    found = Evaluation(every, ids[data.labels], decisions[np.newaxis], np.zeros((1, len(order)), np.float32))
    table = found.confusion(params.class_ids).T  # a row per decision
    right, decided, true = np.diag(table).astype(np.float64), table.sum(axis=1), table.sum(axis=0)
    precision, recall = _share(right, decided), _share(right, true)
    scores = {"precision": precision, "recall": recall, "f_score": _share(2 * precision * recall, precision + recall)}
    of_all: dict[str, Any] = {}
    for name in measures:
        top = _TOP.fullmatch(name)
        if top:
            best = order[:, : int(top[1])] == data.labels[:, np.newaxis]
            of_all[name] = float(1.0 - best.any(axis=1).mean())
        elif name in scores:
            of_all[f"mean_{name}"] = float(scores[name][true > 0].mean())
    result: dict[str, Any] = {}
    for i, name in enumerate(params.class_names):
        one = {key: float(values[i]) for key, values in scores.items() if key in measures}
        if one:
            result[name] = one
    result |= {
        "num_samples": len(order),
        "class_ids": list(params.class_ids),
        "class_names": list(params.class_names),
        "global": of_all,
    }
    if "absolute_confusion_matrix" in measures:
        result["absolute_confusion_matrix"] = table.ravel().tolist()
    if "relative_confusion_matrix" in measures:
        result["relative_confusion_matrix"] = _share(table, np.broadcast_to(true, table.shape)).ravel().tolist()
    return result


def _share(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    """Divide; nothing by nothing is 0."""
    result: NDArray[np.float64] = np.divide(part, whole, out=np.zeros(part.shape, np.float64), where=whole > 0)
    return result
