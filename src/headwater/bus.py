"""The embedded bus: publish, subscribe, replay, inside your process, on a folder that it owns.

Threads enter here. What they ask for is checked here, before anything changes; `core` does it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from headwater import surface
from headwater.clock import to_datetime
from headwater.config import Config
from headwater.core import Core
from headwater.delivery.consumer import Consumer
from headwater.delivery.durables import Durables
from headwater.delivery.live import Live, Policy
from headwater.delivery.mending import write_of
from headwater.delivery.options import (
    Options,
    SubscriptionKind,
    check_none_of_live,
    check_not_of_channel,
    check_when_full,
    kind_of,
    stated,
)
from headwater.delivery.own_session import OwnSession
from headwater.delivery.own_topics import STATES, own_topic
from headwater.delivery.reader import Reader
from headwater.delivery.replay import Reading
from headwater.delivery.start import Start, check_start
from headwater.errors import Failed, HeadwaterError, Malformed, Owned
from headwater.events import Event
from headwater.forgotten import close_at_end, let_go, settle, weakly
from headwater.log.checks import Checks
from headwater.log.publish import Publish, Unawaited
from headwater.message import Headers, Message, Receipt, Receipts
from headwater.payload import Payload
from headwater.requests import Replies, pairs_of
from headwater.store import folder as folders
from headwater.store import keys
from headwater.store.files import DiskFiles, Files
from headwater.store.rocks import RocksReader
from headwater.surface import GivenHeaders, Messages, documented, like
from headwater.topics.name import check_filter, root_of
from headwater.values import Retained
from headwater.work.handlers import Handlers
from headwater.work.past import Past
from headwater.work.workers import Workers

if TYPE_CHECKING:
    from headwater.access.acl import Acl
    from headwater.access.clients import Clients
    from headwater.access.tokens import Tokens
    from headwater.arrow.source import Source
    from headwater.channels.registry import ChannelRegistry


LETTERS = 1000
"""Dead letters that are read at once."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Reader)


def done_by(
    shape: Callable[Concatenate[Any, P], R], part: Callable[[Core], Callable[..., R]], *, writes: bool = False
) -> Callable[Concatenate[Any, P], R]:
    """A method of the surface that a part of the core does, as long as the bus is open."""

    @wraps(shape)
    def call(bus: Bus, /, *args: P.args, **options: P.kwargs) -> R:
        bus.core.check_open(writes)
        return part(bus.core)(*args, **options)

    return call


def _open(make: Callable[[], Core]) -> Core:
    """A core; if this process has forgotten a bus that had the folder, once that has let go of it."""
    try:
        return make()
    except Owned:
        if not settle():
            raise
    return make()


