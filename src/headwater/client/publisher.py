"""The publisher: takes what is published to the server, in order, and each message once, whatever the connection does.

Every PUBLISH frame has a producer and a sequence, so that one which is sent again after a lost connection is answered
as it was the first time. A producer is one root's, of one client, and its name counts up ("3f…/1", "3f…/2") after a
frame was refused: the server then refuses (409) what was sent behind it, which goes again, in order, under the next
name; the refused frame's callers get their error. Messages that arrive one by one while frames are under way go
together.

Invariants, per root: frames under way are in the order of their places; no more than the server's window of places
lies between the first and the last of them; nothing is sent between a refusal and the last answer to what was sent
before it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from headwater import threads
from headwater.client.budget import Budget
from headwater.client.link import Link, renewed
from headwater.client.pending import Pending
from headwater.clock import Clock
from headwater.config import Connecting
from headwater.errors import Disconnected, HeadwaterError, TimedOut, Unavailable
from headwater.log.publish import Part, Publish
from headwater.message import Headers, Receipt
from headwater.requests import Replies, settle
from headwater.store.batch import checksum
from headwater.store.body import encode_body
from headwater.wire.batches import ASKS, QUIET, pack_publish
from headwater.wire.contents import Published

FRAMES_AHEAD = 2
"""With so many frames of a root under way, further single messages wait to go together."""
ACCEPTED_MAX = 100_000
"""Topics per root that are remembered as accepted."""
REPEAT_S = 0.2
"""After how long a frame is sent again that a server does not take for now."""
SPLITTING = frozenset((403, 404, 409, 413, 422, 429))
"""Codes of refusals that may be about one message alone: the others that went with it are tried on their own."""


class Call(msgspec.Struct, eq=False):
    """One publish call on its way."""

    item: Publish
    future: Any
    """An asyncio or a concurrent future."""
    left: int
    """Parts of it that are not answered."""


class Single(msgspec.Struct, eq=False):
    """One message without options, on its way by itself: what `publish_soon` makes of most."""

    part: ClassVar[None] = None
    producer: ClassVar[None] = None
    sequence: ClassVar[int] = 0

    root: str
    topic: str
    payload: bytes
    weight: int
    future: Pending | None = None
    """None if nobody waits: what `send` makes of most."""
    goes_alone: bool = False
    """Whether others that went with it may have been the reason for a refusal."""


class Encoded(msgspec.Struct, eq=False):
    """One message that nobody waits for, encoded by whoever brings it."""

    root: str
    body: bytes
    weight: int
    asks: Headers = ()
    """Of a question those of its headers by which its answer, for which somebody waits, is found."""


class _Entry(msgspec.Struct, eq=False):
    """What one call brings to one root."""

    call: Call
    part: Part
    goes_alone: bool
    weight: int

    @property
    def topic(self) -> str:
        """Of the only message."""
        return self.part.topics[0]

    @property
    def payload(self) -> bytes:
        """Of the only message."""
        return self.part.payloads[0]

    @property
    def producer(self) -> str | None:
        """Whom its user named."""
        return self.call.item.producer

    @property
    def sequence(self) -> int:
        """What its user said."""
        return self.call.item.sequence


Entry = _Entry | Single


class _Sent(msgspec.Struct, eq=False):
    """A PUBLISH frame: kept until it is answered."""

    lane: _Lane
    entries: list[Entry]
    body: bytes
    crc: int
    count: int
    producer: str | None
    sequence: int
    is_trial: bool = False
    """Whether one message of several callers may be refused for its topic, so that nothing may overtake it."""
    id: int = 0
    place: int = 0
    is_repeat: bool = False
    """Whether it was sent over an earlier connection, too, so that a refusal says nothing about the first time."""

    @property
    def is_own(self) -> bool:
        """Whether we name the producer, and not our user."""
        return self.entries[0].producer is None


class _Lane(msgspec.Struct, eq=False):
    """Everything that goes to one root."""

    root: str
    queue: deque[Entry | _Sent] = msgspec.field(default_factory=deque)
    queued_bytes: int = 0
    flying: dict[int, _Sent] = {}
    """By place, in order."""
    place: int = 0
    generation: int = 1
    is_broken: bool = False
    """A frame was refused, and others behind it are not answered yet."""
    refused: list[_Sent] = []
    """Frames to be sent again under the next producer name."""
    is_listed: bool = False
    accepted: set[str] = set()
    """Topics of single messages that the server has taken before."""
    trial: _Sent | None = None
    """A frame that may be split if it is refused, behind which nothing is sent."""


class Publisher:
    """All publishes of a client; in the loop, except where said."""

    def __init__(self, link: Link, settings: Connecting, clock: Clock, replies: Replies) -> None:
        self.name = secrets.token_hex(8)
        self.budget = Budget(settings.publish_bytes_in_flight_max)
        self._link = link
        self._settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._flying: dict[int, _Sent] = {}
        self._arrived: deque[Call | Single | Encoded] = deque()
        self.lock = threads.Condition()
        """Of the futures of single messages."""
        self._quiet: deque[Single | Encoded] = deque()
        """What nobody waits for, each one message."""
        self._replies = replies
        self._asked: dict[int, Headers] = {}
        """Questions of this connection, by the numbers of their frames."""
        self._is_called = False
        self._sending = threads.RLock()
        """Held from when something that nobody waits for is taken out of its queue until it is sent."""
        self._ended: HeadwaterError | None = None
        self._idle: list[asyncio.Future[None]] = []

    # Taking in

    def submit(self, call: Call | Single | Encoded) -> None:
        """Take a call in, or a message that nobody waits for, from any thread; its share of the budget is taken."""
        self._arrived.append(call)
        if not self._is_called:
            self._is_called = True
            try:
                self._loop.call_soon_threadsafe(self._take_in)
            except RuntimeError:  # the loop is closed
                if self._ended is None:
                    raise
                self._take_in()

    def submit_here(self, call: Call | Encoded) -> None:
        """The same in the loop."""
        self._arrived.append(call)
        self._take_in()

    def send_now(self, item: Encoded) -> bool:
        """Send what nobody waits for in this thread, whichever it is; False if something is to be sent before it, or
        there is no room, and nothing was done."""
        if self._arrived or not self._sending.acquire(blocking=False):
            return False
        try:
            return not (self._arrived or self._quiet) and self._send_one(item, self._link.send_now)
        finally:
            self._sending.release()

    def send_here(self, item: Encoded) -> bool:
        """The same in the loop, where no other thread sends."""
        link = self._link
        return not (self._arrived or self._quiet) and link.is_writable and self._send_one(item, link.send)

    def _send_one(self, item: Encoded, send: Callable[[Sequence[bytes]], bool]) -> bool:
        """Have a message sent; whether it was."""
        number, flags, asks, body = self._link.new_id(), QUIET, item.asks, item.body
        if asks:
            flags |= ASKS
            if len(self._asked) >= self._settings.requests_max:
                asked, is_awaited = tuple(self._asked.items()), self._replies.is_awaited
                self._asked = {number: pairs for number, pairs in asked if is_awaited(pairs)}
            self._asked[number] = asks  # in case it is refused
        if send(pack_publish(number, item.root, 1, checksum(body), body, flags=flags)):
            return True
        if asks:
            self._asked.pop(number, None)
        return False

    def _take_in(self) -> None:
        with self._sending:
            self._is_called = False
            arrived = self._arrived
            while arrived:
                call = arrived.popleft()
                if isinstance(call, Encoded) or (isinstance(call, Single) and call.future is None):
                    self._quiet.append(call)
                elif self._ended is not None:
                    self._finish_all(call, self._ended)
                elif isinstance(call, Single):
                    self._enqueue(call.root, call)
                else:
                    for part in call.item.parts:
                        self._enqueue(part.root, _entry(call, part))
        self.pump()

    def _enqueue(self, root: str, entry: Entry) -> None:
        lane = self._lanes.get(root)
        if lane is None:
            lane = self._lanes[root] = _Lane(root)
        lane.queue.append(entry)
        lane.queued_bytes += entry.weight
        if not lane.is_listed:
            self._list(lane)

    def _list(self, lane: _Lane) -> None:
        if lane.queue and not lane.is_listed:
            lane.is_listed = True
            self._ready.append(lane)

    # Sending

    def pump(self) -> None:
        """Send what may be sent, root after root in turn."""
        link = self._link
        if self._quiet:
            with self._sending:
                self._send_quiet()
        if not link.is_up:
            return
        waiting = self._ready
        most = max(1, link.limits.publishes_in_flight_max)
        while waiting and link.is_writable and len(self._flying) < most:
            lane = waiting.popleft()
            if not self._may_send(lane):
                lane.is_listed = False  # listed again when something of it is answered
                continue
            self._send(self._next(lane))
            if lane.queue:
                waiting.append(lane)
            else:
                lane.is_listed = False

    def _send_quiet(self) -> None:
        """Send what nobody waits for, at most once; without a connection it is lost."""
        link, quiet = self._link, self._quiet
        while quiet and (link.is_writable or not link.is_up):
            item = quiet.popleft()
            if isinstance(item, Encoded):
                self.budget.give_back(item.weight)
                if not self._send_one(item, link.send) and item.asks:
                    error = Disconnected("there is no connection at the moment; ask again")
                    self._replies.refuse(item.asks, error)
                continue
            some = self._gather(quiet, item)
            body = encode_body([one.topic for one in some], [one.payload for one in some], self._clock.now_us())
            link.send(pack_publish(link.new_id(), item.root, len(some), checksum(body), body, flags=QUIET))
            self.budget.give_back(sum([one.weight for one in some]))
        self._tell_idle()

    def _gather(self, quiet: deque[Single | Encoded], first: Single) -> list[Single]:
        """What goes with a message that nobody waits for: those behind it, to the same root."""
        some, size, root = [first], first.weight, first.root
        bytes_max = min(self._settings.publish_gather_bytes_max, self._link.limits.batch_bytes_max // 2)
        while quiet and len(some) < self._settings.publish_gather_messages_max:
            one = quiet[0]
            if not isinstance(one, Single) or one.root != root or size + one.weight > bytes_max:
                break
            some.append(one)
            size += one.weight
            quiet.popleft()
        return some

    def _may_send(self, lane: _Lane) -> bool:
        if lane.is_broken or lane.trial is not None or not lane.queue:
            return False
        if lane.flying and lane.place + 1 - next(iter(lane.flying)) >= max(1, self._link.limits.producer_window):
            return False
        head = lane.queue[0]
        if isinstance(head, _Sent) or head.goes_alone or len(lane.flying) < FRAMES_AHEAD:
            return True
        return (
            lane.queued_bytes >= self._settings.publish_gather_bytes_max
            or len(lane.queue) >= self._settings.publish_gather_messages_max
        )

    def _next(self, lane: _Lane) -> _Sent:
        """The next frame of a root: what was refused before, one call's messages, or single ones together."""
        head = lane.queue.popleft()
        if isinstance(head, _Sent):
            return head
        lane.queued_bytes -= head.weight
        if head.goes_alone:
            part = head.part
            if part is None:
                return self._sent(lane, [head])
            if part.body is None:
                part.encode(self._clock.now_us())
            assert part.body is not None
            return _Sent(lane, [head], part.body, part.crc, len(part.topics), head.producer, head.sequence)
        return self._gathered(lane, head)

    def _gathered(self, lane: _Lane, head: Entry) -> _Sent:
        """Single messages that go together."""
        entries: list[Entry] = [head]
        size = head.weight
        queue, settings = lane.queue, self._settings
        bytes_max = min(settings.publish_gather_bytes_max, self._link.limits.batch_bytes_max // 2)
        while queue and len(entries) < settings.publish_gather_messages_max:
            entry = queue[0]
            if isinstance(entry, _Sent) or entry.goes_alone or size + entry.weight > bytes_max:
                break
            entries.append(entry)
            size += entry.weight
            lane.queued_bytes -= entry.weight
            queue.popleft()
        return self._sent(lane, entries)

    def _sent(self, lane: _Lane, entries: list[Entry]) -> _Sent:
        topics = [entry.topic for entry in entries]
        parts = [entry.part for entry in entries]
        body = encode_body(
            topics,
            [entry.payload for entry in entries],
            self._clock.now_us(),
            retain=_column(parts, "retain", False),
            keys=_column(parts, "keys", None),
            headers=_column(parts, "headers", ()),
            expiries=_column(parts, "expiries", 0),
        )
        is_trial = len(entries) > 1 and not lane.accepted.issuperset(topics)
        first = entries[0]
        return _Sent(lane, entries, body, checksum(body), len(entries), first.producer, first.sequence, is_trial)

    def _send(self, sent: _Sent) -> None:
        lane = sent.lane
        lane.place += 1
        sent.place = lane.place
        if sent.is_own:
            sent.producer, sent.sequence = f"{self.name}/{lane.generation}", sent.place
        lane.flying[sent.place] = sent
        if sent.is_trial:
            lane.trial = sent
        self._write(sent)

    def _write(self, sent: _Sent) -> None:
        sent.id = self._link.new_id()
        self._flying[sent.id] = sent
        self._link.send(
            pack_publish(sent.id, sent.lane.root, sent.count, sent.crc, sent.body, sent.producer, sent.sequence)
        )

    # Connections come and go

    def on_up(self) -> None:
        """Send again, in order, what was not answered on the last connection."""
        self._flying.clear()
        self._asked.clear()
        for lane in self._lanes.values():
            for sent in lane.flying.values():
                sent.is_repeat = True
                self._write(sent)
        self.pump()

    # Answers

    def on_published(self, done: Sequence[Published]) -> None:
        """Frames are on disk."""
        for one in done:
            sent = self._flying.pop(one.id, None)
            if sent is None:
                continue
            self._land(sent)
            if not sent.entries[0].goes_alone:
                self._accept(sent)
            self.budget.give_back(self._store(sent, one))
            self._mend(sent.lane)
        self.pump()
        self._tell_idle()

    def _accept(self, sent: _Sent) -> None:
        accepted = sent.lane.accepted
        if len(accepted) > ACCEPTED_MAX:
            accepted.clear()
        accepted.update([entry.topic for entry in sent.entries])

    def _land(self, sent: _Sent) -> None:
        lane = sent.lane
        lane.flying.pop(sent.place, None)
        if lane.trial is sent:
            lane.trial = None
        self._list(lane)

    def on_refused(self, id: int, error: HeadwaterError) -> bool:
        """A frame was refused; False if it is none of ours."""
        sent = self._flying.pop(id, None)
        if sent is None:
            asked = self._asked.pop(id, None)
            if asked is not None:
                self._replies.refuse(asked, error)
            return asked is not None
        lane = sent.lane
        if sent.is_repeat and sent.is_own and isinstance(error, Unavailable | TimedOut):
            # What is not taken for now may be on its way from the first time: only the server can tell, and will.
            lane.is_broken = True
            self._loop.call_later(REPEAT_S, self._repeat, sent, id)
            return True
        self._land(sent)
        if not sent.is_own:
            self._fail(sent, error)
        elif lane.is_broken and error.code == 409:
            lane.refused.append(sent)
        else:
            lane.is_broken = True
            if len(sent.entries) > 1 and error.code in SPLITTING:
                lane.refused.append(sent)
                for entry in sent.entries:
                    entry.goes_alone = True
            else:
                self._fail(sent, error)
        self._mend(lane)
        self.pump()
        self._tell_idle()
        return True

    def _repeat(self, sent: _Sent, id: int) -> None:
        """Send a frame again under its number, unless that was done meanwhile."""
        if sent.id == id and sent.lane.flying.get(sent.place) is sent and self._link.is_up:
            self._write(sent)

    def _mend(self, lane: _Lane) -> None:
        """Go on under the next producer name, once all that was sent under this one is answered."""
        if not lane.is_broken or lane.flying:
            return
        lane.is_broken = False
        lane.generation += 1
        for sent in sorted(lane.refused, key=lambda one: one.place, reverse=True):
            if len(sent.entries) > 1 and sent.entries[0].goes_alone:
                lane.queue.extendleft(reversed(sent.entries))
                lane.queued_bytes += sum(entry.weight for entry in sent.entries)
            else:
                lane.queue.appendleft(sent)
        lane.refused.clear()
        self._list(lane)

    def _fail(self, sent: _Sent, error: HeadwaterError) -> None:
        for entry in sent.entries:
            self._fail_entry(entry, error)

    def _fail_entry(self, entry: Entry, error: HeadwaterError) -> None:
        if isinstance(entry, Single):
            settle(entry.future, None, renewed(error))
            self.budget.give_back(entry.weight)
            return
        item = entry.call.item
        item.refusals = (*item.refusals, (entry.part, error))
        self.budget.give_back(self._part_done(entry.call))

    def _store(self, sent: _Sent, one: Published) -> int:
        """Answer what went with a frame; the share of the budget that is free then."""
        freed, time_us = 0, one.time_us
        is_repeat = (
            one.is_repeat and not sent.is_own
        )  # a frame that this client sent twice by itself is not told as one
        settled: list[tuple[Pending, Receipt]] = []
        for offset, entry in enumerate(sent.entries, one.first_offset):
            if isinstance(entry, Single):
                assert entry.future is not None
                settled.append((entry.future, Receipt(entry.topic, offset, time_us, False)))
                freed += entry.weight
            else:
                entry.call.item.runs.append((entry.part.positions, offset, time_us, is_repeat))
                freed += self._part_done(entry.call)
        if settled:
            Pending.settle(self.lock, settled)
        return freed

    def _part_done(self, call: Call) -> int:
        """Answer a call that has nothing left under way; its share of the budget, which is free then."""
        call.left -= 1
        if call.left:
            return 0
        error = call.item.outcome()
        if error is not None:
            settle(call.future, None, renewed(error))
        else:
            settle(call.future, call.item.result(), None)
        return call.item.weight

    # The end

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not (self._arrived or self._quiet) and all(
            not lane.queue and not lane.flying for lane in self._lanes.values()
        )

    def _tell_idle(self) -> None:
        if self._idle and self.is_idle:
            waiting, self._idle = self._idle, []
            for future in waiting:
                settle(future, None, None)

    async def drain(self) -> None:
        """Wait until everything is answered."""
        if not self.is_idle:
            future = self._loop.create_future()
            self._idle.append(future)
            await future

    def end(self, error: HeadwaterError) -> None:
        """There will be no connection any more: whoever waits gets the error."""
        self._ended = error
        self.budget.end()
        lanes, self._lanes = self._lanes, {}
        self._flying.clear()
        self._ready.clear()
        for lane in lanes.values():
            for sent in (*lane.flying.values(), *lane.refused):
                for entry in sent.entries:
                    if not isinstance(entry, Single):
                        entry.call.item.is_unsure = True
                self._fail(sent, error)
            for waiting in lane.queue:
                if isinstance(waiting, _Sent):
                    self._fail(waiting, error)
                else:
                    self._fail_entry(waiting, error)
        self._take_in()
        self._tell_idle()

    def _finish_all(self, call: Call | Single, error: HeadwaterError) -> None:
        if isinstance(call, Single):
            self._fail_entry(call, error)
            return
        call.item.refusals, call.left = [(part, error) for part in call.item.parts], 1
        self.budget.give_back(self._part_done(call))


def _entry(call: Call, part: Part) -> _Entry:
    goes_alone = part.body is not None or call.item.producer is not None
    return _Entry(call, part, goes_alone, call.item.weight + len(part.topics[0]))


def _column(parts: Sequence[Part | None], name: str, missing: object) -> Any:
    """A column of a batch; None if no message has anything in it."""
    values = [getattr(part, name, None) for part in parts]
    if not any(values):
        return None
    return [missing if value is None else value[0] for value in values]
