"""The surface of a bus: what every bus has, embedded or served, and what `help()` says of it.

What `headwater.open` and `headwater.connect` give are a `headwater.Bus`, which is the one here, so what is written for
one runs on the other.
The buses of `headwater.aio` have the same methods, as coroutines and async iterators: they take their signatures and
what is said of them from here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
    runtime_checkable,
)

from headwater import arrow
from headwater.config import Config
from headwater.delivery.dead_letters import Position
from headwater.delivery.live import Policy
from headwater.delivery.options import OnGap, OnResume, Order, SubscriptionKind, Told
from headwater.delivery.reader import check_timeout
from headwater.delivery.replay import After
from headwater.delivery.start import Start
from headwater.errors import TimedOut
from headwater.events import Event
from headwater.log.checks import Checks
from headwater.message import (
    DeadLetter,
    Erased,
    Extent,
    Headers,
    Message,
    Outgoing,
    PurgeInfo,
    ScheduleInfo,
    SchemaInfo,
    StateInfo,
    SubscriptionInfo,
    TopicInfo,
)
from headwater.payload import Payload
from headwater.receipt import Receipt, Receipts
from headwater.schemas import Depth
from headwater.values import Retained
from headwater.work.comparison import Comparison
from headwater.work.handlers import Function, H, decorator, handler_of
from headwater.work.past import Past
from headwater.work.rehearsal import rehearse
from headwater.work.shadow import MESSAGES_MAX, Shadow
from headwater.work.shift import Shift
from headwater.work.workers import Workers

if TYPE_CHECKING:
    import pyarrow

    from headwater.arrow.result import Result
    from headwater.arrow.source import Source

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
GivenHeaders = Mapping[str, str] | Sequence[tuple[str, str]]
Messages = Iterable[tuple[str, Payload] | Outgoing]
"""What may be published together: pairs of a topic and a payload, or messages with options."""


# Shells take their signatures, and what is said of them, from another


def like(shape: Callable[Concatenate[Any, P], Any]) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Have a method take what another takes, and say what that says of itself, unless it has words of its own."""

    def shaped(method: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        returned = inspect.signature(method).return_annotation
        vars(method)["__signature__"] = inspect.signature(shape).replace(return_annotation=returned)
        method.__doc__ = method.__doc__ or shape.__doc__
        return method

    return shaped


def documented(source: type) -> Callable[[type[T]], type[T]]:
    """Have the methods of a class say of themselves what those of another say."""

    def told(shell: type[T]) -> type[T]:
        for name, member in vars(shell).items():
            said = inspect.getdoc(getattr(source, name, None)) if not name.startswith("_") else None
            if said is not None and (callable(member) or isinstance(member, property)):
                member.__doc__ = said
        return shell

    return told


MADE_BY: dict[str, str] = {
    "Bus": "headwater.open(folder), or headwater.connect(url),",
    "Consumer": "bus.subscribe(filter, id=…)",
    "Live": "bus.subscribe(filter)",
    "Reading": "bus.replay(filter), or bus.follow(filter),",
}
"""What gives one of each type that is there to be written down."""


def not_made(kind: type) -> TypeError:
    """Somebody called such a type."""
    name = kind.__name__
    return TypeError(f"{name} is a type to write down, and makes nothing: {MADE_BY[name]} gives one")


class Made(Protocol):
    """What is made by something else, and not by calling its class."""

    def __new__(cls, *_: object, **__: object) -> Self:
        if cls.__module__ == __name__ and cls.__name__ in MADE_BY:
            raise not_made(cls)
        return super().__new__(cls)


class Reader(Made, Protocol):
    """Messages one after another; iterate it, or ask with `next` and `batch`."""

    filter: str

    def next(self, timeout_s: float | None = None) -> Message | None: ...
    def batch(self, max: int = ..., timeout_s: float | None = None) -> list[Message]: ...
    def __iter__(self) -> Iterator[Message]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None: ...
    def close(self) -> None: ...


class Reading(Reader, Protocol):
    """History, and with `follow` everything after."""

    @property
    def is_over(self) -> bool: ...


class Live(Reader, Protocol):
    """A live subscription: what `bus.subscribe(filter)` gives."""

    @property
    def dropped(self) -> int: ...


class Consumer(Reader, Protocol):
    """Takes messages of one durable subscription: what `bus.subscribe(filter, id=…)` gives."""

    id: str

    def ack(self, messages: Sequence[Message], wait: bool = True) -> None: ...
    def seek(self, to: Start) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Durable(TypedDict, total=False):
    """What may be stated of a durable subscription, besides its id; None is no limit, or nothing stated."""

    start: Start
    order: Order | None
    max_in_flight: int | None
    ack_timeout_s: float | None
    max_attempts: int | None
    max_deliveries: int | None
    expire_after_s: float | None
    on_gap: OnGap | None
    on_resume: OnResume | None
    retry_delay_s: float | None
    retry_delay_s_max: float | None
    states: Told | None


@runtime_checkable
class Bus(Made, Protocol):
    """A bus: topics, subscriptions and history."""

    @property
    def id(self) -> str:
        """The id of the bus, by which a lake knows whose it is; empty if the server is too old to tell."""

    @property
    def config(self) -> Config:
        """Its settings; of a server those that clients are told, the others are defaults."""

    @property
    def folder(self) -> str:
        """Where the data is; of a server its address."""

    @property
    def session(self) -> str | None:
        """The id of its session at the server. A lost connection comes back to it; `connect` with `session=` goes on
        with it in another process. Embedded, its session lasts as long as it is open; None beside the owner."""

    @property
    def client_id(self) -> str | None:
        """What the server calls this client: its id in the registry, or one drawn for a connection; embedded, None."""

    @property
    def now(self) -> datetime:
        """The bus's time; of a server that of its machine."""

    # Publishing

    def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        retain: bool = False,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        ttl_s: float | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        deliver_at: datetime | None = None,
    ) -> Receipt:
        """Store a message; returns once it is on disk.

        `ttl_s` and `deliver_at` go by the bus's time (`bus.now`). That is the machine's, except for the quarter of an
        hour after its clock was set by more than a minute: until then it goes on as before, and an event says so.
        """

    def publish_many(self, messages: Messages, *, producer: str | None = None, sequence: int | None = None) -> Receipts:
        """Store messages together, in one commit; receipts in the order of the call.

        What can be told from the call alone (names, sizes, options) refuses all of it. Then each root's messages are
        stored, all of them or none: if some roots refuse theirs (a right, a limit, a sequence, a stream that takes no
        messages) and others do not, PartlyStored (409) has the receipts; if all do, the error of the first.
        """

    def publish_soon(
        self,
        topic: str,
        payload: Payload,
        *,
        retain: bool = False,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        ttl_s: float | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        deliver_at: datetime | None = None,
    ) -> Future[Receipt]:
        """Store a message without waiting: the future has its receipt once it is on disk."""

    def publish_many_soon(
        self, messages: Messages, *, producer: str | None = None, sequence: int | None = None
    ) -> Future[Receipts]:
        """`publish_many` without waiting."""

    def send(
        self,
        topic: str,
        payload: Payload,
        *,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        ttl_s: float | None = None,
        retain: bool = False,
    ) -> None:
        """Send a message at most once: nobody waits for it, there is no receipt, and a lost connection loses it.

        It is stored with the next group, as MQTT's QoS 0 is. What is wrong with the call itself is raised (Malformed,
        TooLarge, Closed); what cannot be stored, or is not allowed, is counted (`messages_unstored`) and not told.
        """

    # Schedules

    def schedule(
        self,
        topic: str,
        payload: Payload,
        *,
        cron: str,
        id: str | None = None,
        zone: str = "UTC",
        retain: bool = False,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        ttl_s: float | None = None,
    ) -> ScheduleInfo:
        """Publish a message again and again: `bus.schedule("jobs/nightly", b"…", cron="0 3 * * *")`.

        A cron line has five fields: minute, hour, day of month, month, day of week; `zone` is whose time it is. Without
        an id it has the topic's name. The same again changes nothing, so a program may say it at each start; another
        message keeps the times, and another line begins anew. Each time brings one message, whatever crashes, with the
        header `scheduled-for`; of those that passed while the bus was down, the first is caught up once it is back.
        """

    def schedules(self, *, after: str | None = None, limit: int | None = None) -> list[ScheduleInfo]:
        """Messages that are published again and again, by id; with a limit a page of them, after an id. Of a server,
        those of this client; administrators see all."""

    def unschedule(self, id: str) -> None:
        """Publish it no more; NotFound (404) if there is no such schedule."""

    # Schemas

    def schema(self, filter: str, schema: object, *, check: Depth = "recent") -> SchemaInfo:
        """Say what the payloads of topics have to be: `bus.schema("home/+/temp", Reading)`.

        A dataclass, msgspec.Struct, TypedDict, pydantic model, other type that JSON has, or a JSON Schema as a dict or
        text. From then on, whoever publishes what does not fit gets SchemaMismatch (422), which says where; over
        restarts, and for messages of other programs, who need no such class. A message has to fit every schema whose
        filter matches its topic.

        To say the same again changes nothing; another one takes the place of what this filter had. The newest stored
        messages are looked at before (`check="all"`: all of them, "none": none), and if one of them does not fit, it is
        Conflict (409) and nothing is changed. Of a server, administrators may.
        """

    def schemas(self, *, after: str | None = None, limit: int | None = None) -> list[SchemaInfo]:
        """What payloads have to be, by filter; with a limit a page of them, after a filter. Of a server, those of
        filters that this client may subscribe to."""

    def remove_schema(self, filter: str) -> None:
        """Let everything be published to these topics again; NotFound (404) if there is no such schema."""

    # Subscribing

    @overload
    def subscribe(
        self, filter: str, *, id: str, kind: Literal["named"] | None = None, **options: Unpack[Durable]
    ) -> Consumer: ...
    @overload
    def subscribe(self, filter: str, *, kind: Literal["session"], **options: Unpack[Durable]) -> Consumer: ...
    @overload
    def subscribe(self, filter: str, *, kind: Literal["live"] | None = None, when_full: Policy = ...) -> Live: ...
    @overload
    def subscribe(
        self, filter: str, *, destination: tuple[str, int], id: str | None = None, **options: Unpack[Durable]
    ) -> str: ...
    def subscribe(
        self,
        filter: str,
        *,
        id: str | None = None,
        kind: SubscriptionKind | None = None,
        start: Start = "latest",
        order: Order | None = None,
        max_in_flight: int | None = None,
        ack_timeout_s: float | None = None,
        max_attempts: int | None = ...,
        max_deliveries: int | None = ...,
        expire_after_s: float | None = ...,
        on_gap: OnGap | None = None,
        on_resume: OnResume | None = None,
        retry_delay_s: float | None = None,
        retry_delay_s_max: float | None = None,
        states: Told | None = None,
        when_full: Policy = "drop_oldest",
        destination: tuple[str, int] | None = None,
    ) -> Any:
        """With an id, a durable subscription (`Consumer`); without, a live one (`Live`).

        Topics need not be there yet: what is published to them later comes.

        A durable subscription is made at its first use, to begin at `start`, and goes on where it was at every later
        one; options that are left out stay as they were. `max_attempts`, `max_deliveries` and `expire_after_s` may be
        None: no limit. With asyncio, `await` it or use it in `async with`.

        With `on_resume="redrive"`, whoever comes back to it gets its dead letters again first, in order, if nobody took
        from it meanwhile.

        `kind="session"` makes a durable one without an id of its own, which goes with its session: embedded, when the
        bus is closed.

        Served, `destination=(host, port)` has messages pushed to where somebody listens (`headwater.receive`): a
        channel of this client, whose id is returned, and which `unsubscribe` ends.
        """

    def unsubscribe(self, id: str) -> None:
        """Delete a durable subscription, its cursor and its dead letters; its consumers get Closed."""

    def subscriptions(self, *, after: str | None = None, limit: int | None = None) -> list[SubscriptionInfo]:
        """Every durable subscription, by id; with a limit a page of them, after an id."""

    def states(self, id: str) -> list[StateInfo]:
        """Each message of a subscription that is neither simply pending nor acked, by root and offset: what became of
        it, since when, and by whom. What is in flight, its owner alone knows."""

    # Handlers

    def handler(
        self,
        filter: str,
        *,
        id: str | None = None,
        kind: SubscriptionKind | None = None,
        workers: int | None = None,
        start: Start = "latest",
        order: Order | None = None,
        max_in_flight: int | None = None,
        ack_timeout_s: float | None = None,
        max_attempts: int | None = ...,
        max_deliveries: int | None = ...,
        expire_after_s: float | None = ...,
        on_gap: OnGap | None = None,
        on_resume: OnResume | None = None,
        retry_delay_s: float | None = None,
        retry_delay_s_max: float | None = None,
        states: Told | None = None,
        when_full: Policy = "drop_oldest",
    ) -> Callable[[H], H]:
        """Have a function handle the messages of a subscription, while handlers are run:
        `@bus.handler("home/+/temp", id="thermostat", workers=4)`. See `consume`."""

    def consume(
        self,
        filter: str,
        handler: Function,
        *,
        id: str | None = None,
        kind: SubscriptionKind | None = None,
        workers: int | None = None,
        start: Start = "latest",
        order: Order | None = None,
        max_in_flight: int | None = None,
        ack_timeout_s: float | None = None,
        max_attempts: int | None = ...,
        max_deliveries: int | None = ...,
        expire_after_s: float | None = ...,
        on_gap: OnGap | None = None,
        on_resume: OnResume | None = None,
        retry_delay_s: float | None = None,
        retry_delay_s_max: float | None = None,
        states: Told | None = None,
        when_full: Policy = "drop_oldest",
    ) -> None:
        """Have a function handle the messages of a subscription, while handlers are run: `bus.run()`.

        The subscription is made then, with the options of `subscribe`: without an id it is a live one, or with
        `kind="session"` a durable one of this session. When the function returns, its message is acked. An exception
        nacks it with its traceback; `headwater.Reject("why")` makes it a dead letter, and `headwater.Retry("why",
        after_s=30)` chooses the delay.

        At most `workers` of its messages are handled at once, as far as order allows: one with strict order, and one of
        each key with order="key". A function that cannot be called with a message, or options that cannot be right, are
        Malformed (422); another handler for the same id is Conflict (409).
        """

    def run(self, *, workers: int | None = None) -> Shift:
        """Run the handlers until SIGTERM, Ctrl-C or `stop`: one pool of workers for all of them, each in its turn.

        Then no more is taken, what was begun is finished and acked, and what was done is returned in figures.
        Without a number there are as many workers as the handler with the most states.
        """

    def stop(self) -> None:
        """Have `run` take no more, finish what was begun, and return; a handler may call it, too. Waits for nothing."""

    def what_if(
        self,
        id: str,
        handler: Function,
        *,
        since: datetime | None = None,
        after: After = None,
        against: Function | None = None,
        messages_max: int = MESSAGES_MAX,
    ) -> Comparison:
        """Have new code handle recorded messages in a shadow of a subscription, and compare with what happened to them:
        `print(bus.what_if("thermostat", regulate, since=yesterday))`.

        The subscription is not touched. What the handler publishes, sends or asks for through this bus is noted and not
        done, and acks and nacks go to the shadow; what it does elsewhere, as in a database, is done. A message that
        fails is tried again at once, as often as the subscription says. With `against`, other code handles each message
        too, and is what is compared with: then it is known what that publishes, and how long it takes.
        """

    # Reading

    def replay(
        self, filter: str, *, after: After = None, since: datetime | None = None, upto: Mapping[str, int] | None = None
    ) -> Reading:
        """History, from an offset or a moment on, up to now; with `upto`, of those roots alone and not beyond it."""

    def follow(self, filter: str, *, after: After = None, since: datetime | None = None) -> Reading:
        """History and then everything new: no gap, no repeat, in order."""

    def arrow(
        self,
        filter: str,
        *,
        after: After = None,
        since: datetime | None = None,
        until: datetime | None = None,
        upto: Mapping[str, int] | None = None,
        columns: Sequence[str] | None = None,
        fields: Mapping[str, type] | None = None,
        on_gap: OnGap = "raise",
    ) -> pyarrow.RecordBatchReader:
        """History as Arrow's columns, up to now, some thousand messages at a time: a `pyarrow.RecordBatchReader`, or
        with asyncio an async iterator of record batches.

        The range is that of `replay`, and ends before `until`. `columns` are some of root, topic, offset, timestamp,
        key, headers and payload, and only those are made; `fields={"celsius": float, "sensor.id": str}` adds columns
        out of payloads that are JSON, with null where one has no such field. In each root messages are in order; what
        is gone raises a Gap, or with on_gap="skip" is left out. Needs `pip install 'headwater[arrow]'`.
        """

    def frame(
        self,
        filter: str,
        *,
        library: Literal["pandas", "polars"] | None = None,
        after: After = None,
        since: datetime | None = None,
        until: datetime | None = None,
        upto: Mapping[str, int] | None = None,
        columns: Sequence[str] | None = None,
        fields: Mapping[str, type] | None = None,
        on_gap: OnGap = "raise",
    ) -> Any:
        """History as one frame of pandas or Polars, whichever is installed: what `arrow` reads, all of it in memory."""

    def sql(
        self,
        query: str,
        params: Mapping[str, object] | Sequence[object] | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        fields: Mapping[str, type] | None = None,
        on_gap: OnGap = "raise",
    ) -> Result:
        """Ask topics in SQL, by DuckDB: `bus.sql("select topic, avg(value) from 'home/#' group by 1")`.

        A filter in quotes is a table of what there is now, from `since` on and before `until`. It has the columns of
        `arrow`, `fields` too, and three of the payload: `text`, `value` (the number that it is) and `json`; each is
        null where the payload is no such thing, and only those that the query names are made. `$name` in the query is
        one of `params`. The answer is iterated as tuples, or taken as `.arrow`, `.frame()` or `.rows()`.
        """

    def topics(self, filter: str = "#") -> list[TopicInfo]:
        """Topics that have messages or a retained value, by name."""

    def retained(self, filter: str) -> Retained:
        """Retained messages, as a mapping by topic; its `watch()` tells what changes from then on."""

    def ends(self) -> dict[str, int]:
        """The newest offset of each root."""

    def extents(self, filter: str = "#", moments: Sequence[datetime] = ()) -> list[Extent]:
        """What the roots that a filter may match have, by name; and where in them each of these moments is."""

    def events(self) -> list[Event]:
        """What happened lately that somebody should know, oldest first."""

    def refresh(self) -> None:
        """See what the owner wrote meanwhile; for a bus that was opened to read. What others show is always fresh."""

    # Dead letters

    def dead_letters(
        self, id: str, *, after: tuple[str, int] | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        """Messages that a subscription gave up on; with a limit a page of them, after a root and an offset in it."""

    def dead_letter(self, id: str, offset: Position) -> DeadLetter:
        """One of them."""

    def redrive(
        self,
        id: str,
        offsets: Collection[Position] | None = None,
        *,
        mended: Iterable[DeadLetter] | None = None,
        write: str | None = None,
    ) -> int:
        """Redeliver dead letters to their subscription, in order; answers how many.

        With `mended`, those letters, as they now are: `[letter.mend(payload=…) for letter in bus.dead_letters(id)]`.
        All of them or none; under the name of a `write` once, however often it is asked for.
        """

    def mend(self, id: str, write: str, letters: Sequence[DeadLetter], *, part: str = "") -> None:
        """Store other contents for dead letters, which wait for `redrive_mended`; doing it again replaces them."""

    def redrive_mended(self, id: str, write: str, parts: Sequence[str] = ("",)) -> int:
        """Redeliver the letters that parts of a write have mended, once; drops the other parts.

        Answers how many, however often it is asked.
        """

    def drop_mended(self, id: str, write: str) -> None:
        """Forget what a write has mended and not redriven; the dead letters stay as they are."""

    def drop_dead_letters(self, id: str, offsets: Collection[Position] | None = None) -> int:
        """Forget dead letters; answers how many."""

    # Staged publishes

    def stage(self, producer: str, epoch: int, messages: Messages, *, part: str = "") -> None:
        """Store a part of a producer's epoch, which nobody sees before `commit_stage`; staging it again replaces it."""

    def stage_body(self, producer: str, epoch: int, part: str, root: str, count: int, crc: int, body: bytes) -> None:
        """The same for messages of one root that are encoded already."""

    def commit_stage(self, producer: str, epoch: int, parts: Sequence[str] = ("",)) -> dict[str, tuple[int, int]]:
        """Make parts of an epoch visible, all of each root's at once, and only once; drops the other parts.

        Answers the first and the last offset in each root; nothing for an epoch that was committed long ago.
        """

    def drop_stage(self, producer: str, epoch: int) -> None:
        """Forget what was staged of an epoch and never committed."""

    # Request and reply

    def request(
        self,
        topic: str,
        payload: Payload,
        *,
        timeout_s: float | None = None,
        headers: GivenHeaders = (),
        durable: bool = False,
    ) -> Message:
        """Ask, and wait for the answer of whoever listens: `message.reply(payload)`.

        Question and answer go the way of `send`: live subscriptions have them at once, and nobody waits for the disk.
        Where nobody listens, neither a live subscription nor a durable one, that is NoResponders (503) at once. With
        durable=True both are on disk before they are delivered, and the question waits for whoever subscribes in time.
        """

    # Operations

    def purge(self, filter: str) -> int:
        """Remove the messages that a filter matches, their retained values and topics; answers how many topics.

        What is hidden is remembered until retention has deleted it: QuotaExceeded beyond `purges_max` of a root.
        """

    def purges(self, filter: str = "#") -> list[PurgeInfo]:
        """What was purged of the roots that a filter may match, as far as it is remembered."""

    def erase(self, key: bytes | str, filter: str = "#", *, dry_run: bool = False) -> Erased:
        """Remove what there is of a key below a filter: from now on nobody is handed a message with this key that was
        published before, be it in the log, retained, a dead letter, delayed, or in a lake.

        Answers what was found; with `dry_run` nothing else is done. The bytes in the log go with their segments, by
        retention, and those in a lake when its archive runs. QuotaExceeded beyond `purges_max` of a root.
        """

    def remove_root(self, name: str, force: bool = False) -> None:
        """Remove a root with all that it has: messages, topics, retained values, producers. Its place among
        `roots_max`, its files and its rows are given back.

        Conflict (409) while durable subscriptions cover nothing else, or have messages of it to do; with `force` those
        messages are gone, and the subscriptions stay. Whoever reads in it gets a Gap. A root of the same name that is
        published to later goes on with the next offset.
        """

    def backup(self, target: str | os.PathLike[str], *, with_keys: bool = False) -> None:
        """A copy of the data as of now, in a new folder (on the server's machine), while the bus goes on.

        Secrets of channels are sealed in it; with_keys=True adds the key that opens them, so that keep it as safe.
        """

    def mark_archived(self, lake: str, archived: Mapping[str, int]) -> None:
        """Say how far a lake has each root: retention waits for it as for a durable subscription."""

    def close(self) -> None:
        """Finish what is under way, and release the folder or the connection."""


@documented(Bus)
class Threaded(Bus, Protocol):
    """A bus for threads: what the embedded and the served one do in the same way."""

    _workers: Workers

    @overload
    def subscribe(
        self, filter: str, *, id: str, kind: Literal["named"] | None = None, **options: Unpack[Durable]
    ) -> Consumer: ...
    @overload
    def subscribe(self, filter: str, *, kind: Literal["session"], **options: Unpack[Durable]) -> Consumer: ...
    @overload
    def subscribe(self, filter: str, *, kind: Literal["live"] | None = None, when_full: Policy = ...) -> Live: ...
    @overload
    def subscribe(
        self, filter: str, *, destination: tuple[str, int], id: str | None = None, **options: Unpack[Durable]
    ) -> str: ...
    def subscribe(self, filter: str, **options: Any) -> Any:
        return self._subscribe(filter, **options)

    def _subscribe(self, filter: str, **options: Any) -> Consumer | Live | str:
        """A durable subscription, a live one, or the id of a channel."""

    def _checking(self) -> Checks:
        """What says what is wrong with a publish."""

    def _past(self, id: str) -> Past:
        """What is known of the messages of a durable subscription."""

    @like(Bus.handler)
    def handler(self, filter: str, **options: Any) -> Callable[[H], H]:
        return decorator(self.consume, filter, options)

    @like(Bus.consume)
    def consume(self, filter: str, handler: Function, **options: Any) -> None:
        self._workers.handlers.add(handler_of(filter, handler, **options), self.config)

    def run(self, *, workers: int | None = None) -> Shift:
        return self._workers.run(workers)

    def stop(self) -> None:
        self._workers.stop()

    @like(Bus.what_if)
    def what_if(
        self,
        id: str,
        handler: Function,
        *,
        since: datetime | None = None,
        after: After = None,
        against: Function | None = None,
        messages_max: int = MESSAGES_MAX,
    ) -> Comparison:
        making = (self._checking(), self._workers.clock, messages_max)
        shadow = Shadow(self._past(id), handler, against, *making, is_asynchronous=False)
        return rehearse(self, shadow, after, since)

    def _columns(self, filter: str, columns: Sequence[str], **options: Any) -> Source:
        """Where messages come from as columns."""

    def _sql_memory_bytes(self) -> int:
        """What a query may take."""

    @like(Bus.arrow)
    def arrow(self, filter: str, **options: Any) -> pyarrow.RecordBatchReader:
        return arrow.asked(filter, **options).open(self)[0]

    @like(Bus.frame)
    def frame(self, filter: str, *, library: Literal["pandas", "polars"] | None = None, **options: Any) -> Any:
        return arrow.frame(self, filter, library, **options)

    @like(Bus.sql)
    def sql(self, query: str, params: Mapping[str, object] | Sequence[object] | None = None, **options: Any) -> Result:
        return arrow.query(self, query, params, self._sql_memory_bytes(), **options).answer()

    def request(
        self,
        topic: str,
        payload: Payload,
        *,
        timeout_s: float | None = None,
        headers: GivenHeaders = (),
        durable: bool = False,
    ) -> Message:
        timeout_s = self.config.request_timeout_s if timeout_s is None else timeout_s
        check_timeout(timeout_s)
        pairs, answer = self.request_soon(topic, payload, headers=headers, durable=durable)
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            raise TimedOut(
                f'nobody answered on "{topic}" within {timeout_s} s; is its service running, and does it call reply()?'
            ) from None
        finally:
            self.forget_request(pairs)

    def request_soon(
        self, topic: str, payload: Payload, *, headers: GivenHeaders = (), durable: bool = False
    ) -> tuple[Headers, Future[Message]]:
        """Ask, as `request` does; the headers of the question, and a future of the answer."""

    def forget_request(self, headers: Headers) -> None:
        """Nobody waits for this answer any more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


like(cast("Callable[..., Any]", Bus.subscribe))(Threaded.subscribe)  # an overloaded method has no type of its own
