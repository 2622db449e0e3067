"""`dlprune evaluate`."""

from __future__ import annotations

from typing import Any

from ..options import BatchSize, ImageOptions, ImagesPath, ModelFile, ModelOptions, OutputOptions


def evaluate(
    model: ModelFile,
    images: ImagesPath,
    model_options: ModelOptions,
    image_options: ImageOptions,
    output_options: OutputOptions,
    batch_size: BatchSize = None,
) -> None:
    """Show how many images a classifier decides rightly, in all and for each class.

    Examples:

        dlprune evaluate model.onnx --images photos/

        dlprune evaluate smaller.onnx --images test.npz --json
    """
    from ... import evaluation
    from ...evaluation import Contestant
    from ...imagefiles import ImagesError
    from ..advice import advise_on_chance
    from ..output import Output, percent
    from ..setup import labels_known, open_data, open_model, set_preprocessing, tell_assumed_size, tell_skipped

    output = Output(output_options)
    _, classifier = open_model(model, model_options, batch_size)
    classifier.require_classification("dlprune evaluate")
    tell_assumed_size(classifier, output)
    preprocessing = set_preprocessing(classifier, image_options)
    data = open_data(images, classifier, image_options.skip_bad, output)
    if not labels_known(data):
        raise ImagesError("The images have no classes: put them into one sub-folder per class, or give labels.")
    with output.progress("Testing", len(data)) as advance:
        found = evaluation.evaluate([Contestant(classifier, preprocessing)], data, progress=advance)
    tell_skipped(data, output)

    params = classifier.params
    table = found.confusion(params.class_ids)
    classes: list[dict[str, Any]] = []
    for i, (class_id, name) in enumerate(zip(params.class_ids, params.class_names, strict=True)):
        number, taken = int(table[i].sum()), int(table[:, i].sum())
        right = int(table[i, i])
        recall, precision = right / number if number else None, right / taken if taken else None
        classes.append(
            {"id": class_id, "name": name, "images": number, "right": right, "recall": recall, "precision": precision}
        )
    (accuracy,) = found.accuracies
    output.table(
        str(model),
        ["class", " id", " images", " right", " recall", " precision"],
        [
            (c["name"], c["id"], c["images"], c["right"], percent(c["recall"]), percent(c["precision"]))
            for c in classes
            if c["images"]
        ],
    )
    output.line(f"images: {len(found.indices)}")
    output.line(f"accuracy: {'unknown' if accuracy is None else f'{accuracy:.4f}'}")
    advise_on_chance(accuracy, len(found.indices), classifier.class_num, output)
    output.json(
        {
            "model": str(model),
            "images": len(found.indices),
            "accuracy": accuracy,
            "classes": classes,
            "confusion": table.tolist(),
            "skipped": {one.name: one.reason for one in data.skipped.values()},
        }
    )
