"""Ridge regression towards the weights that are there already.

Sums over rows are products in single precision of a few thousand rows each, added up in double precision; so are the
equations solved. What rounding does stays far below what the weakest ridge does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .cholesky import Cholesky, factorise

Array = NDArray[np.float32]
Matrix = NDArray[np.float64]
Moments = tuple[Matrix, Matrix]

#: Strength of the pull towards the old weights, in units of the mean variance of the inputs.
RIDGE = 1e-2
#: Tried where rows are few: a weaker pull if a stronger one does not help, an even stronger one if it does.
_WEAKER, _STRONGER, _STRONGEST = 1e-3, 1e-1, 1.0
#: With this many rows per unknown the held-out check is not worth its time.
_MANY_ROWS = 2.5
#: Share of the images that is held out for that check.
_HELD_OUT = 0.25
#: Rows that are multiplied in single precision.
_CHUNK = 8192
#: Relative error of these sums; what is constant in all rows must not look like information.
_ROUNDING = 1e-6
#: Rounds of the fit to targets that only matter above a level.
_ROUNDS = 4
#: Elements of maps that are worked on at once: what fits into a cache.
_ELEMENTS = 1 << 18
#: Added to divisors that may be zero.
_TINY = 1e-30


@dataclass(frozen=True)
class Fit:
    """Refitted weights W [O, K] and bias [O], and how: 'least_squares' or 'bias'.

    `moments` holds mean [K] and covariance [K, K] of the inputs, where the fit came by them.
    """

    weight: Matrix
    bias: Matrix
    method: str
    moments: Moments | None = None


def moments(rows: Array) -> Moments:
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
        first = products[0].equations(whole=False) if products else _Dual(rows, parts[0])
        best = rows.best(parts[0].stop, first)
        if best is None:
            return rows.biased()
        ridge = best
    if not products:
        return rows.fit(_Dual(rows, slice(0, count)).change(ridge))
    total = products.pop()
    for other in products:
        total.add(other)
    equations = total.equations(whole=True)
    pull = equations.pull(ridge)
    factor = _factor(equations.matrix, pull)
    change = factor.solve(equations.right)
    if level is None or not centred or not (targets <= level).any():
        fit = rows.fit(change.T)
    else:
        fit = _below(rows, targets, level, change.astype(np.float32), pull, factor.single())
    return replace(fit, moments=(rows.x_mean, equations.matrix / count)) if centred else fit


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
    total = (left[:_CHUNK].T @ right[:_CHUNK]).astype(np.float64)
    for start in range(_CHUNK, len(left), _CHUNK):
        total += left[start : start + _CHUNK].T @ right[start : start + _CHUNK]
    return total


class _Equations(Protocol):
    """The normal equations of a fit, for any λ."""

    def change(self, ridge: float) -> Matrix:
        """Return the change of the weights [O, K]."""


@dataclass
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

    def add(self, other: _Products) -> None:
        """Take the sums over other rows as well."""
        self.count += other.count
        for own, more in ((self.x, other.x), (self.left, other.left), (self.xx, other.xx), (self.xleft, other.xleft)):
            own += more

    def equations(self, *, whole: bool) -> _Primal:
        """Return the equations for these rows, centred anew if they are only a part of rows that are centred."""
        floor = _ROUNDING * float(np.trace(self.xx)) / len(self.xx)
        if whole or not self.centred:
            return _Primal(self.xx, self.xleft, floor)
        xx = self.xx - np.outer(self.x, self.x / self.count)
        xleft = self.xleft - np.outer(self.x, self.left / self.count)
        return _Primal(xx, xleft, floor)


@dataclass(frozen=True)
class _Primal:
    """As many equations as inputs; rounding of the sums stays below `floor`."""

    matrix: Matrix
    right: Matrix
    floor: float

    def pull(self, ridge: float) -> float:
        """Return how hard λ pulls towards the old weights, in units of x·xᵀ."""
        scale = float(np.trace(self.matrix)) / len(self.matrix)
        return ridge * max(scale, 0.0) + self.floor

    def change(self, ridge: float) -> Matrix:
        """Return the change of the weights."""
        return _factor(self.matrix, self.pull(ridge)).solve(self.right).T


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


def _factor(matrix: Matrix, pull: float) -> Cholesky[np.float64]:
    system = matrix.copy()
    system[np.diag_indices_from(system)] += pull + _TINY
    return factorise(system)


def _below(rows: _Rows, targets: Array, level: Array, change: Array, pull: float, factor: Cholesky[np.float32]) -> Fit:
    """Fit where a target at or below its level is met by everything there.

    Conjugate gradients for each output by itself (R. Fletcher, C. M. Reeves, "Function Minimization by Conjugate
    Gradients", 1964), from the fit to all targets on, whose factorised equations precondition them. What single
    precision misses in one round is left for the next.
    """
    bias = rows.y_mean.astype(np.float32)
    given = rows.x @ (rows.weight.T.astype(np.float32) + change) + bias
    misses = _Misses(targets, level, given)
    loss = misses.loss() + pull * _inner(change, change)
    along, along_bias, descent = np.zeros_like(change), np.zeros_like(bias), np.full_like(bias, np.inf)
    for _ in range(_ROUNDS):
        slope, slope_bias = rows.x.T @ misses.left - pull * change, misses.left.sum(axis=0)
        step, step_bias = factor.solve(slope), slope_bias / len(rows.x)
        last, descent = descent, _inner(slope, step) + slope_bias * step_bias
        turn = descent / np.maximum(last, _TINY)
        along, along_bias = step + turn * along, step_bias + turn * along_bias
        moved = rows.x @ along + along_bias
        towards, stiff = _inner(slope, along) + slope_bias * along_bias, pull * _inner(along, along) + _TINY
        # As far as the rows that matter now say.
        pace = towards / (misses.bend(moved) + stiff)
        further = change + pace * along
        now = misses.move(pace, moved) + pull * _inner(further, further)
        if len(worse := np.flatnonzero(now > loss)):
            # Others have begun to matter on the way. Had all of them done so from the start, the loss could only fall.
            careful = towards[worse] / (_inner(moved[:, worse], moved[:, worse]) + stiff[worse])
            misses.correct(worse, careful - pace[worse], moved)
            pace[worse] = careful
            further = change + pace * along
        change, bias = further, bias + pace * along_bias
        loss = np.minimum(now, loss)
    weight = rows.weight + change.T
    return Fit(weight, bias - weight @ rows.x_mean, "least_squares")


class _Misses:
    """What outputs `given` [R, O] miss of targets that at or below their level are met by everything there."""

    def __init__(self, targets: Array, level: Array, given: Array) -> None:
        counts = targets > level
        self._goal = np.where(counts, targets, level)
        self._most = np.where(counts, np.float32(np.inf), np.float32(0.0))
        self._given = given
        self.left: Array = np.minimum(self._goal - given, self._most)
        size = max(_ELEMENTS // given.shape[1], 1)
        self._parts = [slice(start, start + size) for start in range(0, len(given), size)]

    def loss(self) -> Array:
        """Return the sum of squares of each output, [O]."""
        return _inner(self.left, self.left)

    def bend(self, moved: Array) -> Array:
        """Return the sum of squares of a move [R, O] over what is missed, [O]."""
        total = np.zeros(moved.shape[1], np.float32)
        for part in self._parts:
            total += _inner(moved[part] * (self.left[part] != 0), moved[part])
        return total

    def move(self, pace: Array, moved: Array) -> Array:
        """Go `pace` [O] times as far as a move, and return the loss there."""
        loss = np.zeros_like(pace)
        for part in self._parts:
            given, left = self._given[part], self.left[part]
            given += pace * moved[part]
            np.subtract(self._goal[part], given, out=left)
            np.minimum(left, self._most[part], out=left)
            loss += _inner(left, left)
        return loss

    def correct(self, columns: NDArray[np.int64], pace: Array, moved: Array) -> None:
        """Go on with some outputs alone."""
        self._given[:, columns] += pace * moved[:, columns]
        self.left[:, columns] = np.minimum(self._goal[:, columns] - self._given[:, columns], self._most[:, columns])


def _inner(left: Array, right: Array) -> Array:
    """Return the inner products of columns, float32 [O]."""
    found: Array = np.einsum("ro,ro->o", left, right)
    return found
