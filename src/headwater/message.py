"""What is published and what arrives: frozen values."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self, TypedDict, TypeVar, Unpack, overload

import msgspec

from headwater import html, verdicts
from headwater.clock import to_datetime
from headwater.errors import Conflict, HeadwaterError, Malformed, Reject, Retry
from headwater.headers import HeaderMap
from headwater.headers import Headers as Headers  # noqa: PLC0414  # said again here, beside what it is about
from headwater.payload import Payload, encoded
from headwater.receipt import Receipt as Receipt  # noqa: PLC0414  # said again here, beside what it is about
from headwater.receipt import Receipts as Receipts  # noqa: PLC0414
from headwater.verdicts import Verdict, verdict_of

T = TypeVar("T")
REPLY_TO = "reply-to"
"""Header of a request: the topic on which its sender waits for the answer."""
FROM = "headwater-from"
"""Header that the broker alone writes: whose message it is, of MQTT clients that do not want their own."""
SCHEDULED_FOR = "scheduled-for"
"""Header of a message of a schedule: the time that it is for, which is an earlier one for what is caught up."""

SHOWN_BYTES = 200
"""Of a payload that a repr shows."""

OF_HISTORY = {
    verb: f"cannot {verb} a message that was read from history; subscribe with an id for that"
    for verb in ("ack", "nack", "reject", "extend", "reply")
}
"""Why messages that were read from history refuse each verb."""
OF_LIVE = {
    "nack": "a live subscription keeps nothing to hand out again; subscribe with an id for that",
    "reject": "a live subscription has no dead letters; subscribe with an id for that",
    "extend": "a live subscription has no ack timeout; subscribe with an id for that",
}
"""The same for live subscriptions. There is nothing to note about an ack, so it is none."""


class Origin(Protocol):
    """Where a message came from: what carries out its verbs."""

    def ack(self, messages: Sequence[Message], wait: bool) -> None: ...
    def nack(self, message: Message, error: str | BaseException, delay_s: float | None) -> None: ...
    def reject(self, message: Message, error: str | BaseException) -> None: ...
    def extend(self, message: Message, seconds: float) -> None: ...
    def reply(self, message: Message, payload: Payload) -> Receipt: ...


class Unacked:
    """Origin of messages without a durable subscription: a request among them can be answered, and that is all."""

    __slots__ = ("_refusals", "reply")

    def __init__(self, refusals: Mapping[str, str], reply: Callable[[Message, Payload], Receipt]) -> None:
        self._refusals = refusals
        self.reply = reply

    def ack(self, messages: Sequence[Message], wait: bool) -> None:
        self._refuse("ack")

    def nack(self, message: Message, error: str | BaseException, delay_s: float | None) -> None:
        self._refuse("nack")

    def reject(self, message: Message, error: str | BaseException) -> None:
        self._refuse("reject")

    def extend(self, message: Message, seconds: float) -> None:
        self._refuse("extend")

    def _refuse(self, verb: str) -> None:
        if verb in self._refusals:
            raise Malformed(self._refusals[verb])


def cut(payload: bytes) -> str:
    """A payload as a repr has it: its beginning, where it is long."""
    more = f"… ({len(payload):,} bytes)" if len(payload) > SHOWN_BYTES else ""
    return f"{payload[:SHOWN_BYTES]!r}{more}"


def told(kind: str, of: str, *facts: tuple[str, object]) -> str:
    """What a repr says of a thing: what it is, its name, and what there is of these."""
    known = [f", {name}={_told(value)}" for name, value in facts if value not in (None, "", 0)]
    return f"{kind}({of!r}{''.join(known)})"


def _told(value: object) -> str:
    if isinstance(value, bytes):
        return cut(value)
    return value.isoformat() if isinstance(value, datetime) else repr(value)


def last_line(errors: Sequence[str]) -> str | None:
    """What went wrong the last time, without the calls that led there."""
    return errors[-1].partition("\n")[0] if errors else None


class Published:
    """What was published, however it is come by: its payload and headers, read."""

    __slots__ = ()
    topic: str
    offset: int
    payload: bytes
    time_us: int
    header_pairs: Headers

    @property
    def headers(self) -> HeaderMap:
        """Its headers by name, in order and with repeats: `message.headers["unit"]`, `.get`, `.get_all`."""
        return HeaderMap(self.header_pairs)

    @property
    def time(self) -> datetime:
        """When it was published, UTC."""
        return to_datetime(self.time_us)

    @property
    def timestamp(self) -> datetime:
        """`time`, by its older name."""
        return self.time

    @property
    def text(self) -> str:
        """The payload as UTF-8; Malformed (422) if it is none."""
        try:
            return self.payload.decode()
        except UnicodeDecodeError as error:
            raise Malformed(f'message {self.offset} of "{self.topic}" is no UTF-8 text: {error}') from None

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, type: type[T]) -> T: ...
    def json(self, type: Any = Any) -> Any:
        """The payload as JSON; with a type (a dataclass, a `msgspec.Struct`, a pydantic model, `list[int]` …) as one
        of that. Malformed (422) if it is no JSON, or does not fit."""
        validate = getattr(type, "model_validate_json", None)
        try:
            if validate is not None:
                return validate(self.payload)
            return msgspec.json.decode(self.payload, type=type)
        except (ValueError, RecursionError) as error:  # msgspec's and pydantic's are ValueErrors
            wanted = "JSON" if type is Any else getattr(type, "__name__", str(type))
            raise Malformed(f'message {self.offset} of "{self.topic}" cannot be read as {wanted}: {error}') from error


class Envelope(Published, msgspec.Struct, frozen=True, gc=False, eq=False):
    """The fields of a message, whichever way it is read."""

    topic: str
    offset: int
    payload: bytes
    time_us: int
    key: bytes | None = None
    header_pairs: Headers = ()
    """Headers as they are stored."""
    retained: bool = False
    attempt: int = 1
    origin: Any = None
    """An `Origin`, or None for a message that cannot be acked."""
    retain: bool = False
    """Whether it was published to be retained; `retained` says that it was, and came for that reason."""

    @property
    def root(self) -> str:
        """The topic's first level, which names the stream that the offset counts in."""
        return self.topic.partition("/")[0]

    def __repr__(self) -> str:
        defaults = {"key": None, "headers": HeaderMap(), "retained": False, "attempt": 1}
        stated = {name: getattr(self, name) for name, default in defaults.items() if getattr(self, name) != default}
        more = "".join(f", {name}={value!r}" for name, value in stated.items())
        return f"{type(self).__name__}({self.topic!r}, offset={self.offset}, payload={cut(self.payload)}{more})"

    def _repr_html_(self) -> str:
        key = None if self.key is None else html.shortened(self.key)
        named = (("offset", self.offset), ("time", self.time.isoformat()), ("key", key), *self.header_pairs)
        return html.facts(self.topic, (("payload", html.shortened(self.payload)), *named, ("retained", self.retained)))

    def _origin(self, verb: str) -> Origin:
        if self.origin is None:
            raise Conflict(OF_HISTORY[verb])
        origin: Origin = self.origin
        return origin


