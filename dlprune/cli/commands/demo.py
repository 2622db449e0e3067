"""`dlprune demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import OutputOptions, PruningOptions, Runs


def demo(
    pruning_options: PruningOptions,
    output_options: OutputOptions,
    percentage: Annotated[
        float,
        typer.Option(
            "--percentage", "-p", min=0, max=100, help="Share of the removable kernels to remove, never more."
        ),
    ] = 20,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The smaller model, an .onnx file.")] = Path(
        "digits_pruned.onnx"
    ),
    finetune_epochs: Annotated[
        int, typer.Option(min=0, help="Train so many epochs after kernels have left.", rich_help_panel="Training")
    ] = 0,
    runs: Runs = None,
) -> None:
    """Prune the embedded classifier of handwritten digits with the embedded images; needs nothing else.

    Examples:

        dlprune demo

        dlprune demo --percentage 30 --out smaller.onnx --json

        dlprune demo --percentage 50 --finetune-epochs 4
    """
    import dlprune as ha
    from dlprune.demo import demo_images
    from dlprune.evaluation import LabelledImages
    from dlprune.imagefiles import ArrayImages
    from dlprune.preprocessing import Preprocessing

    from ..job import PruningJob, run
    from ..output import Output
    from ..trainoptions import TrainingOptions

    def labelled(part: str) -> LabelledImages:
        images, labels = demo_images(part)
        return LabelledImages(ArrayImages(images, labels.tolist()), labels)

    file = Path(ha.demo_model_file())
    model = ha.read_dl_model(str(file))
    ha.set_dl_model_param(model, "batch_size", 50)
    data, test = labelled("calibration"), labelled("test")
    job = PruningJob(
        model_file=file,
        model=model,
        preprocessing=Preprocessing(),
        data=data,
        indices=list(range(len(data))),
        test=test,
        test_indices=list(range(len(test))),
        mode=pruning_options.mode,
        settings=pruning_options.settings(percentage),
        out=out,
        runs=runs,
    )
    if finetune_epochs:
        from ..tuned import Tuning, run_tuned

        run_tuned(job, Tuning(finetune_epochs, 1, True, TrainingOptions(), 0), Output(output_options))
    else:
        run(job, Output(output_options))
