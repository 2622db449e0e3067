"""The procedures on datasets: dictionaries that list samples, their images in files and their classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..classifier import Array, Classifier
from ..dictionary import Dictionary, Key, create_dict, from_python_dict, read_dict, unwrap_dict, write_dict
from ..errors import (
    H_ERR_DICT_INVALID_INDEX,
    H_ERR_DICT_KEY,
    H_ERR_DL_CLASS_IDS_INVALID,
    H_ERR_DL_INPUT_WRONG_TYPE,
    H_ERR_DL_INPUTS_MISSING,
    H_ERR_FILE_WR,
    H_ERR_FNF,
    H_ERR_WIPV1,
    H_ERR_WIPV2,
    HOperatorError,
)
from ..handle import HHandle, new_handle
from ..image import HObject
from ..imagefiles import image_paths, stratified_part
from ..imageoperators import read_image
from ..parameters import choice, count
from ..samples import IMAGE, LABEL, images, labels
from ..tuples import HTuple, TupleLike, to_file_name, to_number, to_str, to_strings, to_tuple
from .preprocessing import (
    create_dl_preprocess_param_from_model,
    preprocess_dl_samples,
    read_preprocess_param,
)
from .settings import read_settings, switch, tuple_of

SPLITS: Final = ("train", "validation", "test")
_LABEL_SOURCES: Final = ("last_folder", "file_name", "file_name_remove_index")
_MODES: Final = ("match", "or", "contain")
_SEED: Final = 42
#: Entries of a sample of a dataset that go into a DLSample.
_SAMPLE_KEYS: Final = ("image_id", "image_file_name", LABEL)


def read_dl_dataset_classification(raw_image_folder: TupleLike | os.PathLike[str], label_source: str) -> HHandle:
    """List the images of a folder, at any depth, with the class of each.

    Parameters: `raw_image_folder` (str or path, or several; hidden files are passed over); `label_source`:
    'last_folder' (the class is the name of the folder that the image lies in), 'file_name' (the name of the file
    without its ending), 'file_name_remove_index' (the same without digits and underscores at its end: 'good_017.png' is
    'good'). Returns a 'dict' handle: 'class_names' (in alphabetical order), 'class_ids' (0, 1, …), 'image_dir' (the
    folder that all file names are relative to) and 'samples': dicts with 'image_id' (from 1 on), 'image_file_name',
    'image_label_id'. HALCON does not say how ids are given; these are ours.
    Raises HOperatorError 5200 (no such folder), 1301 (no images in it), 1302 (label source).
    Source: HALCON procedure read_dl_dataset_classification.

    Example:
        >>> import os, tempfile
        >>> import dlprune as ha
        >>> import numpy as np
        >>> folder = tempfile.mkdtemp()
        >>> for name in ("bad", "good"):
        ...     os.mkdir(os.path.join(folder, name))
        ...     ha.write_image(np.zeros((4, 4), np.uint8), "png", 0, os.path.join(folder, name, "0"))
        >>> ha.get_dict_tuple(ha.read_dl_dataset_classification(folder, "last_folder"), "class_names")
        ['bad', 'good']
    """
    if isinstance(raw_image_folder, os.PathLike):
        raw_image_folder = os.fspath(raw_image_folder)
    folders = [Path(one) for one in to_strings(raw_image_folder, "raw_image_folder", 1)]
    source = to_str(label_source, "label_source", 2)
    if source not in _LABEL_SOURCES:
        raise HOperatorError(H_ERR_WIPV2, f"label_source is {source!r}; possible are {list(_LABEL_SOURCES)}.")
    for folder in folders:
        if not folder.is_dir():
            raise HOperatorError(H_ERR_FNF, f"There is no folder {str(folder)!r} (current folder: {os.getcwd()!r}).")
    files = [path for folder in folders for path in image_paths(folder)]
    if not files:
        raise HOperatorError(H_ERR_WIPV1, f"There are no image files in {[str(folder) for folder in folders]}.")
    names = [_class_of(path, source) for path in files]
    root = folders[0] if len(folders) == 1 else Path(os.path.commonpath([os.path.abspath(one) for one in folders]))
    ids = {name: i for i, name in enumerate(sorted(set(names)))}
    samples = [
        {
            "image_id": number,
            "image_file_name": os.path.relpath(path, root).replace(os.sep, "/"),
            LABEL: ids[name],
        }
        for number, (path, name) in enumerate(zip(files, names, strict=True), 1)
    ]
    return from_python_dict(
        {"image_dir": str(root), "class_names": list(ids), "class_ids": list(ids.values()), "samples": samples}
    )


def _class_of(path: Path, source: str) -> str:
    if source == "last_folder":
        return path.parent.name
    return path.stem.rstrip("0123456789_") or path.stem if source == "file_name_remove_index" else path.stem


def split_dl_dataset(
    dldataset: HHandle, training_percent: float, validation_percent: float, gen_param: HHandle | Sequence[HHandle]
) -> None:
    """Divide the samples of a dataset, each class in the same proportions; every sample gets an entry 'split'.

    Parameters: `dldataset` (see read_dl_dataset_classification; changed in place); `training_percent`,
    `validation_percent` (numbers ≥ 0, together at most 100; the rest is for the test; shares are rounded per class);
    `gen_param` ([] or dict: 'overwrite_split' ('true' = samples may have a split already, default 'false'),
    'model_type' ('classification'), 'seed' (int ≥ 0, default 42: the same seed gives the same split; in HALCON the seed
    is set by set_system 'seed_rand')).
    Raises HOperatorError 1302/1303 (percentages), 1301 (already split), 7783 (a sample without class), 7911/7914.
    Source: HALCON procedure split_dl_dataset.

    Example:
        >>> import dlprune as ha
        >>> samples = [{"image_id": i, "image_label_id": i % 2} for i in range(20)]
        >>> dataset = ha.from_python_dict({"samples": samples, "class_ids": [0, 1], "class_names": ["a", "b"]})
        >>> ha.split_dl_dataset(dataset, 70, 20, [])
        >>> [len(ha.find_dl_samples(ha.get_dict_tuple(dataset, "samples"), "split", name, "match"))
        ...  for name in ("train", "validation", "test")]
        [14, 4, 2]
    """
    dataset = Dataset.of(dldataset, 1)
    training, validation = (
        _percent(value, name, index)
        for value, name, index in (
            (training_percent, "training_percent", 2),
            (validation_percent, "validation_percent", 3),
        )
    )
    if training + validation > 100:
        raise HOperatorError(
            H_ERR_WIPV1 + 2, f"training_percent {training:g} and validation_percent {validation:g} exceed 100."
        )
    checks = {
        "overwrite_split": switch,
        "model_type": choice("classification"),
        "seed": lambda name, values: count(name, values, 0),
    }
    settings = read_settings(gen_param, 4, checks)
    if not settings.get("overwrite_split", False) and any("split" in one.entries for one in dataset.samples):
        raise HOperatorError(
            H_ERR_WIPV1, "Samples have a 'split' already; set 'overwrite_split' to 'true' in gen_param to split anew."
        )
    seed = settings.get("seed", _SEED)
    found = np.array([dataset.class_id(i) for i in range(len(dataset.samples))], np.int64)
    names = np.full(len(found), "test", object)
    train = stratified_part(found, training / 100, seed)
    names[train] = "train"
    rest = np.flatnonzero(~train)
    if training < 100:
        names[rest[stratified_part(found[rest], validation / (100 - training), seed + 1)]] = "validation"
    for sample, name in zip(dataset.samples, names.tolist(), strict=True):
        sample.entries["split"] = (name,)


def _percent(value: object, name: str, index: int) -> float:
    number = float(to_number(value, name, index))
    if not 0 <= number <= 100:
        raise HOperatorError(H_ERR_WIPV1 + index - 1, f"{name} is {number:g}; a number in [0, 100] is needed.")
    return number


def find_dl_samples(samples: Sequence[HHandle], key_name: TupleLike, key_value: TupleLike, mode: str) -> list[int]:
    """Return the indices of the samples with a certain entry.

    Parameters: `samples` ('dict' handles, e.g. the entry 'samples' of a dataset); `key_name` (str); `key_value` (values
    to compare with); `mode`: 'match' (the entry equals the values), 'or' (it has one of them), 'contain' (it has all of
    them). Samples without the entry are not found. HALCON does not say what its modes are; these are ours.
    Returns a list of indices from 0 on, in ascending order. Raises HOperatorError 1304 (mode), 2404 (no dictionary).
    Source: HALCON procedure find_dl_samples.

    Example: see split_dl_dataset.
    """
    dictionaries = [unwrap_dict(one, 1) for one in to_tuple(samples, "samples")]
    name, wanted, how = to_str(key_name, "key_name", 2), to_tuple(key_value, "key_value"), to_str(mode, "mode", 4)
    if how not in _MODES:
        raise HOperatorError(H_ERR_WIPV1 + 3, f"mode is {how!r}; possible are {list(_MODES)}.")
    return [i for i, sample in enumerate(dictionaries) if _fits(sample.entries.get(name), wanted, how)]


def _fits(found: HTuple | HObject | None, wanted: HTuple, mode: str) -> bool:
    if found is None or isinstance(found, HObject):
        return False
    if mode == "match":
        return found == wanted
    return any(one in found for one in wanted) if mode == "or" else all(one in found for one in wanted)


def gen_dl_samples(
    dldataset: HHandle,
    sample_indices: TupleLike,
    restrict_keys_dlsample: TupleLike,
    gen_param: HHandle | Sequence[HHandle],
) -> list[HHandle]:
    """Read raw images of a dataset as samples, to be preprocessed; needs the extra `images` (Pillow).

    Parameters: `dldataset`; `sample_indices` (ints from 0 on); `restrict_keys_dlsample` ([] or 'classification': all of
    'image', 'image_id', 'image_file_name', 'image_label_id' that there are; or the names of those that are wanted);
    `gen_param` ([]; no generic parameters exist here).
    Returns a list of 'dict' handles. Raises HOperatorError 2897 (index), 1303 (key), 5200/1301 (image file missing or
    damaged), 7783 (sample without file name), 7911. Source: HALCON procedure gen_dl_samples.

    Example: see preprocess_dl_dataset.
    """
    dataset = Dataset.of(dldataset, 1)
    numbers = dataset.indices(sample_indices, 2)
    keys = to_strings(restrict_keys_dlsample, "restrict_keys_dlsample", 3)
    known = (IMAGE, *_SAMPLE_KEYS)
    strange = [key for key in keys if key not in (*known, "classification")]
    if strange:
        raise HOperatorError(
            H_ERR_WIPV1 + 2, f"restrict_keys_dlsample holds {strange[0]!r}; possible are {list(known)}."
        )
    read_settings(gen_param, 4, {})
    wanted = known if not keys or "classification" in keys else keys
    return [dataset.raw_sample(number, wanted) for number in numbers]


def read_dl_samples(dldataset: HHandle, sample_indices: TupleLike) -> list[HHandle]:
    """Read preprocessed samples of a dataset, which preprocess_dl_dataset has written.

    Parameters: `dldataset`, `sample_indices` (ints from 0 on). Returns a list of 'dict' handles.
    Raises HOperatorError 2897 (index), 2894 (not preprocessed), 5200/9580 (file missing or damaged).
    Source: HALCON procedure read_dl_samples.

    Example: see preprocess_dl_dataset.
    """
    dataset = Dataset.of(dldataset, 1)
    return [dataset.stored_sample(number) for number in dataset.indices(sample_indices, 2)]


def preprocess_dl_dataset(
    dldataset: HHandle,
    data_directory: str | os.PathLike[str],
    dlpreprocess_param: HHandle,
    gen_param: HHandle | Sequence[HHandle],
) -> str:
    """Preprocess all images of a dataset once, and keep them in files for training and evaluation.

    The dataset gets the entries 'preprocess_param' and 'dlsample_dir', each of its samples 'dlsample_file_name'; with
    them it is written to dl_dataset.hdict in the folder, for read_dict.

    Parameters: `dldataset` (changed in place); `data_directory` (str or path; created; nothing in it is ever deleted);
    `dlpreprocess_param` (see create_dl_preprocess_param); `gen_param` ([] or dict: 'overwrite_files' ('true' = the
    folder may exist, files in it are replaced; default 'false'), 'show_progress' ('true' = a line per 100 images is
    printed; default 'false', in HALCON 'true')).
    Returns the name of the dataset's file. Raises HOperatorError 1302 (the folder exists), 3142 (cannot be written),
    and those of gen_dl_samples and preprocess_dl_samples. Source: HALCON procedure preprocess_dl_dataset.

    Example:
        >>> import os, tempfile
        >>> import dlprune as ha
        >>> import numpy as np
        >>> folder = tempfile.mkdtemp()
        >>> ha.write_image(np.zeros((4, 4), np.uint8), "png", 0, os.path.join(folder, "good_1"))
        >>> dataset = ha.read_dl_dataset_classification(folder, "file_name_remove_index")
        >>> ha.as_python_dict_s(ha.gen_dl_samples(dataset, 0, ["image", "image_file_name"], [])[0])
        {'image_file_name': 'good_1.png', 'image': HObject(image 4×4, 1 channel, uint8)}
        >>> param = ha.create_dl_preprocess_param(
        ...     "classification", 8, 8, 1, [], [], "none", "full_domain", [], [], [], []
        ... )
        >>> file = ha.preprocess_dl_dataset(dataset, os.path.join(folder, "ready"), param, [])
        >>> (sample,) = ha.read_dl_samples(ha.read_dict(file, [], []), 0)
        >>> ha.get_dict_object(sample, "image")
        HObject(image 8×8, 1 channel, float32)
    """
    dataset = Dataset.of(dldataset, 1)
    folder = Path(to_file_name(data_directory, "data_directory", 2))
    read_preprocess_param(dlpreprocess_param, 3)
    settings = read_settings(gen_param, 4, {"overwrite_files": switch, "show_progress": switch})
    if folder.exists() and not settings.get("overwrite_files", False):
        raise HOperatorError(
            H_ERR_WIPV2,
            f"{str(folder)!r} exists; name another folder, or set 'overwrite_files' to 'true' in gen_param.",
        )
    target = folder / "samples"
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HOperatorError(H_ERR_FILE_WR, f"The folder {str(target)!r} cannot be made: {error}.") from None
    names: list[str] = []
    for number in range(len(dataset.samples)):
        sample = dataset.raw_sample(number, (IMAGE, *_SAMPLE_KEYS))
        preprocess_dl_samples([sample], dlpreprocess_param)
        stem = Path(dataset.text(number, "image_file_name")).stem
        names.append(f"{stem}_{number}_dlsample.hdict")
        write_dict(sample, target / names[-1], [], [])
        if settings.get("show_progress", False) and (number + 1) % 100 == 0:
            print(f"{number + 1} of {len(dataset.samples)} images preprocessed")
    for sample_entries, name in zip(dataset.samples, names, strict=True):
        sample_entries.entries["dlsample_file_name"] = (name,)
    dataset.dictionary.entries["preprocess_param"] = to_tuple(dlpreprocess_param)
    dataset.dictionary.entries["dlsample_dir"] = (str(target),)
    file = folder / "dl_dataset.hdict"
    write_dict(new_handle("dict", dataset.dictionary), file, [], [])
    return str(file)


@dataclass(frozen=True)
class Dataset:
    """What is behind the handle of a dataset: its dictionary, and those of its samples."""

    dictionary: Dictionary
    samples: tuple[Dictionary, ...]

    @classmethod
    def of(cls, handle: object, index: int) -> Dataset:
        """Return the dataset of control parameter `index`. Raises HOperatorError 2894 (no samples), 2404/2454."""
        dictionary = unwrap_dict(handle, index)
        if "samples" not in dictionary.entries:
            raise HOperatorError(
                H_ERR_DICT_KEY,
                "The dataset has no 'samples'; see read_dl_dataset_classification for what it must have.",
            )
        samples = tuple_of("samples", dictionary.entries["samples"])
        return cls(dictionary, tuple(unwrap_dict(one, index) for one in samples))

    def indices(self, values: object, index: int) -> list[int]:
        """Return the indices in control parameter `index`. Raises HOperatorError 2897 or 1200 + index."""
        found: list[int] = []
        for value in to_tuple(values, "sample_indices"):
            if not isinstance(value, int):
                raise HOperatorError(H_ERR_WIPV1 - 100 + index - 1, f"The sample index {value!r} is no integer.")
            if not 0 <= value < len(self.samples):
                raise HOperatorError(
                    H_ERR_DICT_INVALID_INDEX, f"There is no sample {value}; the dataset has {len(self.samples)}."
                )
            found.append(value)
        return found

    def in_split(self, name: str) -> list[int]:
        """Return the indices of the samples with this 'split'."""
        return [i for i, sample in enumerate(self.samples) if sample.entries.get("split") == (name,)]

    def value(self, number: int, key: Key) -> Any:
        """Return the only value of an entry of a sample. Raises HOperatorError 7783, 2460."""
        found = self.samples[number].entries.get(key)
        values = () if found is None else tuple_of(key, found)
        if len(values) != 1:
            raise HOperatorError(
                H_ERR_DL_INPUTS_MISSING, f"Sample {number} of the dataset needs exactly one {key!r}, not {len(values)}."
            )
        return values[0]

    def text(self, number: int, key: Key) -> str:
        """Return an entry of a sample that is a string. Raises HOperatorError 7783, 7790."""
        found = self.value(number, key)
        if not isinstance(found, str):
            raise HOperatorError(
                H_ERR_DL_INPUT_WRONG_TYPE, f"Sample {number} of the dataset, {key!r}: {found!r} is no string."
            )
        return found

    def class_id(self, number: int) -> int:
        """Return the class id of a sample. Raises HOperatorError 7783, 7790."""
        found = self.value(number, LABEL)
        if not isinstance(found, int):
            raise HOperatorError(
                H_ERR_DL_INPUT_WRONG_TYPE, f"Sample {number} of the dataset, {LABEL!r}: {found!r} is no integer."
            )
        return found

    def raw_sample(self, number: int, keys: Sequence[str]) -> HHandle:
        """Return a new sample with some of image, id, file name and class."""
        entries = self.samples[number].entries
        handle = create_dict()
        sample = unwrap_dict(handle, 1)
        sample.entries.update({key: entries[key] for key in _SAMPLE_KEYS if key in keys and key in entries})
        if IMAGE in keys:
            sample.entries[IMAGE] = read_image(Path(self.folder("image_dir")) / self.text(number, "image_file_name"))
        return handle

    def stored_sample(self, number: int) -> HHandle:
        """Return a preprocessed sample from its file."""
        if "dlsample_dir" not in self.dictionary.entries or "dlsample_file_name" not in self.samples[number].entries:
            raise HOperatorError(
                H_ERR_DICT_KEY, f"Sample {number} of the dataset has not been preprocessed; see preprocess_dl_dataset."
            )
        return read_dict(Path(self.folder("dlsample_dir")) / self.text(number, "dlsample_file_name"), [], [])

    def folder(self, key: str) -> str:
        """Return an entry that names a folder, '' if there is none."""
        values = tuple_of(key, self.dictionary.entries.get(key, ("",)))
        return str(values[0]) if values else ""


class DatasetImages:
    """Samples of a dataset as labelled images for a classifier, read and preprocessed when they are asked for.

    Preprocessed samples come from their files; where preprocess_dl_dataset has not been called, raw images are
    preprocessed by the dataset's 'preprocess_param', or as the model says.
    """

    def __init__(self, dataset: Dataset, numbers: Sequence[int], handle: HHandle, classifier: Classifier) -> None:
        """Check classes and labels. Raises HOperatorError 7783, 7790, 7791, 7793."""
        check_classes(dataset, classifier)
        self._dataset, self._numbers, self._classifier = dataset, list(numbers), classifier
        for number in self._numbers:
            dataset.class_id(number)
        self.labels = labels([dataset.samples[number] for number in self._numbers], classifier)
        stored = "dlsample_dir" in dataset.dictionary.entries
        given = tuple_of("preprocess_param", dataset.dictionary.entries.get("preprocess_param", ()))
        self._param: Any = None if stored else given[0] if given else _param_of(handle)

    def images(self, numbers: Sequence[int]) -> Array:
        """Return float32 [n, …] in the model's layout. Raises as read_dl_samples, or gen_dl_samples, does."""
        chosen = [self._numbers[number] for number in numbers]
        if self._param is None:
            found = [self._dataset.stored_sample(number) for number in chosen]
        else:
            found = [self._dataset.raw_sample(number, (IMAGE,)) for number in chosen]
            preprocess_dl_samples(found, self._param)
        return images([unwrap_dict(one, 1) for one in found], self._classifier)


def _param_of(handle: HHandle) -> HHandle:
    return create_dl_preprocess_param_from_model(handle, "none", "full_domain", [], [], [])


def check_classes(dataset: Dataset, classifier: Classifier) -> None:
    """Raise HOperatorError 7793 if dataset and model give the same class names different ids."""
    entries = dataset.dictionary.entries
    names = tuple_of("class_names", entries.get("class_names", ()))
    ids = tuple_of("class_ids", entries.get("class_ids", ()))
    ours = dict(zip(classifier.params.class_names, classifier.params.class_ids, strict=True))
    for name, class_id in zip(names, ids, strict=False):
        if isinstance(name, str) and ours.get(name, class_id) != class_id:
            raise HOperatorError(
                H_ERR_DL_CLASS_IDS_INVALID,
                f"The class {name!r} has the id {class_id} in the dataset but {ours[name]} in the model; set "
                "'class_names' and 'class_ids' of the model in the order of its outputs.",
            )
