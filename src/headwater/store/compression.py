"""zstd, for those who installed it: `pip install 'headwater[zstd]'`."""

from __future__ import annotations

import importlib
from typing import Any

from headwater.errors import Malformed

BODY_BYTES_MAX = 1 << 30
"""A frame that says it holds more than this is refused before any of it is unpacked."""
FRAME_HEADER_BYTES_MAX = 18
"""Of fewer bytes, nothing is told."""


def compress(body: bytes) -> bytes:
    """A zstd frame that states its content's length."""
    frame: bytes = _zstandard().ZstdCompressor(level=1).compress(body)
    return frame


def decompress(frame: bytes) -> bytes:
    """The content of a frame; ValueError if it is damaged or too large."""
    zstandard = _zstandard()
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= BODY_BYTES_MAX:
            raise ValueError(f"a frame of {size} bytes")
        body: bytes = zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return body


def decompress_start(frame: bytes, length: int) -> bytes:
    """The beginning of the content of a frame of which the beginning is there: so many bytes, or as many as there are
    in its whole blocks; ValueError if it is damaged or too large."""
    if len(frame) < FRAME_HEADER_BYTES_MAX:
        return b""
    zstandard = _zstandard()
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= BODY_BYTES_MAX:
            raise ValueError(f"a frame of {size} bytes")
        start: bytes = zstandard.ZstdDecompressor().stream_reader(frame).read(min(length, size))
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return start


def require(compression: str) -> None:
    """Fail at opening rather than at the first message."""
    if compression == "zstd":
        _zstandard()


def _zstandard() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise Malformed("zstd batches need an extra package; install it with: pip install 'headwater[zstd]'") from error
