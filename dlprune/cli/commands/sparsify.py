"""`dlprune sparsify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..options import (
    Distill,
    Epochs,
    ImagesPath,
    ModelFile,
    OutFile,
    OutputOptions,
    Resume,
    SparsityOptions,
    TrainingOptions,
    WorkOptions,
    output_option,
)


def sparsify(
    model: ModelFile,
    images: ImagesPath,
    out: OutFile,
    sparsity_options: SparsityOptions,
    training_options: TrainingOptions,
    work_options: WorkOptions,
    output_options: OutputOptions,
    epochs: Epochs = 10,
    distill: Distill = False,
    plot: Annotated[
        Path | None,
        output_option(
            metavar="FILE.svg", help="Draw sparsity, thresholds and accuracy over the steps.", show_default=False
        ),
    ] = None,
    resume: Resume = None,
) -> None:
    """Train a classifier while the weights of least magnitude become zero, more and more of them.

    The file keeps its shapes; it is the compressed file (gzip, zip) that gets smaller, unless kernels become empty and
    leave. The last step's weights are kept. The state after each epoch goes to FILE.ckpt, from which --resume goes on
    exactly; it is removed at the end.

    Examples:

        dlprune sparsify model.onnx --images photos/ --target-sparsity 0.875 --epochs 12 --out sparse.onnx

        dlprune sparsify model.onnx --images train.npz --end 2000 --frequency 100 --block 4x4 -o sparse.onnx

        dlprune sparsify model.onnx --images train.npz --m-by-n 2:4 --distill -o sparse.onnx
    """
    import typer

    from ..output import Output
    from ..setup import open_work, require_place, require_state
    from ..sparsifying import SparsifyJob, run

    require_place(out, "--out")
    require_place(plot, "--plot", out)
    require_state(resume)
    if training_options.patience is not None:
        raise typer.BadParameter("It would keep an epoch that is not sparse yet.", param_hint="--patience")
    output = Output(output_options)
    work = open_work("dlprune sparsify", model, images, work_options, output)
    job = SparsifyJob(
        work=work,
        options=sparsity_options,
        training=training_options,
        epochs=epochs,
        seed=work_options.seed,
        distill=distill,
        out=out,
        plot=plot,
        checkpoint=resume or out.with_name(out.name + ".ckpt"),
        resume=resume is not None,
    )
    run(job, output)
