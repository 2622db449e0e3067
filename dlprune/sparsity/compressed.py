"""How small a model file becomes in a general-purpose compressor: what zeros in its weights are worth."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import H_ERR_FNF, HOperatorError
from ..onnxfile import files_of

_CHUNK: Final = 1 << 20
#: Bytes around the deflated data of a .gz file without a name, and of a .zip file beside the name, which comes twice.
_GZIP: Final = 18
_ZIP: Final = 30 + 46 + 22


@dataclass(frozen=True)
class CompressedSize:
    """Bytes of a model's files as they are, as .gz files, and as one .zip file."""

    plain: int
    gzip: int
    zip: int

    @property
    def ratio(self) -> float:
        """How many times smaller gzip makes them."""
        return self.plain / max(self.gzip, 1)


def compressed_size(path: str | os.PathLike[str]) -> CompressedSize:
    """Return the size of an ONNX file, with the files that its weights lie in, before and after compression.

    Parameters: `path` (of an .onnx file). Nothing is written; both formats hold the same data, deflated at level 9.
    Returns a CompressedSize. Raises HOperatorError 5200 if a file cannot be read.
    Source: get_gzipped_model_size in the tutorials of TFMOT.

    Example:
        >>> import dlprune as ha
        >>> size = compressed_size(ha.demo_model_file())
        >>> size.gzip < size.plain
        True
    """
    try:
        files = files_of(path)
        plain = sum(one.stat().st_size for one in files)
        deflated = {one: _deflated(one) for one in files}
    except Exception as error:
        raise HOperatorError(H_ERR_FNF, f"{os.fspath(path)!r} cannot be read: {error}.") from None
    names = sum(len(one.name.encode()) for one in files)
    total = sum(deflated.values())
    headers = _ZIP * len(files) - 22 * (len(files) - 1)
    return CompressedSize(plain, total + _GZIP * len(files), total + headers + 2 * names)


def _deflated(path: Path) -> int:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return sum(len(packer.compress(chunk)) for chunk in _chunks(path)) + len(packer.flush())


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
