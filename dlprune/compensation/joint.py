"""Last, all weights together: least squares towards the logits of the original.

A sweep brings every consumer near to its own original outputs and knows nothing of what they add up to. Here the logits
z [n, K] of the calibration images are taken as linear in the weights W of all consumers, J = ∂z/∂W, and the change of W
is found that minimises

    Σ_n ‖z_n + J_n ΔW − z°_n‖²_F + λ · m · ‖ΔW / s‖²

(a Gauss-Newton step). z° are the original's logits; the Fisher information F = diag p − p·pᵀ of its softened decision p
is the curvature of the Kullback-Leibler divergence between decisions (J. Martens, "New Insights and Perspectives on the
Natural Gradient Method", 2020), and only its greatest eigenvectors count; s is the root mean square of each weight
tensor, m the mean of the diagonal. There are far more weights than rows r of F^½·(z° − z), so it is solved in the rows:
ΔW = s²·Jᵀ (J·s²·Jᵀ + λ·m)⁻¹ r.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..classifier import Classifier
from ..crossentropy import log_sum_exp
from ..facts import Facts, gather_facts
from ..progress import within
from ..scoregraph import MapGraph
from ..weights import frozen_names, source_of
from .cholesky import factorise
from .rows import Regression
from .stages import batches
from .storage import store, value_of

Array = NDArray[np.float32]
Matrix = NDArray[np.float64]

#: Strength of the pull towards the weights as they are.
RIDGE = 1e-2
#: Softens the decisions, so that classes that are not decided for count as well.
_TEMPERATURE = 2.0
#: Eigenvectors per image, and the most probable classes among which they are looked for.
_DIRECTIONS, _CLASSES = 9, 32
#: Most rows, and most bytes of their gradients.
_ROWS, _BYTES = 2304, 1 << 30
#: The logits are not linear in the weights: a second step finds most of what the first one leaves.
_STEPS = 2
#: Shares of the change that are tried until one brings the decisions nearer to the original's.
_SHARES = (1.0, 0.5, 0.25)


def refit_jointly(
    pruned: Classifier,
    layers: Sequence[str],
    images: Array,
    aim: Array,
    batch: int,
    miss: Callable[[ir.Model], float],
    progress: Callable[[float], None] = lambda _: None,
) -> ir.Model:
    """Return the pruned graph with other weights, or unchanged if that brings its decisions no closer.

    Args:
        pruned: the classifier to improve; it is not touched.
        layers: first outputs of the nodes whose weights, each a constant, may change.
        images: calibration images, float32 [n, …] in the layout of the model.
        aim: the original's logits for them, float32 [n, K].
        batch: images per run.
        miss: returns how far the decisions of a graph are from the original's.
        progress: called with the share done.

    Raises:
        GradientError, LiftError, ScoreGraphError: the network cannot be differentiated.
    """
    if pruned.head is None or pruned.head.activation == "sigmoid":
        return pruned.model
    model, least = pruned.model, miss(pruned.model)
    for step in range(_STEPS):
        found = _Equations(pruned.with_model(model), layers, batch)
        change = found.change(images, aim, partial(within, progress, step, _STEPS))
        if change is None:
            break
        for share in _SHARES:
            changed = found.changed(share * change)
            if (now := miss(changed)) < least:
                model, least = changed, now
                break
        else:
            break
    return model


@dataclass(frozen=True)
class _Layer:
    """A node whose weights W [G, O, C·T] may change; `scale` is their root mean square."""

    name: str
    regression: Regression
    weight: Matrix
    scale: float

    def gradients(self, maps: Array, gradients: Sequence[Array], batch: int, count: int) -> Array:
        """Return scale · ∂/∂W for the first samples of a batch, float32 [n, q, W], from what the node reads and gives.

        Args:
            maps: what it reads.
            gradients: q gradients of what it gives.
            batch: samples in these.
            count: how many samples count.
        """
        regression, groups = self.regression, self.regression.groups
        everywhere = np.broadcast_to(np.arange(regression.positions), (count, regression.positions))
        rows = regression.inputs(maps, batch, everywhere).reshape(count, -1, groups, self.weight.shape[2])
        given = np.stack([regression.outputs(one, batch, everywhere) for one in gradients])
        given = given.reshape(len(gradients), *rows.shape[:3], -1).transpose(1, 3, 0, 4, 2)  # n, G, q, O, positions
        flat = given.reshape(count, groups, -1, rows.shape[1]) @ rows.transpose(0, 2, 1, 3)
        found = flat.reshape(*given.shape[:4], -1).swapaxes(1, 2).reshape(count, len(gradients), -1)
        return found * np.float32(self.scale)


def _directions(aim: Array, most: int) -> Matrix:
    """Return the greatest eigenvectors of F times the roots of their eigenvalues, float64 [n, q, K]."""
    scores = aim.astype(np.float64) / _TEMPERATURE
    decisions = np.exp(scores - log_sum_exp(scores)[:, None])
    top = np.argsort(-decisions, axis=1, kind="stable")[:, :_CLASSES]
    count, classes = top.shape
    chosen = np.take_along_axis(decisions, top, axis=1)
    fisher = chosen[:, :, None] * np.eye(classes) - chosen[:, :, None] * chosen[:, None, :]
    values, vectors = np.linalg.eigh(fisher)
    number = min(most // max(count, 1), _DIRECTIONS, classes - 1)
    scaled = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :])[:, :, classes - number :]
    directions = np.zeros((count, number, aim.shape[1]))
    np.put_along_axis(directions, np.repeat(top[:, None], number, axis=1), scaled.swapaxes(1, 2), axis=2)
    return directions


class _Equations:
    """The equations of one step of a network."""

    def __init__(self, classifier: Classifier, layers: Sequence[str], batch: int) -> None:
        params, model = classifier.params, classifier.model
        self._model, self._batch = model, batch
        self._shapes = {classifier.input_name: classifier.input_shape(batch)}
        frozen = frozen_names(model, params.frozen_weights)
        nodes = {node.outputs[0].name: node for node in model.graph}
        free = [name for name in layers if _name(source_of(nodes[name].inputs[1])) not in frozen]
        self._graph = MapGraph(
            model,
            classifier.input_name,
            classifier.output_name,
            self._shapes[classifier.input_name],
            free,
            runtime=params.runtime,
            gpu=params.gpu,
        )
        facts = gather_facts(model, self._shapes)
        self._layers = [_layer(nodes[name], facts, batch) for name in self._graph.layers]
        self._ends = np.cumsum([layer.weight.size for layer in self._layers])

    def change(self, images: Array, aim: Array, progress: Callable[[float], None]) -> Array | None:
        """Return the change of all weights in units of their layers' scales, float32 [W]; None if there is none."""
        if not self._layers:
            return None
        most = min(_ROWS, max(int(_BYTES // (4 * self._ends[-1])), 1))
        aim = aim[:most]
        directions = _directions(aim, most)
        logits, gradients = self._gradients(images, directions, progress)
        left = np.einsum("nqk,nk->nq", directions, (aim - logits).astype(np.float64)).ravel()
        gram = (gradients @ gradients.T).astype(np.float64)
        if not (gram.any() and np.isfinite(gram).all() and np.isfinite(left).all()):
            return None
        gram[np.diag_indices_from(gram)] += RIDGE * np.trace(gram) / len(gram)
        change: Array = factorise(gram).solve(left[:, None])[:, 0].astype(np.float32) @ gradients
        return change

    def _gradients(self, images: Array, directions: Matrix, progress: Callable[[float], None]) -> tuple[Array, Array]:
        """Return logits [n, K] and the gradient of each image and direction, float32 [n·q, W]."""
        count, number, classes = directions.shape
        logits = np.empty((count, classes), np.float32)
        gradients = np.empty((count, number, self._ends[-1]), np.float32)
        upstream = directions.astype(np.float32)
        parts = zip(batches(images[:count], self._batch), batches(upstream, self._batch), strict=True)
        for index, (some, along) in enumerate(parts):
            start = index * self._batch
            here = slice(start, min(start + self._batch, count))
            size = here.stop - start
            runs = [self._graph.run(some, np.ascontiguousarray(along[:, one])) for one in range(number)]
            logits[here] = runs[0][0][:size]
            for layer, end, *found in zip(self._layers, self._ends, *(maps for _, maps in runs), strict=True):
                own = layer.gradients(found[0][0], [gradient for _, gradient in found], self._batch, size)
                gradients[here, :, end - layer.weight.size : end] = own
            progress(here.stop / count)
        return logits, gradients.reshape(count * number, -1)

    def changed(self, change: Array) -> ir.Model:
        """Return a copy of the graph whose weights have changed so."""
        copy = self._model.clone()
        facts = gather_facts(copy, self._shapes)
        nodes = {node.outputs[0].name: node for node in copy.graph}
        for layer, own in zip(self._layers, np.split(change, self._ends[:-1]), strict=True):
            node = nodes[layer.name]
            weight = layer.weight + layer.scale * own.reshape(layer.weight.shape)
            stored = value_of(facts, node.inputs[1])
            store(copy, facts, node, 1, layer.regression.weight_array(weight, stored))
        return copy


def _layer(node: ir.Node, facts: Facts, batch: int) -> _Layer:
    regression = Regression(node, facts, batch)
    weight = regression.weight(value_of(facts, node.inputs[1]))
    return _Layer(_name(node.outputs[0]), regression, weight, float(np.sqrt(np.mean(np.square(weight)))))


def _name(value: ir.Value | None) -> str:
    return (value.name if value is not None else None) or ""
