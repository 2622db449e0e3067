"""Solver steps as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ..gradients import Writer
from .recipe import Rates

Scalars = Mapping[str, ir.Value]
States = Mapping[str, ir.Value]

#: Solvers that are given the gradient times the learning rate: it is the loss that is multiplied, not every weight.
TIMES_RATE = frozenset({"sgd"})
#: Below it a tensor counts as this large, so that zeros can grow.
_LEAST_SIZE = 1e-3


@dataclass(frozen=True)
class Update:
    """New weight and new solver state."""

    weight: ir.Value
    states: States


def sgd(w: Writer, weight: ir.Value, gradient: ir.Value, states: States, scalars: Scalars) -> Update:
    """Return v' = μ·v − λ·g and w' = w + v'; what comes is λ·g."""
    velocity = w.op("Sub", w.op("Mul", states["velocity"], scalars["momentum"]), gradient)
    return Update(w.op("Add", weight, velocity), {"velocity": velocity})


def adam(w: Writer, weight: ir.Value, gradient: ir.Value, states: States, scalars: Scalars) -> Update:
    """Return m' = β₁m + (1−β₁)g, s' = β₂s + (1−β₂)g², w' = w − λ'·m' / (√s'·ρ + ε); λ', ρ correct the start."""
    step, new = _adam_step(w, gradient, states, scalars)
    return Update(w.op("Sub", weight, step), new)


def relative_adam(w: Writer, weight: ir.Value, gradient: ir.Value, states: States, scalars: Scalars) -> Update:
    """Return w' = w − step of Adam · max(10⁻³, root mean square of w).

    N. Shazeer, M. Stern, "Adafactor", 2018, section 8: one learning rate suits weights of any scale.
    """
    step, new = _adam_step(w, gradient, states, scalars)
    size = w.op("Sqrt", w.op("ReduceMean", w.op("Mul", weight, weight), keepdims=1))
    return Update(w.op("Sub", weight, w.op("Mul", step, w.op("Max", size, _LEAST_SIZE))), new)


def _adam_step(w: Writer, gradient: ir.Value, states: States, scalars: Scalars) -> tuple[ir.Value, States]:
    mean = w.op("Add", w.op("Mul", states["mean"], scalars["beta1"]), w.op("Mul", gradient, scalars["gain1"]))
    fresh = w.op("Mul", w.op("Mul", gradient, gradient), scalars["gain2"])
    square = w.op("Add", w.op("Mul", states["square"], scalars["beta2"]), fresh)
    size = w.op("Add", w.op("Mul", w.op("Sqrt", square), scalars["root"]), scalars["epsilon"])
    return w.op("Div", w.op("Mul", mean, scalars["rate"]), size), {"mean": mean, "square": square}


SOLVERS: dict[str, Callable[[Writer, ir.Value, ir.Value, States, Scalars], Update]] = {
    "sgd": sgd,
    "adam": adam,
    "relative_adam": relative_adam,
}


def factor(solver: str, rates: Rates) -> float:
    """Return what the gradients that a solver is given are multiplied by."""
    return rates.learning_rate if solver in TIMES_RATE else 1.0


def scalars(solver: str, rates: Rates, step: int) -> dict[str, float]:
    """Return the numbers that a solver is fed in its step number `step` (from 1 on)."""
    if solver == "sgd":
        return {"rate": rates.learning_rate, "momentum": rates.momentum}
    return {
        "rate": rates.learning_rate / (1 - rates.beta1**step),
        "root": (1 - rates.beta2**step) ** -0.5,
        "beta1": rates.beta1,
        "beta2": rates.beta2,
        "gain1": 1 - rates.beta1,
        "gain2": 1 - rates.beta2,
        "epsilon": rates.epsilon,
    }
