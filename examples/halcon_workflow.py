"""Prune a classifier as a HALCON script does: of a HALCON Python script only the import line changes.

    import halcon as ha   ->   import dlprune as ha

The classifier (ten handwritten digits, 16×16 grey images) and its images come with the package. Run it from anywhere::

    python examples/halcon_workflow.py [pruned_model.onnx]
"""

import sys
from importlib.resources import files

import numpy as np

import dlprune as ha

DATA = files("dlprune") / "data"


def read_samples(part: str) -> list[ha.HHandle]:
    """Make one DLSample dictionary for each embedded image; ``part`` is 'calibration' or 'test'."""
    digits = np.load(str(DATA / "digits.npz"))
    samples = []
    for image, label in zip(digits[f"{part}_images"], digits[f"{part}_labels"], strict=True):
        # What preprocess_dl_samples does: real-valued grey values in the range −127…128.
        image_preprocessed = ha.himage_from_numpy_array(image.astype(np.float32) - 127)
        sample = ha.create_dict()
        ha.set_dict_object(image_preprocessed, sample, "image")
        ha.set_dict_tuple(sample, "image_label_id", int(label))
        samples.append(sample)
    return samples


def evaluate(model: ha.HHandle, samples: list[ha.HHandle]) -> float:
    """Return the share of samples whose best class is their label."""
    results = ha.apply_dl_model(model, samples, [])
    hits = 0
    for sample, result in zip(samples, results, strict=True):
        best_class = ha.get_dict_tuple(result, "classification_class_ids")[0]
        hits += best_class == ha.get_dict_tuple_s(sample, "image_label_id")
    return hits / len(samples)


def main(pruned_file: str, percentage: float = 20) -> None:
    """Score, prune, write, read again and compare."""
    model = ha.read_dl_model(str(DATA / "digits.onnx"))
    batch_size = 50
    ha.set_dl_model_param(model, "batch_size", batch_size)

    # 1. A pruning handle for this model.
    pruning = ha.create_dl_pruning(model, "oracle", [])
    for layer_name in ha.get_dl_pruning_param(pruning, "prunable_conv_layer_name"):
        print(f"prunable: {layer_name}")

    # 2. Activations and gradients of labelled images tell what every kernel is worth.
    calibration = read_samples("calibration")
    for start in range(0, len(calibration), batch_size):
        ha.add_dl_pruning_batch(model, pruning, calibration[start : start + batch_size])

    # 3. How much is to go, and the smaller model.
    ha.set_dl_pruning_param(pruning, "percentage", percentage)
    pruned = ha.gen_dl_pruned_model(model, pruning)
    for name in ("prunable_conv_num", "prunable_kernel_num", "pruned_kernel_num", "pruned_percentage"):
        print(f"{name}: {ha.get_dl_pruning_param_s(pruning, name)}")

    # 4. The result is a model like any other.
    ha.write_dl_model(pruned, pruned_file)
    pruned = ha.read_dl_model(pruned_file)
    test = read_samples("test")
    for title, candidate in (("before", model), ("after", pruned)):
        parameters = ha.get_dl_model_param_s(candidate, "num_trainable_params")
        print(f"{title}: accuracy {evaluate(candidate, test):.4f}, {parameters} trainable parameters")
    ha.clear_handle([model, pruning, pruned])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "digits_pruned.onnx")
