"""Graph surgery: take units out of a model for real."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from ..facts import Facts
from ..shapes import Shape
from ..skeleton import skeleton
from ..structure import Structure
from . import cut, mend
from .surgeon import Surgeon, SurgeryError

__all__ = ["SurgeryError", "cut", "mend", "remove_units"]


def remove_units(
    model: ir.Model,
    facts: Facts,
    structure: Structure,
    gone: NDArray[np.bool_],
    other_shapes: Mapping[str, Shape] | None = None,
) -> ir.Model:
    """Return a copy of a model without some of its units; the model itself stays as it is.

    The copy gives what the model gives when the slices that its mixing consumers hold for these units are set to zero.

    Args:
        model: the graph that `structure` was found in.
        facts: its facts.
        structure: its units.
        gone: which units leave, bool [U].
        other_shapes: input shapes that differ from those of `facts` in every dynamic dimension; they tell which numbers
            may be written down. Empty or None where the input shape is fixed.

    Raises:
        SurgeryError: a node cannot be given its new shape, or the result is not a valid ONNX model.
    """
    pruned = Surgeon(model, facts, structure, gone, other_shapes or {}).operate()
    _check(model, pruned)
    return pruned


def _check(model: ir.Model, pruned: ir.Model) -> None:
    """Run ONNX's checker on the result, and shape inference, strictly where the original allows it."""
    bare = skeleton(pruned).SerializeToString()
    try:
        onnx.checker.check_model(bare)
        onnx.shape_inference.infer_shapes(bare, check_type=True, strict_mode=True, data_prop=True)
    except onnx.checker.ValidationError as error:
        raise SurgeryError(f"the pruned model is not valid ONNX: {error}") from error
    except onnx.shape_inference.InferenceError as error:
        try:
            onnx.shape_inference.infer_shapes(skeleton(model), check_type=True, strict_mode=True, data_prop=True)
        except onnx.shape_inference.InferenceError:
            return  # the original is no better, so this says nothing of the result
        raise SurgeryError(f"shape inference refuses the pruned model: {error}") from error
