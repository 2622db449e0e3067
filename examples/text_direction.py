"""Prune a real classifier: is a line of text upright or upside down?

The model is PaddleOCR's text direction classifier (MobileNetV3-like, 53 convolutions, Apache-2.0) as the package
rapidocr-onnxruntime carries it. Labelled images are drawn: lines of text in many sizes and contrasts, half of them
turned by 180°. Pillow is needed, and::

    pip install --no-deps rapidocr-onnxruntime==1.4.4
    python examples/text_direction.py [folder for the pruned models]
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from pruning_table import LabelledImages, ModelParameters, model_in_package, print_pruning_table

HEIGHT, WIDTH = 48, 192
TEXT = (
    "invoice total amount order number delivery address customer street city country page date tax item quantity price "
    "discount payment due bank account reference contact phone email product serial batch weight length machine model "
    "version label warning battery charge voltage power made in Germany keep dry this side up best before"
)


def draw_line(rng: np.random.Generator) -> Image.Image:
    """Draw one upright line of dark text on light ground, or the reverse."""
    text = " ".join(rng.choice(TEXT.split(), size=rng.integers(1, 4)))
    text = (text, text.capitalize(), text.upper())[rng.integers(3)]
    if rng.random() < 0.4:
        text += f" {rng.integers(10, 10000)}"
    font = ImageFont.load_default(float(rng.integers(20, 44)))
    left, top, right, bottom = font.getbbox(text)
    margin_x, margin_y = rng.integers(2, 12, size=2)
    paper, ink = int(rng.integers(170, 256)), int(rng.integers(0, 90))
    if rng.random() < 0.3:
        paper, ink = ink, paper
    line = Image.new("L", (int(right - left + 2 * margin_x), int(bottom - top + 2 * margin_y)), paper)
    ImageDraw.Draw(line).text((margin_x - left, margin_y - top), text, fill=ink, font=font)
    return line.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1)))


def preprocess(line: Image.Image, rng: np.random.Generator) -> np.ndarray:
    """Scale to height 48, add noise, map 0…255 to −1…1 and pad with 0 on the right; three equal channels."""
    width = min(WIDTH, -(-HEIGHT * line.width // line.height))
    grey = np.asarray(line.resize((width, HEIGHT), Image.Resampling.BILINEAR)).astype(np.float32)
    grey = np.clip(grey + rng.normal(0, rng.uniform(0, 12), grey.shape), 0, 255)
    padded = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    padded[:, :width] = ((grey / 255 - 0.5) / 0.5)[..., None]
    return padded


def draw_images(number: int, seed: int) -> LabelledImages:
    """Draw upright (class 0) and turned (class 1) lines in turn."""
    rng = np.random.default_rng(seed)
    labels = np.arange(number) % 2
    images = []
    for label in labels:
        line = draw_line(rng)
        images.append(preprocess(line.transpose(Image.Transpose.ROTATE_180) if label else line, rng))
    return LabelledImages(np.stack(images), labels)


def main(folder: str) -> None:
    """Prune by 10, 30 and 50 percent and compare."""
    file = model_in_package(
        "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", "rapidocr-onnxruntime==1.4.4"
    )
    parameters: ModelParameters = {
        # The file leaves height and width open; HALCON's order is width, height, channels.
        "image_dimensions": [WIDTH, HEIGHT, 3],
        "image_range_min": -1.0,
        "image_range_max": 1.0,
        "class_names": ["upright", "upside down"],
        "batch_size": 16,
    }
    print_pruning_table(file, parameters, draw_images(256, seed=1), draw_images(600, seed=0), Path(folder))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "pruned")
