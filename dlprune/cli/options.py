"""Options that several commands share, in bundles, so that the same thing has the same name everywhere.

A command that takes a parameter of one of the bundle types gets all the options of the bundle.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

_MODEL, _PREPROCESSING, _PRUNING, _OUTPUT = "Model", "Images", "Pruning", "Output"

ModelFile = Annotated[Path, typer.Argument(help="Classifier, an .onnx file.", metavar="MODEL", show_default=False)]
ImagesPath = Annotated[
    Path,
    typer.Option(
        "--images",
        metavar="DIR|NPZ|LIST",
        help="Labelled images: a folder with one sub-folder per class; an .npz archive with 'images' [N,H,W(,C)] and "
        "'labels'; or a list of lines 'path,class' (.csv, .tsv, .txt, .lst).",
        rich_help_panel=_PREPROCESSING,
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        min=1,
        help="Images per batch; 16 unless the file fixes it.",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]
Runs = Annotated[
    int | None,
    typer.Option(
        "--runs",
        min=0,
        help="Timed runs per model for the latency; 0 = do not measure. Default: about a second's worth.",
        rich_help_panel=_OUTPUT,
        show_default=False,
    ),
]
Seed = Annotated[
    int,
    typer.Option("--seed", min=0, help="Decides which images are held out.", rich_help_panel=_PREPROCESSING),
]


@dataclass(frozen=True)
class ModelOptions:
    """What a file may leave open."""

    size: Annotated[
        str,
        typer.Option(
            metavar="WIDTHxHEIGHT",
            help="Image size, where the file leaves it open.",
            rich_help_panel=_MODEL,
            show_default=False,
        ),
    ] = ""
    class_names: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help="Names of the classes, in the model's order; stored with a pruned model.",
            rich_help_panel=_MODEL,
            show_default=False,
        ),
    ] = ""
    class_output: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Output with the classes, where the model has several.",
            rich_help_panel=_MODEL,
            show_default=False,
        ),
    ] = ""


@dataclass(frozen=True)
class ImageOptions:
    """From pixels to numbers. Unset options keep what the model's metadata say."""

    range: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="MIN MAX",
            help="What black and white become. Default: the model's metadata, else −127 128.",
            rich_help_panel=_PREPROCESSING,
            show_default=False,
        ),
    ] = None
    mean: Annotated[
        str,
        typer.Option(
            metavar="M[,M,M]",
            help="Subtracted after that, one number or one per channel.",
            rich_help_panel=_PREPROCESSING,
            show_default=False,
        ),
    ] = ""
    std: Annotated[
        str,
        typer.Option(
            metavar="S[,S,S]",
            help="Divided by after that, one number or one per channel.",
            rich_help_panel=_PREPROCESSING,
            show_default=False,
        ),
    ] = ""
    channel_order: Annotated[
        Literal["rgb", "bgr"] | None,
        typer.Option(
            "--channels",
            help="Order of the colour channels. Default: rgb.",
            rich_help_panel=_PREPROCESSING,
            show_default=False,
        ),
    ] = None
    fit: Annotated[
        Literal["stretch", "crop", "pad", "pad-end", "line"] | None,
        typer.Option(
            help="How images get the right size: stretched; scaled and cropped in the middle; scaled to fit in, "
            "centred (pad) or at the upper left (pad-end); scaled to the height, squeezed if too wide, padded on the "
            "right (line, for text). Default: stretch.",
            rich_help_panel=_PREPROCESSING,
            show_default=False,
        ),
    ] = None
    resize: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="PIXELS",
            help="With --fit crop: scale the shorter side to this first. Default: just enough.",
            rich_help_panel=_PREPROCESSING,
            show_default=False,
        ),
    ] = None
    pad_value: Annotated[
        float | None,
        typer.Option(
            metavar="GREY",
            help="With --fit pad, pad-end, line: grey value around the image. Default: 0.",
            rich_help_panel=_PREPROCESSING,
            show_default=False,
        ),
    ] = None
    white: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="GREY",
            help="Grey value of white, e.g. 4095 for 12 bits. Default: 255, or 65535 for 16-bit images; floating-point "
            "images count as preprocessed.",
            rich_help_panel=_PREPROCESSING,
            show_default=False,
        ),
    ] = None
    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad",
            help="Leave out images that cannot be read, instead of stopping.",
            rich_help_panel=_PREPROCESSING,
        ),
    ] = False


