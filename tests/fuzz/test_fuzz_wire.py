"""The wire under bytes that nobody meant: by hypothesis always, by atheris for a minute in `make soak`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import fuzz_wire
from fuzz.wire_input import READERS, check
from headwater.wire.frame import Kind, pack
from headwater.wire.operations import REPLIES
from wire.vectors import read_vectors

SEEDS = [vector.data for vector in read_vectors()]
SECONDS = 60

# MessagePack that means something here: names of requests and of fields, numbers at the edges, lengths that lie.
WORDS = sorted({name for request in REPLIES for name in (request.__name__, *request.__struct_fields__)} | {"do"})
NAMES = [bytes((0xA0 + len(word),)) + word.encode() for word in WORDS if len(word) < 32]
EDGES = (
    "c0 c2 c3 00 7f ff 80 81 85 90 91 92 c400 a1ff d6ff00000000 db0000000178 "
    "cfffffffffffffffff d38000000000000000 cb7ff8000000000000 cb7ff0000000000000 ddffffffff dfffffffff c6ffffffff"
)
TOKENS = st.sampled_from(NAMES) | st.sampled_from([bytes.fromhex(edge) for edge in EDGES.split()])
PAYLOADS = st.binary(max_size=100) | st.lists(TOKENS, max_size=16).map(b"".join)
FRAMES = st.builds(
    pack, st.sampled_from(Kind), st.integers(0, 2**32 - 1), PAYLOADS, st.integers(0, 3) | st.integers(0, 255)
)


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """A vector with some of its bytes overwritten, taken out or put in."""
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = at + draw(st.integers(0, 4))
        data[at:end] = draw(st.binary(max_size=4))
    return bytes(data)


INPUTS = st.lists(FRAMES | st.sampled_from(SEEDS) | changed() | st.binary(max_size=40), max_size=5).map(b"".join)


def test_every_kind_of_frame_is_read() -> None:
    assert READERS.keys() == set(Kind)


@pytest.mark.parametrize("step", range(32))
def test_the_seeds_pass(step: int) -> None:
    for seed in SEEDS:
        check(bytes((step,)) + seed)
    check(bytes((step,)) + b"".join(SEEDS))


@settings(max_examples=500)
@given(st.binary(min_size=1, max_size=1), INPUTS)
def test_whatever_comes_the_wire_keeps_its_promises(step: bytes, data: bytes) -> None:
    check(step + data)


def test_the_target_makes_its_seeds_without_atheris(tmp_path: Path) -> None:
    assert fuzz_wire.write_seeds(tmp_path) == len(list(tmp_path.iterdir())) == len(SEEDS) + 1


@pytest.mark.soak
@settings(max_examples=10_000, deadline=None)
@given(st.binary(min_size=1, max_size=1), INPUTS)
def test_whatever_comes_for_long_the_wire_keeps_its_promises(step: bytes, data: bytes) -> None:
    check(step + data)


@pytest.mark.soak
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed: pip install atheris")
def test_atheris_finds_nothing_in_a_minute(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, fuzz_wire.__file__, f"-max_total_time={SECONDS}", "-timeout=10", "-rss_limit_mb=1024"],
        capture_output=True,
        text=True,
        cwd=tmp_path,  # where libFuzzer leaves what it found
        timeout=SECONDS * 3,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
