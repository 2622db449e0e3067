"""Reading and writing image files, and file names as path objects."""

from __future__ import annotations

import builtins
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dlprune as ha

RNG = np.random.default_rng(5)


def pixels(dtype: str, *shape: int) -> np.ndarray:
    if dtype == "float32":
        return RNG.standard_normal(shape).astype(np.float32)
    return RNG.integers(0, np.iinfo(dtype).max, shape, endpoint=True).astype(dtype)


@pytest.mark.parametrize(
    ("format", "dtype", "shape"),
    [
        ("png", "uint8", (5, 7)),
        ("png", "uint8", (5, 7, 3)),
        ("png", "uint16", (5, 7)),
        ("tiff", "uint8", (5, 7, 3)),
        ("tiff", "uint16", (5, 7)),
        ("tiff", "int32", (5, 7)),
        ("tiff", "float32", (5, 7)),
        ("bmp", "uint8", (5, 7)),
        ("bmp", "uint8", (5, 7, 3)),
    ],
)
def test_what_is_written_without_loss_is_read_again(format: str, dtype: str, shape: tuple[int, ...], tmp_path: Path):
    array = pixels(dtype, *shape)
    path = tmp_path / f"a.{format}"
    ha.write_image(ha.himage_from_numpy_array(array), format, 0, path)
    back = ha.himage_as_numpy_array(ha.read_image(str(path)))
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    np.testing.assert_array_equal(np.asarray(Image.open(path)), array)


def test_jpeg_takes_a_quality(tmp_path: Path):
    """Less quality gives a smaller file."""
    array = pixels("uint8", 64, 64, 3)
    sizes = []
    for format in ("jpeg", "jpeg 20"):
        ha.write_image(array, format, 0, tmp_path / "a.jpg")
        sizes.append((tmp_path / "a.jpg").stat().st_size)
        assert ha.himage_as_numpy_array(ha.read_image(tmp_path / "a.jpg")).shape == array.shape
    assert sizes[1] < sizes[0]


def test_a_name_without_ending_gets_that_of_the_format(tmp_path: Path):
    ha.write_image(pixels("uint8", 4, 4), "tiff", 0, tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tif"]


def test_several_names_give_a_list(tmp_path: Path):
    """In HALCON this is one object with several images; gen_dl_samples_from_images takes either."""
    names = [tmp_path / "a.png", str(tmp_path / "b.png")]
    for value, name in enumerate(names):
        ha.write_image(np.full((2, 2), value, np.uint8), "png", 0, name)
    found = ha.read_image(names)
    assert [int(ha.himage_as_numpy_array(one)[0, 0]) for one in found] == [0, 1]
    assert len(ha.gen_dl_samples_from_images(found)) == 2


def damaged(folder: Path) -> Path:
    path = folder / "damaged.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    return path


MISTAKES = {
    "no such file": (lambda folder: ha.read_image(folder / "none.png"), 5200, "none.png"),
    "a damaged file": (lambda folder: ha.read_image(damaged(folder)), 1301, "damaged.png"),
    "a folder": (lambda folder: ha.read_image(folder), 1301, "irectory"),
    "an unknown format": (lambda f: ha.write_image(pixels("uint8", 2, 2), "gif", 0, f / "a"), 1301, "'png'"),
    "a quality of 0": (lambda f: ha.write_image(pixels("uint8", 2, 2), "jpeg 0", 0, f / "a"), 1301, "jpeg"),
    "a quality for png": (lambda f: ha.write_image(pixels("uint8", 2, 2), "png 5", 0, f / "a"), 1301, "png 5"),
    "real pixels as png": (lambda f: ha.write_image(pixels("float32", 2, 2), "png", 0, f / "a"), 1301, "write_dict"),
    "16-bit colour": (lambda f: ha.write_image(pixels("uint16", 2, 2, 3), "tiff", 0, f / "a"), 1301, "3 channel"),
    "no such folder": (lambda f: ha.write_image(pixels("uint8", 2, 2), "png", 0, f / "no" / "a.png"), 3142, "a.png"),
    "a colour that is no number": (lambda f: ha.write_image(pixels("uint8", 2, 2), "png", "x", f / "a"), 1202, "x"),
    "two names": (lambda f: ha.write_image(pixels("uint8", 2, 2), "png", 0, ["a", "b"]), 1403, "2 file names"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_its_code_and_leaves_no_file(mistake: str, tmp_path: Path):
    make, code, hint = MISTAKES[mistake]
    with pytest.raises(ha.HOperatorError) as caught:
        make(tmp_path)
    assert caught.value.error_code == code
    assert hint in caught.value.extended_error_message
    assert {path.name for path in tmp_path.iterdir()} <= {"damaged.png"}


def test_without_pillow_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    original = builtins.__import__

    def without_pillow(name, *rest):
        if name == "PIL":
            raise ModuleNotFoundError("No module named 'PIL'")
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(ha.HError, match=r"pip install 'dlprune\[images\]'"):
        ha.read_image(tmp_path / "a.png")


def test_path_objects_are_file_names(tmp_path: Path):
    """Beyond HALCON, where a file is named by a string."""
    model = ha.read_dl_model(Path(ha.demo_model_file()))
    ha.write_dl_model(model, tmp_path / "a.onnx")
    assert ha.get_dl_model_param_s(ha.read_dl_model(tmp_path / "a.onnx"), "type") == "classification"
    ha.write_dict(ha.from_python_dict({"a": 1}), tmp_path / "a.hdict", [], [])
    assert ha.get_dict_tuple(ha.read_dict(tmp_path / "a.hdict", [], []), "a") == [1]
