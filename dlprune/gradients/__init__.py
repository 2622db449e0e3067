"""Reverse-mode differentiation of ONNX graphs: one small rule per operator, each emitting standard ONNX (opset ≥ 18).

A new operator costs one function in the file of its family::

    @gradient("Softsign")
    def softsign(n: Site) -> Partials:
        scale = n.op("Add", n.op("Abs", n.x), 1.0)
        return n.op("Div", n.dy, n.op("Mul", scale, scale))
"""

from . import convolution, elementwise, linear, movement, normalization, pooling, reduction, resize
from .reverse import Gradients, differentiate
from .rule import GradientError, Partials, Site, gradient, has_rule
from .writer import Writer

__all__ = ["GradientError", "Gradients", "Partials", "Site", "Writer", "differentiate", "gradient", "has_rule"]

# The modules are imported for the rules that they register.
_FAMILIES = (convolution, elementwise, linear, movement, normalization, pooling, reduction, resize)
