"""Writing files so that nothing half-written ever remains."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Write `data` to `path` in one step: into a new file beside it, which then takes its place. Raises OSError."""
    target = Path(os.path.realpath(path))  # write through a link, do not replace it
    if os.path.isdir(target):
        raise IsADirectoryError(f"{os.fspath(path)!r} is a folder")
    temporary = target.with_name(f".dlprune-{secrets.token_hex(8)}.tmp")
    try:
        # "x" never overwrites, and unlike tempfile it gives the file the permissions that the user's umask asks for.
        with open(temporary, "xb") as stream:
            stream.write(data)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