class Message(Envelope, frozen=True, gc=False, eq=False):
    """A message as a subscriber, a replay or a follower sees it."""

    def ack(self, wait: bool = True) -> None:
        """Done with it: never delivered again. On disk when this returns, unless wait=False."""
        self._origin("ack").ack((self,), wait)
        verdicts.note((self,), "ack")

    def nack(self, error: str | BaseException = "", delay_s: float | None = None) -> None:
        """It failed this time: redeliver it, after `delay_s` or an exponential backoff."""
        self._origin("nack").nack(self, error, delay_s)
        verdicts.note((self,), "nack")

    def reject(self, error: str | BaseException = "") -> None:
        """It will never succeed: move it to the dead letters now."""
        self._origin("reject").reject(self, error)
        verdicts.note((self,), "reject")

    def extend(self, seconds: float) -> None:
        """Give this consumer so many more seconds, from now, before the ack times out."""
        self._origin("extend").extend(self, seconds)

    def reply(self, payload: Payload) -> Receipt:
        """Answer a request."""
        if not self.headers.get(REPLY_TO):
            raise Conflict(f'message {self.offset} of "{self.topic}" is no request: it has no {REPLY_TO} header')
        return self._origin("reply").reply(self, payload)

    def __enter__(self) -> Self:
        """Acked at the end of the block, nacked with what leaves it; Reject and Retry go no further. What was said of
        it in the block (an ack, a nack, a reject) counts, and no more is said."""
        self._origin("ack")
        verdicts.begin(self)
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> bool:
        if verdicts.end(self):
            pass
        elif error is None:
            self.ack()
        elif isinstance(error, Exception):  # Ctrl-C is not the message's fault
            with suppress(HeadwaterError):  # what left the block is what its user is to hear of
                fail(self, verdict_of(error, trace))
        return isinstance(error, Reject | Retry)


class Kept(Message, frozen=True, gc=False, eq=False):
    """A stored message, with what only its batch knows of it."""

    flags: int = 0
    """How it was published."""
    expires_us: int = 0
    """When its ttl ends; 0 for never."""

    def __repr__(self) -> str:
        return Message.__repr__(self).replace("Kept", "Message", 1)


