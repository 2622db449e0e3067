"""Does memory stay flat while images are scored from disk? Peak memory and time for 200, 2,000 and 20,000 images.

Draws colour images of 96×96 pixels into a temporary folder as PNG files, and gives so and so many of them to a net of
two convolutions: an image is cheap to compute and large in memory (110 kB as the net takes it), so that anything that
is kept per image shows. Each job runs in a process of its own; peak is its largest resident memory. Then states the
slope: what memory and time grow by, per image, from the smallest to the largest number::

    python tests/benchmarks/memory.py [--numbers 200 2000 20000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from PIL import Image

import dlprune as ha

sys.path.insert(0, str(Path(__file__).parents[1]))
from models import plain

SIZE, CLASSES = 96, 5
#: Fewer than the smallest number of images, so that the remembered ones are the same number in every row.
CALIBRATION = 128


def draw(folder: Path, number: int) -> list[str]:
    """Draw images of noisy rectangles; return lines `path,class`."""
    rng = np.random.default_rng(0)
    lines = []
    for index in range(number):
        path = folder / f"{index}.png"
        lines.append(f"{path.name},{index % CLASSES}")
        pixels = rng.integers(0, 64, (SIZE, SIZE, 3), np.uint8)
        top, left = rng.integers(0, SIZE // 2, 2)
        if not path.exists():
            pixels[top : top + SIZE // 2, left : left + SIZE // 2] += np.uint8(30 * (index % CLASSES + 1))
            Image.fromarray(pixels).save(path, compress_level=1)
    return lines


def operators(model_file: str, images: str) -> None:
    """Score with the operators, then prune."""
    model = ha.read_dl_model(model_file)
    pruning = ha.create_dl_pruning(model, "oracle", [])
    ha.set_dl_pruning_param(pruning, "calibration_image_num", CALIBRATION)
    ha.set_dl_pruning_param(pruning, "percentage", 30)
    ha.add_dl_pruning_batches(model, pruning, images)
    ha.gen_dl_pruned_model(model, pruning)


def evaluation(model_file: str, images: str) -> None:
    """Decide on all images."""
    model = ha.read_dl_model(model_file)
    ha.set_dl_model_param(model, "batch_size", 16)
    ha.evaluate_dl_model_batches(model, images)


def command(model_file: str, images: str) -> None:
    """Score, prune, write and test with the command line."""
    from dlprune.cli import main

    out = str(Path(images).with_suffix(".onnx"))
    options = ["--images", images, "--out", out, "-p", "30", "--calibration-images", str(CALIBRATION), "--runs", "0"]
    sys.argv = ["dlprune", "prune", model_file, *options, "--quiet"]
    main()


JOBS: dict[str, Callable[[str, str], None]] = {
    "add_dl_pruning_batches, gen_dl_pruned_model": operators,
    "evaluate_dl_model_batches": evaluation,
    "dlprune prune": command,
}


def measure(name: str, model_file: Path, images: Path) -> tuple[float, float]:
    """Run a job in a process of its own; return its peak memory in MB and its time in seconds."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, __file__, "--job", name, str(model_file), str(images)])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{name} failed with status {status}")
    return usage.ru_maxrss / 1024, time.perf_counter() - start


def compare(folder: Path, numbers: list[int], jobs: list[str]) -> None:
    """Measure and print a Markdown table; images that are in the folder already are not drawn again."""
    lines = draw(folder, numbers[-1])
    model_file = folder / "net.onnx"
    onnx.save(plain(size=SIZE, classes=CLASSES), model_file)
    lists = {number: folder / f"{number}.csv" for number in numbers}
    for number, path in lists.items():
        path.write_text("\n".join(lines[:number]))
    print("| peak memory, time | " + " | ".join(f"{number:,} images" for number in numbers) + " | per image more |")
    print("|---" * (len(numbers) + 2) + "|")
    more = numbers[-1] - numbers[0]
    for job in jobs:
        found = [measure(job, model_file, path) for path in lists.values()]
        cells = [f"{memory:.0f} MB, {seconds:.1f} s" for memory, seconds in found]
        memory, seconds = ((last - first) / more for first, last in zip(found[0], found[-1], strict=True))
        print(f"| {job} | " + " | ".join(cells) + f" | {1e3 * memory:.2f} kB, {1e3 * seconds:.2f} ms |", flush=True)


def main() -> None:
    """Compare numbers of images, or do a single job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numbers", type=int, nargs="+", default=[200, 2000, 20000])
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--folder", type=Path, help="draw the images there and keep them")
    parser.add_argument("--job", nargs=3, metavar=("NAME", "MODEL", "IMAGES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        name, model_file, images = options.job
        JOBS[name](model_file, images)
        return
    numbers = sorted(options.numbers)
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        compare(options.folder, numbers, options.jobs)
        return
    with tempfile.TemporaryDirectory() as name:
        compare(Path(name), numbers, options.jobs)


if __name__ == "__main__":
    main()
