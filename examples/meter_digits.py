"""Prune a real classifier: digits of utility meters, ten digits and "no digit".

The model (VGG-like, 6 convolutions, MIT) comes with the package meter-digits-recognizer. It has a fixed batch of 11
images and flattens a 4×2 map in front of its last layer. Labelled images are drawn: light digits on dark drums, a
little shifted, turned, tinted, blurred and noisy. Pillow is needed, and::

    pip install --no-deps meter-digits-recognizer==0.2.3
    python examples/meter_digits.py [folder for the pruned models]
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from pruning_table import LabelledImages, ModelParameters, model_in_package, print_pruning_table

HEIGHT, WIDTH = 32, 20
NO_DIGIT = 10


def draw_digit(rng: np.random.Generator, label: int) -> np.ndarray:
    """Draw one window of a meter as float32 [32, 20, 3] in 0…1."""
    ink, paper = int(rng.integers(150, 256)), int(rng.integers(0, 70))
    window = Image.new("L", (WIDTH, HEIGHT), paper)
    if label != NO_DIGIT:
        font = ImageFont.load_default(float(rng.integers(26, 31)))
        left, top, right, bottom = font.getbbox(str(label))
        x = (WIDTH - left - right) / 2 + rng.uniform(-1.5, 1.5)
        y = (HEIGHT - top - bottom) / 2 + rng.uniform(-2, 2)
        ImageDraw.Draw(window).text((x, y), str(label), fill=ink, font=font)
        window = window.rotate(rng.uniform(-4, 4), Image.Resampling.BILINEAR, fillcolor=paper)
    window = window.filter(ImageFilter.GaussianBlur(rng.uniform(0, 0.8)))
    tinted = np.asarray(window)[..., None] * rng.uniform(0.85, 1, size=3)
    noisy = tinted + rng.normal(0, rng.uniform(0, 10), tinted.shape)
    return (np.clip(noisy, 0, 255) / 255).astype(np.float32)


def draw_images(number: int, seed: int) -> LabelledImages:
    """Draw all eleven classes in turn."""
    rng = np.random.default_rng(seed)
    labels = np.arange(number) % (NO_DIGIT + 1)
    return LabelledImages(np.stack([draw_digit(rng, int(label)) for label in labels]), labels)


def main(folder: str) -> None:
    """Prune by 10, 30 and 50 percent and compare."""
    file = model_in_package("meter_digits_recognizer", "model.onnx", "meter-digits-recognizer==0.2.3")
    parameters: ModelParameters = {
        "image_range_min": 0.0,
        "image_range_max": 1.0,
        "class_names": [*"0123456789", "no digit"],
    }
    print_pruning_table(file, parameters, draw_images(330, seed=1), draw_images(660, seed=0), Path(folder))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "pruned")
