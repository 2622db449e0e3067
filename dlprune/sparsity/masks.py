"""Masks of weights by magnitude, in plain NumPy: single weights, blocks, and m zeros of every n."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating[Any]]
Mask = NDArray[np.bool_]
Pooling = Literal["AVG", "MAX"]


@dataclass(frozen=True)
class Masked:
    """A mask (True = kept), bool in the shape of the weight, and the threshold that it came by."""

    mask: Mask
    threshold: float


def kept_number(number: int, sparsity: float) -> int:
    """Return how many of so many weights are kept: n·(1 − sparsity), rounded to the nearest, but at least one.

    Parameters: `number` (int ≥ 1), `sparsity` (in [0, 1]).

    Example:
        >>> kept_number(10, 0.75), kept_number(3, 0.999)
        (2, 1)
    """
    return max(round(number * (1.0 - sparsity)), 1)


def exact_mask(magnitudes: Matrix, sparsity: float) -> Masked:
    """Keep exactly kept_number of the largest magnitudes; among equal ones those that come first.

    Parameters: `magnitudes` (float [...], ≥ 0), `sparsity` (in [0, 1]).
    Returns the mask and, as threshold, the smallest magnitude that was kept.

    Example:
        >>> exact_mask(np.array([0.5, 0.5, 2.0, 0.5]), 0.5).mask.tolist()
        [True, False, True, False]
    """
    flat = magnitudes.reshape(-1)
    if not flat.size:
        return Masked(np.ones(magnitudes.shape, np.bool_), 0.0)
    kept = kept_number(flat.size, sparsity)
    threshold = np.partition(flat, flat.size - kept)[flat.size - kept]
    mask = flat > threshold
    ties = np.flatnonzero(flat == threshold)
    mask[ties[: kept - np.count_nonzero(mask)]] = True
    return Masked(mask.reshape(magnitudes.shape), float(threshold))


def histogram_mask(
    magnitudes: Matrix, sparsity: float, bins: int = 256, previous: float = 0.0, decay: float = 0.0
) -> Masked:
    """Keep what lies above a threshold from a histogram, smoothed over the updates.

    The new threshold is the share of bins, all equal on 0…max, whose cumulated share of weights lies below `sparsity`,
    times max. It is smoothed: (1 − decay)·new + decay·previous. A weight of zeros alone has no histogram: there it is
    exact_mask.

    Parameters: `magnitudes` (float [...], ≥ 0), `sparsity` (in [0, 1)), `bins` (int ≥ 1), `previous` (the last
    threshold, 0.0 at first), `decay` (in [0, 1)).
    Source: tf.contrib.model_pruning, first version.

    Example:
        >>> histogram_mask(np.arange(1.0, 11.0), 0.5, bins=10).mask.sum()
        np.int64(5)
    """
    flat = magnitudes.reshape(-1).astype(np.float64)
    highest = float(flat.max(initial=0.0))
    if highest == 0.0:
        return exact_mask(magnitudes, sparsity)
    places = np.minimum((flat / highest * bins).astype(np.int64), bins - 1)
    shares = np.cumsum(np.bincount(places, minlength=bins)) / flat.size
    new = float(np.count_nonzero(shares < sparsity)) / bins * highest
    threshold = (1.0 - decay) * new + decay * previous
    mask = flat > threshold
    mask[np.argmax(flat)] = True  # a smoothed threshold may lie above weights that have shrunk
    return Masked(mask.reshape(magnitudes.shape), threshold)


def pool_blocks(matrix: Matrix, block: tuple[int, int], pooling: Pooling = "AVG") -> NDArray[np.float64]:
    """Return mean or maximum of |w| over blocks; blocks at the border that are not full count what they hold.

    Parameters: `matrix` (float [H, W]), `block` (height, width; ≥ 1, or −1 for the full size of that axis), `pooling`.
    Returns float64 [⌈H / height⌉, ⌈W / width⌉].

    Example:
        >>> pool_blocks(np.array([[1.0, -3.0, 5.0]]), (1, 2)).tolist()
        [[2.0, 5.0]]
    """
    height, width = block_size(matrix.shape, block)
    magnitudes = np.abs(matrix.astype(np.float64))
    if not magnitudes.size or (height, width) == (1, 1):
        return magnitudes
    rows, columns = (np.arange(0, size, step) for size, step in zip(matrix.shape, (height, width), strict=True))
    reduce = np.add if pooling == "AVG" else np.maximum
    pooled: NDArray[np.float64] = reduce.reduceat(reduce.reduceat(magnitudes, rows, axis=0), columns, axis=1)
    if pooling == "AVG":
        heights = np.diff(np.append(rows, matrix.shape[0]))
        widths = np.diff(np.append(columns, matrix.shape[1]))
        pooled /= np.outer(heights, widths)
    return pooled


def block_size(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, int]:
    """Return a block's height and width for a matrix of this shape: −1 is its full size, and nothing exceeds it."""
    height, width = (
        max(size if wanted == -1 else min(wanted, size), 1) for size, wanted in zip(shape, block, strict=True)
    )
    return height, width


def expand_blocks(mask: Mask, shape: tuple[int, ...], block: tuple[int, int]) -> Mask:
    """Return a mask of blocks as one of single weights, bool of `shape`; see pool_blocks."""
    height, width = block_size(shape, block)
    expanded = mask.repeat(height, axis=0).repeat(width, axis=1)
    return expanded[: shape[0], : shape[1]]


def m_by_n_mask(matrix: Matrix, zeros: int, of: int, inputs: int) -> Masked:
    """Of every `of` weights one after the other along the input channels, zero the `zeros` smallest.

    Runs start anew at each kernel position; a last run that is shorter loses as many fewer. Among equal weights those
    that come first are kept.

    Parameters: `matrix` (float [positions · inputs, outputs], see View), `zeros` and `of` (0 ≤ zeros < of), `inputs`
    (input channels). Returns the mask, and the smallest magnitude that was kept.

    Example:
        >>> m_by_n_mask(np.array([[1.0], [4.0], [3.0], [2.0]]), 2, 4, 4).mask.ravel().tolist()
        [False, True, True, False]
    """
    magnitudes = np.abs(matrix.astype(np.float64))
    if not magnitudes.size:
        return Masked(np.ones(matrix.shape, np.bool_), 0.0)
    outputs = matrix.shape[1]
    by_position = magnitudes.reshape(-1, inputs, outputs)
    padding = -inputs % of
    padded = np.pad(by_position, ((0, 0), (0, padding), (0, 0)), constant_values=-1.0)  # missing ones leave first
    runs = padded.reshape(len(padded), -1, of, outputs)
    kept = np.argsort(-runs, axis=2, kind="stable")[:, :, : of - zeros]
    mask = np.zeros(runs.shape, np.bool_)
    np.put_along_axis(mask, kept, True, axis=2)
    found = mask.reshape(padded.shape)[:, :inputs].reshape(matrix.shape)
    return Masked(found, float(magnitudes[found].min()))
