"""HALCON's procedures on datasets: reading, splitting, preprocessing, evaluating, training."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlprune as ha
from dlprune.demo import demo_images
from dlprune.model import unwrap_model
from dlprune.procedures.evaluation import measure
from dlprune.training.data import ArrayData


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 digits, a folder per class, with something else lying about."""
    root = tmp_path_factory.mktemp("digits")
    images, labels = demo_images()
    for i in range(200):
        path = root / f"digit_{labels[i]}" / f"{i:03}.png"
        path.parent.mkdir(exist_ok=True)
        ha.write_image(images[i], "png", 0, path)
    (root / "digit_3" / "notes.txt").write_text("no image")
    return root


@pytest.fixture
def dataset(folder: Path) -> ha.HHandle:
    return ha.read_dl_dataset_classification(folder, "last_folder")


@pytest.fixture
def model() -> ha.HHandle:
    return ha.read_dl_model(ha.demo_model_file())


def samples_of(dataset: ha.HHandle) -> list[dict[str, Any]]:
    return [ha.as_python_dict_s(one) for one in ha.get_dict_tuple(dataset, "samples")]


def split_counts(dataset: ha.HHandle) -> dict[str, np.ndarray]:
    """Samples of each class per split."""
    counts = {name: np.zeros(10, int) for name in ("train", "validation", "test")}
    for sample in samples_of(dataset):
        counts[sample["split"]][sample["image_label_id"]] += 1
    return counts


def test_signatures_are_halcons():
    names = {
        "read_dl_dataset_classification": "raw_image_folder label_source",
        "split_dl_dataset": "dldataset training_percent validation_percent gen_param",
        "find_dl_samples": "samples key_name key_value mode",
        "gen_dl_samples": "dldataset sample_indices restrict_keys_dlsample gen_param",
        "read_dl_samples": "dldataset sample_indices",
        "preprocess_dl_dataset": "dldataset data_directory dlpreprocess_param gen_param",
        "create_dl_train_param": "dlmodel_handle num_epochs evaluation_interval_epochs enable_display random_seed "
        "gen_param_name gen_param_value",
        "train_dl_model": "dldataset dlmodel_handle train_param start_epoch",
        "evaluate_dl_model": "dldataset dlmodel_handle sample_select_method sample_select_values gen_param",
    }
    for name, expected in names.items():
        parameters = inspect.signature(getattr(ha, name)).parameters
        assert list(parameters) == expected.split()
        assert all(one.default is inspect.Parameter.empty for one in parameters.values())


# --- Reading ---------------------------------------------------------------------------------------------------------


def test_folders_are_classes_in_alphabetical_order(dataset: ha.HHandle, folder: Path):
    assert ha.get_dict_tuple(dataset, "class_names") == [f"digit_{i}" for i in range(10)]
    assert ha.get_dict_tuple(dataset, "class_ids") == list(range(10))
    samples = samples_of(dataset)
    assert [one["image_id"] for one in samples] == list(range(1, 201))
    for one in samples:
        assert one["image_file_name"].startswith(f"digit_{one['image_label_id']}/")
        assert (folder / one["image_file_name"]).is_file()


def test_file_names_can_be_classes(tmp_path: Path):
    for name in ("good_01", "good_2", "bad_1", "7"):
        ha.write_image(np.zeros((2, 2), np.uint8), "png", 0, tmp_path / name)
    whole = ha.read_dl_dataset_classification(str(tmp_path), "file_name")
    assert ha.get_dict_tuple(whole, "class_names") == ["7", "bad_1", "good_01", "good_2"]
    without_index = ha.read_dl_dataset_classification(str(tmp_path), "file_name_remove_index")
    assert ha.get_dict_tuple(without_index, "class_names") == ["7", "bad", "good"]


