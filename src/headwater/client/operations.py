"""What a server is asked, once for all who ask: coroutines in the client's loop, which threads wait for.

What is said of each method stands in `headwater.surface`.
"""

from __future__ import annotations

import inspect
import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

from headwater import surface
from headwater.client.admin import Acl, Channels, Clients
from headwater.client.client import Client
from headwater.client.feed import Feed, Verbs
from headwater.client.pages import all_pages, listed
from headwater.clock import from_datetime, to_datetime
from headwater.config import Config
from headwater.delivery.dead_letters import Position, places_of
from headwater.delivery.mending import check_letter, mended_twice, write_of
from headwater.delivery.own_topics import STATES, own_topic
from headwater.delivery.start import Start, check_start
from headwater.errors import HeadwaterError, Malformed, NotFound
from headwater.log.checks import Checks
from headwater.log.publish import Publish
from headwater.message import (
    DeadLetter,
    Erased,
    Extent,
    Message,
    PurgeInfo,
    ScheduleInfo,
    SchemaInfo,
    StateInfo,
    SubscriptionInfo,
    TopicInfo,
)
from headwater.payload import Payload
from headwater.schema.document import read
from headwater.schemas import Depth
from headwater.store.log import Counted
from headwater.surface import Messages, documented, like
from headwater.topics.name import root_of
from headwater.wire import administration
from headwater.wire import requests as wire
from headwater.wire.request import PAGE_MAX, A, Request
from headwater.work.past import Past

P = ParamSpec("P")
R = TypeVar("R")

LETTERS_BYTES = 1024 * 1024
"""Payloads of one request to mend, unless a letter alone has more."""