@dataclass(frozen=True)
class PruningOptions:
    """How kernels are chosen and what makes up for them: parameters of set_dl_pruning_param."""

    mode: Annotated[
        str,
        typer.Option(help="How kernels are scored, as in create_dl_pruning.", rich_help_panel=_PRUNING),
    ] = "oracle"
    compensation: Annotated[
        Literal["least_squares", "bias", "none"],
        typer.Option(
            help="What makes up for removed kernels: the layers that read them are refitted on images, or only their "
            "biases are, or nothing.",
            rich_help_panel=_PRUNING,
        ),
    ] = "least_squares"
    selection: Annotated[
        Literal["auto", "reconstruction", "score"],
        typer.Option(
            help="What decides: the score and the error that a refit leaves, or the score alone. auto: the former "
            "unless --compensation none.",
            rich_help_panel=_PRUNING,
        ),
    ] = "auto"
    normalization: Annotated[
        Literal["sqrt_mean", "mean", "l2", "none"],
        typer.Option(help="How scores of different layers are compared.", rich_help_panel=_PRUNING),
    ] = "sqrt_mean"
    max_layer_percentage: Annotated[
        float | None,
        typer.Option(
            "--max-layer",
            metavar="PERCENT",
            min=0,
            max=100,
            help="No group of coupled layers loses more of its kernels. Default: percentage + 20 where the score alone "
            "decides, else 100.",
            rich_help_panel=_PRUNING,
            show_default=False,
        ),
    ] = None
    step_percentage: Annotated[
        float,
        typer.Option(
            "--step",
            metavar="PERCENT",
            min=0.01,
            max=100,
            help="With compensation: remove so much at a time, then score again.",
            rich_help_panel=_PRUNING,
        ),
    ] = 10
    calibration_image_num: Annotated[
        int,
        typer.Option(
            "--calibration-images",
            metavar="NUMBER",
            min=1,
            help="With compensation: images to refit on; they stay in memory.",
            rich_help_panel=_PRUNING,
        ),
    ] = 256

    kernel_multiple: Annotated[
        int,
        typer.Option(
            "--multiple",
            metavar="NUMBER",
            min=1,
            help="Leave layers with multiples of so many kernels; 8 or 16 suit most processors.",
            rich_help_panel=_PRUNING,
        ),
    ] = 1
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME=VALUE",
            help="Any other parameter of set_dl_pruning_param; may be given several times.",
            rich_help_panel=_PRUNING,
            show_default=False,
        ),
    ] = None

    def settings(self, percentage: float) -> dict[str, str | float]:
        """Return the parameters for create_dl_pruning but the mode. Raises typer.BadParameter."""
        values = dataclasses.asdict(self)
        del values["mode"], values["parameters"]
        if self.max_layer_percentage is None:
            values["max_layer_percentage"] = "auto"
        others = dict(_assignment(text) for text in self.parameters or ())
        return {"percentage": percentage, **values, **others}


@dataclass(frozen=True)
class OutputOptions:
    """What is printed."""

    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of tables.", rich_help_panel=_OUTPUT)
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.", rich_help_panel=_OUTPUT)] = (
        False
    )


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


def with_bundles(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with every parameter whose type is a dataclass replaced by one option per field."""
    hints = get_type_hints(command, include_extras=True)
    bundles: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            bundles[parameter.name] = kind
            parameters.extend(_field_parameters(kind))
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name]))

    def run(**given: Any) -> None:
        for name, kind in bundles.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind)})
        command(**given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _field_parameters(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(kind)
    ]
