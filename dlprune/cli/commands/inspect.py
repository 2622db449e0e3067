"""`dlprune inspect`."""

from __future__ import annotations

from ..options import ModelFile, ModelOptions, OutputOptions


def inspect(model: ModelFile, model_options: ModelOptions, output_options: OutputOptions) -> None:
    """Show which convolutions can lose kernels, which are coupled, and why others cannot.

    Layers with the same group number share their channels: their kernels only leave together.

    Examples:

        dlprune inspect model.onnx

        dlprune inspect text_direction.onnx --size 192x48 --json
    """
    import numpy as np

    from ...analysis import analysis_of
    from ...cost import cost_of, file_size
    from ...nodes import label
    from ...pruningdata import PruningData
    from ...quantised import quantised_node
    from ...selection import removable_kernels
    from ...structure import FIXED
    from ...summary import precision, trainable_parameters
    from ..output import Output, number
    from ..setup import open_model, tell_assumed_size

    output = Output(output_options)
    _, classifier = open_model(model, model_options)
    classifier.require_classification("dlprune inspect")
    found = analysis_of(classifier)
    structure = found.structure
    cost = cost_of(classifier)
    macs = {layer.name: round(layer.macs) for layer in cost.layers}

    members: dict[int, list[str]] = {}
    layers = []
    for layer in structure.layers:
        units = np.unique(layer.units[layer.units != FIXED])
        group = int(structure.groups[units[0]]) if len(units) and not layer.reason else None
        if group is not None:
            members.setdefault(group, []).append(layer.name)
        layers.append(
            {
                "name": layer.name,
                "kernels": layer.kernel_num,
                "prunable": not layer.reason,
                "reason": layer.reason,
                "free_kernels": 0 if layer.reason else int(np.count_nonzero(layer.units != FIXED)),
                "units": 0 if layer.reason else len(units),
                "group": group,
                "macs": macs.get(layer.name),
            }
        )
    numbers = {group: i for i, group in enumerate((g for g, names in members.items() if len(names) > 1), 1)}
    for one in layers:
        one["group"] = numbers.get(one["group"])  # type: ignore[call-overload]
    image = classifier.image
    assert image is not None
    quantised = quantised_node(classifier.model)
    totals: dict[str, object] = {
        "type": classifier.params.type,
        "input": f"{image.name} {list(classifier.input_shape())} {image.layout}",
        "size_assumed": classifier.size_assumed,
        "batch": image.batch or "open",
        "classes": classifier.class_num,
        "precision": precision(classifier.model),
        "quantised": quantised is not None,
        "opset": classifier.model.opset_imports.get("", 0),
        "convolutions": len(structure.layers),
        "prunable_convolutions": sum(not layer.reason for layer in structure.layers),
        "coupled_groups": len(numbers),
        "kernels": cost.kernels,
        "prunable_kernel_num": removable_kernels(structure),
        "prunable_feature_num": PruningData.of(found).prunable_feature_num,
        "parameters": cost.parameters,
        "trainable_parameters": trainable_parameters(classifier.model),
        "macs": cost.macs,
        "file_size": file_size(model),
    }
    tell_assumed_size(classifier, output)
    if quantised is not None:
        output.note(
            f"This model is quantised ({label(quantised)}) and cannot be pruned. Prune the model of floating-point "
            "numbers that it was made from, then quantise the pruned one."
        )
    output.table(
        str(model),
        ["convolution", " kernels", " MACs", "prunable", " units", " group"],
        [
            (
                one["name"],
                one["kernels"],
                one["macs"],
                "yes" if one["prunable"] else f"no: {one['reason']}",
                one["units"] or None,
                one["group"],
            )
            for one in layers
        ],
    )
    for name, value in totals.items():
        shown = ("yes" if value else "no") if isinstance(value, bool) else value
        output.line(f"{name}: {number(value) if isinstance(value, int) and value >= 10_000 else shown}")
    output.json({"model": str(model), **totals, "layers": layers})
