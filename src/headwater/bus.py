"""The embedded bus: publish, subscribe, replay, inside your process, on a folder that it owns.

Threads enter here. What they ask for is checked here, before anything changes; then `topics.roots` takes a publish to
disk, and `delivery.dispatcher` brings it to subscribers.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from headwater import threads
from headwater.audit import Audit
from headwater.clock import SECOND_US, Clock, SteadyClock, StepState, SystemClock, from_datetime, to_datetime
from headwater.config import Config
from headwater.delivery.consumer import Consumer
from headwater.delivery.dead_letters import DeadLetters, Position
from headwater.delivery.dispatcher import Dispatcher
from headwater.delivery.durables import Durables
from headwater.delivery.history import History
from headwater.delivery.live import BUS_CLOSED, Live, Policy
from headwater.delivery.mending import Mending, write_of
from headwater.delivery.options import check_not_of_channel
from headwater.delivery.readers import Readers
from headwater.delivery.replay import After, Bell, Reading
from headwater.delivery.rows import RowCommit
from headwater.delivery.start import Start, check_start
from headwater.delivery.subscriber import Subscriber
from headwater.delivery.subscription import Options
from headwater.delivery.timers import Timers
from headwater.errors import Closed, Failed, Malformed, ReadOnly, TimedOut
from headwater.events import Event, Events
from headwater.log.publish import Publish, Sent
from headwater.log.root import Root
from headwater.log.roots import Roots
from headwater.message import DeadLetter, Extent, Message, Outgoing, Receipt, Receipts, SubscriptionInfo, TopicInfo
from headwater.outgoing import Desk
from headwater.requests import Replies, answer_headers
from headwater.staging import Staging
from headwater.store import folder as folders
from headwater.store import marks, snapshots
from headwater.store import state as rows
from headwater.store.batch import Batch, Seed
from headwater.store.compression import require
from headwater.store.files import DiskFiles, Files, Lock
from headwater.store.log import Found
from headwater.store.memory_files import MemoryFiles
from headwater.store.rocks import RocksReader, RocksState
from headwater.store.state import MemoryState, State
from headwater.store.state_recovery import Loss
from headwater.store.streams import Streams
from headwater.topics.name import check_filter, compile_filter, filter_covers_root
from headwater.upkeep import Upkeep

if TYPE_CHECKING:
    from headwater.access.acl import Acl
    from headwater.access.clients import Clients
    from headwater.access.tokens import Tokens
    from headwater.channels.registry import ChannelRegistry

MEMORY = ":memory:"
ID_BYTES = 8


class Inside(NamedTuple):
    """The parts of a bus that a server works with; they may change, and are not for users."""

    desk: Desk
    roots: Roots
    dispatcher: Dispatcher
    state: State
    rows: RowCommit
    clock: Clock
    events: Events
    audit: Audit
    losses: Sequence[Loss]
    """Rows of the state that are known to be lost."""
    archived: Callable[[], dict[str, dict[str, int] | None]]
    """How far each lake has each root, as their archives left word; None in place of what cannot be read."""
    look_for_readers: Callable[[], None]
    """Have the subscriptions of those who read the folder beside its owner stand where they are by now."""


class Bus:
    """A bus on a folder, or in memory."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        config: Config | None = None,
        *,
        lake: str | os.PathLike[str] | None = None,
        read_only: bool = False,
        files: Files | None = None,
        state: State | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`files`, `state` and `clock` are the doors through which tests bring in faults."""
        self.config = config or Config()
        if lake is not None:
            self.config = msgspec.structs.replace(self.config, lake=os.fspath(lake))
        self.folder = os.fspath(folder)
        self.is_read_only = read_only
        self._closed = False
        self._lock: Lock | None = None
        require(self.config.compression)
        in_memory = self.folder == MEMORY
        self._files = files or (MemoryFiles() if in_memory else DiskFiles())
        self._clock = SteadyClock(clock or SystemClock(), self._on_clock_step)
        self._events = Events(self._clock, self.config.events_kept)
        self._live: dict[Live | Bell | Consumer, None] = {}
        self._forgotten: deque[Bell] = deque()
        """Of readings that nobody has any more: let go of with the next one, or in time."""
        self._clients: Clients | None = None
        self._acl: Acl | None = None
        self._channels: ChannelRegistry | None = None
        self._tokens: Tokens | None = None
        self._access_lock = threads.RLock()
        seed = self._own()
        try:
            self._state = state or (MemoryState() if in_memory else self._open_state())
            self.id = self._identify()
            self._history = self._open_history()
            self._streams = Streams(self._files, self.folder, seed, self.config, read_only=read_only)
            self._streams.on_mended = self._on_mended
            self._streams.on_damage = lambda text: self._events.add("damage", text)
            self._roots = Roots(
                self._streams, self._state, self.config, self._clock, self._on_durable, self._events.trouble
            )
            self._rows = RowCommit(self._state, self._events.trouble)
            self._timers = Timers(self._clock, self._events.trouble)
            if read_only:
                self._roots.look()
            else:
                self._report(self._roots.recover())
            self._dispatcher = Dispatcher(
                self._roots,
                self._state,
                self._rows,
                self._timers,
                self.config,
                self._clock,
                self._reply,
                self._events.add,
                read_only,
            )
            self._desk = Desk(self.config, self._clock)
            self._audit = Audit(self._publish_own, self._clock, self._events.trouble, self.config.audit_bytes_max)
            self._durables = Durables(
                self._dispatcher, self._roots, self.config, self._audit, lambda: self._check_open(writes=True)
            )
            self._readers = Readers(self._files, self.folder, self._roots, self._durables, self._events)
            self._staging = Staging(
                self._desk, self._roots, self._state, self._rows, self.config, self._clock, self._events.trouble
            )
            self._dead_letters = DeadLetters(self._dispatcher, self._state, self._roots)
            self._mending = Mending(
                self._dispatcher,
                self._roots,
                self._state,
                self._rows,
                self.config,
                self._clock,
                self._desk.contents,
            )
            self._replies = Replies("embedded", self.config.requests_max)
            self._upkeep = Upkeep(
                self._roots,
                self._dispatcher,
                self._desk,
                self._state,
                self._rows,
                self._timers,
                self.config,
                self._clock,
                self._events,
                self._expire,
                self._unarchived_from,
                self._readers.take,
                self._take_snapshot if isinstance(self._state, RocksState) else None,
            )
            if isinstance(self._state, RocksState):
                self._state.on_failed = self._upkeep.on_state_failed
            if not read_only:
                self._staging.recover()
                self._upkeep.start()
        except BaseException:
            opened = getattr(self, "_state", None)
            if opened is not None and state is None:
                opened.close()
            if self._lock is not None:
                self._lock.release()
            raise

    def _take_snapshot(self) -> None:
        """Copy what is new of the state, for when it goes bad."""
        assert isinstance(self._state, RocksState)
        kept = self.config.state_snapshots_max
        snapshots.take(self._files, self.folder, self._state, self._clock.now_us(), kept)

    def _expire(self) -> None:
        """Drop what was prepared too long ago and never committed, and let go of what was forgotten."""
        self._let_go()
        self._staging.expire()
        self._mending.expire()

    # Opening and closing

    def _own(self) -> Seed:
        if self.is_read_only:
            return folders.check(self._files, self.folder)
        folders.inspect(self._files, self.folder)
        self._files.make_folder(self.folder)
        self._lock = self._files.lock(f"{self.folder}/{folders.LOCK}")
        try:
            return folders.prepare(self._files, self.folder)
        except BaseException:
            self._lock.release()
            raise

    def _open_state(self) -> State:
        path = f"{self.folder}/{folders.STATE}"
        if self.is_read_only:
            return RocksReader(path)
        has_streams = bool(self._files.list(f"{self.folder}/{folders.STREAMS}"))
        state = RocksState(path, must_exist=has_streams, files=self._files, clock=self._clock)
        for loss in state.met:
            self._events.add("damage", f"{loss}; headwater verify has more")
        if state.torn:
            self._events.add("torn", f"{state.torn} writes at the end of the state were never acknowledged: cut")
        return state

    def _identify(self) -> str:
        """The id of this bus, by which a lake knows whose it is; drawn when the folder is first opened to write."""
        stored = self._state.get(rows.IDENTITY)
        if stored is None and not self.is_read_only:
            stored = self._files.secret(ID_BYTES).hex().encode()
            self._state.write({rows.IDENTITY: stored})  # durable with the first row that anybody waits for
        return (stored or b"").decode()

    def _open_history(self) -> History | None:
        """The lake, if there is one to be; it is opened when somebody reads that far back."""
        if not self.config.lake:
            return None
        from headwater.spark.lake_history import LakeHistory

        history = LakeHistory(self.config.lake, self.id, None if self.is_read_only else self._end_of)
        history.check()
        return history

    def _end_of(self, root: str) -> int:
        found = self._roots.get(root)
        return 0 if found is None else found.stream.durable

    def _unarchived_from(self, root: str, needed: int) -> int:
        return min(needed, marks.unarchived_from(self._files, self.folder, root, needed))

    def _report(self, met: dict[str, Found]) -> None:
        for trouble in marks.troubles(self._files, self.folder):
            self._events.add("damage", trouble)
        for root, found in met.items():
            for hole in found.holes:
                self._events.add("damage", f'messages {hole.first} to {hole.last} of "{root}" are lost: {hole.reason}')
            if found.torn_bytes and not found.holes:
                self._events.add(
                    "torn", f'{found.torn_bytes} bytes at the end of "{root}" were never acknowledged: cut'
                )

    def when_given_up(self, tell: Callable[[str], None]) -> None:
        """Have this called, with the reason, once nothing can be stored any more: the process is out of memory. For a
        server, which ends then; who embeds a bus gets `Failed` from all it asks for."""
        self._roots.on_given_up = tell
        self._rows.when_given_up(tell)

    def _on_mended(self, path: str) -> None:
        self._events.add("mended", f"{path} did not match its segment and is made again; no message is lost")

    def _on_clock_step(self, step_us: int, state: StepState) -> None:
        events = getattr(self, "_events", None)
        if events is None:
            return
        settle_s = SteadyClock.STEP_SETTLE_US // SECOND_US
        step = f"the machine's clock was set by {step_us / SECOND_US:+.0f} s"
        match state:
            case "noticed":
                events.add(
                    "clock",
                    f"{step}: time goes on as before (deliver_at, ttl_s, retention, timestamps), and the step counts "
                    f"in {settle_s} s if it stays so, or at the next start; if the clock is wrong, set it right",
                )
            case "counts":
                events.add(
                    "clock",
                    f"{step} more than {settle_s} s ago, and that counts now: what is due or expired by it goes",
                )
            case "taken back":
                events.add("clock", f"{step}, and is right again: the step never counted")

    def close(self) -> None:
        """Finish what is under way, and let go of the folder."""
        if self._closed:
            return
        self._roots.commit.refuse_owner()
        self._closed = True
        self._replies.end()
        self._end_readers()
        self._timers.close()
        self._upkeep.close()
        if not self.is_read_only and self._state.failed is not None:
            self._rows.resume()  # there may be room by now
        with ExitStack() as closing:  # whatever fails, the rest is let go of, in this order
            closing.callback(self._lock.release if self._lock is not None else lambda: None)
            closing.callback(self._state.close)
            closing.callback(self._streams.close)
            closing.callback(self._rows.close)
            closing.callback(self._dispatcher.close)
            if not self.is_read_only:
                closing.callback(self._end_readers)  # those who joined meanwhile
                closing.callback(self._roots.close)

    def _end_readers(self) -> None:
        for reader in tuple(self._live):
            if isinstance(reader, Consumer):
                reader.subscriber.end()
            elif isinstance(reader, Live):
                reader.end(BUS_CLOSED)
            else:
                reader.end()

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self, writes: bool = False) -> None:
        if self._closed:
            raise Closed(f'the bus on "{self.folder}" is closed; open it again')
        if writes and self.is_read_only:
            raise ReadOnly(f'the bus on "{self.folder}" was opened to read only; open it without read_only=True')

    # Publishing

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        key: bytes | None = None,
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        ttl_s: float | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        deliver_at: datetime | None = None,
    ) -> Receipt:
        """Store a message; returns once it is on disk.

        `ttl_s` and `deliver_at` go by the bus's time (`bus.now`). That is the machine's, except for the quarter of an
        hour after its clock was set by more than a minute: until then it goes on as before, and an event says so.
        """
        self._check_open(writes=True)
        item = self._desk.one(topic, payload, retain, key, headers, ttl_s, producer, sequence, deliver_at)
        self._roots.commit.submit_and_wait(item)
        return cast(Receipt, item.result())

    def publish_many(
        self,
        messages: Iterable[tuple[str, bytes] | Outgoing],
        *,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Receipts:
        """Store messages together, in one commit; receipts in the order of the call.

        What can be told from the call alone (names, sizes, options) refuses all of it. Then each root's messages are
        stored, all of them or none: if some roots refuse theirs (a limit, a sequence, a stream that takes no messages)
        and others do not, PartlyStored (409) has the receipts; if all do, the error of the first.
        """
        self._check_open(writes=True)
        item = self._desk.many(messages, producer, sequence)
        if not item.topics:
            return Receipts((), ())
        self._roots.commit.submit_and_wait(item)
        return cast(Receipts, item.result())

    def publish_soon(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        key: bytes | None = None,
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        ttl_s: float | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        deliver_at: datetime | None = None,
    ) -> Future[Receipt]:
        """Store a message without waiting: the future has its receipt once it is on disk."""
        self._check_open(writes=True)
        item = self._desk.one(topic, payload, retain, key, headers, ttl_s, producer, sequence, deliver_at)
        return cast("Future[Receipt]", self._soon(item))

    def publish_many_soon(
        self,
        messages: Iterable[tuple[str, bytes] | Outgoing],
        *,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Future[Receipts]:
        """`publish_many` without waiting."""
        self._check_open(writes=True)
        item = self._desk.many(messages, producer, sequence)
        if not item.topics:
            done: Future[Receipts] = Future()
            done.set_result(Receipts((), ()))
            return done
        return cast("Future[Receipts]", self._soon(item))

    def send(
        self,
        topic: str,
        payload: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        ttl_s: float | None = None,
        retain: bool = False,
    ) -> None:
        """Send a message at most once: nobody waits for it, and there is no receipt."""
        self._check_open(writes=True)
        one = self._desk.one(topic, payload, retain, key, headers, ttl_s, None, None, None)
        item = Sent(one, self._roots.counts)
        try:
            self._roots.commit.submit(item)
        except Failed as error:
            item.finish(error)

    @property
    def is_busy(self) -> bool:
        """Whether a publish would have to wait for its turn before it is even taken in."""
        return self._roots.commit.is_full

    def _soon(self, item: Publish) -> Future[object]:
        item.future = future = Future[object]()
        self._roots.commit.submit(item)
        return future

    def _publish_own(self, topic: str, payload: bytes) -> None:
        """Store a message about what was done, also where there is little room left."""
        item = self._desk.own((Outgoing(topic=topic, payload=payload),))
        item.is_urgent = True
        self._roots.commit.submit_and_wait(item)

    def _on_durable(self, appended: Mapping[Root, Sequence[Batch]]) -> None:
        self._dispatcher.on_durable(appended)
        self._upkeep.on_durable(appended)

    # Subscribing

    def subscribe(
        self,
        filter: str,
        *,
        id: str | None = None,
        start: Start = "latest",
        order: str | None = None,
        max_in_flight: int | None = None,
        ack_timeout_s: float | None = None,
        max_attempts: int | None = None,
        expire_after_s: float | None = None,
        on_gap: str | None = None,
        retry_delay_s: float | None = None,
        retry_delay_s_max: float | None = None,
        when_full: Policy = "drop_oldest",
    ) -> Any:
        """With an id, a durable subscription (`Consumer`); without, a live one (`Live`).

        A durable subscription is made at its first use, to begin at `start`, and goes on where it was at every later
        one; options that are left out stay as they were.
        """
        self._check_open(writes=True)
        check_filter(filter, self.config)
        check_start(filter, start)
        stated = {
            "order": order,
            "max_in_flight": max_in_flight,
            "ack_timeout_s": ack_timeout_s,
            "max_attempts": max_attempts,
            "expire_after_s": expire_after_s,
            "on_gap": on_gap,
            "retry_delay_s": retry_delay_s,
            "retry_delay_s_max": retry_delay_s_max,
        }
        given: dict[str, Any] = {name: value for name, value in stated.items() if value is not None}
        if id is None:
            if given or start != "latest":
                asked = ", ".join([*given, *(["start"] if start != "latest" else [])])
                raise Malformed(f"{asked}: a live subscription has no such thing; subscribe with an id for that")
            return self._subscribe_live(filter, when_full)
        check_not_of_channel(id)
        return self._subscribe_durable(Options(id=id, filter=filter, **given), given, start)

    def _subscribe_live(self, filter: str, when_full: Policy) -> Live:
        live = Live(filter, when_full, self.config, self._clock, self._reply, self._leave)

        def join() -> None:
            live.greet(self._dispatcher.retained(filter))
            self._dispatcher.listen(filter, live)
            self._live[live] = None

        self._roots.commit.run(join)
        return live

    def _subscribe_durable(self, options: Options, given: dict[str, object], start: Start) -> Consumer:
        def join() -> Consumer:
            ticket = object()
            subscriber = self._dispatcher.attach(options, given, start, ticket)
            consumer = Consumer(subscriber, self._clock, ticket, self.seek_subscriber, self._pause, self._leave)
            self._live[consumer] = None
            return consumer

        return self._roots.commit.run(join)

    def _leave(self, reader: Live | Bell | Consumer) -> None:
        self._live.pop(reader, None)
        if self._closed or (self.is_read_only and not isinstance(reader, Consumer)):
            return
        if isinstance(reader, Consumer):
            consumer = reader
            self._roots.commit.run(lambda: self._dispatcher.detach(consumer.subscriber, consumer.ticket))
        else:
            self._roots.commit.run(lambda: self._dispatcher.leave(reader))

    def seek_subscriber(self, subscriber: Subscriber, to: Start | Mapping[str, int]) -> None:
        """Have a subscription go on from elsewhere; with offsets by root, roots that are not named stay."""
        self._check_open(writes=True)
        self._durables.move(subscriber, to)

    def _pause(self, subscriber: Subscriber, paused: bool) -> None:
        self._check_open(writes=True)
        self._dispatcher.pause(subscriber, paused)

    def unsubscribe(self, id: str) -> None:
        """Delete a durable subscription, its place and its dead letters; its consumers are told."""
        self._durables.delete(id, force=True)

    @property
    def durables(self) -> Durables:
        """Durable subscriptions, looked after without taking from them."""
        self._check_open()
        return self._durables

    def subscriptions(self, *, after: str | None = None, limit: int | None = None) -> list[SubscriptionInfo]:
        """Every durable subscription, by id; with a limit a page of them, after an id."""
        self._check_open()
        if self.is_read_only:
            return self._durables.infos(self._readers.waiting(), after, limit)
        self._readers.look()
        return self._dispatcher.infos(after, limit)

    def states(self, id: str) -> list[tuple[str, int, str, int, tuple[str, ...]]]:
        """Root, offset, state, attempts and errors of each message of a subscription that is not simply pending or
        acked."""
        self._check_open()
        return self._dispatcher.use(id, lambda subscriber: subscriber.states())

    # Reading

    def replay(
        self, filter: str, *, after: After = None, since: datetime | None = None, upto: Mapping[str, int] | None = None
    ) -> Reading:
        """History, from an offset or a moment on, up to now; with `upto`, of those roots alone and not beyond it."""
        return self._reading(filter, after, since, follows=False, upto=upto)

    def follow(self, filter: str, *, after: After = None, since: datetime | None = None) -> Reading:
        """History and then everything new: no gap, no repeat, in order."""
        return self._reading(filter, after, since, follows=True)

    def _reading(
        self,
        filter: str,
        after: After,
        since: datetime | None,
        follows: bool,
        upto: Mapping[str, int] | None = None,
    ) -> Reading:
        self._check_open(writes=follows)
        check_filter(filter, self.config)
        origin = _Answers(self._reply)
        bells: list[Bell] = []

        def leave() -> None:
            for bell in bells:
                self._leave(bell)

        reading = Reading(
            *(self._roots, filter, after, since, follows, self.config, self._clock, origin, leave),
            *(upto, self._history),
        )

        def join(bell: Bell) -> None:
            self._let_go()
            self._dispatcher.listen(filter, bell)
            self._live[bell] = None

        if follows:
            bell = Bell(reading)
            bells.append(bell)
            # Collected in any thread, whatever that holds: no more is done there than to note it.
            weakref.finalize(reading, self._forgotten.append, bell).atexit = False
            self._roots.commit.run(lambda: join(bell))
        return reading

    def _let_go(self) -> None:
        """Tell readings that were forgotten no more; in the committing role."""
        while self._forgotten:
            bell = self._forgotten.popleft()
            self._live.pop(bell, None)
            self._dispatcher.leave(bell)

    def topics(self, filter: str = "#") -> list[TopicInfo]:
        """Topics that have messages or a retained value, by name."""
        self._check_open()
        check_filter(filter, self.config)
        wanted, now_us = compile_filter(filter), self._clock.now_us()
        roots = [root for root in self._roots.all() if filter_covers_root(filter, root.name)]
        found = self._roots.look_at(lambda: [info for root in roots for info in root.topics(wanted, now_us)])
        return sorted(found, key=lambda info: info.topic)

    def retained(self, filter: str) -> list[Message]:
        """Retained messages, by topic."""
        self._check_open()
        check_filter(filter, self.config)
        return self._roots.look_at(lambda: self._dispatcher.retained(filter))

    def ends(self) -> dict[str, int]:
        """The newest offset of each root."""
        self._check_open()
        return {root.name: root.stream.durable for root in self._roots.all()}

    def extents(self, filter: str = "#", moments: Sequence[datetime] = ()) -> list[Extent]:
        """What the roots that a filter may match have, by name; and where in them each of these moments is."""
        self._check_open()
        check_filter(filter, self.config)
        times = [from_datetime(moment) for moment in moments]
        return sorted(
            (
                Extent(
                    root.name,
                    root.stream.first_offset,
                    root.stream.durable + 1,
                    root.purged_upto,
                    tuple(root.stream.offset_at(time_us) for time_us in times),
                )
                for root in self._roots.all()
                if filter_covers_root(filter, root.name)
            ),
            key=lambda extent: extent.root,
        )

    def events(self) -> list[Event]:
        """What happened lately that somebody should know, oldest first."""
        return self._events.all()

    def refresh(self) -> None:
        """See what the owner wrote meanwhile; for a bus that was opened to read."""
        self._check_open()
        if self.is_read_only:
            if isinstance(self._state, RocksReader):
                self._state.refresh()
            self._roots.look()
            for kept in (self._clients, self._acl, self._tokens, self._channels):
                if kept is not None:
                    kept.reload()

    # Dead letters

    def dead_letters(
        self, id: str, *, after: tuple[str, int] | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        """Messages that a subscription gave up on; with a limit a page of them, after a root and an offset in it."""
        self._check_open()
        return self._dead_letters.all(id, after, limit)

    def dead_letter(self, id: str, offset: Position) -> DeadLetter:
        """One of them."""
        self._check_open()
        return self._dead_letters.get(id, offset)

    def redrive(
        self,
        id: str,
        offsets: Collection[Position] | None = None,
        *,
        mended: Iterable[DeadLetter] | None = None,
        write: str | None = None,
    ) -> int:
        """Hand dead letters to their subscription again, in order; answers how many.

        With `mended`, those letters, as they now are: `[letter.mend(payload=…) for letter in bus.dead_letters(id)]`.
        All of them or none; under the name of a `write` once, however often it is asked for.
        """
        self._check_open(writes=True)
        write = write_of(offsets, mended, write)
        if write is None:
            count = self._dead_letters.redrive(id, offsets)
            self._note_letters("redriven", id, count, offsets)
            return count
        self._mending.mend(id, write, tuple(mended or ()), "")
        return self.redrive_mended(id, write)

    def mend(self, id: str, write: str, letters: Sequence[DeadLetter], *, part: str = "") -> None:
        """Store other contents for dead letters, which wait for `redrive_mended`; doing it again replaces them."""
        self._check_open(writes=True)
        self._mending.mend(id, write, letters, part)

    def redrive_mended(self, id: str, write: str, parts: Sequence[str] = ("",)) -> int:
        """Hand the letters that parts of a write have mended to their subscription again, once; drops the other parts.

        Answers how many, however often it is asked.
        """
        self._check_open(writes=True)
        count = self._mending.redrive(id, write, parts)
        self._note_letters("mended", id, count)
        return count

    def drop_mended(self, id: str, write: str) -> None:
        """Forget what a write has mended and not redriven; the dead letters stay as they are."""
        self._check_open(writes=True)
        self._mending.drop(id, write)

    def drop_dead_letters(self, id: str, offsets: Collection[Position] | None = None) -> int:
        """Forget dead letters; answers how many."""
        self._check_open(writes=True)
        count = self._dead_letters.drop(id, offsets)
        self._note_letters("dropped", id, count, offsets)
        return count

    def _note_letters(self, what: str, id: str, count: int, offsets: Collection[Position] | None = None) -> None:
        if count:
            which = {} if offsets is None else {"offsets": list(offsets)}
            self._audit.note(f"dead-letters-{what}", id, None, {"count": count, **which})

    # Staged publishes

    def stage(
        self, producer: str, epoch: int, messages: Iterable[tuple[str, bytes] | Outgoing], *, part: str = ""
    ) -> None:
        """Store messages that nobody sees before `commit_stage`; staging a part again replaces it."""
        self._check_open(writes=True)
        self._staging.stage_messages(producer, epoch, part, messages)

    def stage_body(self, producer: str, epoch: int, part: str, root: str, count: int, crc: int, body: bytes) -> None:
        """The same for messages of one root that are encoded already."""
        self._check_open(writes=True)
        self._staging.stage(producer, epoch, part, root, count, crc, body)

    def commit_stage(self, producer: str, epoch: int, parts: Sequence[str] = ("",)) -> dict[str, tuple[int, int]]:
        """Make parts of an epoch visible, all of each root's at once, and only once; drops the other parts.

        Answers the first and the last offset in each root; nothing for an epoch that was committed long ago.
        """
        self._check_open(writes=True)
        return self._staging.commit(producer, epoch, parts)

    def drop_stage(self, producer: str, epoch: int) -> None:
        """Forget what was staged of an epoch and never committed."""
        self._check_open(writes=True)
        self._staging.drop(producer, epoch)

    # Request and reply

    def request(
        self,
        topic: str,
        payload: bytes,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    ) -> Message:
        """Publish a request and wait for its answer."""
        pairs, answer = self.request_soon(topic, payload, headers=headers)
        timeout_s = self.config.request_timeout_s if timeout_s is None else timeout_s
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            raise TimedOut(
                f'nobody answered on "{topic}" within {timeout_s} s; is its service running, and does it call reply()?'
            ) from None
        finally:
            self._replies.forget(pairs)

    def request_soon(
        self, topic: str, payload: bytes, *, headers: Mapping[str, str] | Sequence[tuple[str, str]] = ()
    ) -> tuple[tuple[tuple[str, str], ...], Future[Message]]:
        """Publish a request; its headers, and a future of the answer."""
        self._check_open(writes=True)
        if not self._replies.is_listening:
            self._roots.commit.run(lambda: self._dispatcher.listen(self._replies.topic, self._replies))
            self._replies.is_listening = True
        pairs, answer = self._replies.expect()
        given = tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers)
        try:
            self.publish(topic, payload, headers=(*given, *pairs))
        except BaseException:
            self._replies.forget(pairs)
            raise
        return pairs, answer

    def forget_request(self, headers: tuple[tuple[str, str], ...]) -> None:
        """Nobody waits for this answer any more."""
        self._replies.forget(headers)

    def _reply(self, message: Message, payload: bytes) -> Receipt:
        topic, headers = answer_headers(message)
        return self.publish(topic, payload, headers=headers)

    # Who may do what, once the bus is served

    @property
    def clients(self) -> Clients:
        """The clients that may log in."""
        self._check_open()
        with self._access_lock:
            if self._clients is None:
                from headwater.access.clients import Clients  # embedded, hardly anybody asks

                self._clients = Clients(self._state, self._clock, read_only=self.is_read_only, audit=self._audit)
            return self._clients

    @property
    def acl(self) -> Acl:
        """The rules for what they may do."""
        self._check_open()
        with self._access_lock:
            if self._acl is None:
                from headwater.access.acl import Acl

                self._acl = Acl(self._state, config=self.config, read_only=self.is_read_only, audit=self._audit)
            return self._acl

    @property
    def channels(self) -> ChannelRegistry:
        """What is pushed where, while the bus is served."""
        self._check_open()
        with self._access_lock:
            if self._channels is None:
                from headwater.channels.registry import ChannelRegistry

                self._channels = ChannelRegistry(
                    self._state,
                    self._clock,
                    self.config,
                    self._dispatcher,
                    self._roots.commit.run,
                    read_only=self.is_read_only,
                    audit=self._audit,
                )
            return self._channels

    @property
    def tokens(self) -> Tokens:
        """What opens the HTTP API for them."""
        self._check_open()
        with self._access_lock:
            if self._tokens is None:
                from headwater.access.tokens import Tokens

                self._tokens = Tokens(
                    self._state, self._clock, self.clients, read_only=self.is_read_only, audit=self._audit
                )
            return self._tokens

    # Every day

    def purge(self, filter: str) -> int:
        """Remove the messages that a filter matches, their retained values and topics; answers how many topics.

        What is hidden is remembered until retention has deleted it: QuotaExceeded beyond `purges_max` of a root.
        """
        self._check_open(writes=True)
        check_filter(filter, self.config)
        count = self._roots.commit.run(lambda: self._upkeep.purge(filter, self._rows))
        if count:
            self._audit.note("purged", filter, None, {"topics": count})
        return count

    def backup(self, target: str | os.PathLike[str]) -> None:
        """A copy of the folder as of now, in a new folder, while the bus goes on."""
        self._check_open(writes=True)
        if self.folder == MEMORY:
            raise Malformed("a bus in memory has no files to back up; open one on a folder")
        path = os.fspath(target)
        if self._files.list(path):
            raise Malformed(f'"{path}" is not empty; back up into a new folder')
        self._roots.commit.run(lambda: self._upkeep.backup(self._streams, path, self._rows))
        self._audit.note("backed-up", path)

    def mark_archived(self, lake: str, archived: Mapping[str, int]) -> None:
        """Say how far a lake has each root: retention waits for it as for a durable subscription."""
        self._check_open(writes=True)
        ends = self.ends()
        for root, offset in archived.items():
            if offset > ends.get(root, 0):
                raise Malformed(
                    f'"{root}" ends at {ends.get(root, 0)}, so nothing can be archived up to {offset}: it is another '
                    "bus, or one restored from an older backup; use a new lake for it"
                )
        self._roots.commit.run(lambda: marks.leave(self._files, self.folder, lake, dict(archived)))

    @property
    def inside(self) -> Inside:
        """What a server stands on."""
        return Inside(
            self._desk,
            self._roots,
            self._dispatcher,
            self._state,
            self._rows,
            self._clock,
            self._events,
            self._audit,
            self._state.losses if isinstance(self._state, RocksState) else (),
            lambda: marks.found(self._files, self.folder),
            self._readers.look,
        )

    @property
    def now(self) -> datetime:
        """The bus's time."""
        return to_datetime(self._clock.now_us())


class _Answers:
    """Origin of messages read from history: they can be answered, and nothing else."""

    def __init__(self, reply: Callable[[Message, bytes], Receipt]) -> None:
        self.reply = reply

    def ack(self, messages: Sequence[Message], wait: bool) -> None:
        raise self._refusal("ack")

    def nack(self, message: Message, error: str | BaseException, delay_s: float | None) -> None:
        raise self._refusal("nack")

    def reject(self, message: Message, error: str | BaseException) -> None:
        raise self._refusal("reject")

    def extend(self, message: Message, seconds: float) -> None:
        raise self._refusal("extend")

    def _refusal(self, verb: str) -> Malformed:
        return Malformed(f"cannot {verb} a message that was read from history; subscribe with an id for that")


def restore(backup: str | os.PathLike[str], folder: str | os.PathLike[str], files: Files | None = None) -> None:
    """Make a data folder of a backup; the folder must not exist yet, or be empty."""
    files = files or DiskFiles()
    source, target = os.fspath(backup), os.fspath(folder)
    folders.check(files, source, is_older_fine=True)
    if files.list(target):
        raise Malformed(f'"{target}" is not empty; restore into a new folder')
    folders.copy(files, source, target)
