"""Labelled images in files: a folder per class, a list of files, or an .npz archive; read one after the other.

Images are never all in memory: files are decoded a few ahead of their use, an archive is read from front to back.
"""

from __future__ import annotations

import csv
import os
import zipfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import HError

Pixels: TypeAlias = npt.NDArray[Any]
#: What a file calls a class: a name (folder, list, archive of strings) or an id.
ClassLabel: TypeAlias = str | int

SUFFIXES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
#: Label of an image without a class.
UNLABELLED: Final = -1
_LIST_SUFFIXES: Final = frozenset({".csv", ".lst", ".tsv", ".txt"})
_THREADS: Final = 4
_AHEAD: Final = 16
_SHOWN: Final = 20


class ImagesError(HError):
    """Images cannot be used as they are: nothing there, unreadable files, classes that the model does not know."""


@dataclass(frozen=True)
class Unreadable:
    """What `read` yields instead of the pixels of an image that cannot be decoded."""

    name: str
    reason: str


class Images(Protocol):
    """A sequence of images that is read from files.

    `names` tells people which image is meant; `classes` is the class of each, or None if nothing has a class.
    """

    @property
    def names(self) -> Sequence[str]: ...  # noqa: D102

    @property
    def classes(self) -> Sequence[ClassLabel] | None: ...  # noqa: D102

    def read(self, indices: Sequence[int]) -> Iterator[Pixels | Unreadable]:
        """Yield the images of ascending `indices` as H×W or H×W×C (red, green, blue), integers or floats."""
        ...


def open_images(path: str | os.PathLike[str]) -> Images:
    """Find the images in a folder, an .npz archive or a list file; pixels are not read yet.

    - Folder: one sub-folder per class, named like it, images at any depth in it. Images directly in the folder (then
      without sub-folders) have no class. Hidden files are passed over.
    - .npz: 'images' [N, H, W] or [N, H, W, C] and, if known, 'labels' [N] (class ids or names).
    - List (.csv, .tsv, .txt, .lst): lines `path,class` or `path;class` or path, tab, class; the path may be relative to
      the list; lines without a class throughout, empty lines and lines that begin with # are fine.

    Raises ImagesError if there is nothing of that kind.
    """
    source = Path(path)
    if source.is_dir():
        return _folder(source)
    if not source.is_file():
        raise ImagesError(f"There is no folder and no file {os.fspath(path)!r}.")
    if source.suffix.lower() == ".npz":
        return ArchivedImages.open(source)
    if source.suffix.lower() in _LIST_SUFFIXES:
        return _list(source)
    raise ImagesError(
        f"{os.fspath(path)!r} is neither a folder nor an .npz archive nor a list of files "
        f"({', '.join(sorted(_LIST_SUFFIXES))})."
    )


# --- Image files -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageFiles:
    """Images in files of their own."""

    paths: Sequence[Path]
    names: Sequence[str]
    classes: Sequence[ClassLabel] | None

    def read(self, indices: Sequence[int]) -> Iterator[Pixels | Unreadable]:
        """See Images.read; several files are decoded at once, at most a few ahead."""
        with ThreadPoolExecutor(_THREADS) as pool:
            waiting: deque[Future[Pixels | Unreadable]] = deque()
            try:
                for index in indices:
                    waiting.append(pool.submit(self._read_one, index))
                    if len(waiting) >= _AHEAD:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _read_one(self, index: int) -> Pixels | Unreadable:
        try:
            return read_image_file(self.paths[index])
        except HError:
            raise
        except Exception as error:  # Pillow's decoders raise almost anything on damaged files
            unknown = type(error).__name__ == "UnidentifiedImageError"
            return Unreadable(self.names[index], "it is no image" if unknown else str(error) or type(error).__name__)


