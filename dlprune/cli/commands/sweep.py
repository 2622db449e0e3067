"""`dlprune sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import (
    ImagesPath,
    ModelFile,
    OutputOptions,
    Percentages,
    PruningOptions,
    Runs,
    WorkOptions,
    names_of,
    numbers_of,
    output_option,
    pruning_option,
)


def sweep(
    model: ModelFile,
    images: ImagesPath,
    out: Annotated[
        Path,
        output_option(
            "--out", "-o", metavar="DIR", help="Folder for table and figures; what is done already is kept there."
        ),
    ],
    pruning_options: PruningOptions,
    work_options: WorkOptions,
    output_options: OutputOptions,
    percentages: Percentages = "10,20,30,40,50",
    criteria: Annotated[
        str, pruning_option(metavar="A,B,…", help="How kernels are scored: modes of create_dl_pruning.")
    ] = "oracle",
    targets: Annotated[
        str,
        pruning_option(
            metavar="A,B,…",
            help="What percentages are percentages of: kernels, macs, params, latency, accuracy_drop.",
        ),
    ] = "kernels",
    keep_models: Annotated[
        bool, output_option("--keep-models", help="Write the pruned models into the folder as well.")
    ] = False,
    runs: Runs = None,
) -> None:
    """Prune a model in many ways and show what each costs and saves, and which models no other one beats.

    Each criterion scores the images once. The folder gets sweep.csv and sweep.json, and, with the extra 'plots',
    accuracy.png (accuracy against percentage) and pareto.png (accuracy against multiply-accumulates, latency and file
    size). After an interruption the same command goes on where it was; with other percentages, criteria or targets it
    adds them.

    Examples:

        dlprune sweep model.onnx --images photos/ --percentages 10,20,30,40,50 --criteria oracle,l2 --out sweep/

        dlprune sweep model.onnx --images train.npz --test-images test.npz --targets kernels,macs --out sweep/ --json
    """
    from ...sweep.run import Setting
    from ..output import Output
    from ..setup import open_work
    from ..sweeping import SweepWork, run

    shares = numbers_of(percentages, "--percentages")
    modes, kinds = (names_of(text, option) for text, option in ((criteria, "--criteria"), (targets, "--targets")))
    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"{str(out)!r} is no folder.", param_hint="--out")
    output = Output(output_options)
    work = open_work("dlprune sweep", model, images, work_options, output)
    job = SweepWork(
        work=work,
        grid=[Setting(mode, target, share) for mode in modes for target in kinds for share in shares],
        settings=pruning_options.settings(),
        folder=out,
        keep_models=keep_models,
        runs=runs,
    )
    run(job, output)
