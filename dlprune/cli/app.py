"""The commands under one roof, and what errors look like there."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import dlprune
from dlprune.errors import HError, HOperatorError

from .commands.compare import compare
from .commands.demo import demo
from .commands.doctor import doctor
from .commands.evaluate import evaluate
from .commands.finetune import finetune
from .commands.inspect import inspect
from .commands.prune import prune
from .commands.sparsify import sparsify
from .exits import ERROR, IMAGES, INTERRUPTED, StoppedError
from .options import with_bundles

_HELP = """
Prune image classifiers in ONNX files: remove the convolution kernels that matter least.

Exit codes: 0 done; 1 a model, file or operator says no; 2 wrong command line; 3 unusable images; 130 interrupted.
"""


class Commands(TyperGroup):
    """Runs a command; errors made on purpose become one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that `ctx` asks for."""
        from dlprune.imagefiles import ImagesError

        try:
            return super().invoke(ctx)
        except StoppedError as interruption:
            typer.echo(str(interruption), err=True)
            raise typer.Exit(interruption.exit_code) from None
        except KeyboardInterrupt:
            typer.echo("Interrupted.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except HError as error:
            code = f" {error.error_code}" if isinstance(error, HOperatorError) else ""
            typer.echo(f"Error{code}: {error}", err=True)
            raise typer.Exit(IMAGES if isinstance(error, ImagesError) else ERROR) from None


app = typer.Typer(
    name="dlprune",
    cls=Commands,
    help=_HELP,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dlprune {dlprune.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    pass


for command in (demo, inspect, prune, finetune, sparsify, evaluate, compare, doctor):
    app.command()(with_bundles(command))
