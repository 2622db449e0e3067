"""`dlprune prune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import (
    BatchSize,
    ImageOptions,
    ImagesPath,
    ModelFile,
    ModelOptions,
    OutputOptions,
    PruningOptions,
    Runs,
    Seed,
)
from ..trainoptions import TrainingOptions

_PRUNING = "Pruning"


def prune(
    model: ModelFile,
    images: ImagesPath,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="The smaller model, an .onnx file.", rich_help_panel=_PRUNING),
    ],
    pruning_options: PruningOptions,
    model_options: ModelOptions,
    image_options: ImageOptions,
    output_options: OutputOptions,
    training_options: TrainingOptions,
    percentage: Annotated[
        float,
        typer.Option(
            "--percentage",
            "-p",
            min=0,
            max=100,
            help="Share of the removable kernels to remove, never more.",
            rich_help_panel=_PRUNING,
        ),
    ] = 10,
    test_images: Annotated[
        Path | None,
        typer.Option(
            "--test-images",
            metavar="DIR|NPZ|LIST",
            help="Images for the accuracy. Default: a part of --images, which is then not scored.",
            rich_help_panel="Images",
            show_default=False,
        ),
    ] = None,
    holdout: Annotated[
        float,
        typer.Option(
            min=0,
            max=100,
            help="Percent of --images, of each class, that are kept for the accuracy.",
            rich_help_panel="Images",
        ),
    ] = 20,
    seed: Seed = 0,
    max_images: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Score at most about so many images, of each class the same share.",
            rich_help_panel="Images",
            show_default=False,
        ),
    ] = None,
    batch_size: BatchSize = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="STATE",
            help="Go on from the state that an interrupted run left: FILE.state, or with training FILE.rounds.",
            rich_help_panel=_PRUNING,
            show_default=False,
        ),
    ] = None,
    runs: Runs = None,
    finetune_epochs: Annotated[
        int,
        typer.Option(
            min=0,
            help="Train so many epochs after kernels have left, with the scored images.",
            rich_help_panel="Training",
        ),
    ] = 0,
    steps: Annotated[
        int,
        typer.Option(min=1, help="Remove kernels in so many rounds, and train after each.", rich_help_panel="Training"),
    ] = 1,
    distill: Annotated[
        bool,
        typer.Option("--distill", help="Training also imitates the original's answers.", rich_help_panel="Training"),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="Also write a page that shows all of it, and its numbers beside it (.json, .csv).",
            rich_help_panel="Output",
            show_default=False,
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also write the figures of the report as PNG files; needs the extra 'plots'.",
            rich_help_panel="Output",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Remove the kernels that matter least to the images, and refit what read them.

    Prints a table of the layers and of kernels, parameters, multiply-accumulates, file size, latency and accuracy
    before and after. Ctrl-C leaves a state file from which --resume goes on.

    Examples:

        dlprune prune model.onnx --images photos/ --percentage 20 --out smaller.onnx

        dlprune prune model.onnx --images train.npz --test-images test.npz -p 30 -o smaller.onnx --range 0 1

        dlprune prune model.onnx --images list.csv -p 10 -o smaller.onnx --range 0 1 --mean 0.485,0.456,0.406
        --std 0.229,0.224,0.225 --fit crop --resize 256 --json

        dlprune prune model.onnx --images train.npz -p 60 -o smaller.onnx --steps 3 --finetune-epochs 4 --distill
    """
    import dlprune as ha
    from dlprune.imagefiles import ImagesError, stratified_part
    from dlprune.report.files import report_path
    from dlprune.report.plots import require_matplotlib

    from ..job import PruningJob, run
    from ..output import Output
    from ..setup import open_data, open_model, set_preprocessing
    from ..tuned import Tuning, run_tuned

    if out.resolve() == model.resolve():
        raise typer.BadParameter("The model itself would be replaced; give another name.", param_hint="--out")
    if not out.absolute().parent.is_dir():
        raise typer.BadParameter(f"There is no folder {str(out.parent)!r}.", param_hint="--out")
    trained = finetune_epochs > 0 or steps > 1
    if trained and (report is not None or plots is not None):
        raise typer.BadParameter("A report shows one removal without training.", param_hint="--report, --plots")
    if plots is not None:
        require_matplotlib()
        if plots.exists() and not plots.is_dir():
            raise typer.BadParameter(f"{str(plots)!r} is no folder.", param_hint="--plots")
    if report is not None:
        try:
            path = report_path(str(report))  # tell what is wrong with it before the work, not after
        except ha.HOperatorError as error:
            raise typer.BadParameter(error.extended_error_message, param_hint="--report") from None
        written = {path.with_suffix(suffix).resolve() for suffix in (".json", ".csv", path.suffix)}
        for given in (images, test_images, resume, model, out):
            if given is not None and Path(given).resolve() in written:
                raise typer.BadParameter(f"{str(given)!r} would be replaced; give another name.", param_hint="--report")
    output = Output(output_options)
    handle, classifier = open_model(model, model_options, batch_size)
    classifier.require_classification("dlprune prune")
    preprocessing = set_preprocessing(classifier, image_options)
    data = open_data(images, classifier, image_options.skip_bad, output)
    if test_images is None:
        held_out = stratified_part(data.class_ids, holdout / 100, seed)
        test = data
    else:
        held_out = stratified_part(data.class_ids, 0, seed)
        test = open_data(test_images, classifier, image_options.skip_bad, output)
    to_score = ~held_out
    if max_images is not None and max_images < to_score.sum():
        to_score[to_score] = stratified_part(data.class_ids[to_score], max_images / to_score.sum(), seed + 1)
    if not to_score.any():
        raise ImagesError("No images are left to score; give more images or a smaller --holdout.")
    job = PruningJob(
        model_file=model,
        model=handle,
        preprocessing=preprocessing,
        data=data,
        indices=to_score.nonzero()[0].tolist(),
        test=test,
        test_indices=held_out.nonzero()[0].tolist() if test is data else list(range(len(test))),
        mode=pruning_options.mode,
        settings=pruning_options.settings(percentage),
        out=out,
        state_file=resume or out.with_name(out.name + ".state"),
        resume=resume,
        runs=runs,
        report=report,
        plots=plots,
    )
    if trained:
        run_tuned(job, Tuning(finetune_epochs, steps, distill, training_options, seed), output)
    else:
        run(job, output)
