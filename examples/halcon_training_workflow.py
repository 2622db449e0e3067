"""HDevelop's whole classification workflow: prepare, prune, train, evaluate, convert, infer.

The steps and their names are those of HALCON's example programs for classification; what is called here is a procedure
or an operator of the same name there. Images (600 handwritten digits) and classifier come with the package; the images
are unpacked into a folder first, one sub-folder per class, as one's own would lie. Run it from anywhere::

    python examples/halcon_training_workflow.py [folder]
"""

import sys
import tempfile
from pathlib import Path

import dlprune as ha
from dlprune.demo import demo_images


def unpack_images(folder: Path) -> None:
    """Write the embedded images as PNG files into folders named like their classes."""
    images, labels = demo_images()
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        file = folder / f"digit {label}" / f"{number:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        ha.write_image(ha.himage_from_numpy_array(image), "png", 0, file)


def prepare(image_folder: Path, data_folder: Path, model: ha.HHandle) -> ha.HHandle:
    """Read the dataset, split it, and preprocess all images for the model."""
    dataset = ha.read_dl_dataset_classification(str(image_folder), "last_folder")
    ha.split_dl_dataset(dataset, 70, 15, [])
    ha.set_dl_model_param(model, "class_ids", ha.get_dict_tuple(dataset, "class_ids"))
    ha.set_dl_model_param(model, "class_names", ha.get_dict_tuple(dataset, "class_names"))
    param = ha.create_dl_preprocess_param_from_model(model, "none", "full_domain", [], [], [])
    gen_param = ha.create_dict()
    ha.set_dict_tuple(gen_param, "overwrite_files", "true")
    ha.preprocess_dl_dataset(dataset, str(data_folder), param, gen_param)
    return dataset


def samples_of(dataset: ha.HHandle, split: str) -> list[ha.HHandle]:
    """Return the preprocessed samples of a split."""
    numbers = ha.find_dl_samples(ha.get_dict_tuple(dataset, "samples"), "split", split, "match")
    return ha.read_dl_samples(dataset, numbers)


def prune(model: ha.HHandle, samples: list[ha.HHandle], percentage: float) -> ha.HHandle:
    """Score the kernels on samples and remove the weakest; training is to repair the rest."""
    batch_size = 30
    ha.set_dl_model_param(model, "batch_size", batch_size)
    pruning = ha.create_dl_pruning(model, "oracle", [])
    ha.set_dl_pruning_param(pruning, "percentage", percentage)
    ha.set_dl_pruning_param(pruning, "compensation", "none")  # dlprune's own repair, which needs no training
    for first in range(0, len(samples) - batch_size + 1, batch_size):
        ha.add_dl_pruning_batch(model, pruning, samples[first : first + batch_size])
    return ha.gen_dl_pruned_model(model, pruning)


def train(dataset: ha.HHandle, model: ha.HHandle, basename: Path) -> None:
    """Train for some epochs; the best model on the validation images is written to a file."""
    ha.set_dl_model_param(model, "solver_type", "adam")
    change = ha.from_python_dict(
        {"model_param": "learning_rate", "initial_value": 0.001, "epochs": [2], "values": [0.0003]}
    )
    serialize = ha.from_python_dict({"type": "best", "basename": str(basename)})
    augment = ha.from_python_dict({"augmentation_percentage": 50, "brightness_variation": 20})
    param = ha.create_dl_train_param(
        model, 3, 1, "true", 42, ["change", "serialize", "augment"], [change, serialize, augment]
    )
    ha.train_dl_model(dataset, model, param, 0)


def error_of(dataset: ha.HHandle, model: ha.HHandle) -> float:
    """Return the share of wrong decisions on the test images."""
    result, _ = ha.evaluate_dl_model(dataset, model, "split", "test", [])
    return float(ha.get_dict_tuple_s(ha.get_dict_tuple_s(result, "global"), "top1_error"))


def infer(model: ha.HHandle, image_file: Path) -> str:
    """Read an image, preprocess it and return the name of its class."""
    samples = ha.gen_dl_samples_from_images(ha.read_image(str(image_file)))
    param = ha.create_dl_preprocess_param_from_model(model, "none", "full_domain", [], [], [])
    ha.preprocess_dl_samples(samples, param)
    (result,) = ha.apply_dl_model(model, samples, [])
    return str(ha.get_dict_tuple(result, "classification_class_names")[0])


def main(folder: Path) -> None:
    """Run the workflow; everything that is written goes into the folder."""
    unpack_images(folder / "images")
    model = ha.read_dl_model(ha.demo_model_file())
    dataset = prepare(folder / "images", folder / "preprocessed", model)
    print(f"test error of the classifier: {error_of(dataset, model):.4f}")

    # 1. Smaller: 60 % of the removable kernels leave, and training brings the accuracy back.
    pruned = prune(model, samples_of(dataset, "train"), 60)
    print(f"test error after pruning: {error_of(dataset, pruned):.4f}")
    train(dataset, pruned, folder / "best")
    best = ha.read_dl_model(str(folder / "best.onnx"))
    print(f"test error after training: {error_of(dataset, best):.4f}")

    # 2. Faster on its device: eight-bit integers, calibrated on training images.
    device = ha.query_available_dl_devices_s("runtime", "cpu")
    small, report = ha.optimize_dl_model_for_inference(best, device, "int8", samples_of(dataset, "train")[:150], [])
    ha.write_dl_model(small, str(folder / "small.onnx"))
    small = ha.read_dl_model(str(folder / "small.onnx"))
    print(f"test error in int8: {error_of(dataset, small):.4f}")
    print(f"decided alike in float32 and int8: {ha.get_dict_tuple_s(report, 'agreement'):.4f}")

    # 3. Smaller on the disk, and ready for production.
    sizes = [
        Path(ha.demo_model_file()).stat().st_size,
        *((folder / f"{name}.onnx").stat().st_size for name in ("best", "small")),
    ]
    print(f"file sizes: {sizes[0]} -> {sizes[1]} -> {sizes[2]} bytes")
    image_file = sorted((folder / "images" / "digit 7").iterdir())[0]
    print(f"{image_file.parent.name} is taken for: {infer(small, image_file)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
