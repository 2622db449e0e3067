"""The picture of a sensitivity analysis; needs the extra `plots`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..sensitivity import Sensitivity
from .plots import names_at, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Names of a group's layers that fit beside the picture.
_LAYERS: Final = 2


def sensitivity_figure(found: Sensitivity) -> Figure:
    """Return a table in colours: points of accuracy that each group (rows) costs at each percentage (columns)."""
    lost = np.array(
        [[100 * (found.original.accuracy - one.accuracy) for one in group.qualities] for group in found.groups]
    )
    worst = max(float(lost.max()), 1.0)
    figure, (axes,) = new_figure(4.5 + 0.8 * len(found.percentages), min(1.6 + 0.3 * len(found.groups), 60))
    axes.imshow(lost, cmap="cividis_r", vmin=0, vmax=worst, aspect="auto")
    for (row, column), points in np.ndenumerate(lost):
        colour = "white" if points > worst / 2 else "black"
        axes.text(column, row, f"{points:.1f}", ha="center", va="center", color=colour, fontsize=8)
    names = []
    for group in found.groups:
        more = len(group.layers) - _LAYERS
        names.append(", ".join(group.layers[:_LAYERS]) + (f" and {more} more" if more > 0 else ""))
    names_at(axes.yaxis, names, fontsize=8)
    names_at(axes.xaxis, [f"{share:g} %" for share in found.percentages])
    axes.set_xlabel("removed of the kernels that can leave the group")
    axes.set_title("points of accuracy lost", fontsize=10)
    return figure
