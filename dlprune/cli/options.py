"""All options that more than one command takes, so that the same thing has the same name everywhere.

Single options are annotated types; a command that takes a parameter of one of the bundle types gets all its options.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

#: Options by the part of the help that they stand in; their default is told in words where it is no plain value.
model_option = partial(typer.Option, rich_help_panel="Model", show_default=False)
image_option = partial(typer.Option, rich_help_panel="Images", show_default=False)
pruning_option = partial(typer.Option, rich_help_panel="Pruning")
sparsity_option = partial(typer.Option, rich_help_panel="Sparsity")
training_option = partial(typer.Option, rich_help_panel="Training")
output_option = partial(typer.Option, rich_help_panel="Output")

_IMAGES: Final = "DIR|NPZ|LIST"

# --- Single options --------------------------------------------------------------------------------------------------

ModelFile = Annotated[Path, typer.Argument(help="Classifier, an .onnx file.", metavar="MODEL", show_default=False)]
ImagesPath = Annotated[
    Path,
    image_option(
        "--images",
        metavar=_IMAGES,
        help="Labelled images: a folder with one sub-folder per class; an .npz archive with 'images' [N,H,W(,C)] and "
        "'labels'; or a list of lines 'path,class' (.csv, .tsv, .txt, .lst).",
    ),
]
BatchSize = Annotated[
    int | None, model_option("--batch-size", min=1, help="Images per batch; 16 unless the file fixes it.")
]
OutFile = Annotated[Path, output_option("--out", "-o", metavar="FILE", help="The new model, an .onnx file.")]
Runs = Annotated[
    int | None,
    output_option(
        "--runs",
        min=0,
        help="Timed runs per model for the latency; 0 = do not measure. Default: about a second's worth.",
        show_default=False,
    ),
]
Resume = Annotated[
    Path | None,
    output_option(
        "--resume",
        metavar="STATE",
        help="Go on from the state that an interrupted run left; its last line names it.",
        show_default=False,
    ),
]
Criterion = Annotated[
    str, pruning_option("--criterion", "--mode", help="How kernels are scored: a mode of create_dl_pruning.")
]
Target = Annotated[
    Literal["kernels", "macs", "params", "latency", "accuracy_drop"],
    pruning_option("--target", help="What the percentage is a percentage of; accuracy_drop: points that may be lost."),
]
Percentage = Annotated[
    float,
    pruning_option(
        "--percentage",
        "-p",
        min=0,
        max=100,
        help="Share of the removable kernels (see --target) to remove, never more.",
    ),
]
Percentages = Annotated[str, pruning_option("--percentages", metavar="P,P,…", help="Shares to remove, never more.")]
FinetuneEpochs = Annotated[
    int,
    training_option(
        "--finetune-epochs", min=0, help="Train so many epochs after kernels have left, with the scored images."
    ),
]
Epochs = Annotated[int, training_option("--epochs", min=1, help="Passes over the images.")]
Distill = Annotated[bool, training_option("--distill", help="Training also imitates the answers of the model given.")]

# --- Bundles ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelOptions:
    """What a file may leave open."""

    size: Annotated[str, model_option(metavar="WIDTHxHEIGHT", help="Image size, where the file leaves it open.")] = ""
    class_names: Annotated[
        str,
        model_option(metavar="A,B,…", help="Names of the classes, in the model's order; stored with a new model."),
    ] = ""
    class_output: Annotated[
        str, model_option(metavar="NAME", help="Output with the classes, where the model has several.")
    ] = ""


@dataclass(frozen=True)
class ImageOptions:
    """From pixels to numbers. Unset options keep what the model's metadata say."""

    range: Annotated[
        tuple[float, float] | None,
        image_option(
            metavar="MIN MAX", help="What black and white become. Default: the model's metadata, else −127 128."
        ),
    ] = None
    mean: Annotated[
        str, image_option(metavar="M[,M,M]", help="Subtracted after that, one number or one per channel.")
    ] = ""
    std: Annotated[
        str, image_option(metavar="S[,S,S]", help="Divided by after that, one number or one per channel.")
    ] = ""
    channel_order: Annotated[
        Literal["rgb", "bgr"] | None,
        image_option("--channels", help="Order of the colour channels. Default: rgb."),
    ] = None
    fit: Annotated[
        Literal["stretch", "crop", "pad", "pad-end", "line"] | None,
        image_option(
            help="How images get the right size: stretched; scaled and cropped in the middle; scaled to fit in, "
            "centred (pad) or at the upper left (pad-end); scaled to the height, squeezed if too wide, padded on the "
            "right (line, for text). Default: stretch."
        ),
    ] = None
    resize: Annotated[
        int | None,
        image_option(
            min=1, metavar="PIXELS", help="With --fit crop: scale the shorter side to this first. Default: just enough."
        ),
    ] = None
    pad_value: Annotated[
        float | None,
        image_option(metavar="GREY", help="With --fit pad, pad-end, line: grey value around the image. Default: 0."),
    ] = None
    white: Annotated[
        float | None,
        image_option(
            metavar="GREY",
            help="Grey value of white, above 0, e.g. 4095 for 12 bits. Default: 255, or 65535 for 16-bit images; "
            "floating-point images count as preprocessed.",
        ),
    ] = None
    skip_bad: Annotated[
        bool, image_option("--skip-bad", help="Leave out images that cannot be read, instead of stopping.")
    ] = False


