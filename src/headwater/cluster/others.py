"""The other nodes, as the one that leads sees them: how far each is, and up to where the stream is needed no more.

Every second all members are asked; the stream is trimmed below what every member has on disk. One that is so far behind
that the engine would have to keep more than `cluster_bytes_max` is marked in its row, before anything that it lacks is
trimmed: it takes a copy. The last other member is never marked: what the leader alone has on disk, the engine keeps.
Promises: no record is trimmed that a member which is not marked has yet to store, and of several members two have it;
an engine that has lost its stream, or the end of it, is noticed within seconds, though nobody publishes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgspec

from headwater import threads
from headwater.clock import SECOND_US, Clock
from headwater.cluster.engine import Engine, StreamLost
from headwater.cluster.follower import Beyond
from headwater.cluster.members import Member, Members, Report
from headwater.cluster.record import Position
from headwater.errors import HeadwaterError
from headwater.server.log import Log
from headwater.wire.administration import NodeStatus

EVERY_S = 1.0
TRIM_S = 5.0
MEMBERS_S = 10.0
"""How often nodes are asked, the stream is trimmed, and it is looked which members there are."""
GONE_S = 10.0
"""A node that has not answered for so long is told of as gone."""
TIMES_KEPT = 600
COPIES_MIN = 2
"""Of several nodes, so many have on disk what is trimmed: else the disk of one were all that is left of it."""
TRUST = 3
"""So many times the stream has to end too early: a server that is behind may have answered."""

log = Log("headwater.cluster.others")


class Trimming(NamedTuple):
    """What may be deleted of the stream, and who is marked for it, or no more."""

    upto: int
    """The last such record stays, for others to compare with."""
    too_far_behind: str
    has_copy: tuple[str, ...]
    waits_for: str = ""
    """Who would be marked, if anybody else had what it lacks."""


def trimming(
    node: str,
    members: Collection[str],
    synced: Mapping[str, int],
    marked: Collection[str],
    first: int,
    *,
    is_too_much: bool,
) -> Trimming:
    """What the leader may delete of a stream that begins at `first`: `synced` is up to where members have it on disk,
    as far as they have said, and nothing is kept for those that are `marked`. Where that `is_too_much`, who is
    furthest behind is to be marked first, unless this node were the only one left that is not."""
    has_copy = tuple(name for name in marked if name in synced and synced[name] + 1 >= first)
    needed = {name: synced.get(name, 0) for name in (*members, node) if name == node or name not in marked}
    slowest = min(needed, key=needed.__getitem__)
    too_far_behind = slowest if is_too_much and slowest != node and needed[slowest] < needed[node] else ""
    if too_far_behind and len(needed) <= COPIES_MIN:
        return Trimming(needed[slowest] - 1, "", has_copy, waits_for=slowest)
    if too_far_behind:
        del needed[slowest]
    return Trimming(min(needed.values()) - 1, too_far_behind, has_copy)


class Others:
    """What a leader knows of the other nodes; a thread asks them."""

    def __init__(
        self,
        engine: Engine,
        members: Members,
        clock: Clock,
        node: str,
        bytes_max: int,
        position: Callable[[], Position],
        synced: Callable[[], Position],
        on_fault: Callable[[HeadwaterError], None],
    ) -> None:
        """`position` and `synced` are where this node stands; `on_fault` hears of what the engine has lost."""
        self.members: dict[str, Member] = {}
        self.on_look: Callable[[], None] = lambda: None
        """Called whenever it was looked which members there are."""
        self._engine, self._directory, self._clock, self._node = engine, members, clock, node
        self._bytes_max = bytes_max
        self._position, self._synced, self._on_fault = position, synced, on_fault
        self._heard: dict[str, tuple[Report, int]] = {}
        """What each said last, and when that was, on the clock that never jumps."""
        self._times: deque[tuple[int, int]] = deque(maxlen=TIMES_KEPT)
        """Which record this node stood at, and when."""
        self._doubts = 0
        self._trimmed = 0
        self._is_stopped = False
        self._work = threads.Condition()
        self._thread = threads.Thread(target=self._run, name="headwater-others", daemon=True)

    def start(self) -> None:
        """Ask from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        with self._work:
            self._is_stopped = True
            self._work.notify()
        if self._thread.is_alive() and self._thread is not threads.current_thread():
            self._thread.join()

    def ask_now(self) -> None:
        """Ask all members how they are, out of turn; by any thread. Unavailable (503) if the engine does not tell which
        there are."""
        self.members = self._directory.all()
        self._ask()

    def reports(self) -> Mapping[str, Report]:
        """What those said last who are there."""
        since_us = self._clock.monotonic_us() - round(GONE_S * SECOND_US)
        return {node: report for node, (report, heard_us) in tuple(self._heard.items()) if heard_us >= since_us}

    def clocks_us(self) -> Mapping[str, int]:
        """What the clocks of those say by now that are there."""
        now_us = self._clock.monotonic_us()
        return {node: report.time_us + now_us - self._heard[node][1] for node, report in self.reports().items()}

    def statuses(self) -> list[NodeStatus]:
        """How each member is that is not this node."""
        found = []
        now_us, mono_us = self._clock.read()
        for name, member in sorted(self.members.items()):
            if name == self._node:
                continue
            report, heard_us = self._heard.get(name, (None, 0))
            is_there = report is not None and mono_us - heard_us < GONE_S * SECOND_US
            record = report.position.number if report is not None else 0
            lag = max(0, self._position().number - record)
            found.append(
                NodeStatus(
                    name=name,
                    role=report.role if report is not None and is_there else "gone",
                    address=member.address,
                    record=record,
                    lag_records=lag,
                    lag_s=self._waiting_s(record, mono_us) if lag else 0.0,
                    seen_us=now_us - (mono_us - heard_us) if heard_us else 0,
                )
            )
        return found

    def _waiting_s(self, record: int, now_us: int) -> float:
        """For how long there has been a record behind this one."""
        since_us = next((time_us for number, time_us in tuple(self._times) if number > record), now_us)
        return (now_us - since_us) / SECOND_US

    # In its thread

    def _run(self) -> None:
        trimmed_us = looked_us = 0
        while True:
            with self._work:
                if not self._is_stopped:
                    self._clock.wait(self._work, round(EVERY_S * SECOND_US))
                if self._is_stopped:
                    return
            now_us = self._clock.monotonic_us()
            try:
                if not looked_us or now_us - looked_us >= MEMBERS_S * SECOND_US:
                    self.members, looked_us = self._directory.all(), now_us
                    self.on_look()
                self._ask()
                first, size = self._look()
                if now_us - trimmed_us >= TRIM_S * SECOND_US:
                    trimmed_us = now_us
                    self._trim(first, size)
            except HeadwaterError as error:  # the keeper of the lease tells of an engine that does not answer
                log.write(logging.DEBUG, "engine-unanswered", {"reason": error.args[0]})

    def _ask(self) -> None:
        self._times.append((self._position().number, self._clock.monotonic_us()))
        asked = [name for name in self.members if name != self._node]
        for name, report in self._directory.reports(asked).items():
            self._heard[name] = (report, self._clock.monotonic_us())

    def _look(self) -> tuple[int, int]:
        """See whether the stream still is what it was; its first sequence, and how much it holds."""
        position = self._position()
        try:
            first, last, size = self._engine.extent()
        except StreamLost as error:
            self._on_fault(error)
            raise
        self._doubts = self._doubts + 1 if last < position.sequence else 0
        if self._doubts >= TRUST:
            self._on_fault(
                Beyond(
                    f"the engine's stream ends at {last}, and this node, which leads, has stored up to "
                    f"{position.sequence}: the engine has lost records"
                )
            )
        return first, size

    def _trim(self, first: int, size: int) -> None:
        """Delete what every member has on disk."""
        members = self.members
        synced = {name: heard[0].synced.sequence for name, heard in tuple(self._heard.items()) if name in members}
        synced[self._node] = self._synced().sequence
        marked = {name for name, member in members.items() if member.needs_copy}
        found = trimming(self._node, members, synced, marked, first, is_too_much=size > self._bytes_max)
        for name in found.has_copy:
            self._mark(members[name], needs_copy=False)
        if found.too_far_behind:
            self._mark(members[found.too_far_behind], needs_copy=True)
        if found.waits_for:
            log.at_will(
                *(logging.WARNING, "engine-keeps-more"),
                node=found.waits_for,
                bytes=size,
                advice="it is the last one besides this: start it, or have it out with headwater cluster remove",
            )
        if found.upto >= first and found.upto > self._trimmed:
            self._engine.trim(found.upto)
            self._trimmed = found.upto

    def _mark(self, member: Member, *, needs_copy: bool) -> None:
        changed = self.members[member.node] = msgspec.structs.replace(member, needs_copy=needs_copy)
        self._directory.put(changed)
        if needs_copy:
            log.warning("node-too-far-behind", node=member.node, advice="it takes a copy when it is there again")
