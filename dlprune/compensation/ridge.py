"""Ridge regression towards the weights that are there already.

Sums over rows are products in single precision of a few thousand rows each, added up in double precision; so are the
equations solved. What rounding does stays far below what the weakest ridge does.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .cholesky import Cholesky

Array = NDArray[np.float32]
Matrix = NDArray[np.float64]

#: Strength of the pull towards the old weights, in units of the mean variance of the inputs.
RIDGE = 1e-2
#: Tried where rows are few: a weaker pull if a stronger one does not help, an even stronger one if it does.
_WEAKER, _STRONGER, _STRONGEST = 1e-3, 1e-1, 1.0
#: With this many rows per unknown the held-out check is not worth its time.
_MANY_ROWS = 2.5
#: Share of the images that is held out for that check.
_HELD_OUT = 0.25
#: Rows that are multiplied in single precision.
_CHUNK = 4096
#: Relative error of these sums; what is constant in all rows must not look like information.
_ROUNDING = 1e-6
#: Rounds of the fit to targets that only matter above a level.
_ROUNDS = 6


@dataclass(frozen=True)
class Fit:
    """Refitted weights W [O, K] and bias [O], and how: 'least_squares' or 'bias'."""

    weight: Matrix
    bias: Matrix
    method: str


def moments(rows: Array) -> tuple[Matrix, Matrix]:
    """Return mean [K] and covariance [K, K] of rows [R, K]."""
    centred, mean = _centred(rows, True)
    return mean, _product(centred, centred) / len(rows)


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
    count, unknowns = inputs.shape
    rows = _Rows(inputs, targets, weight, centred=centred)
    ridge, parts = RIDGE, [slice(0, count)]
    if count < _MANY_ROWS * unknowns:
        train = count - max(int(count // per_image * _HELD_OUT), 1) * per_image
        if train <= 0:
            return rows.biased()
        parts = [slice(0, train), slice(train, count)]
    products = [_Products.of(rows, part) for part in parts] if unknowns <= count else []
    if len(parts) > 1:
        first = products[0].equations() if products else _Dual(rows, parts[0])
        best = rows.best(parts[0].stop, first)
        if best is None:
            return rows.biased()
        ridge = best
    if not products:
        return rows.fit(_Dual(rows, slice(0, count)).change(ridge))
    equations = functools.reduce(operator.add, products).equations()
    factor = equations.factor(ridge)
    change = factor.solve(equations.right).T
    if level is None or not centred or not (targets <= level).any():
        return rows.fit(change)
    return _below(rows, targets, level, equations.matrix, factor, change)


class _Rows:
    """Inputs, and what the old weights leave of the targets; each minus its mean, where there is a bias."""

    def __init__(self, inputs: Array, targets: Array, weight: Matrix, *, centred: bool) -> None:
        self.centred, self.weight = centred, weight
        self.x, self.x_mean = _centred(inputs, centred)
        y, self.y_mean = _centred(targets, centred)
        self.left: Array = y - self.x @ weight.T.astype(np.float32)

    def fit(self, change: Matrix) -> Fit:
        """Return the fit whose weights have changed so."""
        weight = self.weight + change
        return Fit(weight, self.y_mean - weight @ self.x_mean, "least_squares")

    def biased(self) -> Fit:
        """Return the old weights with the bias that suits them."""
        return Fit(self.weight, self.y_mean - self.weight @ self.x_mean, "bias")

    def best(self, train: int, equations: _Equations) -> float | None:
        """Return the λ that does best on the rows from `train` on, None if the old weights do better."""
        x, left = self.x[train:], self.left[train:]
        if self.centred:
            x = x - self.x[:train].mean(axis=0, dtype=np.float64).astype(np.float32)
            left = left - self.left[:train].mean(axis=0, dtype=np.float64).astype(np.float32)

        def loss(ridge: float) -> float:
            missed = left - x @ equations.change(ridge).T.astype(np.float32)
            return float(np.mean(np.square(missed), dtype=np.float64))

        losses = {RIDGE: loss(RIDGE), _STRONGER: loss(_STRONGER)}
        further = _STRONGEST if losses[_STRONGER] < losses[RIDGE] else _WEAKER
        losses[further] = loss(further)
        best = min(losses, key=lambda ridge: losses[ridge])
        return best if losses[best] < float(np.mean(np.square(left), dtype=np.float64)) else None


def _centred(values: Array, centred: bool) -> tuple[Array, Matrix]:
    """Return values without their mean, and the mean; if they are not to be centred, the values themselves and 0."""
    if not centred:
        return values, np.zeros(values.shape[1])
    mean = values.mean(axis=0, dtype=np.float64)
    return values - mean.astype(np.float32), mean


def _product(left: Array, right: Array) -> Matrix:
    """Return leftᵀ · right, a sum over rows."""
    total = np.zeros((left.shape[1], right.shape[1]))
    for start in range(0, len(left), _CHUNK):
        total += left[start : start + _CHUNK].T @ right[start : start + _CHUNK]
    return total


class _Equations(Protocol):
    """The normal equations of a fit, for any λ."""

    def change(self, ridge: float) -> Matrix:
        """Return the change of the weights [O, K]."""


@dataclass(frozen=True)
class _Products:
    """Sums over rows of x [K], of what is left l [O], of x·xᵀ and of x·lᵀ."""

    count: int
    centred: bool
    x: Matrix
    left: Matrix
    xx: Matrix
    xleft: Matrix

    @classmethod
    def of(cls, rows: _Rows, part: slice) -> _Products:
        """Sum up some rows."""
        x, left = rows.x[part], rows.left[part]
        x_sum, left_sum = (values.sum(axis=0, dtype=np.float64) for values in (x, left))
        return cls(len(x), rows.centred, x_sum, left_sum, _product(x, x), _product(x, left))

    def __add__(self, other: _Products) -> _Products:
        return _Products(
            self.count + other.count,
            self.centred,
            self.x + other.x,
            self.left + other.left,
            self.xx + other.xx,
            self.xleft + other.xleft,
        )

    def equations(self) -> _Primal:
        """Return the equations for these rows, centred anew if at all."""
        floor = _ROUNDING * float(np.trace(self.xx)) / len(self.xx)
        if not self.centred:
            return _Primal(self.xx, self.xleft, floor)
        xx = self.xx - np.outer(self.x, self.x) / self.count
        xleft = self.xleft - np.outer(self.x, self.left) / self.count
        return _Primal(xx, xleft, floor)


@dataclass(frozen=True)
class _Primal:
    """As many equations as inputs; rounding of the sums stays below `floor`."""

    matrix: Matrix
    right: Matrix
    floor: float

    def factor(self, ridge: float) -> Cholesky:
        """Return the factorised equations."""
        scale = float(np.trace(self.matrix)) / len(self.matrix)
        return _factor(self.matrix, ridge * max(scale, 0.0) + self.floor)

    def change(self, ridge: float) -> Matrix:
        """Return the change of the weights."""
        return self.factor(ridge).solve(self.right).T


class _Dual:
    """As many equations as rows."""

    def __init__(self, rows: _Rows, part: slice) -> None:
        self._x, self._left = (values[part].astype(np.float64) for values in (rows.x, rows.left))
        if rows.centred:
            self._x -= self._x.mean(axis=0)
            self._left -= self._left.mean(axis=0)
        self._matrix = self._x @ self._x.T

    def change(self, ridge: float) -> Matrix:
        """Return the change of the weights."""
        scale = float(np.trace(self._matrix)) / self._x.shape[1]
        solved = _factor(self._matrix, ridge * scale).solve(self._left)
        return solved.T @ self._x


def _factor(matrix: Matrix, ridge: float) -> Cholesky:
    system = matrix.copy()
    system[np.diag_indices_from(system)] += ridge + 1e-30
    return Cholesky(system)


def _below(rows: _Rows, targets: Array, level: Array, xx: Matrix, factor: Cholesky, change: Matrix) -> Fit:
    """Go on from a fit where a target at or below its level is met by everything there.

    Each round fits to the targets where they are above the level, elsewhere to what the last round gave, cut off at the
    level; so the loss falls in every round. Nesterov's momentum saves rounds.
    """
    pulled = rows.weight @ xx
    counts = targets > level
    last = look = (rows.weight + change, rows.y_mean)
    pace = 1.0
    for _ in range(_ROUNDS):
        given = rows.x @ look[0].T.astype(np.float32) + look[1].astype(np.float32)
        aim = np.where(counts, targets, np.minimum(given, level))
        shift = aim.mean(axis=0, dtype=np.float64)
        pull = (rows.x.T @ (aim - shift.astype(np.float32))).T.astype(np.float64)
        new = (rows.weight + factor.solve((pull - pulled).T).T, shift)
        next_pace = (1 + math.sqrt(1 + 4 * pace * pace)) / 2
        momentum = (pace - 1) / next_pace
        look = (new[0] + momentum * (new[0] - last[0]), new[1] + momentum * (new[1] - last[1]))
        last, pace = new, next_pace
    return Fit(last[0], last[1] - last[0] @ rows.x_mean, "least_squares")
