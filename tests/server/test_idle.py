"""Many connections that do nothing, beside one that works."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from server.harness import Running

IDLE = 5000
FILES_BESIDES = 500


@pytest.fixture
def room_for_connections() -> Iterator[None]:
    """Both ends of every connection are files of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * IDLE + FILES_BESIDES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"the system allows {hard} open files, and {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_five_thousand_idle_connections_disturb_nobody(room_for_connections: None) -> None:
    with Running(handshakes_max=IDLE) as running:
        idle = [running.peer(expire_after_s=0) for _ in range(IDLE)]
        for number, peer in enumerate(idle):
            peer.subscribe(1, f"idle/{number}", kind="live")
        busy = running.peer()
        busy.subscribe(1, "busy/#", kind="live")
        for number in range(200):
            busy.publish("busy/x", b"%d" % number)
        assert busy.payloads(1, 200) == [b"%d" % number for number in range(200)]
        idle[4321].subscribe(2, "busy/#", kind="live")
        busy.publish("busy/x", b"for all who listen")
        assert idle[4321].payloads(2, 1) == [b"for all who listen"]
        for peer in idle:
            peer.close()
        running.until(lambda: len(running.server.sessions) == 1, "the end of their sessions")
