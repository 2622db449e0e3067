"""Random weights that leave nothing trivial.

A freshly initialised network hides mistakes: its biases are 0, BatchNormalization is the identity, LayerScale nearly
silences its branch. So every vector parameter is drawn at random, and the running statistics are measured on noise,
then disturbed.
"""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def randomise(module: nn.Module, shape: tuple[int, int, int]) -> None:
    """Draw scales, shifts and biases; set running statistics so that activations keep a sane range in depth."""
    for name, parameter in module.named_parameters():
        # LayerScale is [C, 1, 1]; every other scale, shift and bias is a vector.
        if parameter.ndim == 1 or name.endswith("layer_scale"):
            if name.endswith("bias"):
                parameter.uniform_(-0.3, 0.3)
            else:
                parameter.uniform_(0.5, 1.5)
    norms = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        # Without normalisation the usual initial weights let the image fade away behind the biases.
        for layer in module.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    module.eval()
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    module(torch.randn(4, *shape))
    for norm in norms:
        norm.eval()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean += 0.2 * norm.running_var.sqrt() * torch.randn_like(norm.running_mean)
        norm.running_var *= torch.empty_like(norm.running_var).uniform_(0.8, 1.25)