@dataclass(frozen=True)
class SplitOptions:
    """Which images show (or judge) the accuracy, and which ones are worked with."""

    test_images: Annotated[
        Path | None,
        image_option(
            "--test-images",
            metavar=_IMAGES,
            help="Images for the accuracy; where epochs are compared they decide. Default: a part of --images, which "
            "then serves for nothing else.",
        ),
    ] = None
    holdout: Annotated[
        float,
        image_option(
            min=0,
            max=100,
            help="Percent of --images, of each class, that are kept for the accuracy.",
            show_default=True,
        ),
    ] = 20
    seed: Annotated[
        int,
        image_option(min=0, help="Decides which images are held out, and their order in training.", show_default=True),
    ] = 0
    max_images: Annotated[
        int | None,
        image_option(min=1, help="Work with at most about so many of the others, of each class the same share."),
    ] = None


@dataclass(frozen=True)
class WorkOptions(SplitOptions, ImageOptions, ModelOptions):  # options come in the order of the last base first
    """All of these: for commands that work with some images and judge by others."""

    batch_size: BatchSize = None


@dataclass(frozen=True)
class PruningOptions:
    """How kernels are chosen and what makes up for them: parameters of set_dl_pruning_param."""

    compensation: Annotated[
        Literal["least_squares", "bias", "none"],
        pruning_option(
            help="What makes up for removed kernels: the layers that read them are refitted on images, or only their "
            "biases are, or nothing."
        ),
    ] = "least_squares"
    selection: Annotated[
        Literal["auto", "reconstruction", "score"],
        pruning_option(
            help="What decides: the score and the error that a refit leaves, or the score alone. auto: the former "
            "unless --compensation none."
        ),
    ] = "auto"
    normalization: Annotated[
        Literal["sqrt_mean", "mean", "l2", "none"],
        pruning_option(help="How scores of different layers are compared."),
    ] = "sqrt_mean"
    max_layer_percentage: Annotated[
        float | None,
        pruning_option(
            "--max-layer",
            metavar="PERCENT",
            min=0,
            max=100,
            help="No group of coupled layers loses more of its kernels. Default: percentage + 20 where the score alone "
            "decides, else 100.",
            show_default=False,
        ),
    ] = None
    step_percentage: Annotated[
        float,
        pruning_option(
            "--step",
            metavar="PERCENT",
            min=0.01,
            max=100,
            help="With compensation: remove so much of what is left at a time, then score again.",
        ),
    ] = 10
    calibration_image_num: Annotated[
        int,
        pruning_option(
            "--calibration-images",
            metavar="NUMBER",
            min=1,
            help="With compensation: images to refit on; they stay in memory.",
        ),
    ] = 256
    kernel_multiple: Annotated[
        str,
        pruning_option(
            "--multiple",
            metavar="NUMBER|auto",
            help="Leave layers with multiples of so many kernels; auto: what ONNX Runtime computes at once on this "
            "processor. Without, a smaller model may be slower. Default: 1; for the demo 8.",
            show_default=False,
        ),
    ] = ""
    parameters: Annotated[
        list[str] | None,
        pruning_option(
            "--param",
            metavar="NAME=VALUE",
            help="Any other parameter of set_dl_pruning_param; may be given several times.",
            show_default=False,
        ),
    ] = None

    def settings(self, multiple: str = "1") -> dict[str, str | float]:
        """Return the parameters for create_dl_pruning, `multiple` by default. Raises typer.BadParameter."""
        values = dataclasses.asdict(self)
        del values["parameters"]
        if self.max_layer_percentage is None:
            values["max_layer_percentage"] = "auto"
        values["kernel_multiple"] = _multiple(self.kernel_multiple or multiple)
        others = dict(_assignment(text) for text in self.parameters or ())
        return {**values, **others}


