"""Channel provenance: which kernels exist, which only leave together, and why others stay."""

from . import elementwise, mixing, movement, normalization
from .result import FIXED, Consumer, Layer, Structure, TensorUnits, analyse
from .trace import CONVOLUTIONS

__all__ = [
    "CONVOLUTIONS",
    "FIXED",
    "Consumer",
    "Layer",
    "Structure",
    "TensorUnits",
    "analyse",
    "elementwise",
    "mixing",
    "movement",
    "normalization",
]