def test_several_folders_make_one_dataset(folder: Path):
    found = ha.read_dl_dataset_classification([str(folder / "digit_0"), str(folder / "digit_4")], "last_folder")
    assert ha.get_dict_tuple(found, "class_names") == ["digit_0", "digit_4"]
    assert ha.get_dict_tuple_s(found, "image_dir") == str(folder)
    assert len(ha.gen_dl_samples(found, [0], [], [])) == 1


# --- Splitting -------------------------------------------------------------------------------------------------------


def test_each_class_is_split_in_the_same_proportions(dataset: ha.HHandle):
    """No class is more than one image away from its share."""
    ha.split_dl_dataset(dataset, 70, 15, [])
    counts = split_counts(dataset)
    sizes = sum(counts.values())
    assert sizes.sum() == 200
    for name, share in (("train", 0.7), ("validation", 0.15), ("test", 0.15)):
        assert np.abs(counts[name] - share * sizes).max() <= 1


def test_the_seed_decides_the_split(folder: Path):
    found = []
    for seed in (1, 1, 2):
        one = ha.read_dl_dataset_classification(folder, "last_folder")
        ha.split_dl_dataset(one, 50, 25, ha.from_python_dict({"seed": seed}))
        found.append([sample["split"] for sample in samples_of(one)])
    assert found[0] == found[1] != found[2]


def test_all_or_nothing_is_a_split_too(dataset: ha.HHandle):
    for training, validation, name in ((100, 0, "train"), (0, 100, "validation"), (0, 0, "test")):
        ha.split_dl_dataset(dataset, training, validation, ha.from_python_dict({"overwrite_split": "true"}))
        assert split_counts(dataset)[name].sum() == 200


def test_an_existing_split_is_kept_unless_told_otherwise(dataset: ha.HHandle):
    ha.split_dl_dataset(dataset, 70, 15, [])
    before = samples_of(dataset)
    with pytest.raises(ha.HOperatorError, match="overwrite_split") as caught:
        ha.split_dl_dataset(dataset, 10, 10, [])
    assert caught.value.error_code == 1301
    assert samples_of(dataset) == before


def test_samples_are_found_by_their_entries():
    samples = [ha.from_python_dict(one) for one in ({"a": [1, 2]}, {"a": 1}, {"b": 1}, {"a": [2, 3]})]
    assert ha.find_dl_samples(samples, "a", 1, "match") == [1]
    assert ha.find_dl_samples(samples, "a", [1, 2], "match") == [0]
    assert ha.find_dl_samples(samples, "a", [1, 3], "or") == [0, 1, 3]
    assert ha.find_dl_samples(samples, "a", 2, "contain") == [0, 3]
    assert ha.find_dl_samples([], "a", 2, "contain") == []


# --- Samples ---------------------------------------------------------------------------------------------------------


def test_raw_samples_hold_the_pixels_of_the_files(dataset: ha.HHandle, folder: Path):
    (sample,) = ha.gen_dl_samples(dataset, 17, "classification", [])
    entries = ha.as_python_dict_s(sample)
    assert set(entries) == {"image", "image_id", "image_file_name", "image_label_id"}
    number = int(Path(entries["image_file_name"]).stem)
    np.testing.assert_array_equal(ha.himage_as_numpy_array(entries["image"]), demo_images()[0][number])
    (only,) = ha.gen_dl_samples(dataset, 17, ["image_label_id"], [])
    assert ha.as_python_dict_s(only) == {"image_label_id": entries["image_label_id"]}


def test_a_preprocessed_dataset_gives_what_preprocessing_gives(dataset: ha.HHandle, model: ha.HHandle, tmp_path: Path):
    """Also after its file was read again."""
    param = ha.create_dl_preprocess_param_from_model(model, "none", "full_domain", [], [], [])
    file = ha.preprocess_dl_dataset(dataset, tmp_path / "ready", param, [])
    raw = ha.gen_dl_samples(dataset, [3, 150], [], [])
    ha.preprocess_dl_samples(raw, param)
    for one in (dataset, ha.read_dict(file, [], [])):
        for found, expected in zip(ha.read_dl_samples(one, [3, 150]), raw, strict=True):
            left, right = ha.as_python_dict_s(found), ha.as_python_dict_s(expected)
            np.testing.assert_array_equal(left.pop("image").array, right.pop("image").array)
            assert left == right


