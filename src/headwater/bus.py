"""The embedded bus: publish, subscribe, replay, inside your process, on a folder that it owns.

Threads enter here. What they ask for is checked here, before anything changes; `core` does it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from headwater import surface
from headwater.clock import Clock, to_datetime
from headwater.config import Config
from headwater.core import Core
from headwater.delivery.dead_letters import Position
from headwater.delivery.durables import Durables
from headwater.delivery.live import Policy
from headwater.delivery.mending import write_of
from headwater.delivery.options import check_none_of_live, check_not_of_channel, stated
from headwater.delivery.replay import After, Reading
from headwater.delivery.start import Start, check_start
from headwater.delivery.subscription import Options
from headwater.errors import Failed, Malformed, TimedOut
from headwater.events import Event
from headwater.log.publish import Publish, Sent
from headwater.message import DeadLetter, Extent, Message, Outgoing, Receipt, Receipts, SubscriptionInfo, TopicInfo
from headwater.requests import Replies
from headwater.store import folder as folders
from headwater.store.files import DiskFiles, Files
from headwater.store.state import State
from headwater.surface import GivenHeaders, States, documented, like
from headwater.topics.name import check_filter

if TYPE_CHECKING:
    from headwater.access.acl import Acl
    from headwater.access.clients import Clients
    from headwater.access.tokens import Tokens
    from headwater.channels.registry import ChannelRegistry


@documented(surface.Bus)
class Bus(surface.Bus):
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
        self.core = core = Core(folder, config, lake=lake, read_only=read_only, files=files, state=state, clock=clock)
        """What the bus is made of: it may change, and is not for users."""
        self.is_read_only = read_only
        self._checks = core.checks
        self._commit = core.roots.commit
        self._check_open = core.check_open
        self._replies = Replies("embedded", core.config.requests_max)

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
    def now(self) -> datetime:
        return to_datetime(self.core.clock.now_us())

    def close(self) -> None:
        self.core.close()

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Publishing

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        ttl_s: float | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        deliver_at: datetime | None = None,
    ) -> Receipt:
        self._check_open(writes=True)
        item = self._checks.one(topic, payload, retain, key, headers, ttl_s, producer, sequence, deliver_at)
        self._commit.submit_and_wait(item)
        return cast(Receipt, item.result())

    def publish_many(
        self,
        messages: Iterable[tuple[str, bytes] | Outgoing],
        *,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Receipts:
        self._check_open(writes=True)
        item = self._checks.many(messages, producer, sequence)
        if not item.topics:
            return Receipts((), ())
        self._commit.submit_and_wait(item)
        return cast(Receipts, item.result())

    def publish_soon(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        ttl_s: float | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        deliver_at: datetime | None = None,
    ) -> Future[Receipt]:
        self._check_open(writes=True)
        item = self._checks.one(topic, payload, retain, key, headers, ttl_s, producer, sequence, deliver_at)
        return cast("Future[Receipt]", self._soon(item))

    def publish_many_soon(
        self,
        messages: Iterable[tuple[str, bytes] | Outgoing],
        *,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Future[Receipts]:
        self._check_open(writes=True)
        item = self._checks.many(messages, producer, sequence)
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
        headers: GivenHeaders = (),
        ttl_s: float | None = None,
        retain: bool = False,
    ) -> None:
        self._check_open(writes=True)
        one = self._checks.one(topic, payload, retain, key, headers, ttl_s, None, None, None)
        item = Sent(one, self.core.roots.counts)
        try:
            self._commit.submit(item)
        except Failed as error:
            item.finish(error)

    @property
    def is_busy(self) -> bool:
        """Whether a publish would have to wait for its turn before it is even taken in."""
        return self._commit.is_full

    def _soon(self, item: Publish) -> Future[object]:
        item.future = future = Future[object]()
        self._commit.submit(item)
        return future

    # Subscribing

    @like(surface.Bus.subscribe)
    def subscribe(
        self,
        filter: str,
        *,
        id: str | None = None,
        start: Start = "latest",
        when_full: Policy = "drop_oldest",
        destination: tuple[str, int] | None = None,
        **options: Any,
    ) -> Any:
        self._check_open(writes=True)
        check_filter(filter, self.config)
        check_start(filter, start)
        given = stated(options)
        if destination is not None:
            raise Malformed("an embedded bus pushes nothing to a destination; serve it, and subscribe there")
        if id is None:
            check_none_of_live(given, start)
            return self.core.listen(filter, when_full)
        check_not_of_channel(id)
        return self.core.consume(Options(id=id, filter=filter, **given), given, start)

    def unsubscribe(self, id: str) -> None:
        self.core.durables.delete(id, force=True)

    @property
    def durables(self) -> Durables:
        """Durable subscriptions, looked after without taking from them."""
        self._check_open()
        return self.core.durables

    def subscriptions(self, *, after: str | None = None, limit: int | None = None) -> list[SubscriptionInfo]:
        self._check_open()
        return self.core.subscriptions(after, limit)

    def states(self, id: str) -> States:
        self._check_open()
        return self.core.dispatcher.use(id, lambda subscriber: subscriber.states())

    # Reading

    def replay(
        self, filter: str, *, after: After = None, since: datetime | None = None, upto: Mapping[str, int] | None = None
    ) -> Reading:
        return self.core.read(filter, after, since, upto, follows=False)

    def follow(self, filter: str, *, after: After = None, since: datetime | None = None) -> Reading:
        return self.core.read(filter, after, since, follows=True)

    def topics(self, filter: str = "#") -> list[TopicInfo]:
        self._check_open()
        return self.core.topics(filter)

    def retained(self, filter: str) -> list[Message]:
        self._check_open()
        return self.core.retained(filter)

    def ends(self) -> dict[str, int]:
        self._check_open()
        return self.core.ends()

    def extents(self, filter: str = "#", moments: Sequence[datetime] = ()) -> list[Extent]:
        self._check_open()
        return self.core.extents(filter, moments)

    def events(self) -> list[Event]:
        return self.core.events.all()

    def refresh(self) -> None:
        self._check_open()
        self.core.refresh()

    # Dead letters

    def dead_letters(
        self, id: str, *, after: tuple[str, int] | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        self._check_open()
        return self.core.dead_letters.all(id, after, limit)

    def dead_letter(self, id: str, offset: Position) -> DeadLetter:
        self._check_open()
        return self.core.dead_letters.get(id, offset)

    def redrive(
        self,
        id: str,
        offsets: Collection[Position] | None = None,
        *,
        mended: Iterable[DeadLetter] | None = None,
        write: str | None = None,
    ) -> int:
        self._check_open(writes=True)
        write = write_of(offsets, mended, write)
        if write is None:
            return self.core.dead_letters.redrive(id, offsets)
        self.core.mending.mend(id, write, tuple(mended or ()), "")
        return self.core.mending.redrive(id, write, ("",))

    def mend(self, id: str, write: str, letters: Sequence[DeadLetter], *, part: str = "") -> None:
        self._check_open(writes=True)
        self.core.mending.mend(id, write, letters, part)

    def redrive_mended(self, id: str, write: str, parts: Sequence[str] = ("",)) -> int:
        self._check_open(writes=True)
        return self.core.mending.redrive(id, write, parts)

    def drop_mended(self, id: str, write: str) -> None:
        self._check_open(writes=True)
        self.core.mending.drop(id, write)

    def drop_dead_letters(self, id: str, offsets: Collection[Position] | None = None) -> int:
        self._check_open(writes=True)
        return self.core.dead_letters.drop(id, offsets)

    # Staged publishes

    def stage(
        self, producer: str, epoch: int, messages: Iterable[tuple[str, bytes] | Outgoing], *, part: str = ""
    ) -> None:
        self._check_open(writes=True)
        self.core.staging.stage_messages(producer, epoch, part, messages)

    def stage_body(self, producer: str, epoch: int, part: str, root: str, count: int, crc: int, body: bytes) -> None:
        self._check_open(writes=True)
        self.core.staging.stage(producer, epoch, part, root, count, crc, body)

    def commit_stage(self, producer: str, epoch: int, parts: Sequence[str] = ("",)) -> dict[str, tuple[int, int]]:
        self._check_open(writes=True)
        return self.core.staging.commit(producer, epoch, parts)

    def drop_stage(self, producer: str, epoch: int) -> None:
        self._check_open(writes=True)
        self.core.staging.drop(producer, epoch)

    # Request and reply

    def request(
        self,
        topic: str,
        payload: bytes,
        *,
        timeout_s: float | None = None,
        headers: GivenHeaders = (),
    ) -> Message:
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
        self, topic: str, payload: bytes, *, headers: GivenHeaders = ()
    ) -> tuple[tuple[tuple[str, str], ...], Future[Message]]:
        """Publish a request; its headers, and a future of the answer."""
        self._check_open(writes=True)
        if not self._replies.is_listening:
            self.core.join(self._replies.topic, self._replies)
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

    # Every day

    def purge(self, filter: str) -> int:
        self._check_open(writes=True)
        return self.core.upkeep.purge(filter)

    def remove_root(self, name: str, force: bool = False) -> None:
        self._check_open(writes=True)
        self.core.upkeep.remove_root(name, force)

    def backup(self, target: str | os.PathLike[str]) -> None:
        self.core.backup(target)

    def mark_archived(self, lake: str, archived: Mapping[str, int]) -> None:
        self.core.mark_archived(lake, archived)


def restore(backup: str | os.PathLike[str], folder: str | os.PathLike[str], files: Files | None = None) -> None:
    """Make a data folder of a backup; the folder must not exist yet, or be empty."""
    files = files or DiskFiles()
    source, target = os.fspath(backup), os.fspath(folder)
    folders.check(files, source, is_older_fine=True)
    if files.list(target):
        raise Malformed(f'"{target}" is not empty; restore into a new folder')
    folders.copy(files, source, target)
