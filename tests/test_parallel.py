"""Scoring many images with threads, with processes, and with a dask cluster that loses a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster
from models import plain
from PIL import Image

import dlprune as ha
from dlprune.classifier import Classifier
from dlprune.demo import demo_images
from dlprune.handle import new_handle, unwrap
from dlprune.imagefiles import ImagesError
from dlprune.parallel import crew
from dlprune.pruningdata import PruningData

NUMBER = 600


@pytest.fixture(scope="module")
def model() -> ha.HHandle:
    handle = ha.read_dl_model(ha.demo_model_file())
    ha.set_dl_model_param(handle, "batch_size", 50)
    return handle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded images as files, one folder per class."""
    path = tmp_path_factory.mktemp("digits")
    for number, (pixels, label) in enumerate(zip(*demo_images(), strict=True)):
        (path / str(label)).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path / str(label) / f"{number}.png")
    return path


@pytest.fixture(scope="module")
def one_by_one(model: ha.HHandle) -> PruningData:
    """What the plain operator makes of the embedded images, batch after batch."""
    pruning, samples = created(model), ha.demo_samples()
    for first in range(0, NUMBER, 50):
        ha.add_dl_pruning_batch(model, pruning, samples[first : first + 50])
    return data_of(pruning)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with LocalCluster(2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as found:
        yield found


def created(model: ha.HHandle, mode: str = "oracle") -> ha.HHandle:
    pruning = ha.create_dl_pruning(model, mode, [])
    ha.set_dl_pruning_param(pruning, "calibration_image_num", 40)
    return pruning


def data_of(pruning: ha.HHandle) -> PruningData:
    return unwrap(pruning, "dl_pruning", PruningData, 1)


def assert_same(pruning: ha.HHandle, expected: PruningData) -> None:
    found = data_of(pruning)
    assert found.count == expected.count
    np.testing.assert_allclose(found.scores(), expected.scores(), rtol=1e-6)
    for one, other in zip(found.calibration.arrays(), expected.calibration.arrays(), strict=True):
        np.testing.assert_array_equal(one, other)


# --- on this machine --------------------------------------------------------------------------------------------------


def test_threads_find_what_the_plain_operator_finds(model: ha.HHandle, one_by_one: PruningData):
    """Also a second call adds up, and progress runs from 0 to 1."""
    pruning, shares = created(model), []
    samples = ha.demo_samples()
    ha.add_dl_pruning_batches(model, pruning, samples[:410], progress=lambda name, share: shares.append((name, share)))
    ha.add_dl_pruning_batches(model, pruning, samples[410:])
    assert_same(pruning, one_by_one)
    assert shares[0] == ("score", 0.0)
    assert shares[-1] == ("score", 1.0)
    assert shares == sorted(shares)


def test_processes_find_the_same(model: ha.HHandle, folder: Path, one_by_one: PruningData):
    """They read the files themselves; the model travels to each of them."""
    pruning = created(model)
    assert ha.add_dl_pruning_batches(model, pruning, folder, 2) == {}
    assert_same(pruning, one_by_one)


def test_a_script_without_main_guard_is_told_so(tmp_path: Path):
    """Its workers end before they know their job; nobody waits for them."""
    script = tmp_path / "script.py"
    script.write_text(
        "import dlprune as ha\n"
        "model = ha.read_dl_model(ha.demo_model_file())\n"
        "pruning = ha.create_dl_pruning(model, 'oracle', [])\n"
        "ha.add_dl_pruning_batches(model, pruning, ha.demo_samples()[:100], 2)\n"
    )
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    assert "HOperatorError" in found.stderr
    assert 'without `if __name__ == "__main__":`' in found.stderr


def _as_folder(folder: Path, tmp_path: Path) -> tuple[object, dict[str, object]]:
    return str(folder), {}


def _as_names(folder: Path, tmp_path: Path) -> tuple[object, dict[str, object]]:
    files = sorted(folder.rglob("*.png"))
    return files, {"labels": [int(file.parent.name) for file in files]}


def _as_archive(folder: Path, tmp_path: Path) -> tuple[object, dict[str, object]]:
    images, labels = demo_images()
    np.savez_compressed(tmp_path / "digits.npz", images=images, labels=labels)
    return tmp_path / "digits.npz", {}


@pytest.mark.parametrize("source", [_as_folder, _as_names, _as_archive])
def test_images_may_come_from_files(
    model: ha.HHandle,
    folder: Path,
    tmp_path: Path,
    one_by_one: PruningData,
    source: Callable[[Path, Path], tuple[object, dict[str, object]]],
):
    """A folder with a sub-folder per class, a list of names with class ids, an archive."""
    pruning = created(model)
    given, options = source(folder, tmp_path)
    ha.add_dl_pruning_batches(model, pruning, given, **options)
    assert_same(pruning, one_by_one)


def test_a_dataset_of_halcons_procedures_is_read(model: ha.HHandle, folder: Path, one_by_one: PruningData):
    """Its raw images are prepared by its own parameters, or by those that are given."""
    dataset = ha.read_dl_dataset_classification(folder, "last_folder")
    param = ha.create_dl_preprocess_param_from_model(model, "none", "full_domain", [], [], [])
    for options in ({}, {"preprocess_param": param}):
        pruning = created(model)
        ha.add_dl_pruning_batches(model, pruning, dataset, **options)
        assert_same(pruning, one_by_one)


def test_preprocessing_that_is_given_counts(model: ha.HHandle, folder: Path):
    """Another range than the model's, as the parameters say; images of another size are refused."""
    files = sorted(folder.rglob("*.png"))[:30]

    def param(size: int) -> ha.HHandle:
        return ha.create_dl_preprocess_param(
            "classification", size, size, 1, -1, 1, "none", "full_domain", [], [], [], []
        )

    pruning = created(model)
    ha.add_dl_pruning_batches(model, pruning, files, preprocess_param=param(16))
    images, _ = data_of(pruning).calibration.arrays()
    assert -1 <= images.min() < images.max() <= 1
    with pytest.raises(ha.HOperatorError, match=r"8×8×1.*16×16×1") as caught:
        ha.add_dl_pruning_batches(model, pruning, files, preprocess_param=param(8))
    assert caught.value.error_code == 7914


@pytest.mark.parametrize("mode", ["gram_greedy", "l1"])
def test_other_modes_add_up_as_well(mode: str):
    """Second moments, and modes that only remember images."""
    model = new_handle("dl_model", Classifier.from_proto(plain()))
    images = np.random.default_rng(3).standard_normal((150, 8, 8, 3)).astype(np.float32)
    samples = [ha.from_python_dict({"image": ha.himage_from_numpy_array(image)}) for image in images]
    whole, cut = created(model, mode), created(model, mode)
    ha.set_dl_model_param(model, "batch_size", 150)
    ha.add_dl_pruning_batch(model, whole, samples)
    ha.set_dl_model_param(model, "batch_size", 4)
    ha.add_dl_pruning_batches(model, cut, samples)
    assert_same(cut, data_of(whole))


def test_a_fixed_batch_is_filled_up_and_every_image_counts_once():
    """Seven images in batches of four give what seven batches of one give."""
    images = np.random.default_rng(4).standard_normal((7, 8, 8, 3)).astype(np.float32)
    samples = [ha.from_python_dict({"image": ha.himage_from_numpy_array(image)}) for image in images]
    found = []
    for batch in (4, 1):
        model = new_handle("dl_model", Classifier.from_proto(plain(batch=batch)))
        pruning = created(model)
        ha.add_dl_pruning_batches(model, pruning, samples)
        found.append(data_of(pruning))
    assert found[0].count == found[1].count == 7
    np.testing.assert_allclose(found[0].scores(), found[1].scores(), rtol=1e-5)


def test_only_a_few_images_are_taken_ahead_of_the_workers(model: ha.HHandle):
    """At most twice as many parts are under way as there are workers, however many images there are."""
    taken, done = [], []

    def parts() -> Iterator[int]:
        for number in range(40):
            taken.append(number)
            assert len(taken) - len(done) <= 5  # two threads: four parts under way, and the one just taken
            yield number

    for number in crew.in_order(None, lambda part: 2 * part, parts()):
        done.append(number)
    assert done == [2 * number for number in range(40)]


def test_remembered_images_do_not_hold_on_to_their_batches(model: ha.HHandle, one_by_one: PruningData):
    """Each is a copy of its own, so that memory is bounded by their number."""
    assert all(image.base is None for image, _ in one_by_one.calibration._items.values())


# --- on a cluster -----------------------------------------------------------------------------------------------------


def test_a_killed_worker_changes_nothing(client: Client, model: ha.HHandle, folder: Path, one_by_one: PruningData):
    """One of two worker processes gets SIGKILL while it works; scores and images are those of one process."""
    victims = list(client.run(os.getpid).values())[:1]

    def kill(_name: str, share: float) -> None:
        if 0.1 < share < 0.9 and victims:
            os.kill(victims.pop(), signal.SIGKILL)

    pruning = created(model)
    assert ha.add_dl_pruning_batches(model, pruning, folder, client, progress=kill) == {}
    assert not victims
    assert_same(pruning, one_by_one)


def test_a_cluster_takes_samples_and_forgets_its_job(client: Client, model: ha.HHandle, one_by_one: PruningData):
    """Images in memory travel part by part; afterwards no worker keeps the model."""
    pruning = created(model)
    ha.add_dl_pruning_batches(model, pruning, ha.demo_samples(), client)
    assert_same(pruning, one_by_one)
    plugins = client.run(lambda dask_worker: list(dask_worker.plugins))
    assert not [name for names in plugins.values() for name in names if name.startswith("dlprune")]


def test_a_sweep_is_the_same_on_a_cluster(client: Client, model: ha.HHandle, folder: Path):
    """Each way to prune is a part of the work; everything but the time it takes is equal."""
    found = []
    for workers in (None, client):
        points = ha.sweep_dl_pruning(
            model, ha.demo_samples()[:60], [20, 40], ["l2"], test=str(folder), client=workers, compensation="none"
        )
        found.append([{**point, "seconds": 0.0} for point in points])
    assert found[0] == found[1]
    assert [point["percentage"] for point in found[0]] == [0.0, 20.0, 40.0]


def test_unreadable_files_are_listed_or_left_out(client: Client, model: ha.HHandle, folder: Path, tmp_path: Path):
    """The error and the result name them; after an error nothing has been added."""
    (tmp_path / "broken.png").write_bytes(b"no image")
    files = [*sorted(folder.rglob("*.png"))[:70], tmp_path / "broken.png"]
    for workers in (None, client):
        pruning = created(model)
        with pytest.raises(ImagesError, match=r"broken\.png: it is no image"):
            ha.add_dl_pruning_batches(model, pruning, files, workers)
        assert ha.get_dl_pruning_param_s(pruning, "scored_image_num") == 0
        skipped = ha.add_dl_pruning_batches(model, pruning, files, workers, skip_bad=True)
        assert skipped == {str(tmp_path / "broken.png"): "it is no image"}
        assert ha.get_dl_pruning_param_s(pruning, "scored_image_num") == 70


def test_a_worker_that_dies_while_the_job_is_brought_or_taken_away_does_not_matter(
    client: Client, model: ha.HHandle, one_by_one: PruningData, monkeypatch: pytest.MonkeyPatch
):
    """What dask reports then is a connection that fails; the job is brought again, and the result is kept."""
    bring, take = client.register_plugin, client.unregister_worker_plugin
    trials = []

    def broken_once(plugin: object, name: str) -> object:
        trials.append(name)
        found = bring(plugin, name)
        if len(trials) == 1:
            raise OSError("connection refused")
        return found

    def broken(name: str) -> None:
        take(name)
        raise OSError("connection refused")

    monkeypatch.setattr(client, "register_plugin", broken_once)
    monkeypatch.setattr(client, "unregister_worker_plugin", broken)
    pruning = created(model)
    ha.add_dl_pruning_batches(model, pruning, ha.demo_samples(), client)
    assert len(trials) == 2
    assert_same(pruning, one_by_one)


def test_a_worker_with_another_version_is_refused(client: Client, model: ha.HHandle, monkeypatch: pytest.MonkeyPatch):
    """Error 7913 names both versions."""
    monkeypatch.setattr(ha, "__version__", "99.0")
    with pytest.raises(ha.HOperatorError, match=r"the worker has dlprune .*, the client 99\.0") as caught:
        ha.add_dl_pruning_batches(model, created(model), ha.demo_samples()[:20], client)
    assert caught.value.error_code == 7913


# --- evaluation -------------------------------------------------------------------------------------------------------


def test_an_evaluation_is_the_same_on_a_cluster(client: Client, model: ha.HHandle, folder: Path):
    """Decisions come in the order of the images; they are those of apply_dl_model."""
    shares: list[float] = []
    files = sorted(folder.rglob("*.png"))
    labels = [int(file.parent.name) for file in files]
    result = ha.as_python_dict_s(
        ha.evaluate_dl_model_batches(
            model, files, client, labels=labels, progress=lambda _name, share: shares.append(share)
        )
    )
    samples = [
        ha.from_python_dict(
            {"image": ha.himage_from_numpy_array(np.asarray(Image.open(file)).astype(np.float32) - 127)}
        )
        for file in files
    ]
    expected = [ha.get_dict_tuple(one, "classification_class_ids")[0] for one in ha.apply_dl_model(model, samples, [])]
    assert result["classification_class_ids"] == expected
    assert result["accuracy"] == np.mean(np.array(expected) == labels)
    assert sum(result["confusion_matrix"]) == result["image_num"] == NUMBER
    assert result["image_ids"] == list(range(NUMBER))
    assert (shares[0], shares[-1]) == (0.0, 1.0)


def test_an_evaluation_without_classes_has_no_accuracy(model: ha.HHandle, folder: Path, tmp_path: Path):
    """Unreadable files are left out where that was asked for."""
    (tmp_path / "broken.png").write_bytes(b"no image")
    files = [next(folder.rglob("*.png")), tmp_path / "broken.png", next(folder.rglob("*.png"))]
    result = ha.as_python_dict_s(ha.evaluate_dl_model_batches(model, files, skip_bad=True))
    assert "accuracy" not in result
    assert result["image_ids"] == [0, 2]
    assert result["skipped"] == str(tmp_path / "broken.png")


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "options", "code", "match"),
    [
        ([], {}, 1303, "at least one"),
        (3.5, {}, 1203, "samples, file names"),
        (["a.png", 4], {}, 1203, "a handle is needed"),
        (["a.png"], {"labels": [1, 2]}, 1403, "one class id per file"),
        (["a.png"], {"labels": [77]}, 7793, "labels holds 77"),
        ("demo", {"labels": [1]}, 1203, "labels go with a list"),
        ("demo", {"client": 0}, 1304, "0 processes"),
        ("demo", {"client": "scheduler:8786"}, 1204, r"distributed\.Client"),
        ("demo", {"client": True}, 1204, "True"),
    ],
)
def test_bad_input_is_refused(
    model: ha.HHandle, folder: Path, given: object, options: dict[str, object], code: int, match: str
):
    """The codes are those of the third and fourth parameter."""
    with pytest.raises(ha.HOperatorError, match=match) as caught:
        ha.add_dl_pruning_batches(model, created(model), folder if given == "demo" else given, **options)
    assert caught.value.error_code == code


def test_a_bad_sample_is_named_by_its_number_in_the_whole_list(model: ha.HHandle):
    """Also where it stands in a later part; nothing has been added."""
    samples = ha.demo_samples()[:130]
    samples[117] = ha.from_python_dict({"image_label_id": 1})
    pruning = created(model)
    with pytest.raises(ha.HOperatorError, match="Sample 117 has no 'image'"):
        ha.add_dl_pruning_batches(model, pruning, samples)
    assert ha.get_dl_pruning_param_s(pruning, "scored_image_num") == 0


def test_a_closed_client_is_an_operator_error(client: Client, model: ha.HHandle):
    """Error 7913 says what state it is in."""
    other = Client(client.scheduler.address)
    other.close()
    with pytest.raises(ha.HOperatorError, match="its client is closed") as caught:
        ha.add_dl_pruning_batches(model, created(model), ha.demo_samples()[:20], other)
    assert caught.value.error_code == 7913