def test_an_existing_folder_is_used_only_if_told_so(dataset: ha.HHandle, model: ha.HHandle, tmp_path: Path):
    """Strange files in it stay."""
    (tmp_path / "mine.txt").write_text("keep")
    param = ha.create_dl_preprocess_param_from_model(model, "none", "full_domain", [], [], [])
    with pytest.raises(ha.HOperatorError, match="overwrite_files") as caught:
        ha.preprocess_dl_dataset(dataset, tmp_path, param, [])
    assert caught.value.error_code == 1302
    assert ha.get_dict_param_s(dataset, "key_exists", "dlsample_dir") == 0
    ha.preprocess_dl_dataset(dataset, str(tmp_path), param, ha.from_python_dict({"overwrite_files": 1}))
    assert (tmp_path / "mine.txt").read_text() == "keep"


# --- Evaluation ------------------------------------------------------------------------------------------------------


def weakened(model: ha.HHandle) -> ha.HHandle:
    """The demo classifier without most of its kernels, so that it errs."""
    pruned, _, _ = ha.prune_dl_model(model, ha.demo_samples()[:40], 75, compensation="none")
    return pruned


def test_measures_equal_their_definitions(model: ha.HHandle):
    """Counted image by image, of a classifier that errs often."""
    classifier = unwrap_model(weakened(model), 1)
    pixels, truth = demo_images("test")
    images = pixels.astype(np.float32)[:, np.newaxis] - 127
    found = measure(classifier, ArrayData(images, truth))
    ranking = [sorted(range(10), key=lambda i: -row[i]) for row in classifier.logits(images)]
    pairs = [(order[0], int(label)) for order, label in zip(ranking, truth, strict=True)]
    assert 0.02 < found["global"]["top1_error"] < 0.98
    for k in (1, 2, 3):
        missed = sum(label not in order[:k] for order, label in zip(ranking, truth, strict=True))
        assert found["global"][f"top{k}_error"] == pytest.approx(missed / 600)
    means = dict.fromkeys(("precision", "recall", "f_score"), 0.0)
    for i in range(10):
        right = pairs.count((i, i))
        decided, true = (sum(pair[place] == i for pair in pairs) for place in (0, 1))
        expected = {
            "precision": right / decided if decided else 0.0,
            "recall": right / true,
            "f_score": 2 * right / (decided + true),
        }
        assert found[str(i)] == pytest.approx(expected)
        means = {name: mean + expected[name] / 10 for name, mean in means.items()}
        for j in range(10):
            assert found["absolute_confusion_matrix"][10 * j + i] == pairs.count((j, i))
            assert found["relative_confusion_matrix"][10 * j + i] == pytest.approx(pairs.count((j, i)) / true)
    for name, mean in means.items():
        assert found["global"][f"mean_{name}"] == pytest.approx(mean)


def test_evaluation_of_files_agrees_with_applying(dataset: ha.HHandle, model: ha.HHandle, tmp_path: Path):
    """Raw images, and those that preprocess_dl_dataset has written."""
    model = weakened(model)
    ha.split_dl_dataset(dataset, 50, 25, [])
    param = ha.create_dl_preprocess_param_from_model(model, "none", "full_domain", [], [], [])
    numbers = ha.find_dl_samples(ha.get_dict_tuple(dataset, "samples"), "split", "test", "match")
    samples = ha.gen_dl_samples(dataset, numbers, [], [])
    ha.preprocess_dl_samples(samples, param)
    wrong = sum(
        ha.get_dict_tuple(result, "classification_class_ids")[0] != ha.get_dict_tuple_s(sample, "image_label_id")
        for sample, result in zip(samples, ha.apply_dl_model(model, samples, []), strict=True)
    )
    first, params = ha.evaluate_dl_model(dataset, model, "split", "test", [])
    assert ha.as_python_dict_s(params)["sample_select_method"] == "split"
    ha.preprocess_dl_dataset(dataset, tmp_path / "ready", param, [])
    second, _ = ha.evaluate_dl_model(dataset, model, "indices", numbers, [])
    third, _ = ha.evaluate_dl_model(dataset, model, "image_ids", [i + 1 for i in numbers], [])
    for result in (first, second, third):
        entries = ha.as_python_dict_s(result)
        assert entries["num_samples"] == len(numbers)
        assert entries["global"]["top1_error"] == pytest.approx(wrong / len(numbers))


