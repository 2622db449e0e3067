"""The commands under one roof, and what errors look like there."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

import dlprune

from ..errors import HError, HOperatorError
from .bundles import with_bundles
from .commands.compare import compare
from .commands.demo import demo
from .commands.doctor import doctor
from .commands.evaluate import evaluate
from .commands.finetune import finetune
from .commands.inspect import inspect
from .commands.prune import prune
from .commands.sensitivity import sensitivity
from .commands.sparsify import sparsify
from .commands.sweep import sweep
from .exits import ERROR, INTERRUPTED, OK, USAGE, StoppedError

_HELP = """
Prune image classifiers in ONNX files: remove the convolution kernels that matter least.

Exit codes: 0 done; 1 a model, file, image or operator says no; 2 wrong command line; 130 interrupted. With --json an
error is one JSON object on stderr, {"error": {"message", "code", "exit_code"}}, with HALCON's code where there is one.
"""
#: What Typer raises for wrong command lines; older versions have it from Click, newer ones bring their own.
_UsageError: Final[Any] = typer.BadParameter.__base__


class Commands(TyperGroup):
    """Runs a command; errors made on purpose become one line, or one JSON object, on stderr and an exit code."""

    _as_json = False

    def main(self, args: Sequence[str] | None = None, *others: Any, **more: Any) -> Any:
        """Run the command line `args`."""
        # Wrong options are found before anybody has read the right ones.
        self._as_json = "--json" in (sys.argv[1:] if args is None else args)
        return super().main(args, *others, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that `ctx` asks for."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except StoppedError as interruption:
            self._fail(str(interruption), interruption.exit_code)
        except KeyboardInterrupt:
            self._fail("Interrupted.", INTERRUPTED)
        except BrokenPipeError:  # nobody reads on, as after `| head`; what is still to be printed goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(OK) from None
        except HError as error:
            code = error.error_code if isinstance(error, HOperatorError) else None
            self._fail(str(error), ERROR, f"Error{'' if code is None else f' {code}'}: ", code)
        except _UsageError as error:
            if not self._as_json:
                raise
            self._fail(error.format_message(), USAGE)

    def _fail(self, message: str, exit_code: int, prefix: str = "", code: int | None = None) -> NoReturn:
        entries = {"message": message, "code": code, "exit_code": exit_code}
        typer.echo(json.dumps({"error": entries}, ensure_ascii=False) if self._as_json else prefix + message, err=True)
        raise typer.Exit(exit_code) from None


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


for command in (demo, inspect, prune, sweep, sensitivity, finetune, sparsify, evaluate, compare, doctor):
    app.command()(with_bundles(command))
