"""`dlprune finetune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..options import (
    Epochs,
    ImagesPath,
    ModelFile,
    OutFile,
    OutputOptions,
    Resume,
    TrainingOptions,
    WorkOptions,
    training_option,
)


def finetune(
    model: ModelFile,
    images: ImagesPath,
    out: OutFile,
    training_options: TrainingOptions,
    work_options: WorkOptions,
    output_options: OutputOptions,
    epochs: Epochs = 10,
    teacher: Annotated[
        Path | None,
        training_option(
            metavar="FILE",
            help="A model whose answers are imitated as well, e.g. the one before pruning.",
            show_default=False,
        ),
    ] = None,
    resume: Resume = None,
) -> None:
    """Train a classifier with ONNX Runtime, for example to bring back the accuracy of a pruned one.

    Of all epochs the one that decides most held-out images rightly is kept; the model as it was takes part. The state
    after each epoch goes to FILE.ckpt, from which --resume goes on exactly; it is removed at the end.

    Examples:

        dlprune finetune smaller.onnx --images photos/ --epochs 5 --out tuned.onnx

        dlprune finetune smaller.onnx --images train.npz --test-images test.npz --teacher model.onnx -o tuned.onnx
    """
    from ...classifier import Classifier
    from ..advice import advise_on_chance
    from ..output import Output
    from ..setup import open_work, require_place, require_state
    from ..training import epochs_table, plan_of, prepared_work, train

    require_place(out, "--out")
    require_state(resume)
    output = Output(output_options)
    work = open_work("dlprune finetune", model, images, work_options, output)
    plan = plan_of(training_options, work.classifier, epochs, work_options.seed)
    checkpoint = resume or out.with_name(out.name + ".ckpt")
    with prepared_work(work, output) as (training, validation):
        result = train(
            work.classifier,
            plan,
            training,
            validation,
            output,
            teacher=None if teacher is None else Classifier.read(str(teacher)),
            checkpoint=checkpoint,
            resume=resume is not None,
        )
    work.classifier.write(str(out))
    checkpoint.unlink(missing_ok=True)
    work.tell_skipped(output)
    epochs_table(result, output)
    if validation is not None:
        before = result.entries()["validation_accuracy"][0]
        advise_on_chance(before, len(validation.labels), work.classifier.class_num, output, "Before training the model")
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
            "preprocessing": work.preprocessing.entries(),
            "skipped": work.skipped,
        }
    )