def expiry_of(message: Message) -> int:
    """When a message's time is over, as far as that is known of it; 0 for never."""
    return message.expires_us if isinstance(message, Kept) else 0


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message to publish, for `publish_many` where a (topic, payload) pair says too little."""

    topic: str
    payload: Payload
    retain: bool = False
    key: bytes | None = None
    headers: Mapping[str, str] | Headers = ()
    ttl_s: float | None = None


class TopicInfo(msgspec.Struct, frozen=True):
    """A topic as `bus.topics()` lists it."""

    topic: str
    messages: int
    last_offset: int
    retained: bool


class Extent(msgspec.Struct, frozen=True):
    """What a root has at this moment, as `bus.extents()` lists it."""

    root: str
    first: int
    """The oldest offset that is kept."""
    end: int
    """One past the newest."""
    purged_upto: int = 0
    """Everything up to here was purged as a whole: nobody is to miss it."""
    places: tuple[int, ...] = ()
    """For each moment that was asked about, the first offset appended at or after it."""
    bytes: int = 0
    """About what it takes on disk; 0 if a server of an earlier version does not tell."""


class PurgeInfo(msgspec.Struct, frozen=True):
    """Something that was purged and is still remembered, as `bus.purges()` lists it."""

    root: str
    filter: str
    upto: int
    """Messages up to this offset are hidden."""
    key: bytes | None = None
    """Of messages with this key alone."""


class Erased(msgspec.Struct, frozen=True):
    """What `bus.erase()` found of a key and removed, or would remove."""

    messages: dict[str, int]
    """In the log, by root."""
    retained: int
    dead_letters: int
    delayed: int
    states: int
    """Messages that subscriptions had tried in vain."""

    @property
    def is_nothing(self) -> bool:
        """Whether there was none."""
        return not (self.messages or self.retained or self.dead_letters or self.delayed or self.states)


class ConsumerInfo(msgspec.Struct, frozen=True, gc=False):
    """Who takes from a subscription, as `bus.subscriptions()` tells it."""

    host: str = ""
    """The machine's name, as the consumer's process told it; its address where it told none."""
    pid: int = 0
    """Of its process; 0 if that is not known."""
    user: str = ""
    """The client's name at the server; embedded, none."""
    session: str = ""


def this_process() -> ConsumerInfo:
    """What is told of a consumer in this process."""
    from socket import gethostname  # not loaded before somebody consumes

    return ConsumerInfo(gethostname(), os.getpid())


class SubscriptionInfo(msgspec.Struct, frozen=True, gc=False):
    """A durable subscription as `bus.subscriptions()` lists it."""

    id: str
    filter: str
    order: str
    lag: int
    """Matching messages that are not acked yet, in flight and failed ones included."""
    in_flight: int | None
    """None beside the folder's owner (`read_only`), who alone knows it, as are `consumers`."""
    retrying: int
    dead: int
    consumers: int | None
    paused: bool
    floors: dict[str, int]
    """Per root: every message up to this offset is done."""
    active: tuple[ConsumerInfo, ...] = ()
    """Consumers that messages go to, the first hundred; none where `consumers` is not known."""
    standing_by: tuple[ConsumerInfo, ...] = ()
    """With order="strict": those that wait for the active one to leave, the next first."""

    def __repr__(self) -> str:
        told = [f"{name}={value!r}" for name, value in self._facts() if value or name == "lag"]
        return f"SubscriptionInfo({self.id!r}, {', '.join(told)})"

    def _repr_html_(self) -> str:
        return html.facts(self.id, self._facts())

    def _facts(self) -> list[tuple[str, object]]:
        """What matters of it, in this order."""
        names = ("filter", "order", "lag", "in_flight", "retrying", "dead", "consumers", "paused")
        return [(name, getattr(self, name)) for name in names]


class StateInfo(msgspec.Struct, frozen=True, gc=False):
    """A message of a subscription that is neither simply pending nor acked, as `bus.states()` lists it."""

    root: str
    topic: str | None
    """None if the message is gone from the log."""
    offset: int
    state: str
    """in_flight, retry, pending (held back, or given back), acked (behind one that is not) or dead."""
    attempts: int
    """How often it failed, or timed out; at `max_attempts` it is dead."""
    deliveries: int = 0
    """How many consumers were gone without a word while they had it; at `max_deliveries` it is dead."""
    errors: tuple[str, ...] = ()
    """What went wrong, the last of it at the end."""
    retry_at_us: int | None = None
    since_us: int | None = None
    consumer: str | None = None
    """Who has it, or had it when it failed: a session, a channel, or the host and process that embed the bus. None if
    that is not known."""

    def __repr__(self) -> str:
        return told("StateInfo", self.topic or self.root, *self._facts())

    def _repr_html_(self) -> str:
        return html.facts(self.topic or self.root, self._facts())

    def _facts(self) -> list[tuple[str, object]]:
        """What matters of it, in this order."""
        names = ("offset", "state", "attempts", "deliveries", "retry_at", "since", "consumer")
        return [*((name, getattr(self, name)) for name in names), ("error", last_line(self.errors))]

    @property
    def error(self) -> str | None:
        """What went wrong the last time."""
        return self.errors[-1] if self.errors else None

    @property
    def retry_at(self) -> datetime | None:
        """When it is tried again, UTC; None unless it is in retry."""
        return None if self.retry_at_us is None else to_datetime(self.retry_at_us)

    @property
    def since(self) -> datetime | None:
        """When it came to this state, UTC; None if that is not known."""
        return None if self.since_us is None else to_datetime(self.since_us)