def test_only_the_wanted_measures_are_given(dataset: ha.HHandle, model: ha.HHandle):
    gen_param = ha.from_python_dict({"measures": ["top5_error", "recall"]})
    result, _ = ha.evaluate_dl_model(dataset, model, "indices", [0, 1], gen_param)
    entries = ha.as_python_dict_s(result)
    assert set(entries["global"]) == {"top5_error", "mean_recall"}
    assert entries["0"].keys() == {"recall"}
    assert "absolute_confusion_matrix" not in entries


# --- Training --------------------------------------------------------------------------------------------------------


def train_param(model: ha.HHandle, epochs: int, interval: object = 1, **settings: Any) -> ha.HHandle:
    return ha.create_dl_train_param(model, epochs, interval, "false", 7, list(settings), list(settings.values()))


def prepared(model: ha.HHandle, rate: float = 1e-5) -> ha.HHandle:
    ha.set_dl_model_param(model, "batch_size", 20)
    ha.set_dl_model_param(model, "learning_rate", rate)
    return model


def weights(model: ha.HHandle) -> bytes:
    graph = unwrap_model(model, 1).model.graph
    return b"".join(one.const_value.tobytes() for _, one in sorted(graph.initializers.items()))


def test_training_lowers_the_loss_and_reports_each_epoch(
    dataset: ha.HHandle, model: ha.HHandle, capsys: pytest.CaptureFixture[str]
):
    """Changes of model parameters take hold at their epochs; a line is printed per evaluation."""
    ha.split_dl_dataset(dataset, 60, 20, [])
    model = prepared(weakened(model))
    change = {"model_param": "learning_rate", "initial_value": 2e-5, "epochs": [1, 2], "values": [1e-5, 5e-6]}
    param = ha.create_dl_train_param(model, 3, 2, "true", 7, "change", change)
    results, infos, evaluations = ha.train_dl_model(dataset, model, param, 0)
    losses = [ha.get_dict_tuple_s(one, "total_loss") for one in results]
    assert losses[-1] < losses[0]
    assert [ha.get_dict_tuple_s(one, "epoch") for one in results] == [1, 2, 3]
    assert [ha.get_dict_tuple_s(one, "epoch") for one in evaluations] == [2, 3]
    assert {ha.get_dict_tuple_s(one, "num_iterations_per_epoch") for one in infos} == {6}
    assert [ha.get_dict_tuple_s(one, "learning_rate") for one in infos] == [2e-5, 1e-5, 5e-6]
    after, _ = ha.evaluate_dl_model(dataset, model, "split", "validation", [])
    last = ha.get_dict_tuple_s(evaluations[-1], "result")
    assert ha.as_python_dict_s(after) == ha.as_python_dict_s(last)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["Epoch 2 of 3", "Epoch 3 of 3"]


def test_training_that_goes_on_equals_training_in_one_go(dataset: ha.HHandle):
    """start_epoch tells how far the same handle has been trained."""
    ha.split_dl_dataset(dataset, 60, 20, [])
    whole, parts = (prepared(ha.read_dl_model(ha.demo_model_file())) for _ in range(2))
    augment = {"mirror": "c", "brightness_variation": 20, "augmentation_percentage": 50}
    ha.train_dl_model(dataset, whole, train_param(whole, 3, [], augment=augment), 0)
    ha.train_dl_model(dataset, parts, train_param(parts, 1, [], augment=augment), 0)
    ha.train_dl_model(dataset, parts, train_param(parts, 3, [], augment=augment), 1)
    assert weights(whole) == weights(parts)


