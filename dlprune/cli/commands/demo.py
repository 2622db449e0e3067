"""`dlprune demo`."""

from __future__ import annotations

from pathlib import Path

from ..options import (
    Criterion,
    FinetuneEpochs,
    OutFile,
    OutputOptions,
    Percentage,
    PruningOptions,
    ReportOptions,
    Runs,
    Target,
    TrainingOptions,
)


def demo(
    pruning_options: PruningOptions,
    training_options: TrainingOptions,
    report_options: ReportOptions,
    output_options: OutputOptions,
    percentage: Percentage = 50,
    target: Target = "kernels",
    criterion: Criterion = "oracle",
    out: OutFile = Path("digits_pruned.onnx"),
    finetune_epochs: FinetuneEpochs = 4,
    runs: Runs = None,
) -> None:
    """Prune the embedded classifier of handwritten digits and train it a little, with the embedded images.

    Needs nothing else, and takes less than a minute.

    Examples:

        dlprune demo

        dlprune demo --percentage 30 --out smaller.onnx --json

        dlprune demo --percentage 20 --finetune-epochs 0 --multiple 1
    """
    import dataclasses

    import dlprune as ha

    from ...demo import demo_images
    from ...evaluation import LabelledImages
    from ...imagefiles import ArrayImages
    from ...preprocessing import Preprocessing
    from ..job import PruningJob, run
    from ..output import Output
    from ..reporting import require_report_places
    from ..setup import Work, require_place
    from ..tuned import Tuning, run_tuned

    def labelled(part: str) -> LabelledImages:
        images, labels = demo_images(part)
        return LabelledImages(ArrayImages(images, labels.tolist()), labels)

    require_place(out, "--out")
    require_report_places(report_options, out)
    file = Path(ha.demo_model_file())
    model = ha.read_dl_model(str(file))
    ha.set_dl_model_param(model, "batch_size", 50)
    data, test = labelled("calibration"), labelled("test")
    job = PruningJob(
        work=Work(file, model, Preprocessing(), data, list(range(len(data))), test, list(range(len(test)))),
        mode=criterion,
        settings={"percentage": percentage, "target": target, **pruning_options.settings(multiple="8")},
        out=out,
        runs=runs,
        report=report_options,
    )
    output = Output(output_options)
    if training_options.learning_rate is None:  # it is nearly as good as before already
        training_options = dataclasses.replace(training_options, learning_rate=0.0003)
    if finetune_epochs:
        run_tuned(job, Tuning(finetune_epochs, 1, True, training_options, 0), output)
    else:
        run(job, output)
