"""Gradient of Resize."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort

from . import blocked
from .axis import apply_matrix
from .rule import GradientError, Partials, Site, gradient


@gradient("Resize")
def resize(n: Site) -> Partials:
    """Resizing is linear and works axis by axis: multiply by the transposed matrix of every axis."""
    shape, out = n.shape(), n.out_shape()
    factors = _repeats(n)
    if factors is not None:
        return blocked.block_sum(n.writer, n.dy, out, factors)
    value = n.dy
    for axis in range(len(shape)):
        if _moves(n, axis):
            matrix = _axis_matrix(n, axis)
            value = apply_matrix(n.writer, value, out, axis, np.ascontiguousarray(matrix.T))
            out = (*out[:axis], shape[axis], *out[axis + 1 :])
    return value


def _repeats(n: Site) -> tuple[int, int] | None:
    """Return how often a map's pixels are repeated, where nothing else is done; None otherwise."""
    modes = (
        ("mode", "nearest"),
        ("coordinate_transformation_mode", "half_pixel"),
        ("nearest_mode", "round_prefer_floor"),
    )
    found = tuple(n.attr_str(name, default) for name, default in modes)
    shape, out = n.shape(), n.out_shape()
    if found != ("nearest", "asymmetric", "floor") or len(shape) != 4 or shape[:2] != out[:2]:
        return None
    scales = _scales(n)
    factors = out[2] // shape[2], out[3] // shape[3]
    exact = all(scales.get(axis, 1.0) == f for axis, f in zip((2, 3), factors, strict=True))
    return factors if exact and (shape[2] * factors[0], shape[3] * factors[1]) == out[2:] else None


def _scales(n: Site) -> dict[int, float]:
    """Return the scale of every axis that the node names."""
    shape = n.shape()
    axes = [a % len(shape) for a in n.attr_ints("axes", range(len(shape)))]
    scales = n.literal(2)
    if scales is not None and scales.size:
        return {axis: float(s) for axis, s in zip(axes, scales.reshape(-1), strict=True)}
    sizes = n.ints_input(3)
    if sizes is None:
        raise GradientError(n.node, "neither scales nor sizes are given")
    found = {axis: size / shape[axis] for axis, size in zip(axes, sizes, strict=True)}
    policy = n.attr_str("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        common = min(found.values()) if policy == "not_larger" else max(found.values())
        found = dict.fromkeys(found, common)
    return found


def _moves(n: Site, axis: int) -> bool:
    scale = _scales(n).get(axis, 1.0)
    crops = n.attr_str("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    return scale != 1.0 or n.shape()[axis] != n.out_shape()[axis] or (crops and axis in _scales(n))


def _axis_matrix(n: Site, axis: int) -> np.ndarray:
    """Return the matrix [out, in] of one axis: what ONNX Runtime makes of the rows of the unit matrix.

    So every combination of modes comes out as the forward pass has it.
    """
    size, out = n.shape()[axis], n.out_shape()[axis]
    scale = _scales(n)[axis]
    keep = ("mode", "coordinate_transformation_mode", "nearest_mode", "antialias", "cubic_coeff_a", "exclude_outside")
    attributes = {k: n.node.attributes[k].value for k in keep if k in n.node.attributes}
    inputs, initializers = ["x", "", ""], []
    roi = n.literal(1)
    if roi is not None and roi.size:
        named = sorted(_scales(n), key=list(_scales(n)).index)
        start, end = roi.reshape(2, -1)[:, named.index(axis)]
        inputs[1] = "roi"
        initializers.append(onnx.numpy_helper.from_array(np.array([0, 0, 0, start, 1, 1, 1, end], np.float32), "roi"))
    by_scale = int(np.floor(np.float32(size) * np.float32(scale))) == out
    name, index = ("scales", 2) if by_scale else ("sizes", 3)
    amount = np.array([1, 1, 1, scale], np.float32) if by_scale else np.array([size, 1, 1, out], np.int64)
    initializers.append(onnx.numpy_helper.from_array(amount, name))
    inputs[index:] = [name]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Resize", inputs, ["y"], **attributes)],
        "axis",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [size, 1, 1, size])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [size, 1, 1, out])],
        initializers,
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    columns: np.ndarray = session.run(None, {"x": np.eye(size, dtype=np.float32).reshape(size, 1, 1, size)})[0]
    return columns.reshape(size, out).T
