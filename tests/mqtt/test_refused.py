"""Messages that were not stored: each is counted, and a client has so many lines in a minute."""

from __future__ import annotations

import pytest

from headwater.clock import ManualClock
from headwater.counts import Counts
from headwater.errors import NotAllowed, QuotaExceeded
from headwater.mqtt import refused
from headwater.mqtt.refused import Refused
from headwater.server.log import Log


def test_a_client_has_so_many_lines_a_minute_and_the_next_says_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused, "log", Log("headwater.mqtt"))
    monkeypatch.setattr(refused, "TRACKED_MAX", 3)
    clock, counts = ManualClock(), Counts()
    them = Refused(clock, counts, 2)
    for _ in range(5):
        them.closed("ann", "s", "127.0.0.1", QuotaExceeded("too many"))
    them.dropped("bob", "s", NotAllowed("no"), 3)
    clock.advance(30)
    them.dropped("ann", "s", NotAllowed("no"))
    them.will("ann", "s", NotAllowed("no"))
    lines = [(one.event, one.fields["user"], one.fields.get("left_out")) for one in caplog.records]  # type: ignore[attr-defined]
    assert lines == [
        ("publish-refused", "ann", None),
        ("publish-refused", "ann", None),
        ("publish-dropped", "bob", None),
        ("publish-dropped", "ann", 3),
    ]
    assert (counts.refused, counts.unstored) == (5, 5)
    for place in range(10):
        for _ in range(3):
            them.dropped(f"user-{place}", "s", NotAllowed("no"))
    assert len(them._left_out) == 3
