"""Ridge regression towards the weights that are there already, in double precision."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Matrix = NDArray[np.float64]

#: Strength of the pull towards the old weights, in units of the mean variance of the inputs.
RIDGE = 1e-2
#: Tried in turn where rows are few; the strongest last.
_LADDER = (1e-3, 1e-2, 1e-1, 1.0)
#: With this many rows per unknown the held-out check is not worth its time.
_MANY_ROWS = 3.0
#: Share of the images that is held out for that check.
_HELD_OUT = 0.25
_CHUNK = 1024
#: Rounds of the fit to targets that only matter above a level.
_ROUNDS = 6


@dataclass(frozen=True)
class Fit:
    """Refitted weights W [O, K] and bias [O], and how: 'least_squares' or 'bias'."""

    weight: Matrix
    bias: Matrix
    method: str


def moments(rows: Array) -> tuple[Matrix, Matrix]:
    """Return mean [K] and covariance [K, K] of rows [R, K], summed up in double precision."""
    mean = rows.mean(axis=0, dtype=np.float64)
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK] - mean
        total += part.T @ part
    return mean, total / len(rows)


def refit(
    inputs: Array, targets: Array, weight: Matrix, per_image: int, level: Array | None = None, *, centred: bool = True
) -> Fit:
    """Fit W and b so that W·x + b comes close to the targets, staying near `weight` where the rows do not tell.

    Minimises ‖W X + b − Y‖² + λ·mean(diag cov X)·‖W − weight‖². Where rows are few, λ is chosen on held-out images, and
    if no λ beats the old weights with a matched bias there, those are returned. A target at or below its level is met
    by everything there (X. Zhang et al., "Accelerating Very Deep Convolutional Networks", 2015, for ReLU).

    Args:
        inputs: X, float32 [R, K].
        targets: Y, float32 [R, O].
        weight: old weights, float64 [O, K].
        per_image: consecutive rows that come from one image.
        level: float32 [O] or [R, O], −∞ where every difference counts; None: everywhere.
        centred: whether there is a bias; without one it is zero and the rows are not centred.
    """
    count = len(inputs)
    ridge = RIDGE
    if count < _MANY_ROWS * inputs.shape[1]:
        images = count // per_image
        held = max(int(images * _HELD_OUT), 1) * per_image
        chosen = _choose(inputs, targets, weight, count - held, centred=centred) if count > held else None
        if chosen is None:
            return Fit(weight, _bias(inputs, targets, weight, centred=centred), "bias")
        ridge = chosen
    fitted = weight + _System(inputs, targets, weight, centred=centred).step(ridge)
    fit = Fit(fitted, _bias(inputs, targets, fitted, centred=centred), "least_squares")
    if level is None or not centred or count < inputs.shape[1] or not (targets <= level).any():
        return fit
    return _below(inputs, targets, weight, ridge, level, fit)


def _below(inputs: Array, targets: Array, weight: Matrix, ridge: float, level: Array, fit: Fit) -> Fit:
    """Go on from a fit where a target at or below its level is met by everything there.

    Each round fits to the targets where they are above the level, elsewhere to what the last round gave, cut off at the
    level; so the loss falls in every round. Nesterov's momentum saves rounds.
    """
    mean = inputs.mean(axis=0, dtype=np.float64)
    x = (inputs - mean).astype(np.float32)
    system = np.zeros((x.shape[1], x.shape[1]))
    for start in range(0, len(x), _CHUNK):
        part = x[start : start + _CHUNK].astype(np.float64)
        system += part.T @ part
    pulled = weight @ system
    system[np.diag_indices_from(system)] += ridge * float(np.trace(system)) / len(system) + 1e-30
    inverse = np.linalg.inv(system)
    counts = targets > level
    last = look = (fit.weight, fit.bias + fit.weight @ mean)
    pace = 1.0
    for _ in range(_ROUNDS):
        given = x @ look[0].T.astype(np.float32) + look[1].astype(np.float32)
        aim = np.where(counts, targets, np.minimum(given, level))
        shift = aim.mean(axis=0, dtype=np.float64)
        pull = (x.T @ (aim - shift.astype(np.float32))).T.astype(np.float64)
        new = (weight + (pull - pulled) @ inverse, shift)
        next_pace = (1 + math.sqrt(1 + 4 * pace * pace)) / 2
        momentum = (pace - 1) / next_pace
        look = (new[0] + momentum * (new[0] - last[0]), new[1] + momentum * (new[1] - last[1]))
        last, pace = new, next_pace
    return Fit(last[0], last[1] - last[0] @ mean, fit.method)


def _choose(inputs: Array, targets: Array, weight: Matrix, train: int, *, centred: bool) -> float | None:
    """Return the λ that does best on the rows from `train` on, None if the old weights do better."""

    def loss(candidate: Matrix) -> float:
        bias = _bias(inputs[:train], targets[:train], candidate, centred=centred)
        return float(np.mean(np.square(inputs[train:] @ candidate.T + bias - targets[train:])))

    best, lowest = None, loss(weight)
    system = _System(inputs[:train], targets[:train], weight, centred=centred)
    for ridge in _LADDER:
        value = loss(weight + system.step(ridge))
        if value < lowest:
            best, lowest = ridge, value
    return best


def _bias(inputs: Array, targets: Array, weight: Matrix, *, centred: bool) -> Matrix:
    if not centred:
        return np.zeros(len(weight))
    bias: Matrix = targets.mean(axis=0, dtype=np.float64) - weight @ inputs.mean(axis=0, dtype=np.float64)
    return bias


class _System:
    """The normal equations of a fit, the smaller of the two equivalent systems; they are set up once for all λ."""

    def __init__(self, inputs: Array, targets: Array, weight: Matrix, *, centred: bool) -> None:
        x, y = inputs.astype(np.float64), targets.astype(np.float64)
        if centred:
            x -= x.mean(axis=0)
            y -= y.mean(axis=0)
        residual = y - x @ weight.T
        self._scale = float(np.mean(np.einsum("rk,rk->k", x, x)))
        self._dual = x if x.shape[1] > x.shape[0] else None
        self._matrix = x.T @ x if self._dual is None else x @ x.T
        self._right = x.T @ residual if self._dual is None else residual

    def step(self, ridge: float) -> Matrix:
        """Return the change of the weights."""
        system = self._matrix.copy()
        system[np.diag_indices_from(system)] += ridge * self._scale + 1e-30
        solved = _solve(system, self._right).T
        return solved if self._dual is None else solved @ self._dual


def _solve(system: Matrix, right: Matrix) -> Matrix:
    """Solve a symmetric positive definite system."""
    try:
        found = np.asarray(np.linalg.solve(system, right), dtype=np.float64)
    except np.linalg.LinAlgError:  # only where the inputs hold nothing but zeros
        found = np.asarray(np.linalg.lstsq(system, right, rcond=1e-12)[0], dtype=np.float64)
    return found