def test_models_are_written_by_strategy(dataset: ha.HHandle, model: ha.HHandle, tmp_path: Path):
    """The file of 'best' holds the model of the evaluation that was marked best last."""
    ha.split_dl_dataset(dataset, 60, 20, [])
    model = prepared(weakened(model))
    names = ["serialize", "serialize", "serialize", "evaluate_before_train"]
    values = [{"type": one, "basename": str(tmp_path / one), "epochs": 1} for one in ("best", "final", "epoch")]
    param = ha.create_dl_train_param(model, 2, 1, "false", 7, names, [*values, "true"])
    _, _, evaluations = ha.train_dl_model(dataset, model, param, 0)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}{ending}" for name in ("best", "final", "epoch_1") for ending in (".onnx", "_info.hdict")
    }
    assert weights(ha.read_dl_model(tmp_path / "final.onnx")) == weights(model)
    marked = [one for one in evaluations if ha.get_dict_tuple_s(one, "best")][-1]
    best, _ = ha.evaluate_dl_model(dataset, ha.read_dl_model(tmp_path / "best.onnx"), "split", "validation", [])
    expected = ha.as_python_dict_s(ha.get_dict_tuple_s(marked, "result"))
    assert ha.as_python_dict_s(best)["global"] == pytest.approx(expected["global"])
    info = ha.read_dict(tmp_path / "best_info.hdict", [], [])
    assert ha.get_dict_tuple(info, "epoch") == ha.get_dict_tuple(marked, "epoch")


# --- Mistakes --------------------------------------------------------------------------------------------------------


def _param(model: ha.HHandle, *arguments: Any) -> ha.HHandle:
    defaults = [2, 1, "false", 7, [], []]
    return ha.create_dl_train_param(model, *arguments, *defaults[len(arguments) :])


def _gen(model: ha.HHandle, name: str, value: Any) -> ha.HHandle:
    return ha.create_dl_train_param(model, 2, 1, "false", 7, name, value)


def _other_names(dataset: ha.HHandle, model: ha.HHandle) -> None:
    ha.set_dl_model_param(model, "class_names", [f"digit_{9 - i}" for i in range(10)])
    ha.evaluate_dl_model(dataset, model, "indices", 0, [])


def _without_label(dataset: ha.HHandle, model: ha.HHandle) -> None:
    ha.remove_dict_key(ha.get_dict_tuple(dataset, "samples")[4], "image_label_id")
    ha.split_dl_dataset(dataset, 50, 50, [])


def _missing_file(dataset: ha.HHandle, model: ha.HHandle) -> None:
    ha.set_dict_tuple(ha.get_dict_tuple(dataset, "samples")[4], "image_file_name", "none.png")
    ha.evaluate_dl_model(dataset, model, "indices", [3, 4], [])


