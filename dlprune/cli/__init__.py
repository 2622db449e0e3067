"""The command line `dlprune`; needs the extra `cli`."""

from __future__ import annotations

import contextlib
import importlib.util
import sys

#: Packages as pip knows them, and the modules that they bring.
_NEEDED = {"typer": "typer", "rich": "rich", "pillow": "PIL"}


def main() -> None:
    """Run the command line; without the packages that it needs, say how to install them."""
    missing = [package for package, module in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        print(
            f"The command line needs the extra 'cli' (missing here: {', '.join(missing)}). Install it with:\n\n"
            "    pip install 'dlprune[cli]'\n",
            file=sys.stderr,
        )
        raise SystemExit(1)
    for stream in (sys.stdout, sys.stderr):
        # Old terminals lack some characters; a question mark is better than a traceback.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    from .app import app

    app()