def asks(
    shape: Callable[Concatenate[Any, P], R], request: Callable[..., Request[R]]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A method of the surface that one request does: its parameters are the fields of the request."""
    signature = inspect.signature(shape)

    @wraps(shape)
    async def call(bus: Operations, /, *args: P.args, **options: P.kwargs) -> R:
        given = signature.bind(bus, *args, **options)
        given.apply_defaults()
        del given.arguments["self"]
        return await bus.ask(request(**given.arguments))

    return call


@documented(surface.Bus)
class Served:
    """What both served buses show of their connection."""

    is_read_only = False
    _client: Client

    @abstractmethod
    def ask(self, request: Request[Any]) -> Any:
        """What a request is answered with."""

    @property
    def clients(self) -> Any:
        """The clients that may log in."""
        return Clients(self.ask)

    @property
    def acl(self) -> Any:
        """The rules for what they may do."""
        return Acl(self.ask)

    @property
    def channels(self) -> Any:
        """What is pushed where."""
        return Channels(self.ask)

    def __repr__(self) -> str:
        return f"<headwater bus at {self.folder}>"

    def _checking(self) -> Checks:
        return self._client.checks

    def _sql_memory_bytes(self) -> int:
        return self._client.settings.sql_memory_bytes

    @property
    def id(self) -> str:
        return self._client.link.bus

    @property
    def config(self) -> Config:
        return self._client.config

    @property
    def folder(self) -> str:
        return str(self._client.address)

    @property
    def session(self) -> str | None:
        return self._client.link.session

    @property
    def client_id(self) -> str | None:
        return self._client.link.client_id

    @property
    def now(self) -> datetime:
        return to_datetime(self._client.clock.now_us())


@documented(surface.Bus)
class Operations(Served):
    """Everything that a client asks its server for, besides messages."""

    def __init__(self, client: Client, verbs: Verbs) -> None:
        self._client = client
        self._verbs = verbs

    async def ask(self, request: Request[A]) -> A:
        """What a request is answered with."""
        return await self._client.link.request(request)

    ends = asks(surface.Bus.ends, wire.Ends)
    events = asks(surface.Bus.events, wire.Events)
    redrive_mended = asks(surface.Bus.redrive_mended, wire.RedriveMended)
    drop_mended = asks(surface.Bus.drop_mended, wire.DropMended)
    stage_body = asks(surface.Bus.stage_body, wire.Stage)
    commit_stage = asks(surface.Bus.commit_stage, wire.CommitStage)
    drop_stage = asks(surface.Bus.drop_stage, wire.DropStage)
    purge = asks(surface.Bus.purge, wire.Purge)
    remove_root = asks(surface.Bus.remove_root, wire.RemoveRoot)

    async def purges(self, filter: str = "#") -> list[PurgeInfo]:
        found = await listed(self.ask, wire.Purges, attrgetter("root", "upto", "filter", "key"), filter=filter)
        return list(dict.fromkeys(found))  # of what is purged meanwhile, some may come twice

    async def subscriptions(self, *, after: str | None = None, limit: int | None = None) -> list[SubscriptionInfo]:
        return await all_pages(
            lambda last, some: self.ask(wire.Subscriptions(after=after if last is None else last.id, limit=some)), limit
        )

    @like(surface.Bus.schedule)
    async def schedule(
        self, topic: str, payload: Payload, *, cron: str, id: str | None = None, zone: str = "UTC", **message: Any
    ) -> ScheduleInfo:
        (part,) = self._client.checks.one(topic, payload, **message).parts
        message["headers"] = part.headers[0] if part.headers else ()
        return await self.ask(
            wire.Schedule(topic=topic, payload=part.payloads[0], cron=cron, id=id, zone=zone, **message)
        )

    async def schedules(self, *, after: str | None = None, limit: int | None = None) -> list[ScheduleInfo]:
        return await all_pages(
            lambda last, some: self.ask(wire.Schedules(after=after if last is None else last.id, limit=some)), limit
        )

    async def unschedule(self, id: str) -> None:
        await self.ask(wire.Unschedule(id=id))

    async def schema(self, filter: str, schema: object, *, check: Depth = "recent") -> SchemaInfo:
        text = read(schema, self._client.config).text
        return await self.ask(administration.SetSchema(filter=filter, schema=text, check=check))

    async def schemas(self, *, after: str | None = None, limit: int | None = None) -> list[SchemaInfo]:
        return await all_pages(
            lambda last, some: self.ask(
                administration.ListSchemas(after=after if last is None else last.filter, limit=some)
            ),
            limit,
        )

    async def remove_schema(self, filter: str) -> None:
        await self.ask(administration.RemoveSchema(filter=filter))

    async def unsubscribe(self, id: str) -> None:
        await self._client.unsubscribe(id)

    async def states(self, id: str) -> list[StateInfo]:
        found: list[StateInfo] = []

        async def page(_: object, limit: int) -> list[StateInfo]:
            some = await self.ask(wire.States(id=id, after=len(found), limit=limit))
            found.extend(some)
            return some

        return await all_pages(page)

    async def _past(self, id: str) -> Past:
        """What is known of the messages of a durable subscription."""
        shown = await self.ask(administration.ShowSubscription(id=id))
        told_on = own_topic(STATES, id, self.config)
        past = Past(shown.info, shown.options, told_on, is_told=bool(await self.topics(told_on)))
        past.add_states(await self.states(id))
        place: tuple[str, int] | None = None
        while letters := await self.ask(wire.DeadLetters(id=id, after=place, limit=PAGE_MAX)):
            past.add_letters(letters)
            place = (root_of(letters[-1].topic), letters[-1].offset)
        return past

    async def topics(self, filter: str = "#") -> list[TopicInfo]:
        found = await all_pages(
            lambda last, limit: self.ask(
                wire.Topics(filter=filter, after="" if last is None else last.topic, limit=limit)
            )
        )
        return sorted(found, key=lambda one: one.topic)

    async def _retained_messages(self, filter: str) -> list[wire.RetainedMessage]:
        """Retained messages as they come over the wire, by topic within each root."""
        return await all_pages(
            lambda last, limit: self.ask(
                wire.Retained(filter=filter, after="" if last is None else last.topic, limit=limit)
            )
        )

    async def extents(self, filter: str = "#", moments: Sequence[datetime] = ()) -> list[Extent]:
        return await self.ask(wire.Extents(filter=filter, moments_us=tuple(map(from_datetime, moments))))

    async def count_matching(
        self, filter: str, among: Sequence[str], root: str, first: int, last: int, messages_max: int, bytes_max: int
    ) -> Counted:
        """How many messages of a root match from one offset to another, until there are so many, or about so much was
        read; of the filter, those that any of `among` matches, if it names any.

        For readers that limit what they take, as Spark does.
        """
        asked = wire.Count(
            filter=filter,
            among=tuple(among),
            root=root,
            first=first,
            last=last,
            messages=messages_max,
            bytes=bytes_max,
        )
        return await self.ask(asked)

    async def refresh(self) -> None:
        self._client.link.check_open()

    async def dead_letters(
        self, id: str, *, after: tuple[str, int] | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        if limit is not None and limit < 1:
            raise Malformed(f"limit is {limit}; use 1 or more")

        def page(last: DeadLetter | None, limit: int) -> Awaitable[list[DeadLetter]]:
            place = after if last is None else (root_of(last.topic), last.offset)
            return self.ask(wire.DeadLetters(id=id, after=place, limit=limit))

        return await all_pages(page, limit)

    async def dead_letter(self, id: str, offset: Position) -> DeadLetter:
        found = await self.ask(wire.DeadLetters(id=id, offset=offset))
        if not found:
            raise NotFound(f'subscription "{id}" has no dead letter {offset}; see bus.dead_letters("{id}")')
        return found[0]

    @like(surface.Bus.redrive)
    async def redrive(self, id: str, offsets: Any = None, *, mended: Any = None, write: str | None = None) -> int:
        write = write_of(offsets, mended, write)
        if write is None:
            return await self.ask(wire.Redrive(id=id, offsets=places_of(offsets)))
        try:
            await self.mend(id, write, tuple(mended or ()))
            return await self.redrive_mended(id, write)
        except HeadwaterError as error:
            if not error.retryable:
                await self.drop_mended(id, write)
            raise

    async def mend(self, id: str, write: str, letters: Sequence[DeadLetter], *, part: str = "") -> None:
        for request in mending(id, write, letters, part):
            await self.ask(request)

    async def drop_dead_letters(self, id: str, offsets: Collection[Position] | None = None) -> int:
        return await self.ask(wire.DropDeadLetters(id=id, offsets=places_of(offsets)))

    async def stage(self, producer: str, epoch: int, messages: Messages, *, part: str = "") -> None:
        await self.stage_prepared(self._client.checks.many(messages), producer, epoch, part)

    async def stage_prepared(self, item: Publish, producer: str, epoch: int, part: str) -> None:
        """Stage messages that are checked and encoded: one request a root."""
        for one in item.parts:
            body = one.body or b""
            await self.stage_body(producer, epoch, part, one.root, len(one.topics), one.crc, body)

    async def backup(self, target: str | os.PathLike[str], *, with_keys: bool = False) -> None:
        await self.ask(wire.Backup(target=os.fspath(target), with_keys=with_keys))

    async def erase(self, key: bytes | str, filter: str = "#", *, dry_run: bool = False) -> Erased:
        named = key.encode() if isinstance(key, str) else key
        return await self.ask(wire.Erase(key=named, filter=filter, dry_run=dry_run))

    async def mark_archived(self, lake: str, archived: Mapping[str, int]) -> None:
        await self.ask(wire.MarkArchived(lake=lake, archived=dict(archived)))

    async def show_progress(
        self, filter: str, id: str, places: Mapping[str, int], *, expire_after_s: float | None = None
    ) -> None:
        """Have a durable subscription, made if need be, stand at the next offset to read of each root.

        For readers that keep their own place, as Spark does: nothing is handed out here.
        """
        # A None that is stated means for ever.
        stated: dict[str, Any] = {} if expire_after_s is None else {"expire_after_s": expire_after_s}
        asked = self._client.subscription(filter, id=id, start="earliest", **stated)
        assert isinstance(asked, wire.Subscribe)
        feed = await self._client.subscribe(asked, self._verbs, (0, 0))
        try:
            await self.ask(wire.Seek(number=feed.number, to=dict(places)))
        finally:
            await self._client.leave(feed)


def retained_message(one: wire.RetainedMessage) -> Message:
    """A retained message as users see it."""
    return Message(one.topic, one.offset, one.payload, one.time_us, one.key, one.headers, retained=True, retain=True)


def mending(id: str, write: str, letters: Iterable[DeadLetter], part: str) -> list[wire.Mend]:
    """Requests that mend letters, few enough in each."""
    groups: list[list[DeadLetter]] = []
    seen: set[Position] = set()
    size = LETTERS_BYTES
    for letter in letters:
        check_letter(letter, id)
        place = (root_of(letter.topic), letter.offset)
        if place in seen:
            raise mended_twice(letter.topic, letter.offset)
        seen.add(place)
        if size >= LETTERS_BYTES or len(groups[-1]) == wire.LETTERS_MAX:
            groups.append([])
            size = 0
        groups[-1].append(letter)
        size += len(letter.payload)
    return [wire.Mend(id=id, write=write, letters=tuple(group), part=part) for group in groups]


def seek_of(feed: Feed, to: Start) -> wire.Seek:
    """A request to go on from elsewhere."""
    check_start(feed.filter, to)
    if isinstance(to, datetime):
        return wire.Seek(number=feed.number, to_us=round(to.timestamp() * 1_000_000))
    return wire.Seek(number=feed.number, to=to)
