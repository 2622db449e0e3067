"""The command line in tests: inside this process, or in one of its own that is stopped at a chosen moment."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from models import plain, saved
from typer.testing import CliRunner, Result

from dlprune.cli.app import app

#: Calls of a function are counted; after one of them the process says so and waits for its input to end.
_STOPPING = """
import importlib, sys
from dlprune.cli import main
module, _, name = sys.argv[1].partition(":")
module, calls, done = importlib.import_module(module), int(sys.argv[2]), 0
function = getattr(module, name)
def counted(*arguments, **options):
    global done
    result = function(*arguments, **options)
    done += 1
    if done == calls:
        print("here", flush=True)
        sys.stdin.read()
    return result
setattr(module, name, counted)
sys.argv[1:] = sys.argv[3:]
main()
"""


def run(*arguments: object, code: int = 0) -> Result:
    """Run a command that must end with `code`; an exception that is no exit is raised."""
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def as_json(*arguments: object) -> dict[str, Any]:
    """Run a command and return what it tells with --json."""
    found: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return found


def stopped(
    *arguments: object, function: str, calls: int, number: signal.Signals = signal.SIGINT, before: str = ""
) -> tuple[int, str]:
    """Run a command in a process that gets a signal during a call; return its exit code and what it wrote to stderr.

    Args:
        arguments: the command line.
        function: 'module:name' of the function whose calls count.
        calls: which call it is.
        number: the signal.
        before: Python code that the process runs first.
    """
    command = [sys.executable, "-c", before + _STOPPING, function, str(calls), *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        found = process.stdout.readline()
        process.send_signal(number)
        _, text = process.communicate(timeout=120)
    assert found == "here\n", f"it did not get there: {text}"
    return process.returncode, text


def bright_images(folder: Path) -> tuple[str, Path]:
    """Write a model with random weights, and ninety images of which each class has its own brightness."""
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    images = np.clip(rng.normal(60 + 60 * labels[:, None, None], 15, (90, 8, 8)), 0, 255).astype(np.uint8)
    np.savez(folder / "images.npz", images=images, labels=labels)
    return small_model(folder), folder / "images.npz"


def small_model(folder: Path) -> str:
    """Write a classifier of grey images of 8x8 pixels in three classes, with random weights."""
    return saved(plain(channels=1, size=8, classes=3), folder / "model.onnx")
