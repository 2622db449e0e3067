"""`dlprune prune`."""

from __future__ import annotations

from typing import Annotated

from ..options import (
    Criterion,
    Distill,
    FinetuneEpochs,
    ImagesPath,
    ModelFile,
    OutFile,
    OutputOptions,
    Percentage,
    PruningOptions,
    ReportOptions,
    Resume,
    Runs,
    Target,
    TrainingOptions,
    WorkOptions,
    training_option,
)


def prune(
    model: ModelFile,
    images: ImagesPath,
    out: OutFile,
    pruning_options: PruningOptions,
    work_options: WorkOptions,
    training_options: TrainingOptions,
    report_options: ReportOptions,
    output_options: OutputOptions,
    percentage: Percentage = 10,
    target: Target = "kernels",
    criterion: Criterion = "oracle",
    resume: Resume = None,
    runs: Runs = None,
    finetune_epochs: FinetuneEpochs = 0,
    steps: Annotated[int, training_option(min=1, help="Remove kernels in so many rounds, and train after each.")] = 1,
    distill: Distill = False,
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
    from ..job import PruningJob, run
    from ..output import Output
    from ..reporting import require_report_places
    from ..setup import open_work, require_place, require_state
    from ..tuned import Tuning, run_tuned

    require_place(out, "--out", model)
    require_report_places(report_options, images, work_options.test_images, resume, model, out)
    require_state(resume)
    output = Output(output_options)
    work = open_work("dlprune prune", model, images, work_options, output)
    job = PruningJob(
        work=work,
        mode=criterion,
        settings={"percentage": percentage, "target": target, **pruning_options.settings()},
        out=out,
        state_file=resume or out.with_name(out.name + ".state"),
        resume=resume,
        runs=runs,
        report=report_options,
    )
    if finetune_epochs or steps > 1:
        run_tuned(job, Tuning(finetune_epochs, steps, distill, training_options, work_options.seed), output)
    else:
        run(job, output)
