"""Health: whether the broker can do its work, and what to do if not.

Each check is of one thing without which messages are refused, acks are lost or nobody is let in. What happened once and
is over, such as a range of messages that was damaged and is quarantined, is told and fails nothing.
"""

from __future__ import annotations

from headwater.clock import SECOND_US
from headwater.config import Serving
from headwater.core import Core
from headwater.server.watch.pulse import Pulse
from headwater.wire.administration import Health as Answer
from headwater.wire.administration import HealthCheck

COMMIT_US_MAX = 10 * SECOND_US
"""A group that takes longer to be written waits for a disk that does not answer."""
TOLD_MAX = 3
"""Roots that a check names; the rest is a number."""


class Health:
    """Looks after a server; from any thread."""

    def __init__(self, core: Core, serving: Serving, pulse: Pulse) -> None:
        self._core = core
        self._serving = serving
        self._pulse = pulse

    def check(self) -> Answer:
        """Every check."""
        checks = (self._disk(), self._streams(), self._state(), self._access(), self._commits(), self._loop())
        return Answer(ok=all(check.ok for check in checks), checks=checks)

    def _disk(self) -> HealthCheck:
        free, least = self._core.roots.free_bytes(), self._core.config.disk_free_bytes_min
        if free < least:
            return _ailing(
                "disk",
                f"{free} bytes are free, and publishes are refused below {least} (disk_free_bytes_min): free some "
                "room, or let retention delete more",
            )
        return _well("disk", f"{free} bytes are free; publishes are refused below {least} (disk_free_bytes_min)")

    def _streams(self) -> HealthCheck:
        roots = self._core.roots.all()
        failed = [f'"{root.name}" ({root.stream.failed})' for root in roots if root.stream.failed is not None]
        if failed:
            return _ailing(
                "streams",
                f"{_some(failed)} cannot be written; what was acknowledged is safe: see to the disk, then start the "
                "server again",
            )
        holes = [
            f'{hole.first} to {hole.last} of "{root.name}" ({hole.reason})'
            for root in roots
            for hole in root.stream.holes
        ]
        if holes:
            return _well("streams", f"all can be written; messages are lost: {_some(holes)}; headwater verify has more")
        return _well("streams", f"all {len(roots)} can be written")

    def _state(self) -> HealthCheck:
        failed = self._core.state.failed
        if failed is not None:
            return _ailing(
                "state",
                f"{failed}: acks and changes are not stored, messages are safe; see to the disk (is it full?), the "
                "state is opened again by itself",
            )
        half_way = self._core.roots.checkpoints.half_way
        if half_way is not None:
            return _ailing(
                "state",
                f"{half_way}: what publishes change is not noted any more, messages are safe; see "
                "to the disk, then start the server again",
            )
        losses = self._core.losses
        if losses:
            return _well("state", f"acks and changes are stored; rows are lost: {_some(list(map(str, losses)))}")
        return _well("state", "acks and changes are stored")

    def _access(self) -> HealthCheck:
        closed = self._core.acl.closed
        if closed is None:
            return _well("access", "rules can be relied on")
        if not self._serving.methods:
            return _well("access", f"nobody is asked for rules; with authentication nobody would be let in: {closed}")
        return _ailing("access", f"nobody is let in: {closed}")

    def _commits(self) -> HealthCheck:
        if not self._core.roots.commit.is_alive:
            return _ailing("commits", "the thread that commits is gone; start the server again")
        roots, now_us = self._core.roots, self._core.clock.monotonic_us()
        began_us = (roots.committer.since_us, roots.committer.bulk_since_us, roots.new_roots.since_us)
        since = [since_us for since_us in began_us if since_us is not None]
        waited_us = now_us - min(since, default=now_us)
        if waited_us > COMMIT_US_MAX:
            return _ailing(
                "commits",
                f"a group has waited for the disk for {waited_us / SECOND_US:.0f} s; see whether the disk answers",
            )
        return _well("commits", "groups are committed")

    def _loop(self) -> HealthCheck:
        worst_s, most_s = self._pulse.worst_s, self._serving.loop_lag_s_max
        if worst_s > most_s:
            return _ailing(
                "loop",
                f"the event loop was held up for {worst_s:.2f} s, and {most_s:g} s is the most (loop_lag_s_max): give "
                "the server a faster machine or fewer clients",
            )
        return _well("loop", f"the event loop was never held up for longer than {worst_s * 1000:.0f} ms lately")


def _well(name: str, detail: str) -> HealthCheck:
    return HealthCheck(name=name, ok=True, detail=detail)


def _ailing(name: str, detail: str) -> HealthCheck:
    return HealthCheck(name=name, ok=False, detail=detail)


def _some(told: list[str]) -> str:
    more = len(told) - TOLD_MAX
    return ", ".join(told[:TOLD_MAX]) + (f" and {more} more" if more > 0 else "")
