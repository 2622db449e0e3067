"""The pruning modes: each a criterion that scores units, in a module of its own.

A new criterion costs one module in this folder; it is found by its mode name::

    @criterion("constant")
    class Constant(Weighed):
        def weigh(self, network: Network) -> Scores:
            return np.ones(network.structure.unit_num)
"""

from __future__ import annotations

import importlib
import pkgutil

from .criterion import Criterion, Measured, Network, Scorer, Tally, Weighed, criterion, make_criterion, modes

__all__ = [
    "Criterion",
    "Measured",
    "Network",
    "Scorer",
    "Tally",
    "Weighed",
    "criterion",
    "make_criterion",
    "modes",
]

# The modules are imported for the criteria that they register.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
