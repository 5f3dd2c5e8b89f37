"""The packets of MQTT under bytes that nobody meant: by hypothesis always, by atheris for a minute in `make soak`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import fuzz_mqtt
from fuzz.mqtt_input import check
from headwater.mqtt.fields import text_bytes, variable_bytes
from headwater.mqtt.properties import PROPERTIES
from mqtt.vectors import VECTORS

SEEDS = [bytes.fromhex(vector[3]) for vector in VECTORS]
SECONDS = 60

# Bytes that mean something here: texts, property identifiers, lengths that lie, numbers at the edges.
TOKENS = st.sampled_from(
    [
        *map(text_bytes, ("MQTT", "MQIsdp", "", "a", "a/b", "+", "#", "$share/g/a", "\ufeff")),
        *(bytes((row.id,)) for row in PROPERTIES),
        *map(bytes.fromhex, ("00 01 02 04 05 7f 80 ff 0000 0001 ffff 8000 ffffff7f ffffffff 00000000 0001ff".split())),
    ]
)
BODIES = st.lists(TOKENS, max_size=14).map(b"".join) | st.binary(max_size=40)
PACKETS = st.builds(lambda first, body: bytes((first,)) + variable_bytes(len(body)) + body, st.integers(0, 255), BODIES)


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """An example with some of its bytes overwritten, taken out or put in."""
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(data)


INPUTS = st.lists(PACKETS | st.sampled_from(SEEDS) | changed() | st.binary(max_size=30), max_size=5).map(b"".join)


@pytest.mark.parametrize("step", [0, 1, 6, 31])
def test_the_seeds_pass(step: int) -> None:
    for seed in SEEDS:
        check(bytes((step,)) + seed)
    check(bytes((step,)) + b"".join(SEEDS))


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=1, max_size=1), INPUTS)
def test_whatever_comes_the_reader_keeps_its_promises(step: bytes, data: bytes) -> None:
    check(step + data)


def test_the_target_makes_its_seeds_without_atheris(tmp_path: Path) -> None:
    assert fuzz_mqtt.write_seeds(tmp_path) == len(list(tmp_path.iterdir())) == len(SEEDS) + 1


@pytest.mark.soak
@settings(max_examples=10_000, deadline=None)
@given(st.binary(min_size=1, max_size=1), INPUTS)
def test_whatever_comes_for_long_the_reader_keeps_its_promises(step: bytes, data: bytes) -> None:
    check(step + data)


@pytest.mark.soak
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed: pip install atheris")
def test_atheris_finds_nothing_in_a_minute(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, fuzz_mqtt.__file__, f"-max_total_time={SECONDS}", "-timeout=10", "-rss_limit_mb=1024"],
        capture_output=True,
        text=True,
        cwd=tmp_path,  # where libFuzzer leaves what it found
        timeout=SECONDS * 3,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