def pillow_image(what: str) -> ModuleType:
    """Return Pillow's module Image, which the core of dlprune does without; `what` needs it, for the message.

    Raises HError if Pillow is not installed.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise HError(f"{what} needs Pillow; install it with: pip install 'dlprune[images]'") from None
    return Image


def read_image_file(path: str | os.PathLike[str]) -> Pixels:
    """Return the pixels of an image file: H×W (grey) or H×W×3 (red, green, blue), uint8, uint16, int32 or float32.

    Palettes and other colour spaces become red, green, blue; transparency is dropped; only the first page is read.
    Raises OSError or an exception of Pillow if the file cannot be decoded.
    """
    with pillow_image("Reading images").open(path) as image:
        if image.mode in ("1", "LA", "La"):
            return np.asarray(image.convert("L"))
        if image.mode.startswith("I;16"):
            return np.asarray(image).astype(np.uint16)
        if image.mode in ("L", "I", "F", "RGB"):
            return np.array(image)
        return np.asarray(image.convert("RGB"))


def _folder(folder: Path) -> ImageFiles:
    sub_folders = [one for one in sorted(folder.iterdir()) if one.is_dir() and not one.name.startswith(".")]
    found = [(path, one.name) for one in sub_folders for path in image_paths(one)]
    filled = {name for _, name in found}
    empty = [one.name for one in sub_folders if one.name not in filled]
    if found and empty:
        known = ", ".join(sorted(suffix[1:] for suffix in SUFFIXES))
        raise ImagesError(
            f"Every sub-folder of {str(folder)!r} counts as a class, but there are no images in {_some(empty)} "
            f"(of type {known}). Put images in, or remove or hide the sub-folder (.{empty[0]})."
        )
    if found:
        paths = [path for path, _ in found]
        return ImageFiles(paths, _names(paths, folder), [name for _, name in found])
    paths = sorted(path for path in folder.iterdir() if _is_image(path))
    if not paths:
        known = ", ".join(sorted(suffix[1:] for suffix in SUFFIXES))
        raise ImagesError(
            f"{str(folder)!r} holds no images; one sub-folder per class is needed, with images of type {known}."
        )
    return ImageFiles(paths, _names(paths, folder), None)


def image_paths(folder: Path) -> list[Path]:
    """Return the image files of a folder, at any depth, in alphabetical order; hidden files are passed over."""
    return sorted(path for path in folder.rglob("*") if _is_image(path))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def _names(paths: Sequence[Path], folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in paths]


def _list(file: Path) -> ImageFiles:
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ImagesError(f"{str(file)!r} cannot be read: {error}.") from None
    rows: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        cells = _cells(line)
        if len(cells) > 2:
            raise ImagesError(f"{str(file)!r}, line {number}: {len(cells)} columns; path and class are needed.")
        rows.append((cells[0], cells[1] if len(cells) == 2 else ""))
    if rows and rows[0][0].lower() in ("path", "file", "image", "filename", "image_file_name"):
        del rows[0]  # a heading
    if not rows:
        raise ImagesError(f"{str(file)!r} lists no images.")
    labelled = sum(1 for _, name in rows if name)
    if labelled not in (0, len(rows)):
        raise ImagesError(f"{str(file)!r}: only {labelled} of {len(rows)} lines have a class; give all one, or none.")
    return ImageFiles(
        [file.parent / path for path, _ in rows],
        [path for path, _ in rows],
        [name for _, name in rows] if labelled else None,
    )


def _cells(line: str) -> list[str]:
    delimiter = next((one for one in "\t;," if one in line), ",")
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]


# --- Archives --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArchivedImages:
    """Images in one array of an .npz archive, which is unpacked from front to back while it is read."""

    path: Path
    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    names: Sequence[str]
    classes: Sequence[ClassLabel] | None

    @classmethod
    def open(cls, path: Path) -> ArchivedImages:
        """Read the head of an archive. Raises ImagesError if it does not hold what `open_images` tells."""
        try:
            with np.load(path, allow_pickle=False) as arrays, zipfile.ZipFile(path) as archive:
                names = list(arrays.files)
                images = next((name for name in ("images", "x", "data") if name in names), None)
                labels = next((name for name in ("labels", "y", "target") if name in names), None)
                if images is None:
                    raise ImagesError(f"{str(path)!r} has no array 'images' (found: {', '.join(names) or 'nothing'}).")
                member = f"{images}.npy"
                with archive.open(member) as stream:
                    shape, dtype = _head(stream)
                classes = None if labels is None else arrays[labels]
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ImagesError(f"{str(path)!r} cannot be read as an .npz archive: {error}.") from None
        if len(shape) not in (3, 4) or 0 in shape:
            raise ImagesError(f"{str(path)!r}: 'images' has the shape {shape}; [N, H, W] or [N, H, W, C] is needed.")
        if classes is not None and classes.shape != shape[:1]:
            raise ImagesError(f"{str(path)!r}: {shape[0]} images but labels of shape {classes.shape}.")
        if classes is not None and classes.dtype.kind not in "iuU":
            raise ImagesError(f"{str(path)!r}: labels of type {classes.dtype}; integers or strings are needed.")
        numbered = [f"image {i}" for i in range(shape[0])]
        return cls(path, member, shape, dtype, numbered, None if classes is None else classes.tolist())

    def read(self, indices: Sequence[int]) -> Iterator[Pixels | Unreadable]:
        """See Images.read. Raises ImagesError if the archive is damaged."""
        size = int(np.prod(self.shape[1:])) * self.dtype.itemsize
        position = 0
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as stream:
                _head(stream)
                for index in indices:
                    while position < index:
                        _exactly(stream, size)
                        position += 1
                    yield np.frombuffer(_exactly(stream, size), self.dtype).reshape(self.shape[1:])
                    position += 1
        except (OSError, EOFError, zipfile.BadZipFile) as error:
            raise ImagesError(f"{str(self.path)!r} is damaged at image {position}: {error}.") from None


def _head(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the head of an array and return its shape and type. Raises ValueError for what cannot be streamed."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(stream)
    if fortran_order and len(shape) > 1:
        raise ValueError("its images are stored in Fortran order; store np.ascontiguousarray(images)")
    if dtype.kind not in "biuf":
        raise ValueError(f"its images have the type {dtype}; integers or floats are needed")
    return shape, dtype


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise EOFError("it ends too early")
    return data


@dataclass(frozen=True)
class ArrayImages:
    """Images in an array [N, H, W] or [N, H, W, C] in memory."""

    array: Pixels
    classes: Sequence[ClassLabel] | None

    @property
    def names(self) -> Sequence[str]:
        """See Images."""
        return [f"image {i}" for i in range(len(self.array))]

    def read(self, indices: Sequence[int]) -> Iterator[Pixels | Unreadable]:
        """See Images.read."""
        return (self.array[index] for index in indices)


# --- Classes and parts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassMatch:
    """The class id of each image (UNLABELLED without class), and in words how they were found."""

    ids: npt.NDArray[np.int64]
    how: str


def match_classes(
    classes: Sequence[ClassLabel] | None, class_ids: Sequence[int], class_names: Sequence[str], count: int
) -> ClassMatch:
    """Tell which class of a model each image belongs to.

    The labels of the images are looked up among the names of the model's classes, else, if they are all integers,
    among its ids; else, if there are as many labels as classes and the classes have no names of their own, they are
    taken in alphabetical order.

    Parameters: `classes` (label of each image, or None), `class_ids` and `class_names` of the model, `count` (number of
    images). Raises ImagesError if the labels fit in none of these ways.
    """
    if classes is None:
        return ClassMatch(np.full(count, UNLABELLED, np.int64), "the images have no classes")
    labels = sorted({str(label) for label in classes})
    by_name = dict(zip(class_names, class_ids, strict=True))
    by_id = {str(one): one for one in class_ids}
    if all(isinstance(label, int) for label in classes) and all(label in by_id for label in labels):
        found, how = by_id, "classes are matched by id"
    elif all(label in by_name for label in labels):
        found, how = by_name, "classes are matched by name"
    elif all(label in by_id for label in labels):
        found, how = by_id, "classes are matched by id"
    elif len(labels) == len(class_ids) and all(name == f"class_{i}" for i, name in enumerate(class_names)):
        found = dict(zip(labels, class_ids, strict=True))
        pairs = ", ".join(f"{name} = {found[name]}" for name in labels[:6])
        how = f"classes are taken in alphabetical order ({pairs}{', …' if len(labels) > 6 else ''})"
    else:
        strange = [label for label in labels if label not in by_name and label not in by_id]
        raise ImagesError(
            f"The images have {len(labels)} classes, the model has {len(class_ids)}; the model does not know "
            f"{_some(strange)}. Its class names are {_some(class_names)}, its ids {_some(class_ids)}. Rename the "
            "classes of the images, or give the model its class names."
        )
    return ClassMatch(np.array([found[str(label)] for label in classes], np.int64), how)


def _some(values: Sequence[object]) -> str:
    return ", ".join(repr(one) for one in values[:8]) + (f" and {len(values) - 8} more" if len(values) > 8 else "")


def stratified_part(labels: npt.NDArray[np.int64], share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Choose about a share (0…1) of the images, the same share of each class; the same choice for the same seed.

    A class that has several images and of which some are wanted gives at least one and keeps at least one.
    """
    chosen = np.zeros(len(labels), np.bool_)
    if share <= 0:
        return chosen
    rng = np.random.default_rng(seed)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        number = round(len(members) * share)
        if len(members) > 1 and share < 1:
            number = min(max(number, 1), len(members) - 1)
        chosen[members[:number]] = True
    return chosen


def unreadable_error(bad: Sequence[Unreadable]) -> ImagesError:
    """Return the error that lists images which cannot be read."""
    lines = [f"  {one.name}: {one.reason}" for one in bad[:_SHOWN]]
    if len(bad) > _SHOWN:
        lines.append(f"  … and {len(bad) - _SHOWN} more")
    what = "1 image cannot" if len(bad) == 1 else f"{len(bad)} images cannot"
    return ImagesError(f"{what} be read (skip them with --skip-bad):\n" + "\n".join(lines))
