"""Hints that results give: what is probably wrong, and what would help."""

from __future__ import annotations

import math
from typing import Final

from ..limits import multiple_of
from ..timing import block_width
from .figures import Figures
from .output import Output

#: With fewer images luck decides too much.
_LEAST: Final = 20
#: A run that takes less of the time than this is a gain.
_FASTER: Final = 0.97


def advise_on_chance(
    accuracy: float | None, images: int, classes: int, output: Output, what: str = "The model"
) -> None:
    """Note it if an accuracy is what guessing would give as well."""
    if accuracy is None or images < _LEAST or classes < 2:
        return
    guess = 1 / classes
    if accuracy <= guess + 2 * math.sqrt(guess * (1 - guess) / images):
        output.note(
            f"{what} decides {100 * accuracy:.1f} % of {images} images rightly, no better than guessing among "
            f"{classes} classes. Check how images are prepared (--size, --range, --mean, --std, --channels, --fit) and "
            "in which order the model has its classes (--class-names)."
        )


def advise_on_speed(figures: Figures, multiple: str | float, output: Output) -> None:
    """Note it if a pruned model is not faster although it computes less, and what makes it so."""
    before, after = figures.costs
    if figures.latency is None or after.macs >= before.macs or figures.latency.ratio <= _FASTER:
        return
    text = f"The pruned model is no faster here: it takes {100 * figures.latency.ratio:.0f} % of the original's time"
    text += f" for {100 * after.macs / before.macs:.0f} % of the multiply-accumulates."
    if multiple_of(multiple) % block_width():
        text += f" This processor computes {block_width()} channels at once; --multiple auto leaves such numbers."
    else:
        text += " Small networks spend their time elsewhere; --target latency removes by measured time."
    output.note(text)
