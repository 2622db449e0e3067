"""What a training graph is built for, and the numbers that may change from step to step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Solver = Literal["sgd", "adam", "relative_adam"]
Loss = Literal["softmax", "sigmoid"]

#: Arrays of the size of a weight that a solver keeps from step to step.
STATES: dict[str, tuple[str, ...]] = {
    "sgd": ("velocity",),
    "adam": ("mean", "square"),
    "relative_adam": ("mean", "square"),
}


@dataclass(frozen=True)
class Recipe:
    """What shapes a training graph; two equal recipes share one.

    Attributes:
        shape: of the images of one part, batch first, in the model's layout.
        parts: parts whose gradients make one step.
        solver: 'sgd', 'adam', or 'relative_adam' (steps of 'adam' times the size of each weight tensor).
        loss: 'softmax' (cross-entropy of one class) or 'sigmoid' (binary cross-entropy of every class).
        prior: whether the weight prior is not zero.
        frozen: names of weights that stay as they are.
        frozen_statistics: BatchNormalization uses its running statistics and leaves them alone.
        masked: names of weights with a mask.
        distilled: whether the logits of a teacher are given.
    """

    shape: tuple[int, ...]
    parts: int = 1
    solver: Solver = "sgd"
    loss: Loss = "softmax"
    prior: bool = False
    frozen: frozenset[str] = frozenset()
    frozen_statistics: bool = False
    masked: frozenset[str] = frozenset()
    distilled: bool = False

    @property
    def batch(self) -> int:
        """Images per part."""
        return self.shape[0]


@dataclass(frozen=True)
class Rates:
    """Numbers of one step.

    Attributes:
        learning_rate: step length.
        momentum: share of the last step that goes on ('sgd').
        weight_prior: α of the loss term α/2·Σ w² over kernels and matrices.
        beta1, beta2, epsilon: of both kinds of 'adam'.
        batchnorm_momentum: share of the old running statistics.
        temperature: by which logits are divided for distillation.
        distillation: share of the loss that comes from the teacher, 0…1.
    """

    learning_rate: float
    momentum: float = 0.9
    weight_prior: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    batchnorm_momentum: float = 0.9
    temperature: float = 1.0
    distillation: float = 0.0
