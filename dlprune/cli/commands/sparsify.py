"""`dlprune sparsify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..options import BatchSize, ImageOptions, ImagesPath, ModelFile, ModelOptions, OutputOptions, Seed
from ..trainoptions import TrainingOptions

_SPARSITY = "Sparsity"


def sparsify(
    model: ModelFile,
    images: ImagesPath,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="The sparse model, an .onnx file.", rich_help_panel=_SPARSITY),
    ],
    training_options: TrainingOptions,
    model_options: ModelOptions,
    image_options: ImageOptions,
    output_options: OutputOptions,
    target_sparsity: Annotated[
        float, typer.Option(min=0, help="Share of zeros in each weight at the end, below 1.", rich_help_panel=_SPARSITY)
    ] = 0.5,
    initial_sparsity: Annotated[
        float, typer.Option(min=0, help="Share of zeros at the begin, below 1.", rich_help_panel=_SPARSITY)
    ] = 0.0,
    begin: Annotated[
        int, typer.Option(min=0, metavar="STEP", help="Step at which it begins.", rich_help_panel=_SPARSITY)
    ] = 0,
    end: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="STEP",
            help="Step at which the target is reached. Default: after three quarters of all steps.",
            rich_help_panel=_SPARSITY,
            show_default=False,
        ),
    ] = None,
    frequency: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="STEPS",
            help="Steps from one update to the next. Default: for 20 updates up to the end.",
            rich_help_panel=_SPARSITY,
            show_default=False,
        ),
    ] = None,
    exponent: Annotated[
        float,
        typer.Option(min=0, help="1: linear; more: slower towards the end.", rich_help_panel=_SPARSITY),
    ] = 3.0,
    block: Annotated[
        str,
        typer.Option(
            metavar="HxW",
            help="Weights that leave together: inputs x outputs, -1 for all.",
            rich_help_panel=_SPARSITY,
        ),
    ] = "1x1",
    pooling: Annotated[
        Literal["AVG", "MAX"], typer.Option(help="What counts of a block.", rich_help_panel=_SPARSITY)
    ] = "AVG",
    weight_map: Annotated[
        str,
        typer.Option(
            metavar="NAME:X,…",
            help="Other targets of single weights, by names or regular expressions, e.g. 'conv1:0.9,last:0.2'.",
            rich_help_panel=_SPARSITY,
            show_default=False,
        ),
    ] = "",
    block_map: Annotated[
        str,
        typer.Option(
            metavar="NAME:HxW,…",
            help="Other blocks of single weights.",
            rich_help_panel=_SPARSITY,
            show_default=False,
        ),
    ] = "",
    remove_empty_kernels: Annotated[
        bool,
        typer.Option("--remove-empty-kernels", help="Kernels without a weight left leave.", rich_help_panel=_SPARSITY),
    ] = False,
    sparse_storage: Annotated[
        bool,
        typer.Option(
            "--sparse-storage",
            help="Store only the non-zero numbers where that is smaller; not every tool reads such files.",
            rich_help_panel=_SPARSITY,
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw sparsity, thresholds and accuracy over the steps, an .svg file.",
            rich_help_panel=_SPARSITY,
            show_default=False,
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the images.", rich_help_panel="Training")] = 10,
    test_images: Annotated[
        Path | None,
        typer.Option(
            "--test-images",
            metavar="DIR|NPZ|LIST",
            help="Images that show the accuracy. Default: a part of --images, which is then not trained with.",
            rich_help_panel="Images",
            show_default=False,
        ),
    ] = None,
    holdout: Annotated[
        float,
        typer.Option(
            min=0, max=100, help="Percent of --images, of each class, that show the accuracy.", rich_help_panel="Images"
        ),
    ] = 20,
    seed: Seed = 0,
    batch_size: BatchSize = None,
) -> None:
    """Train a classifier while the weights of least magnitude become zero, more and more of them.

    The file keeps its shapes; it is the compressed file (gzip, zip) that gets smaller, unless kernels become empty and
    leave. The last step's weights are kept. With --weight-prior, patience or a teacher see `finetune`.

    Examples:

        dlprune sparsify model.onnx --images photos/ --target-sparsity 0.875 --epochs 12 --out sparse.onnx

        dlprune sparsify model.onnx --images train.npz --end 2000 --frequency 100 --block 4x4 -o sparse.onnx
    """
    import contextlib
    import dataclasses

    import dlprune as ha
    from dlprune import files
    from dlprune.hparams import block_entries
    from dlprune.imagefiles import ImagesError, stratified_part
    from dlprune.model import unwrap_model
    from dlprune.sparsity import compressed_size
    from dlprune.training.evaluation import quality
    from dlprune.training.finetune import Progress

    from ..output import Output
    from ..setup import open_data, open_model, set_preprocessing, tell_skipped
    from ..sparse import Point, picture, points_table, reached_sparsity
    from ..training import prepared, train

    for file, option in ((out, "--out"), (plot, "--plot")):
        if file is not None and not file.absolute().parent.is_dir():
            raise typer.BadParameter(f"There is no folder {str(file.parent)!r}.", param_hint=option)
    if training_options.patience is not None:
        raise typer.BadParameter("It would keep an epoch that is not sparse yet.", param_hint="--patience")
    ((_, (height, width)),) = block_entries("--block", (f"block:{block}",))
    output = Output(output_options)
    handle, classifier = open_model(model, model_options, batch_size)
    classifier.require_classification("dlprune sparsify")
    preprocessing = set_preprocessing(classifier, image_options)
    plan = training_options.plan(classifier, epochs, seed)
    data = open_data(images, classifier, image_options.skip_bad, output)
    held_out = stratified_part(data.class_ids, 0 if test_images is not None else holdout / 100, seed)
    test = data if test_images is None else open_data(test_images, classifier, image_options.skip_bad, output)
    test_indices = held_out.nonzero()[0].tolist() if test is data else list(range(len(test)))
    indices = (~held_out).nonzero()[0].tolist()
    steps = len(indices) // (plan.batch * plan.parts) * epochs
    if not steps:
        raise ImagesError(f"{len(indices)} images are left to train with; one step needs {plan.batch * plan.parts}.")
    last = end if end is not None else max(begin + 1, steps * 3 // 4)
    every = frequency if frequency is not None else max((last - begin) // 20, 1)
    if last > steps:
        raise typer.BadParameter(f"There are {steps} steps in all; give more --epochs.", param_hint="--end")
    first = max(begin, every)
    if first > steps or first + (steps - first) // every * every < last:
        raise typer.BadParameter(
            f"With an update every {every} steps none comes between step {last}, where the target is reached, and the "
            f"last one, {steps}; give a smaller --frequency or --end.",
            param_hint="--frequency",
        )
    hparams = ha.get_pruning_hparams()
    for name, value in {
        "begin_pruning_step": begin,
        "pruning_frequency": every,
        "initial_sparsity": initial_sparsity,
        "target_sparsity": target_sparsity,
        "sparsity_function_begin_step": begin,
        "sparsity_function_end_step": last,
        "sparsity_function_exponent": exponent,
        "block_height": height,
        "block_width": width,
        "block_pooling_function": pooling,
        "weight_sparsity_map": weight_map,
        "block_dims_map": block_map,
    }.items():
        ha.set_dict_tuple(hparams, name, value)
    pruning = ha.create_dl_pruning(handle, "magnitude", hparams)
    points: list[Point] = []
    with contextlib.ExitStack() as stack:
        training = stack.enter_context(prepared(classifier, preprocessing, data, indices, "Reading", output))
        validation = None
        if test_indices:
            validation = stack.enter_context(
                prepared(classifier, preprocessing, test, test_indices, "Reading held-out images", output)
            )
        before = None if validation is None else quality(classifier, validation).accuracy

        def after_step(step: Progress) -> None:
            done = (step.epoch - 1) * step.steps + step.step
            previous = ha.get_dl_pruning_param_s(pruning, "last_mask_update_step")
            ha.update_dl_pruning_masks(handle, pruning)
            updated = ha.get_dl_pruning_param_s(pruning, "last_mask_update_step") != previous
            at_end = step.step == step.steps
            if updated or at_end:
                thresholds = tuple(float(str(one)) for one in ha.get_dl_pruning_param(pruning, "thresholds"))
                accuracy = quality(classifier, validation).accuracy if at_end and validation is not None else None
                wanted = float(str(ha.get_dl_pruning_param_s(pruning, "sparsity")))
                points.append(Point(done, wanted, reached_sparsity(pruning), thresholds, step.loss, accuracy))

        train(classifier, plan, training, None, output, after_step=after_step)
        ha.set_dl_pruning_param(pruning, "remove_empty_kernels", "true" if remove_empty_kernels else "false")
        sparse = ha.gen_dl_pruned_model(handle, pruning)
        unwrap_model(sparse, 1).write(str(out), sparse=sparse_storage)
    names = [str(name) for name in ha.get_dl_pruning_param(pruning, "weight_names")]
    if plot is not None:
        files.replace(plot, picture(points, names, f"{model.name}: sparsity {target_sparsity:g}").encode())
    sizes = [compressed_size(model), compressed_size(out)]
    after = points[-1].accuracy
    tell_skipped(data, output)
    if test is not data:
        tell_skipped(test, output)
    points_table(points, output)
    shares = ha.get_dl_pruning_param(pruning, "weight_sparsity")
    output.table(
        "Weights",
        ["weight", " zeros", " threshold"],
        [
            (name, f"{100 * float(str(share)):.2f} %", f"{threshold:.4g}")
            for name, share, threshold in zip(names, shares, points[-1].thresholds, strict=True)
        ],
    )
    kernels = ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num")
    output.line(f"{len(training.labels)} images trained with in {steps} steps; written: {out}")
    output.line(f"zeros: {100 * points[-1].reached:.2f} %; kernels removed: {kernels}")
    for name, size in zip(("before", "after"), sizes, strict=True):
        output.line(f"bytes {name}: {size.plain} plain, {size.gzip} gzip, {size.zip} zip")
    for name, accuracy in (("before", before), ("after", after)):
        if accuracy is not None:
            output.line(f"accuracy {name}: {accuracy:.4f}")
    output.json(
        {
            "model": str(model),
            "out": str(out),
            "steps": steps,
            "trained_images": len(training.labels),
            "sparsity": points[-1].reached,
            "weights": {name: float(str(share)) for name, share in zip(names, shares, strict=True)},
            "pruned_kernel_num": kernels,
            "bytes": {name: dataclasses.asdict(size) for name, size in zip(("before", "after"), sizes, strict=True)},
            "accuracy": {"before": before, "after": after},
            "history": [dataclasses.asdict(point) for point in points],
            "hparams": ha.as_python_dict_s(hparams),
            "preprocessing": preprocessing.to_json(),
            "skipped": {one.name: one.reason for one in [*data.skipped.values(), *test.skipped.values()]},
        }
    )
