"""Channel provenance: which kernels exist, which only leave together, and why others stay."""

from . import elementwise, mixing, movement, normalization
from .result import CONVOLUTIONS, FIXED, Consumer, Layer, Structure, TensorUnits, analyse

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