class ScheduleInfo(msgspec.Struct, frozen=True):
    """A message that is published again and again, as `bus.schedules()` lists it."""

    id: str
    topic: str
    payload: bytes
    cron: str
    zone: str
    next_us: int
    last_us: int = 0
    retain: bool = False
    key: bytes | None = None
    headers: Headers = ()
    ttl_s: float | None = None
    client: str = ""
    """Of a server's clients, the one that it is of; empty for whoever owns the folder."""

    def __repr__(self) -> str:
        return told("ScheduleInfo", self.id, *self._facts(), ("payload", self.payload))

    def _repr_html_(self) -> str:
        return html.facts(self.id, (*self._facts(), ("payload", html.shortened(self.payload))))

    def _facts(self) -> list[tuple[str, object]]:
        """What matters of it, in this order."""
        names = ("topic", "cron", "zone", "next_at", "last_at", "client")
        return [(name, getattr(self, name)) for name in names]

    @property
    def header_pairs(self) -> Headers:
        """Its headers, as messages have them."""
        return self.headers

    @property
    def next_at(self) -> datetime:
        """When it is due next, UTC."""
        return to_datetime(self.next_us)

    @property
    def last_at(self) -> datetime | None:
        """The time that it was last published for, UTC; None if it never was."""
        return to_datetime(self.last_us) if self.last_us else None


class SchemaInfo(msgspec.Struct, frozen=True):
    """What the payloads of topics have to be, as `bus.schemas()` lists it."""

    filter: str
    text: str
    """A JSON Schema, in the form in which it is stored."""
    changed_us: int

    @property
    def schema(self) -> dict[str, object]:
        """The same, decoded."""
        found: dict[str, object] = msgspec.json.decode(self.text)
        return found

    @property
    def changed_at(self) -> datetime:
        """When it was made, or last changed, UTC."""
        return to_datetime(self.changed_us)


class Mended(TypedDict, total=False):
    """What may be another in a dead letter that is mended."""

    payload: Payload
    key: bytes | None
    headers: Mapping[str, str] | Sequence[tuple[str, str]]


class DeadLetter(Published, msgspec.Struct, frozen=True):
    """A message that a subscription gave up on: a copy of it, with what was tried."""

    subscription: str
    topic: str
    offset: int
    payload: bytes
    time_us: int
    key: bytes | None
    header_pairs: Headers = msgspec.field(name="headers")
    """Headers as they are stored."""
    attempts: int
    errors: tuple[str, ...]
    dead_at_us: int

    def __repr__(self) -> str:
        return told("DeadLetter", self.topic, *self._facts(), ("payload", self.payload))

    def _repr_html_(self) -> str:
        return html.facts(self.topic, (*self._facts(), ("payload", html.shortened(self.payload))))

    def _facts(self) -> list[tuple[str, object]]:
        """What matters of it, in this order."""
        names = ("offset", "subscription", "attempts", "dead_at")
        return [*((name, getattr(self, name)) for name in names), ("error", last_line(self.errors))]

    @property
    def dead_at(self) -> datetime:
        """When the subscription gave up on it, UTC."""
        return to_datetime(self.dead_at_us)

    def mend(self, **contents: Unpack[Mended]) -> DeadLetter:
        """The same letter with another payload, key or headers, for `bus.redrive(id, mended=[…])`."""
        wrong = contents.keys() - Mended.__annotations__.keys()
        if wrong:
            raise Malformed(f'"{min(wrong)}" of a dead letter cannot be mended; its payload, key and headers can')
        payload, given = encoded(contents.get("payload", self.payload), contents.get("headers", self.header_pairs))
        pairs = tuple(given.items()) if isinstance(given, Mapping) else tuple(given)
        key = contents.get("key", self.key)
        return msgspec.structs.replace(self, payload=payload, key=key, header_pairs=pairs)


def fail(message: Message, verdict: Verdict) -> None:
    """Nack or reject a message, as was said."""
    if verdict.is_final:
        message.reject(verdict.text)
        return
    try:
        message.nack(verdict.text, verdict.delay_s)
    except Malformed:
        if verdict.delay_s is None:
            raise
        message.nack(verdict.text)  # longer than the bus allows: after a delay of its own, and at once noted
