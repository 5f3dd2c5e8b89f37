"""zstd for those who installed it, and a clear word for those who did not."""

from __future__ import annotations

import sys

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import Malformed
from headwater.store.compression import BODY_BYTES_MAX, compress, decompress, require


@given(st.binary(max_size=2000))
def test_what_is_compressed_comes_back(body: bytes) -> None:
    assert decompress(compress(body)) == body


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_value_error(frame: bytes) -> None:
    try:
        decompress(frame)
    except ValueError:
        pass


def test_a_damaged_frame_raises_nothing_but_value_error() -> None:
    frame = compress(b"so much air " * 50)
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            decompress(bytes(damaged))
        except ValueError:
            pass
    for length in range(len(frame)):
        with pytest.raises(ValueError):
            decompress(frame[:length])


def test_a_frame_states_the_length_of_its_content() -> None:
    assert zstandard.frame_content_size(compress(bytes(12345))) == 12345


def test_a_frame_that_does_not_state_its_length_is_refused() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    with pytest.raises(ValueError):
        decompress(frame)


def test_a_frame_that_says_it_is_too_large_is_refused_before_it_is_unpacked() -> None:
    # Magic, a descriptor for an 8-byte content size with a single segment, and the size.
    frame = b"\x28\xb5\x2f\xfd\xe0" + (BODY_BYTES_MAX + 1).to_bytes(8, "little")
    assert zstandard.frame_content_size(frame) == BODY_BYTES_MAX + 1
    with pytest.raises(ValueError, match=str(BODY_BYTES_MAX + 1)):
        decompress(frame)


def test_without_the_package_asking_for_zstd_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    require("none")
    with pytest.raises(Malformed, match=r"pip install 'headwater\[zstd\]'"):
        require("zstd")
