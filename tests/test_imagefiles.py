"""Images from folders, lists and archives; their classes; and the way from pixels to numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import plain
from PIL import Image

from dlprune.classifier import Classifier
from dlprune.evaluation import Contestant, LabelledImages, evaluate
from dlprune.imagefiles import (
    ArrayImages,
    ImagesError,
    Unreadable,
    match_classes,
    open_images,
    read_image_file,
    stratified_part,
)
from dlprune.preprocessing import Preprocessing, PreprocessingError, preprocessing_of, resize, store_preprocessing


def write_image(path: Path, pixels: np.ndarray[Any, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def grey(value: int, size: tuple[int, int] = (8, 8)) -> np.ndarray[Any, Any]:
    return np.full(size, value, np.uint8)


def classifier(channels: int = 3, size: int = 8) -> Classifier:
    return Classifier.from_proto(plain(channels=channels, size=size))


# --- Where images are found ------------------------------------------------------------------------------------------


def test_a_folder_gives_the_images_of_its_sub_folders_in_order_of_their_names(tmp_path: Path) -> None:
    write_image(tmp_path / "dog/b.png", grey(20))
    write_image(tmp_path / "cat/deep/a.png", grey(10))
    write_image(tmp_path / "cat/z.bmp", grey(11))
    write_image(tmp_path / ".hidden/a.png", grey(99))
    (tmp_path / "cat/notes.txt").write_text("no image")
    images = open_images(tmp_path)
    assert [Path(name).as_posix() for name in images.names] == ["cat/deep/a.png", "cat/z.bmp", "dog/b.png"]
    assert images.classes == ["cat", "cat", "dog"]
    assert [pixels[0, 0] for pixels in images.read([0, 2])] == [10, 20]  # type: ignore[index]


def test_a_folder_without_sub_folders_gives_images_without_classes(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", grey(1))
    assert open_images(tmp_path).classes is None


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_list_gives_paths_relative_to_itself_and_classes(tmp_path: Path, separator: str) -> None:
    write_image(tmp_path / "images/a.png", grey(1))
    write_image(tmp_path / "images/b, c.png", grey(2))
    rows = [("path", "class"), ("images/a.png", "good"), ('"images/b, c.png"', "bad")]
    (tmp_path / "list.csv").write_text("# made by hand\n\n" + "\n".join(separator.join(row) for row in rows) + "\n")
    images = open_images(tmp_path / "list.csv")
    assert images.classes == ["good", "bad"]
    assert [pixels[0, 0] for pixels in images.read([0, 1])] == [1, 2]  # type: ignore[index]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("shape", [(5, 4, 6), (5, 4, 6, 3)])
def test_an_archive_is_read_from_front_to_back(tmp_path: Path, save: Any, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, shape).astype(np.uint8)
    save(tmp_path / "a.npz", images=pixels, labels=np.array([0, 1, 2, 1, 0]))
    images = open_images(tmp_path / "a.npz")
    assert images.classes == [0, 1, 2, 1, 0]
    for found, expected in zip(images.read([1, 2, 4]), pixels[[1, 2, 4]], strict=True):
        np.testing.assert_array_equal(found, expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": np.zeros((2, 4, 4))}, "no array 'images'"),
        ({"images": np.zeros((2, 4))}, "shape"),
        ({"images": np.zeros((2, 4, 4)), "labels": np.zeros(3, int)}, "2 images but labels"),
        ({"images": np.zeros((2, 4, 4)), "labels": np.zeros(2)}, "integers or strings"),
        ({"images": np.asfortranarray(np.zeros((2, 4, 4)))}, "Fortran"),
        ({"images": np.array([[["a"]]])}, "type"),
    ],
)
def test_an_archive_that_does_not_fit_is_refused_in_words(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ImagesError, match=message):
        open_images(tmp_path / "a.npz")


def test_what_holds_no_images_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.npz").write_bytes(b"PK")
    (tmp_path / "a.csv").write_text("a.png,x,y\n")
    (tmp_path / "half.csv").write_text("a.png,x\nb.png\n")
    (tmp_path / "none.csv").write_text("\n")
    (tmp_path / "a.bin").write_bytes(b"")
    for name, message in {
        "missing": "no folder and no file",
        "empty": "no images",
        "a.npz": "archive",
        "a.csv": "columns",
        "half.csv": "only 1 of 2",
        "none.csv": "lists no images",
        "a.bin": "neither",
    }.items():
        with pytest.raises(ImagesError, match=message):
            open_images(tmp_path / name)


def test_image_files_of_every_kind_become_grey_or_colour_pixels(tmp_path: Path) -> None:
    colour = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    sixteen = np.arange(16, dtype=np.uint16).reshape(4, 4) * 4000
    write_image(tmp_path / "rgb.png", colour)
    write_image(tmp_path / "rgba.png", np.dstack([colour, grey(7, (4, 4))]))
    write_image(tmp_path / "16.png", sixteen)
    write_image(tmp_path / "16.tif", sixteen)
    write_image(tmp_path / "float.tif", sixteen.astype(np.float32))
    Image.fromarray(grey(200, (4, 4))).convert("1").save(tmp_path / "1.png")
    Image.fromarray(colour).convert("P", palette=Image.Palette.ADAPTIVE).save(tmp_path / "p.png")
    np.testing.assert_array_equal(read_image_file(tmp_path / "rgb.png"), colour)
    np.testing.assert_array_equal(read_image_file(tmp_path / "rgba.png"), colour)
    for name in ("16.png", "16.tif"):
        pixels = read_image_file(tmp_path / name)
        assert pixels.dtype == np.uint16
        np.testing.assert_array_equal(pixels, sixteen)
    assert read_image_file(tmp_path / "float.tif").dtype == np.float32
    assert read_image_file(tmp_path / "1.png").dtype == np.uint8
    assert read_image_file(tmp_path / "p.png").shape == (4, 4, 3)


# --- Classes ---------------------------------------------------------------------------------------------------------

DEFAULT_NAMES = ["class_0", "class_1", "class_2"]


def test_classes_are_matched_by_name_where_the_model_knows_the_names() -> None:
    match = match_classes(["b", "a", "b"], [5, 7], ["a", "b"], 3)
    assert match.ids.tolist() == [7, 5, 7]
    assert "by name" in match.how


def test_folders_named_like_class_ids_are_matched_by_id_not_by_order() -> None:
    assert match_classes(["10", "2", "0"], list(range(11)), [f"class_{i}" for i in range(11)], 3).ids.tolist() == [
        10,
        2,
        0,
    ]


def test_integer_labels_are_class_ids_even_if_a_name_looks_like_one() -> None:
    assert match_classes([1, 0], [0, 1], ["1", "0"], 2).ids.tolist() == [1, 0]


def test_unknown_names_are_taken_in_order_only_if_the_model_has_no_names_of_its_own() -> None:
    assert match_classes(["x", "z", "y"], [0, 1, 2], DEFAULT_NAMES, 3).ids.tolist() == [0, 2, 1]
    with pytest.raises(ImagesError, match=r"does not know 'x', 'y'.*'cat'"):
        match_classes(["x", "y"], [0, 1], ["cat", "dog"], 2)
    with pytest.raises(ImagesError, match="2 classes, the model has 3"):
        match_classes(["x", "y"], [0, 1, 2], DEFAULT_NAMES, 2)


def test_images_without_classes_get_minus_one() -> None:
    assert match_classes(None, [0, 1], ["a", "b"], 2).ids.tolist() == [-1, -1]


def test_the_held_out_part_has_its_share_of_every_class_and_depends_on_the_seed_alone() -> None:
    labels = np.repeat([0, 1, 2], [50, 10, 2])
    part = stratified_part(labels, 0.2, 3)
    assert [int(part[labels == i].sum()) for i in range(3)] == [10, 2, 1]
    np.testing.assert_array_equal(part, stratified_part(labels, 0.2, 3))
    assert (part != stratified_part(labels, 0.2, 4)).any()
    assert not stratified_part(labels, 0, 3).any()
    assert stratified_part(labels, 1, 3).all()


# --- Unreadable images -----------------------------------------------------------------------------------------------


@pytest.fixture
def folder_with_bad_files(tmp_path: Path) -> Path:
    for i in range(6):
        write_image(tmp_path / f"a/{i}.png", np.random.default_rng(i).integers(0, 255, (32, 32, 3)).astype(np.uint8))
    whole = (tmp_path / "a/1.png").read_bytes()
    (tmp_path / "a/1.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "a/4.png").write_text("no image at all")
    return tmp_path


def labelled(folder: Path, skip_bad: bool) -> LabelledImages:
    images = open_images(folder)
    return LabelledImages(images, np.zeros(len(images.names), np.int64), skip_bad)


def test_the_error_lists_every_unreadable_image(folder_with_bad_files: Path) -> None:
    with pytest.raises(ImagesError, match=r"(?s)2 images cannot be read.*1\.png.*4\.png"):
        evaluate([Contestant(classifier(), Preprocessing())], labelled(folder_with_bad_files, False))


def test_unreadable_images_are_left_out_and_remembered_on_request(folder_with_bad_files: Path) -> None:
    data = labelled(folder_with_bad_files, True)
    found = evaluate([Contestant(classifier(), Preprocessing())], data)
    assert found.indices.tolist() == [0, 2, 3, 5]
    assert [Path(name).name for name in data.skipped] == ["1.png", "4.png"]


def test_an_image_with_nan_counts_as_unreadable() -> None:
    pixels = np.zeros((2, 8, 8, 3), np.float32)
    pixels[1, 0, 0, 0] = np.nan
    data = LabelledImages(ArrayImages(pixels, [0, 0]), np.zeros(2, np.int64))
    with pytest.raises(ImagesError, match="image 1: it holds NaN"):
        evaluate([Contestant(classifier(), Preprocessing())], data)


def test_a_missing_file_in_a_list_is_reported_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("nowhere.png,x\n")
    (found,) = open_images(tmp_path / "a.csv").read([0])
    assert isinstance(found, Unreadable)
    assert found.name == "nowhere.png"


# --- Preprocessing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "white", "pixel", "expected"),
    [
        (np.uint8, 0, 0, -127),
        (np.uint8, 0, 255, 128),
        (np.uint8, 0, 127, 0),
        (np.uint16, 0, 65535, 128),
        (np.uint16, 4095, 4095, 128),
        (np.float32, 0, 0.25, 0.25),
        (np.float32, 1, 1.0, 128),
        (np.bool_, 0, True, 128),
    ],
)
def test_grey_values_are_mapped_to_the_range_of_the_model(
    dtype: Any, white: float, pixel: float, expected: float
) -> None:
    image = np.full((8, 8, 3), pixel, dtype)
    result = Preprocessing(white=white).apply(image, classifier())
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, atol=1e-4)


def test_mean_and_deviation_are_applied_per_channel_in_the_order_of_the_model() -> None:
    model = classifier()
    model.set("image_range_min", (0,))
    model.set("image_range_max", (1,))
    image = np.zeros((8, 8, 3), np.uint8)
    image[..., 0] = 255  # red
    result = Preprocessing(mean=(0.5, 0.25, 0.75), std=(0.5,), channel_order="bgr").apply(image, model)
    np.testing.assert_allclose(result[0, 0], [-1, -0.5, 0.5])


def test_grey_images_become_colour_and_colour_images_grey() -> None:
    np.testing.assert_allclose(Preprocessing().apply(grey(100), classifier(3)), -27)
    colour = np.zeros((8, 8, 3), np.uint8)
    colour[..., 1] = 200
    np.testing.assert_allclose(Preprocessing().apply(colour, classifier(1)), 200 * 0.587 - 127, rtol=1e-5)
    with pytest.raises(PreprocessingError, match="5 channels cannot become one with 3"):
        Preprocessing().apply(np.zeros((8, 8, 5), np.uint8), classifier(3))


def ramp(height: int, width: int) -> np.ndarray[Any, Any]:
    return np.repeat(np.linspace(0, 255, width)[np.newaxis], height, 0).astype(np.uint8)


def test_stretching_scales_both_sides() -> None:
    result = Preprocessing(fit="stretch").apply(ramp(4, 16), classifier(1))
    assert result.shape == (8, 8, 1)
    assert result[0, 0, 0] < -100
    assert result[0, -1, 0] > 100


def test_cropping_keeps_proportions_and_the_centre() -> None:
    result = Preprocessing(fit="crop").apply(ramp(8, 64), classifier(1))
    np.testing.assert_array_equal(result[:, :, 0], ramp(8, 64)[:, 28:36].astype(np.float32) - 127)
    larger = Preprocessing(fit="crop", resize=16).apply(ramp(8, 64), classifier(1))
    assert np.ptp(larger) < np.ptp(result)  # a smaller part is seen


def test_padding_keeps_proportions_and_fills_with_the_given_grey_value() -> None:
    image = grey(255, (4, 8))
    centred = Preprocessing(fit="pad", pad_value=127).apply(image, classifier(1))[:, 0, 0]
    assert centred.tolist() == [0, 0, 128, 128, 128, 128, 0, 0]
    upper = Preprocessing(fit="pad-end", pad_value=127.5).apply(image, classifier(1))[:, 0, 0]
    assert upper.tolist() == [128, 128, 128, 128, 0.5, 0.5, 0.5, 0.5]


def test_a_line_of_text_keeps_the_full_height_and_is_squeezed_only_if_too_wide() -> None:
    short = Preprocessing(fit="line", pad_value=127).apply(grey(255, (4, 3)), classifier(1))[:, :, 0]
    np.testing.assert_array_equal(short[0], [128] * 6 + [0] * 2)
    assert (short == short[0]).all()
    long = Preprocessing(fit="line").apply(ramp(4, 64), classifier(1))
    assert (long[:, 0] < -100).all()
    assert (long[:, -1] > 100).all()


def test_sixteen_bit_images_keep_their_precision_when_scaled() -> None:
    image = np.repeat(np.array([[1000, 1001]], np.uint16), 2, 0)[:, :, np.newaxis]
    assert 1000 < resize(image, (2, 3))[0, 1, 0] < 1001


def test_preprocessing_survives_in_the_metadata_of_the_model(tmp_path: Path) -> None:
    model = classifier()
    chosen = Preprocessing(fit="crop", resize=9, mean=(1.0, 2.0, 3.0), std=(4.0,), channel_order="bgr")
    store_preprocessing(model, chosen)
    model.write(str(tmp_path / "a.onnx"))
    again = Classifier.read(str(tmp_path / "a.onnx"))
    assert preprocessing_of(again) == chosen
    store_preprocessing(again, Preprocessing())
    assert again.params.meta_data == {}


def test_damaged_or_impossible_preprocessing_is_an_error_in_words() -> None:
    model = classifier()
    model.params.meta_data["preprocessing"] = '{"fit": "squeeze"}'
    with pytest.raises(PreprocessingError, match="squeeze"):
        preprocessing_of(model)
    model.params.meta_data["preprocessing"] = "[1"
    with pytest.raises(PreprocessingError, match="damaged"):
        preprocessing_of(model)
    with pytest.raises(PreprocessingError, match="mean has 2 values"):
        Preprocessing(mean=(1.0, 2.0)).check(model)
    with pytest.raises(PreprocessingError, match="above 0"):
        Preprocessing(std=(0.0,))


# --- Evaluation ------------------------------------------------------------------------------------------------------


def test_evaluation_gives_what_the_classifier_decides_for_every_batch_size() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (11, 8, 8, 3)).astype(np.uint8)
    model = classifier()
    model.set("class_ids", (10, 11, 12, 13, 14))
    truth = model.confidences((pixels.astype(np.float32) - 127).transpose(0, 3, 1, 2)).argmax(axis=1) + 10
    labels = np.where(np.arange(11) < 8, truth, 10 + (truth - 9) % 5)  # the last three are wrong
    fixed = Classifier.from_proto(plain(batch=4))
    fixed.set("class_ids", (10, 11, 12, 13, 14))
    for one, size in ((model, 1), (model, 3), (model, 50), (fixed, 4)):
        one.set("batch_size", (size,))
        found = evaluate([Contestant(one, Preprocessing())] * 2, LabelledImages(ArrayImages(pixels, None), labels))
        assert found.decisions[0].tolist() == truth.tolist()
        assert found.accuracies == [pytest.approx(8 / 11)] * 2
        assert found.agreement == 1
        assert found.confusion(range(10, 15)).trace() == 8
        assert found.confusion(range(10, 15)).sum() == 11


def test_without_labels_there_is_agreement_but_no_accuracy() -> None:
    data = LabelledImages(ArrayImages(np.zeros((3, 8, 8, 3), np.uint8), None), np.full(3, -1))
    found = evaluate([Contestant(classifier(), Preprocessing())] * 2, data)
    assert found.accuracies == [None, None]
    assert found.agreement == 1