@dataclass(frozen=True)
class TrainingOptions:
    """How a model is trained; see finetune_dl_model."""

    solver: Annotated[Literal["adam", "sgd"], training_option(help="What steps are taken.")] = "adam"
    learning_rate: Annotated[
        float | None,
        training_option(
            help="The highest one. Where batch normalization is folded into convolutions, take a tenth. Default: "
            "0.001; for the demo 0.0003.",
            show_default=False,
        ),
    ] = None
    schedule: Annotated[
        Literal["cosine", "step", "constant"], training_option(help="How the learning rate goes down.")
    ] = "cosine"
    warmup: Annotated[float, training_option(min=0, metavar="EPOCHS", help="It rises at the beginning.")] = 1.0
    weight_prior: Annotated[float, training_option(min=0, help="Weight decay of kernels and matrices.")] = 0.0
    train_batch: Annotated[int, training_option("--train-batch", min=1, help="Images per step.")] = 32
    patience: Annotated[
        int | None,
        training_option(
            min=1,
            metavar="EPOCHS",
            help="Stop after so many epochs without improvement on the held-out images.",
            show_default=False,
        ),
    ] = None
    flip: Annotated[bool, training_option("--flip", help="Mirror half of the images left and right.")] = False
    shift: Annotated[
        float, training_option(min=0, max=100, metavar="PERCENT", help="Move images by up to so much.")
    ] = 0.0
    crop: Annotated[
        float, training_option(min=0, max=99, metavar="PERCENT", help="Cut off up to so much, enlarge the rest.")
    ] = 0.0
    brightness: Annotated[
        float, training_option(min=0, metavar="PERCENT", help="Lighten or darken by up to so much of the range.")
    ] = 0.0
    freeze: Annotated[
        str,
        training_option(
            metavar="A,B,…",
            help="Names of weights that stay as they are, also patterns such as 'stage1.*'.",
            show_default=False,
        ),
    ] = ""
    freeze_statistics: Annotated[
        bool, training_option("--freeze-statistics", help="Batch normalization keeps its running statistics.")
    ] = False
    temperature: Annotated[float, training_option(min=0.01, help="With a teacher: how much logits are softened.")] = 4.0
    distillation: Annotated[float, training_option(min=0, max=1, help="With a teacher: its share of the loss.")] = 0.5


