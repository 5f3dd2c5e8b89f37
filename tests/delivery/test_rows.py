"""Rows on their way to the state: what is owed after a failure is written first, and once."""

from __future__ import annotations

import pytest

from faults.faulty_state import FaultyState
from headwater.delivery.rows import RowCommit
from headwater.errors import HeadwaterError, Unwritable


def test_what_is_owed_is_written_once_the_state_is_mended_and_never_again() -> None:
    state = FaultyState()
    troubles: list[str] = []
    commit = RowCommit(state, troubles.append)
    state.fail_sync_at = 1
    with pytest.raises(HeadwaterError):
        commit.drive(commit.enqueue({b"acked": b"1"}))
    with pytest.raises(Unwritable):
        commit.write({b"asked": b"1"})
    assert commit.is_owing
    assert not commit.resume()
    state.mends = True
    assert commit.resume()
    assert not commit.is_owing
    assert state.durable() == {b"acked": b"1"}
    state.commit({b"acked": None})  # by somebody else, as a batch that is applied does
    commit.write({b"later": b"1"})
    assert state.durable() == {b"later": b"1"}
    assert len(troubles) == 1
    commit.close()
