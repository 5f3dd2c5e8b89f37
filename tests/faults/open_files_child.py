"""A bus in a process that may open few files; says on its last line, as JSON, what it met."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable

import headwater
from headwater.config import Config


def opened() -> int:
    return len(os.listdir("/dev/fd"))


def say(found: dict[str, object]) -> None:
    os.write(1, json.dumps(found).encode() + b"\n")


def groups(folder: str, roots: int) -> None:
    """Publish to many roots at once, in groups of some and of all; then die."""
    bus = headwater.open(folder)
    most = 0
    for number in range(2):
        for start in range(0, roots, 100):
            bus.publish_many([(f"r{root}/x", b"%d" % number) for root in range(start, min(roots, start + 100))])
            most = max(most, opened())
    bus.publish_many([(f"r{root}/x", b"all") for root in range(roots)])
    most = max(most, opened())
    say({"open_max": most, "kinds": [event.kind for event in bus.events()]})
    os.kill(os.getpid(), signal.SIGKILL)


def ballast(folder: str) -> None:
    """Leave no file to be opened; then let go."""
    config = Config(open_files_max=2, tail_bytes=0, tails_bytes=0)
    refused: dict[str, int] = {}
    retryable: set[bool] = set()

    def meet(name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except headwater.HeadwaterError as error:
            refused[name] = error.code
            retryable.add(error.retryable)

    with headwater.open(folder, config=config) as bus:
        bus.publish_many([(f"r{root}/x", b"one") for root in range(8)])
        sub = bus.subscribe("r0/#", id="s", start="earliest")
        for root in range(8):
            bus.publish(f"r{root}/x", b"two")
        bus.core.data.streams._pool.make_room()  # nothing of ours is open that could be closed
        bus.core.data.streams._pool.make_room()
        held = []
        while True:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        meet("publish", lambda: bus.publish("r1/x", b"?"))
        meet("publish_many", lambda: bus.publish_many([("r2/x", b"?"), ("r3/x", b"?")]))
        meet("create", lambda: bus.publish("fresh/x", b"?"))
        meet("replay", lambda: list(bus.replay("r5/#")))
        meet("next", lambda: sub.next(timeout_s=0))
        for number in held:
            os.close(number)
        bus.publish_many([(f"r{root}/x", b"three") for root in range(8)])
        bus.publish("fresh/x", b"three")
        assert [message.payload for message in bus.replay("fresh/#")] == [b"three"]
        after = [message.payload.decode() for message in (sub.next(timeout_s=5) for _ in range(3)) if message]
        for root in range(1, 8):
            assert [message.payload for message in bus.replay(f"r{root}/#")] == [b"one", b"two", b"three"], root
        failed = [stream.root for stream in bus.core.data.streams.all() if stream.failed is not None]
        kinds = [event.kind for event in bus.events()]
    say({"refused": refused, "retryable": sorted(retryable), "failed": failed, "kinds": kinds, "after": after})


if __name__ == "__main__":
    what, path, most, *others = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(most), int(most)))
    if what == "groups":
        groups(path, int(others[0]))
    else:
        ballast(path)
