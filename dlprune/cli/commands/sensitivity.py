"""`dlprune sensitivity`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..options import (
    Criterion,
    ImagesPath,
    ModelFile,
    OutputOptions,
    Percentages,
    PruningOptions,
    WorkOptions,
    numbers_of,
    output_option,
)


def sensitivity(
    model: ModelFile,
    images: ImagesPath,
    pruning_options: PruningOptions,
    work_options: WorkOptions,
    output_options: OutputOptions,
    percentages: Percentages = "25,50,75",
    criterion: Criterion = "oracle",
    plot: Annotated[
        Path | None,
        output_option(metavar="FILE.png", help="Draw it; needs the extra 'plots'.", show_default=False),
    ] = None,
) -> None:
    """Show what it costs when kernels leave one group of coupled layers alone.

    Every group is pruned by itself, in one step, at every percentage of the kernels that can leave it, and refitted as
    `dlprune prune` does; the accuracy is that on the held-out images. A group that loses much is worth excluding
    (--param exclude_layers=NAME), one that loses nothing can give more.

    Examples:

        dlprune sensitivity model.onnx --images photos/

        dlprune sensitivity model.onnx --images train.npz --percentages 50,90 --plot sensitivity.png --json
    """
    import dlprune as ha

    from ...fit import scored_data
    from ...imagefiles import ImagesError
    from ...removal import sensitivity_of
    from ...report.plots import require_matplotlib, write_figure
    from ...report.sensitivityplot import sensitivity_figure
    from ..output import Output, percent
    from ..scoring import ScoringState, ScoringTask, score
    from ..setup import open_work, require_place
    from ..training import prepared

    shares = numbers_of(percentages, "--percentages")
    require_place(plot, "--plot", model)
    if plot is not None:
        require_matplotlib()
    output = Output(output_options)
    work = open_work("dlprune sensitivity", model, images, work_options, output)
    if not work.test_indices:
        raise ImagesError("No images are left to measure on; give more images, a larger --holdout or --test-images.")
    pruning = ha.create_dl_pruning(work.model, criterion, ha.from_python_dict(dict(pruning_options.settings())))
    score(ScoringTask(work.model, work.preprocessing, work.data, work.indices), ScoringState(pruning), output)
    classifier = work.classifier
    with prepared(
        classifier, work.preprocessing, work.test, work.test_indices, "Reading held-out images", output
    ) as test:
        done = 0
        with output.progress("Pruning each group", 100) as advance:

            def tell(share: float) -> None:
                nonlocal done
                advance(round(100 * share) - done)
                done = round(100 * share)

            data = scored_data(pruning, 1)
            found = sensitivity_of(classifier, data, (test.images(range(len(test.labels))), test.labels), shares, tell)
    work.tell_skipped(output)
    if plot is not None:
        output.note(f"Figure: {write_figure(sensitivity_figure(found), plot)}")
    output.table(
        f"Accuracy when one group alone loses kernels; untouched {percent(found.original.accuracy)}",
        ["layers of the group", " kernels", " can leave", *(f" {share:g} %" for share in shares)],
        [
            (
                ", ".join(group.layers),
                group.kernel_num,
                group.prunable_kernel_num,
                *(percent(quality.accuracy) for quality in group.qualities),
            )
            for group in found.groups
        ],
    )
    lost = [(found.original.accuracy - group.qualities[-1].accuracy, group) for group in found.groups]
    worst = sorted(lost, key=lambda one: -one[0])[:3]
    for points, group in worst:
        output.line(f"{100 * points:.2f} points lost at {shares[-1]:g} %: {', '.join(group.layers)}")
    output.json(
        {
            "model": str(model),
            "test_images": len(work.test_indices),
            "scored_images": len(work.indices),
            "percentages": shares,
            "accuracy": found.original.accuracy,
            "loss": found.original.loss,
            "groups": [
                {
                    "layers": list(group.layers),
                    "kernels": group.kernel_num,
                    "prunable_kernel_num": group.prunable_kernel_num,
                    "pruned_kernel_num": list(group.pruned_kernel_nums),
                    "accuracy": [quality.accuracy for quality in group.qualities],
                    "loss": [quality.loss for quality in group.qualities],
                }
                for group in found.groups
            ],
            "settings": pruning_options.settings(),
            "preprocessing": work.preprocessing.entries(),
            "skipped": work.skipped,
        }
    )
