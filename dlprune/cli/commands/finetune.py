"""`dlprune finetune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import BatchSize, ImageOptions, ImagesPath, ModelFile, ModelOptions, OutputOptions, Seed
from ..trainoptions import TrainingOptions

_TRAINING = "Training"


def finetune(
    model: ModelFile,
    images: ImagesPath,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The trained model, an .onnx file.", rich_help_panel=_TRAINING
        ),
    ],
    training_options: TrainingOptions,
    model_options: ModelOptions,
    image_options: ImageOptions,
    output_options: OutputOptions,
    epochs: Annotated[int, typer.Option(min=0, help="Passes over the images.", rich_help_panel=_TRAINING)] = 10,
    teacher: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A model whose answers are imitated as well, e.g. the one before pruning.",
            rich_help_panel=_TRAINING,
            show_default=False,
        ),
    ] = None,
    test_images: Annotated[
        Path | None,
        typer.Option(
            "--test-images",
            metavar="DIR|NPZ|LIST",
            help="Images that decide which epoch is kept. Default: a part of --images, which is then not trained with.",
            rich_help_panel="Images",
            show_default=False,
        ),
    ] = None,
    holdout: Annotated[
        float,
        typer.Option(
            min=0,
            max=100,
            help="Percent of --images, of each class, that decide which epoch is kept.",
            rich_help_panel="Images",
        ),
    ] = 20,
    seed: Seed = 0,
    batch_size: BatchSize = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="STATE",
            help="Go on from the state that an interrupted run left (FILE.ckpt).",
            rich_help_panel=_TRAINING,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train a classifier with ONNX Runtime, for example to bring back the accuracy of a pruned one.

    Of all epochs the one that decides most held-out images rightly is kept; the model as it was takes part. The state
    after each epoch goes to FILE.ckpt, from which --resume goes on exactly; it is removed at the end.

    Examples:

        dlprune finetune smaller.onnx --images photos/ --epochs 5 --out tuned.onnx

        dlprune finetune smaller.onnx --images train.npz --test-images test.npz --teacher model.onnx -o tuned.onnx
    """
    import contextlib

    from dlprune.classifier import Classifier
    from dlprune.imagefiles import ImagesError, stratified_part

    from ..output import Output
    from ..setup import open_data, open_model, set_preprocessing, tell_skipped
    from ..training import epochs_table, prepared, train

    if not out.absolute().parent.is_dir():
        raise typer.BadParameter(f"There is no folder {str(out.parent)!r}.", param_hint="--out")
    if resume is not None and not resume.is_file():
        raise typer.BadParameter(f"There is no file {str(resume)!r}.", param_hint="--resume")
    output = Output(output_options)
    _, classifier = open_model(model, model_options, batch_size)
    classifier.require_classification("dlprune finetune")
    preprocessing = set_preprocessing(classifier, image_options)
    plan = training_options.plan(classifier, epochs, seed)
    data = open_data(images, classifier, image_options.skip_bad, output)
    held_out = stratified_part(data.class_ids, 0 if test_images is not None else holdout / 100, seed)
    test = data if test_images is None else open_data(test_images, classifier, image_options.skip_bad, output)
    test_indices = held_out.nonzero()[0].tolist() if test is data else list(range(len(test)))
    indices = (~held_out).nonzero()[0].tolist()
    if not indices:
        raise ImagesError("No images are left to train with; give more images or a smaller --holdout.")
    checkpoint = resume or out.with_name(out.name + ".ckpt")
    with contextlib.ExitStack() as stack:
        training = stack.enter_context(prepared(classifier, preprocessing, data, indices, "Reading", output))
        validation = None
        if test_indices:
            validation = stack.enter_context(
                prepared(classifier, preprocessing, test, test_indices, "Reading held-out images", output)
            )
        result = train(
            classifier,
            plan,
            training,
            validation,
            output,
            teacher=None if teacher is None else Classifier.read(str(teacher)),
            checkpoint=checkpoint,
            resume=resume is not None,
        )
    classifier.write(str(out))
    checkpoint.unlink(missing_ok=True)
    tell_skipped(data, output)
    if test is not data:
        tell_skipped(test, output)
    epochs_table(result, output)
    output.line(f"{len(training.labels)} images trained with; written: {out}")
    entries = result.entries()
    for name, epoch in (("before", 0), ("after", result.best_epoch)):
        if "validation_accuracy" in entries:
            output.line(f"accuracy {name}: {entries['validation_accuracy'][epoch]:.4f}")
    output.json(
        {
            "model": str(model),
            "out": str(out),
            **entries,
            "trained_images": len(training.labels),
            "preprocessing": preprocessing.to_json(),
            "skipped": {one.name: one.reason for one in [*data.skipped.values(), *test.skipped.values()]},
        }
    )
