"""Magnitude pruning under the names of TensorFlow's libraries: schedules, masks, and what makes them stay.

An ONNX model is trained by train_dl_model_batch; after each step update_pruning_step zeroes the weights of least
magnitude as a schedule asks. The functions on arrays (exact_mask, pool_blocks, m_by_n_mask …) need NumPy alone.

Example:
    >>> import dlprune as ha
    >>> from dlprune.sparsity import PolynomialDecay, prune_low_magnitude, strip_pruning, update_pruning_step
    >>> model = ha.read_dl_model(ha.demo_model_file())
    >>> ha.set_dl_model_param(model, "batch_size", 8)
    >>> schedule = PolynomialDecay(0.0, 0.5, begin_step=0, end_step=2, frequency=1)
    >>> pruning = prune_low_magnitude(model, schedule)
    >>> for _ in range(2):
    ...     _ = ha.train_dl_model_batch(model, ha.demo_samples()[:8])
    ...     update_pruning_step(model, pruning)
    >>> sparse = strip_pruning(model, pruning)
    >>> round(ha.get_dl_pruning_param_s(pruning, "target_reached"))
    50
"""

from .compressed import CompressedSize, compressed_size
from .masks import (
    Masked,
    block_size,
    exact_mask,
    expand_blocks,
    histogram_mask,
    kept_number,
    m_by_n_mask,
    pool_blocks,
)
from .operators import (
    get_dl_pruning_masks,
    get_masks,
    prune_low_magnitude,
    pruning_summaries,
    strip_pruning,
    update_dl_pruning_masks,
    update_pruning_step,
    write_sparse_model,
)
from .schedule import ConstantSparsity, PolynomialDecay, Schedule, documented_sparsity, sparsity_at
from .view import View

__all__ = [
    "CompressedSize",
    "ConstantSparsity",
    "Masked",
    "PolynomialDecay",
    "Schedule",
    "View",
    "block_size",
    "compressed_size",
    "documented_sparsity",
    "exact_mask",
    "expand_blocks",
    "get_dl_pruning_masks",
    "get_masks",
    "histogram_mask",
    "kept_number",
    "m_by_n_mask",
    "pool_blocks",
    "prune_low_magnitude",
    "pruning_summaries",
    "sparsity_at",
    "strip_pruning",
    "update_dl_pruning_masks",
    "update_pruning_step",
    "write_sparse_model",
]
