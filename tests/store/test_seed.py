"""The seed that a header was sealed with, from the header."""

from __future__ import annotations

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from headwater.store.batch import Seed, seed_of
from headwater.store.seed import crc_before, secret_with

CRCS = st.integers(0, 2**32 - 1)


@given(CRCS, st.binary(max_size=100))
def test_a_crc_runs_backwards(crc: int, data: bytes) -> None:
    assert crc_before(google_crc32c.extend(crc, data), data) == crc


@given(CRCS)
def test_there_are_bytes_for_every_seed(seed: int) -> None:
    secret = secret_with(Seed(seed))
    assert len(secret) == 8
    assert seed_of(secret) == seed