MISTAKES: dict[str, tuple[Any, int, str]] = {
    "no such folder": (lambda d, m: ha.read_dl_dataset_classification("none", "last_folder"), 5200, "none"),
    "an unknown label source": (lambda d, m: ha.read_dl_dataset_classification(".", "first"), 1302, "last_folder"),
    "a percentage below 0": (lambda d, m: ha.split_dl_dataset(d, -1, 5, []), 1302, "-1"),
    "a percentage that is a word": (lambda d, m: ha.split_dl_dataset(d, 50, "x", []), 1203, "x"),
    "more than all": (lambda d, m: ha.split_dl_dataset(d, 80, 30, []), 1303, "100"),
    "an unknown generic parameter": (
        lambda d, m: ha.split_dl_dataset(d, 8, 3, ha.from_python_dict({"a": 1})),
        7911,
        "a",
    ),
    "a sample without class": (_without_label, 7783, "Sample 4"),
    "no dataset": (lambda d, m: ha.split_dl_dataset(ha.create_dict(), 50, 50, []), 2894, "samples"),
    "a model as dataset": (lambda d, m: ha.split_dl_dataset(m, 50, 50, []), 2404, "dict"),
    "an unknown mode": (lambda d, m: ha.find_dl_samples([], "a", 1, "like"), 1304, "match"),
    "an index beyond the end": (lambda d, m: ha.gen_dl_samples(d, 200, [], []), 2897, "200"),
    "an index that is a word": (lambda d, m: ha.gen_dl_samples(d, "x", [], []), 1202, "x"),
    "an unknown key": (lambda d, m: ha.gen_dl_samples(d, 0, "colour", []), 1303, "colour"),
    "samples that are not preprocessed": (lambda d, m: ha.read_dl_samples(d, 0), 2894, "preprocess_dl_dataset"),
    "an unknown method": (lambda d, m: ha.evaluate_dl_model(d, m, "all", [], []), 1303, "split"),
    "no split yet": (lambda d, m: ha.evaluate_dl_model(d, m, "split", "test", []), 1304, "split_dl_dataset"),
    "an unknown split": (lambda d, m: ha.evaluate_dl_model(d, m, "split", "exam", []), 1304, "exam"),
    "an unknown measure": (
        lambda d, m: ha.evaluate_dl_model(d, m, "indices", 0, ha.from_python_dict({"measures": "speed"})),
        7914,
        "top1_error",
    ),
    "other class names in the model": (_other_names, 7793, "digit_0"),
    "an image file that is gone": (_missing_file, 5200, "none.png"),
    "no training samples": (lambda d, m: ha.train_dl_model(d, m, train_param(m, 1), 0), 7783, "train"),
    "a start before the beginning": (lambda d, m: ha.train_dl_model(d, m, train_param(m, 1), -1), 1304, "-1"),
    "no train parameters": (lambda d, m: ha.train_dl_model(d, m, ha.create_dict(), 0), 2894, "num_epochs"),
    "no epochs": (lambda d, m: _param(m, 0), 1302, "0"),
    "an interval of 0": (lambda d, m: _param(m, 2, 0), 1303, "0"),
    "a display that is neither on nor off": (lambda d, m: _param(m, 2, 1, "maybe"), 1304, "true"),
    "a seed below 0": (lambda d, m: _param(m, 2, 1, "false", -1), 1305, "-1"),
    "a name without value": (lambda d, m: _param(m, 2, 1, "false", 7, ["augment"], []), 1407, "1 names"),
    "an unknown train parameter": (lambda d, m: _gen(m, "colour", 1), 7911, "colour"),
    "a parameter that cannot change": (lambda d, m: _gen(m, "change", {"model_param": "gpu"}), 7914, "momentum"),
    "more epochs than values": (
        lambda d, m: _gen(m, "change", {"model_param": "momentum", "epochs": [1, 2], "values": 0.5}),
        7914,
        "values",
    ),
    "a momentum of 2": (
        lambda d, m: _gen(m, "change", {"model_param": "momentum", "initial_value": 2.0}),
        7914,
        "momentum",
    ),
    "a strategy without name": (lambda d, m: _gen(m, "serialize", {"type": "best"}), 2894, "basename"),
    "rotation": (lambda d, m: _gen(m, "augment", {"rotate": 90}), 7914, "built in"),
    "mirroring up and down": (lambda d, m: _gen(m, "augment", {"mirror": "r"}), 7914, "'c'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_its_code_and_changes_nothing(mistake: str, dataset: ha.HHandle, model: ha.HHandle):
    make, code, hint = MISTAKES[mistake]
    before = weights(model)
    with pytest.raises(ha.HOperatorError) as caught:
        make(dataset, model)
    assert caught.value.error_code == code
    assert hint in caught.value.extended_error_message
    assert weights(model) == before
    assert not any("split" in one for one in samples_of(dataset))