@dataclass(frozen=True)
class SparsityOptions:
    """How many weights become zero and when; hyperparameters of get_pruning_hparams."""

    target_sparsity: Annotated[
        float, sparsity_option(min=0, help="Share of zeros in each weight at the end, below 1.")
    ] = 0.5
    initial_sparsity: Annotated[float, sparsity_option(min=0, help="Share of zeros at the begin, below 1.")] = 0.0
    m_by_n: Annotated[
        str,
        sparsity_option(
            "--m-by-n",
            metavar="M:N",
            help="Instead: M zeros in every N weights along the input channels, e.g. 2:4; from the first update on.",
            show_default=False,
        ),
    ] = ""
    begin: Annotated[int, sparsity_option(min=0, metavar="STEP", help="Step at which it begins.")] = 0
    end: Annotated[
        int | None,
        sparsity_option(
            min=1,
            metavar="STEP",
            help="Step at which the target is reached. Default: after three quarters of all steps.",
            show_default=False,
        ),
    ] = None
    frequency: Annotated[
        int | None,
        sparsity_option(
            min=1,
            metavar="STEPS",
            help="Steps from one update to the next. Default: for 20 updates up to the end.",
            show_default=False,
        ),
    ] = None
    exponent: Annotated[float, sparsity_option(min=0, help="1: linear; more: slower towards the end.")] = 3.0
    block: Annotated[
        str, sparsity_option(metavar="HxW", help="Weights that leave together: inputs x outputs, -1 for all.")
    ] = "1x1"
    pooling: Annotated[Literal["AVG", "MAX"], sparsity_option(help="What counts of a block.")] = "AVG"
    weight_map: Annotated[
        str,
        sparsity_option(
            metavar="NAME:X,…",
            help="Other targets of single weights, by names or regular expressions, e.g. 'conv1:0.9,last:0.2'.",
            show_default=False,
        ),
    ] = ""
    block_map: Annotated[
        str, sparsity_option(metavar="NAME:HxW,…", help="Other blocks of single weights.", show_default=False)
    ] = ""
    remove_empty_kernels: Annotated[
        bool, sparsity_option("--remove-empty-kernels", help="Kernels without a weight left leave.")
    ] = False
    sparse_storage: Annotated[
        bool,
        sparsity_option(
            "--sparse-storage",
            help="Store only the non-zero numbers where that is smaller; not every tool reads such files.",
        ),
    ] = False


@dataclass(frozen=True)
class ReportOptions:
    """What is written for people to look at."""

    report: Annotated[
        Path | None,
        output_option(
            metavar="FILE.html",
            help="Also write a page that shows all of it, and its numbers beside it (.json, .csv).",
            show_default=False,
        ),
    ] = None
    plots: Annotated[
        Path | None,
        output_option(
            metavar="DIR",
            help="Also write the figures as PNG files; needs the extra 'plots'.",
            show_default=False,
        ),
    ] = None

    @property
    def is_wanted(self) -> bool:
        """Whether anything is to be written."""
        return self.report is not None or self.plots is not None


@dataclass(frozen=True)
class OutputOptions:
    """What is printed."""

    json: Annotated[bool, output_option("--json", help="Print one JSON object instead of tables.")] = False
    quiet: Annotated[bool, output_option("--quiet", "-q", help="Print nothing but errors.")] = False


def names_of(text: str, option: str) -> list[str]:
    """Return the different entries of a list. Raises typer.BadParameter if there is none."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise typer.BadParameter("At least one is needed.", param_hint=option)
    return names


def numbers_of(text: str, option: str) -> list[float]:
    """Return a list of percentages. Raises typer.BadParameter."""
    try:
        shares = [float(name) for name in names_of(text, option)]
    except ValueError:
        shares = [-1.0]
    if not all(0 <= share <= 100 for share in shares):
        raise typer.BadParameter(f"{text!r} is no list of numbers in [0, 100].", param_hint=option)
    return shares


def _multiple(text: str) -> str | float:
    if text != "auto" and not (text.isdecimal() and int(text) > 0):
        raise typer.BadParameter(f"{text!r} is neither an integer of at least 1 nor auto.", param_hint="--multiple")
    return text if text == "auto" else int(text)


def _assignment(text: str) -> tuple[str, str | float]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} is not of the form NAME=VALUE.", param_hint="--param")
    for convert in (int, float):
        try:
            return name.strip(), convert(value)
        except ValueError:
            continue
    return name.strip(), value.strip()