@documented(surface.Threaded)
class Bus(surface.Threaded):
    """A bus on a folder, or in memory."""

    @like(Core.__init__)
    def __init__(self, *args: Any, **doors: Any) -> None:
        self.core = core = _open(partial(Core, *args, **doors))
        """What the bus is made of: it may change, and is not for users."""
        self.is_read_only = core.is_read_only
        self._checks = core.checks
        self._commit = core.roots.commit
        self._check_open = core.check_open
        self._replies = Replies("embedded", core.config.requests_max)
        handlers = Handlers(is_asynchronous=False, check_open=lambda: core.check_open(writes=True))
        self._workers = Workers(weakly(self.subscribe), core.clock, handlers)
        self._session = OwnSession(core.dispatcher)
        self._process = os.getpid()
        close_at_end(self)

    def __repr__(self) -> str:
        how = " (closed)" if self.core.is_closed else " (read only)" if self.is_read_only else ""
        return f"<headwater bus in {self.folder}{how}>"

    @property
    def id(self) -> str:
        return self.core.id

    @property
    def config(self) -> Config:
        return self.core.config

    @property
    def folder(self) -> str:
        return self.core.folder

    @property
    def session(self) -> str | None:
        return None if self.is_read_only else self._session.id

    @property
    def client_id(self) -> str | None:
        return None

    @property
    def now(self) -> datetime:
        return to_datetime(self.core.clock.now_us())

    def close(self) -> None:
        self._workers.end()
        self._session.end()
        self.core.close()

    def _close_at_end(self) -> None:
        if self._process == os.getpid():
            self.core.close()  # handlers that another thread runs are not waited for

    def __del__(self) -> None:
        core = getattr(self, "core", None)
        if core is not None and not core.is_closed and self._process == os.getpid():
            let_go(self, f'the bus on "{core.folder}"', core.close)

    def _keeping(self, reader: T) -> T:
        """A reader that is all that anybody holds of its bus can go on."""
        reader._keeps = self
        return reader

    # Publishing

    @like(surface.Bus.publish)
    def publish(self, topic: str, payload: Payload, **options: Any) -> Receipt:
        if not self.core.takes_writes:
            self._check_open(writes=True)
        item = self._checks.one(topic, payload, **options)
        self._commit.submit_and_wait(item)
        return cast(Receipt, item.result())

    @like(surface.Bus.publish_many)
    def publish_many(self, messages: Messages, **options: Any) -> Receipts:
        self._check_open(writes=True)
        item = self._checks.many(messages, **options)
        if not item.topics:
            return Receipts((), ())
        self._commit.submit_and_wait(item)
        return cast(Receipts, item.result())

    @like(surface.Bus.publish_soon)
    def publish_soon(self, topic: str, payload: Payload, **options: Any) -> Future[Receipt]:
        self._check_open(writes=True)
        return cast("Future[Receipt]", self._soon(self._checks.one(topic, payload, **options)))

    @like(surface.Bus.publish_many_soon)
    def publish_many_soon(self, messages: Messages, **options: Any) -> Future[Receipts]:
        self._check_open(writes=True)
        return cast("Future[Receipts]", self._soon(self._checks.many(messages, **options)))

    def _soon(self, item: Publish) -> Future[object]:
        item.future = future = Future[object]()
        if item.topics:
            self._commit.submit(item)
        else:
            future.set_result(Receipts((), ()))
        return future

    @like(surface.Bus.send)
    def send(self, topic: str, payload: Payload, **options: Any) -> None:
        self._check_open(writes=True)
        item = Unawaited.of(self._checks.one(topic, payload, **options), self.core.roots.counts)
        try:
            self._commit.submit(item)
        except Failed as error:
            item.finish(error)

    @property
    def is_busy(self) -> bool:
        """Whether a publish would have to wait for its turn before it is even taken in."""
        return self._commit.is_full

    # Schedules

    schedule = done_by(surface.Bus.schedule, lambda core: core.schedules.add, writes=True)
    schedules = done_by(surface.Bus.schedules, lambda core: core.schedules.all)
    unschedule = done_by(surface.Bus.unschedule, lambda core: core.schedules.remove, writes=True)

    # Schemas

    schema = done_by(surface.Bus.schema, lambda core: core.schemas.add, writes=True)
    schemas = done_by(surface.Bus.schemas, lambda core: core.schemas.all)
    remove_schema = done_by(surface.Bus.remove_schema, lambda core: core.schemas.remove, writes=True)

    # Subscribing

    def _subscribe(
        self,
        filter: str,
        *,
        id: str | None = None,
        kind: SubscriptionKind | None = None,
        start: Start = "latest",
        when_full: Policy = "drop_oldest",
        destination: tuple[str, int] | None = None,
        **options: Any,
    ) -> Consumer | Live:
        self._check_open(writes=True)
        check_filter(filter, self.config)
        check_start(filter, start)
        given = stated(options)
        if destination is not None:
            raise Malformed("an embedded bus pushes nothing to a destination; serve it, and subscribe there")
        kind = kind_of(kind, id)
        check_when_full(when_full, kind)
        if kind == "session":
            id = self._session.own(filter, given)
        if id is None:
            check_none_of_live(given, start)
            return self._keeping(self.core.listen(filter, when_full, is_forgettable=True))
        check_not_of_channel(id)
        return self._keeping(self.core.consume(Options(id=id, filter=filter, **given), given, start))

    def unsubscribe(self, id: str) -> None:
        self.core.durables.delete(id, force=True)

    @property
    def durables(self) -> Durables:
        """Durable subscriptions, administered by their ids without a consumer."""
        self._check_open()
        return self.core.durables

    subscriptions = done_by(surface.Bus.subscriptions, lambda core: core.subscriptions)

    states = done_by(surface.Bus.states, lambda core: core.states.all)

    def _checking(self) -> Checks:
        return self._checks

    def _past(self, id: str) -> Past:
        core = self.core
        self._check_open()
        info, options, told_on = core.durables.info(id), core.durables.options(id), own_topic(STATES, id, self.config)
        if not self.is_read_only:
            core.lives.write()
        past = Past(info, options, told_on, is_told=self.config.states == "stream" or bool(self.topics(told_on)))
        past.add_states(self.states(id))
        place: tuple[str, int] | None = None
        while letters := core.dead_letters.all(id, place, LETTERS):
            past.add_letters(letters)
            place = (root_of(letters[-1].topic), letters[-1].offset)
        return past

    # Reading

    @like(surface.Bus.replay)
    def replay(self, filter: str, **options: Any) -> Reading:
        return self._keeping(self.core.read(filter, **options, follows=False))

    @like(surface.Bus.follow)
    def follow(self, filter: str, **options: Any) -> Reading:
        return self._keeping(self.core.read(filter, **options, follows=True))

    def _sql_memory_bytes(self) -> int:
        return self.config.sql_memory_bytes

    def _columns(self, filter: str, columns: Sequence[str], **options: Any) -> Source:
        from headwater.arrow.source import Stored

        return Stored(self._keeping(self.core.read(filter, **options, follows=False, columns=columns)))

    @like(surface.Bus.retained)
    def retained(self, filter: str) -> Retained:
        self._check_open()
        ends, found = self.core.ends(), self.core.retained(filter)
        return Retained(filter, ends, found, lambda *place: self.follow(place[0], after=place[1]), self.core.clock)

    topics = done_by(surface.Bus.topics, lambda core: core.topics)
    ends = done_by(surface.Bus.ends, lambda core: core.ends)
    extents = done_by(surface.Bus.extents, lambda core: core.extents)
    purges = done_by(surface.Bus.purges, lambda core: core.purges)
    refresh = done_by(surface.Bus.refresh, lambda core: core.refresh)

    def events(self) -> list[Event]:
        return self.core.events.all()

    # Dead letters

    @like(surface.Bus.redrive)
    def redrive(self, id: str, offsets: Any = None, *, mended: Any = None, write: str | None = None) -> int:
        self._check_open(writes=True)
        write = write_of(offsets, mended, write)
        if write is None:
            return self.core.dead_letters.redrive(id, offsets)
        self.core.mending.mend(id, write, tuple(mended or ()))
        return self.core.mending.redrive(id, write)

    dead_letters = done_by(surface.Bus.dead_letters, lambda core: core.dead_letters.all)
    dead_letter = done_by(surface.Bus.dead_letter, lambda core: core.dead_letters.get)
    drop_dead_letters = done_by(surface.Bus.drop_dead_letters, lambda core: core.dead_letters.drop, writes=True)
    mend = done_by(surface.Bus.mend, lambda core: core.mending.mend, writes=True)
    redrive_mended = done_by(surface.Bus.redrive_mended, lambda core: core.mending.redrive, writes=True)
    drop_mended = done_by(surface.Bus.drop_mended, lambda core: core.mending.drop, writes=True)

    # Staged publishes

    stage = done_by(surface.Bus.stage, lambda core: core.staging.stage_messages, writes=True)
    stage_body = done_by(surface.Bus.stage_body, lambda core: core.staging.stage, writes=True)
    commit_stage = done_by(surface.Bus.commit_stage, lambda core: core.staging.commit, writes=True)
    drop_stage = done_by(surface.Bus.drop_stage, lambda core: core.staging.drop, writes=True)

    # Request and reply

    def request_soon(
        self, topic: str, payload: Payload, *, headers: GivenHeaders = (), durable: bool = False
    ) -> tuple[Headers, Future[Message]]:
        return self._ask_soon(topic, payload, headers, durable)

    def _asks_at_once(self, topic: str, payload: Payload) -> bool:
        """Whether a question can be put without waiting for anything."""
        self._checks.plain(topic, payload)
        return self._replies.is_listening and bool(self.core.dispatcher.listeners.hearing(topic))

    def _ask_soon(
        self, topic: str, payload: Payload, headers: GivenHeaders, durable: bool, *, may_wait: bool = True
    ) -> tuple[Headers, Future[Message]]:
        """The same, for a thread that may wait for the disk, or may not: one with a loop."""
        self._check_open(writes=True)
        replies, answer = self._replies, Future[Message]()
        if not replies.is_listening:
            self.core.join(replies.topic, replies)
            replies.is_listening = True
        pairs = replies.expect(answer, is_durable=durable)
        try:
            item = self._checks.one(topic, payload, headers=(*pairs_of(headers), *pairs))
            if durable:
                self.core.store(item)
            else:
                self.core.ask(item, may_wait=may_wait)
        except BaseException:
            replies.forget(pairs)
            raise
        return pairs, answer

    def forget_request(self, headers: Headers) -> None:
        self._replies.forget(headers)

    # Who may do what, once the bus is served

    @property
    def clients(self) -> Clients:
        """The clients that may log in."""
        return self.core.clients

    @property
    def acl(self) -> Acl:
        """The rules for what they may do."""
        return self.core.acl

    @property
    def tokens(self) -> Tokens:
        """What opens the HTTP API for them."""
        return self.core.tokens

    @property
    def channels(self) -> ChannelRegistry:
        """What is pushed where, while the bus is served."""
        from headwater.channels.registry import ChannelRegistry  # embedded, hardly anybody asks

        return self.core.registry(ChannelRegistry)

    # Operations

    purge = done_by(surface.Bus.purge, lambda core: core.upkeep.purge, writes=True)
    erase = done_by(surface.Bus.erase, lambda core: core.erasure.erase, writes=True)
    remove_root = done_by(surface.Bus.remove_root, lambda core: core.upkeep.remove_root, writes=True)
    backup = done_by(surface.Bus.backup, lambda core: core.backup, writes=True)
    mark_archived = done_by(surface.Bus.mark_archived, lambda core: core.mark_archived, writes=True)


def restore(backup: str | os.PathLike[str], folder: str | os.PathLike[str], files: Files | None = None) -> list[str]:
    """Make a data folder of a backup; the folder must not exist yet, or be empty. Answers the ids of channels that need
    their secret again, as the backup has no key to open it with."""
    files = files or DiskFiles()
    source, target = os.fspath(backup), os.fspath(folder)
    folders.check(files, source, is_older_fine=True)
    if files.list(target):
        raise Malformed(f'"{target}" is not empty; restore into a new folder')
    folders.copy(files, source, target)
    try:
        state = RocksReader(f"{target}/{folders.STATE}")
    except HeadwaterError:
        return []  # whoever opens it is told
    try:
        return keys.missing(state, keys.Key(files, target))
    finally:
        state.close()
