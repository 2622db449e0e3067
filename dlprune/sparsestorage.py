"""Weights that a file stores as their non-zero numbers alone: written where that is smaller, read always."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from .soundness import graphs

#: Sparse weights came with this version of the format.
_IR_VERSION: Final = 6
#: Bytes of a sparse weight beside its numbers: two more headers with dimensions and names.
_OVERHEAD: Final = 64
_TYPES: Final = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE})


class SparseStorageError(Exception):
    """A sparse weight of a file is not what it should be."""


def make_dense(proto: onnx.ModelProto, limit: int) -> None:
    """Replace all sparse weights of a model, in place, by plain ones.

    Args:
        proto: the model.
        limit: bytes that they may fill in all.

    Raises:
        SparseStorageError: positions that do not fit the dimensions, or more bytes than the limit.
    """
    total = 0
    for graph in graphs(proto.graph):
        assert isinstance(graph, onnx.GraphProto)
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            total += _bytes(sparse)
            if total > limit:
                raise SparseStorageError(f"its sparse weights would fill {total} bytes; {limit} is the limit")
            graph.initializer.append(numpy_helper.from_array(_dense(sparse), name))
        graph.ClearField("sparse_initializer")


def _bytes(sparse: onnx.SparseTensorProto) -> int:
    dims = list(sparse.dims)
    if any(dim < 0 for dim in dims):
        raise SparseStorageError(f"sparse weight {sparse.values.name!r} has a negative dimension ({dims})")
    return int(math.prod(dims) * onnx.helper.tensor_dtype_to_np_dtype(sparse.values.data_type).itemsize)


def _dense(sparse: onnx.SparseTensorProto) -> NDArray[Any]:
    name, dims = sparse.values.name, tuple(sparse.dims)
    values, positions = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    if (
        positions.dtype != np.int64
        or values.ndim != 1
        or positions.shape not in (values.shape, (len(values), len(dims)))
    ):
        raise SparseStorageError(f"the positions of sparse weight {name!r} do not fit its numbers")
    bounds = np.array([math.prod(dims)] if positions.ndim == 1 else dims, np.int64)
    rows = positions.reshape(len(values), -1)
    if (rows < 0).any() or (rows >= bounds).any():
        raise SparseStorageError(f"a position of sparse weight {name!r} lies outside its dimensions {dims}")
    dense = np.zeros(dims, values.dtype)
    if positions.ndim == 1:
        dense.reshape(-1)[positions] = values
    else:
        dense[tuple(rows.T)] = values
    return dense


def make_sparse(proto: onnx.ModelProto) -> None:
    """Store weights of a model, in place, as their non-zero numbers with positions where that takes fewer bytes.

    A position takes eight bytes, so more than two thirds of the numbers of a float weight must be zero. Inputs of the
    graph, and all weights in files of a format before IR version 6, stay as they are.
    """
    if proto.ir_version < _IR_VERSION:
        return
    graph = proto.graph
    inputs = {value.name for value in graph.input}
    kept: list[onnx.TensorProto] = []
    for tensor in graph.initializer:
        sparse = None
        if tensor.data_type in _TYPES and tensor.name not in inputs and tensor.dims:
            sparse = _sparse(tensor)
        if sparse is None:
            kept.append(tensor)
        else:
            graph.sparse_initializer.append(sparse)
    kept = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
    graph.ClearField("initializer")
    graph.initializer.extend(kept)


def _sparse(tensor: onnx.TensorProto) -> onnx.SparseTensorProto | None:
    array = numpy_helper.to_array(tensor)
    flat = array.reshape(-1)
    places = np.flatnonzero(flat).astype(np.int64)
    if not len(places) or len(places) * (flat.itemsize + 8) + _OVERHEAD >= array.nbytes:
        return None
    values = numpy_helper.from_array(flat[places], tensor.name)
    return onnx.helper.make_sparse_tensor(values, numpy_helper.from_array(places), list(array.shape))
