"""Losses as ONNX nodes: the loss of every sample, and the gradient with respect to the logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..gradients import Writer


@dataclass(frozen=True)
class Loss:
    """Loss of every sample [N], and its gradient with respect to the logits [N, K], not divided by the batch."""

    value: ir.Value
    gradient: ir.Value


@dataclass(frozen=True)
class Teacher:
    """Logits [N, K] of a teacher, the temperature, and the teacher's share of the loss (both of shape [])."""

    logits: ir.Value
    temperature: ir.Value
    share: ir.Value


def one_hot(w: Writer, labels: ir.Value, classes: int) -> ir.Value:
    """Turn labels int64 [N] into float [N, K]."""
    return w.op("OneHot", labels, classes, np.array([0.0, 1.0], np.float32), axis=1)


def cross_entropy(w: Writer, logits: ir.Value, target: ir.Value) -> Loss:
    """Return −log softmax of the class that is right, and softmax − target."""
    logs = w.op("LogSoftmax", logits, axis=1)
    value = w.op("Neg", w.op("ReduceSum", w.op("Mul", logs, target), [1], keepdims=0))
    return Loss(value, w.op("Sub", w.op("Exp", logs), target))


def binary_cross_entropy(w: Writer, logits: ir.Value, target: ir.Value) -> Loss:
    """Return Σ over classes of log(1 + eᶻ) − z·target, and sigmoid − target."""
    each = w.op("Sub", w.op("Softplus", logits), w.op("Mul", logits, target))
    return Loss(w.op("ReduceSum", each, [1], keepdims=0), w.op("Sub", w.op("Sigmoid", logits), target))


def distilled(w: Writer, logits: ir.Value, hard: Loss, teacher: Teacher) -> Loss:
    """Mix a loss with T²·KL(teacher ‖ student), both softened by the temperature T.

    Source: Hinton, Vinyals, Dean, Distilling the Knowledge in a Neural Network, 2015.
    """
    t = teacher.temperature
    goal = w.op("LogSoftmax", w.op("Div", teacher.logits, t), axis=1)
    own = w.op("LogSoftmax", w.op("Div", logits, t), axis=1)
    weights = w.op("Exp", goal)
    divergence = w.op("ReduceSum", w.op("Mul", weights, w.op("Sub", goal, own)), [1], keepdims=0)
    soft = w.op("Mul", divergence, w.op("Mul", t, t))
    slope = w.op("Mul", w.op("Sub", w.op("Exp", own), weights), t)
    rest = w.op("Sub", 1.0, teacher.share)
    return Loss(
        w.op("Add", w.op("Mul", hard.value, rest), w.op("Mul", soft, teacher.share)),
        w.op("Add", w.op("Mul", hard.gradient, rest), w.op("Mul", slope, teacher.share)),
    )
