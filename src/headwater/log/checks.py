"""Checks of publishes: what is wrong with one is said here, before anything changes.

It makes `Publish` items out of what callers bring. Encoding happens here too, in the caller's thread, for calls that
bring many messages; single ones are encoded together by the thread that commits.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, cast

import msgspec

from headwater.clock import SECOND_US, Clock, from_datetime, to_datetime
from headwater.config import Config
from headwater.errors import Malformed, NotAllowed, TooLarge
from headwater.log import delays
from headwater.log.publish import MESSAGE_WEIGHT, ONLY, Part, Publish, parts_by_root
from headwater.log.root import LETTERS, MQTT_SYS, SYS
from headwater.log.roots import STAGED
from headwater.log.schemas import Standing
from headwater.memo import Memo
from headwater.message import FROM, SCHEDULED_FOR, Headers, Outgoing, ScheduleInfo
from headwater.payload import PLAIN, Payload, encode, encoded
from headwater.store.batch import checksum
from headwater.store.body import Body, one_of
from headwater.topics.name import check_topic, is_utf8

CHECKED_TOPICS_MAX = 100_000
TIME_AHEAD_US_MAX = 86_400 * SECOND_US
"""How far the clock of a publisher elsewhere may be ahead."""

FEW_MESSAGES_MIN = 10_000
"""Of so many messages the topics are looked up once, not one by one whenever somebody asks about them."""
SHARES_MAX = 16
SHARES_MESSAGES_MAX = 10_000

GivenHeaders = Mapping[str, str] | Sequence[tuple[str, str]]


class _Share(msgspec.Struct, eq=False, gc=False):
    """What goes to one root of several: its topics, their places in the call, and how to pick those of a column."""

    root: str
    topics: tuple[str, ...]
    places: list[int]
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]


class Checks:
    """Checks and prepares publishes; from any thread."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._time_us_max = 0
        """The latest time that a message may have; as of some moment ago, so that not every message asks the clock."""
        self._checked: dict[str, str] = {}
        """The root of each topic that was found to be right; none of the broker's own."""
        self._seen: defaultdict[str, set[str]] = defaultdict(set)
        self._shares: Memo[str, tuple[tuple[str, ...], list[_Share]]] = Memo(SHARES_MAX)
        """The topics of calls that went to several roots, and what goes to each, by the first of them."""
        self.standing: Standing | None = None
        """What payloads have to be; None as long as there is no schema."""

    def one(
        self,
        topic: str,
        payload: Payload,
        retain: bool = False,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        ttl_s: float | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        deliver_at: datetime | None = None,
        by: str = "",
    ) -> Publish:
        """One message; if it is delivered later, `by` is asked then whether it may be."""
        root = self._checked.get(topic) if type(topic) is str else None
        if root is None:
            root = self._check_topic(topic)
        if type(payload) is not bytes:
            payload, headers = encoded(payload, headers)
        if len(payload) > self._config.message_bytes_max:
            raise self._too_large(len(payload))
        if type(retain) is not bool:
            raise Malformed(f"retain is {retain!r}; use True or False")
        if self.standing is not None:
            self.check_fit(topic, payload, retain)
        key = self._key(key) if key is not None else None
        pairs = self._given(headers) if headers else ()
        number = self.sequence(producer, sequence) if producer is not None or sequence is not None else 0
        if deliver_at is not None:
            return self._delayed(topic, payload, retain, key, pairs, ttl_s, deliver_at, producer, by)
        expiries = (self._expiry(ttl_s),) if ttl_s is not None else None
        names = (topic,)
        part = Part(
            root,
            names,
            (payload,),
            ONLY,
            (retain,) if retain else None,
            (key,) if key is not None else None,
            (pairs,) if pairs else None,
            expiries,
        )
        weight = len(payload) + MESSAGE_WEIGHT + (_weight(key, pairs) if key or pairs else 0)
        return Publish(names, [part], producer, number, True, producer is None and not retain, weight=weight)

    def plain(self, topic: str, payload: Payload) -> str:
        """The root of one message without options, which is as it has to be."""
        root = self._checked.get(topic) if type(topic) is str else None
        if root is None:
            root = self._check_topic(topic)
        if type(payload) is not bytes:
            payload = encode(payload)[0]
        if len(payload) > self._config.message_bytes_max:
            raise self._too_large(len(payload))
        if self.standing is not None:
            self.check_fit(topic, payload)
        return root

    def singles(
        self,
        root: str,
        topics: Sequence[str],
        payloads: Sequence[bytes],
        retain: bool = False,
        key: bytes | None = None,
        headers: Headers = (),
        expires_us: int = 0,
        *,
        names: Sequence[str] = (),
        longest_bytes: int = 0,
    ) -> Part:
        """Messages that came one by one for one root, alike but for topic and payload; they go as one batch. Whether
        they fit is noted in it, for whoever knows that their client may publish them. Who has read them may know their
        topics, each at least once, and that none is longer than so many bytes."""
        known = self._seen.get(root)
        if known is None or not known.issuperset(names or topics):
            self._root_by_topic(topics)
        config, count = self._config, len(topics)
        longest = longest_bytes
        if not 0 < longest <= config.message_bytes_max:
            longest = max(map(len, payloads))
            if longest > config.message_bytes_max:
                raise self._too_large(longest)
        if key is not None or headers:
            self._key(key or b"")
            self._headers(headers)
        part = Part(
            root,
            topics,
            payloads,
            range(count) if count > 1 else ONLY,
            [True] * count if retain else None,
            [key] * count if key is not None else None,
            [headers] * count if headers else None,
            [expires_us] * count if expires_us else None,
            few=names or None,
        )
        # A batch is seldom large, and is measured only then.
        if count > 1 and count * (longest + MESSAGE_WEIGHT) > config.batch_bytes_max < part.weight:
            raise TooLarge("these are more than go into one batch; publish them one by one")
        return part if self.standing is None else self.standing.noted(part)

    def many(
        self,
        messages: Iterable[tuple[str, Payload] | Outgoing],
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Publish:
        """Messages that go together."""
        number = self.sequence(producer, sequence)
        try:
            given = messages if isinstance(messages, list | tuple) else list(messages)
        except TypeError:
            raise Malformed(f"publish_many takes a list of messages, not {type(messages).__name__}") from None
        if not given:
            return Publish((), [], producer, number, weight=0)
        try:
            topics = [topic for topic, _ in given]  # type: ignore[misc]  # an Outgoing says so by raising
            payloads: list[Any] = [payload for _, payload in given]  # type: ignore[misc]
        except (TypeError, ValueError):
            return self._many_rich([_as_outgoing(message) for message in given], producer, number)
        kinds = set(map(type, payloads))
        if kinds != {bytes}:
            if not kinds <= PLAIN:  # JSON has a header that says so
                return self._many_rich([_as_outgoing(message) for message in given], producer, number)
            payloads = [encode(payload)[0] for payload in payloads]
        weight = self._check_lengths(payloads)
        shares = self._known_shares(topics)
        root = self._common_root(topics) if shares is None else None
        if root is not None:
            parts = [Part(root, topics, payloads, range(len(topics)))]
        else:
            shares = shares or self._share(topics)
            parts = [Part(share.root, share.topics, share.pick(payloads), share.places) for share in shares]
        if self.standing is not None:
            self._check_fits(parts)
        return self._encoded(parts, topics, weight, producer, number)

    def body(self, root: str, count: int, crc: int, data: bytes, may_join: bool = False) -> Part:
        """Messages of one root that were encoded elsewhere; whatever can be wrong with them is found here. With
        `may_join`, a single one may be stored in one batch with others that come one by one. Whether they fit is noted
        in it, for whoever knows that their client may publish them."""
        config, standing = self._config, self.standing
        if len(data) > config.batch_bytes_max:
            raise TooLarge(
                f'{len(data)} bytes for root "{root}" are over batch_bytes_max ({config.batch_bytes_max}); '
                "publish them in several calls"
            )
        if checksum(data) != crc:
            raise Malformed("the body's checksum is wrong: it was damaged on its way, send it again")
        if count == 1 and may_join and len(data) <= config.message_bytes_max:
            one = one_of(data)  # one without options is read at a glance
            if one is not None and self._checked.get(one[0]) == root and 0 <= one[2] <= self._time_us_max:
                topic, payload, time_us = one
                part = Part(root, (topic,), (payload,), ONLY, None, None, None, None, data, crc, None, time_us)
                return part if standing is None else standing.noted(part)
        try:
            body = Body(data)
        except (ValueError, struct.error) as error:
            raise Malformed(f"the body cannot be read: {error}") from None
        if body.count != count or body.end != len(data):
            raise Malformed("the body contradicts what is said about it: its count, or its length")
        if self._common_root(body.names) != root:
            raise Malformed(f'the topics of a body for "{root}" have to be topics of that root')
        if len(data) > config.message_bytes_max and body.longest() > config.message_bytes_max:
            raise self._too_large(body.longest())
        self._check_columns(body)
        if may_join and count == 1 and not body.columns:
            time_us = body.time_span()[0]
            part = Part(root, body.names, (body.payload(0),), ONLY, None, None, None, None, data, crc, body, time_us)
            return part if standing is None else standing.noted(part)
        retain = None if body.retain is None else list(map(bool, body.retain))
        topics = body.topics
        few = tuple(dict.fromkeys(topics)) if count >= FEW_MESSAGES_MIN and len(body.names) > 1 else None
        part = Part(root, topics, (), range(count), retain, None, None, None, data, crc, body, few=few)
        return part if standing is None else standing.noted(part)

    def _check_columns(self, body: Body) -> None:
        low_us, high_us = body.time_span()
        if low_us < 0 or high_us > self._time_us_max:
            self._time_us_max = self._clock.now_us() + TIME_AHEAD_US_MAX
            if low_us < 0 or high_us > self._time_us_max:
                raise Malformed(
                    "a message's time lies before 1970 or more than a day ahead; is the publisher's clock right?"
                )
        if not body.columns:
            return
        config = self._config
        if body.expiries is not None and not 0 <= min(body.expiries) <= max(body.expiries) < 1 << 62:
            raise Malformed("a message's expiry is out of range; use microseconds since 1970, or 0 for never")
        if body.keys is not None and max(map(len, filter(None, body.keys)), default=0) > config.key_bytes_max:
            raise TooLarge(f"a key is over key_bytes_max ({config.key_bytes_max})")
        for pairs in body.headers():
            if pairs:
                self._headers(pairs)

    def _known_shares(self, topics: list[str]) -> list[_Share] | None:
        try:
            known = self._shares.known.get(topics[0])
        except TypeError:  # it is no str
            return None
        return known[1] if known is not None and known[0] == tuple(topics) else None

    def _share(self, topics: Sequence[str]) -> list[_Share]:
        """Which messages of a call go to which root; remembered, as the same devices tend to report together."""
        shares = []
        for root, places in parts_by_root(topics, self._root_by_topic(topics)).items():
            pick = itemgetter(*places) if len(places) > 1 else _only(places[0])
            shares.append(_Share(root, pick(topics), places, pick))
        if len(topics) <= SHARES_MESSAGES_MAX:
            self._shares.keep(topics[0], (tuple(topics), shares))
        return shares

    def _common_root(self, topics: Sequence[str]) -> str | None:
        """The root of all of them; None if there are several. Those that were seen before are checked as a set."""
        checked = self._checked
        try:
            root = checked.get(topics[0])
            if root is not None and self._seen[root].issuperset(topics):
                return root
            names = set(topics)
        except TypeError:  # some are no str
            names = {topic for topic in topics if self._check_topic(topic) is not None}
        roots = set(map(checked.get, names))
        if None in roots:
            roots = {self._check_topic(name) for name in names}
        return roots.pop() if len(roots) == 1 else None

    def _root_by_topic(self, topics: Sequence[str]) -> dict[str, str]:
        return {topic: self._checked.get(topic) or self._check_topic(topic) for topic in set(topics)}

    def _check_lengths(self, payloads: Sequence[bytes]) -> int:
        lengths = list(map(len, payloads))
        if max(lengths) > self._config.message_bytes_max:
            raise self._too_large(max(lengths))
        return sum(lengths) + MESSAGE_WEIGHT * len(lengths)

    def _encoded(
        self, parts: list[Part], topics: Sequence[str], weight: int, producer: str | None, number: int
    ) -> Publish:
        now_us = self._clock.now_us()
        bytes_max = self._config.batch_bytes_max
        for part in parts:
            part.encode(now_us)
            if part.body is not None and len(part.body) > bytes_max:
                raise TooLarge(
                    f'{len(part.body)} bytes for root "{part.root}" are over batch_bytes_max '
                    f"({bytes_max}); publish them in several calls"
                )
        return Publish(topics, parts, producer, number, weight=weight)

    def _many_rich(self, given: list[Outgoing], producer: str | None, number: int) -> Publish:
        topics = [message.topic for message in given]
        contents = [encoded(message.payload, message.headers) for message in given]
        payloads = [data for data, _ in contents]
        weight = self._check_lengths(payloads)
        self._common_root(topics)
        if {type(message.retain) for message in given} != {bool}:
            raise Malformed("retain is True or False, in every message")
        keys = [None if message.key is None else self._key(message.key) for message in given]
        headers = [self._given(said) if said else () for _, said in contents]
        expiries = [0 if message.ttl_s is None else self._expiry(message.ttl_s) for message in given]
        weight += sum(map(_weight, keys, headers))
        parts = [
            Part(
                root,
                [topics[place] for place in places],
                [payloads[place] for place in places],
                places,
                [given[place].retain for place in places],
                [keys[place] for place in places],
                [headers[place] for place in places],
                [expiries[place] for place in places],
            )
            for root, places in parts_by_root(topics, self._root_by_topic(topics)).items()
        ]
        if self.standing is not None:
            self._check_fits(parts)
        return self._encoded(parts, topics, weight, producer, number)

    # Schemas

    def check_fit(self, topic: str, payload: bytes, retain: bool = False) -> None:
        """SchemaMismatch (422) unless a message is what its topic's schemas say."""
        error = None if self.standing is None else self.standing.misfit(topic, payload, retain)
        if error is not None:
            raise error

    def _check_fits(self, parts: Sequence[Part]) -> None:
        """The same of each root's messages; if those of others fit, it is noted for whoever lets these in."""
        assert self.standing is not None
        errors = [error for part in parts if (error := self.standing.noted(part).misfit) is not None]
        if len(errors) == len(parts):
            raise errors[0]

    def _delayed(
        self,
        topic: str,
        payload: bytes,
        retain: bool,
        key: bytes | None,
        headers: Headers,
        ttl_s: float | None,
        deliver_at: datetime,
        producer: str | None,
        by: str,
    ) -> Publish:
        if producer is not None:
            raise Malformed("a delayed message cannot have a producer's sequence; its order is that of being due")
        if not isinstance(deliver_at, datetime):
            raise Malformed(f"deliver_at is {deliver_at!r}; use a datetime")
        due_us, now_us = from_datetime(deliver_at), self._clock.now_us()
        if due_us - now_us > self._config.delay_s_max * SECOND_US:
            raise Malformed(f"deliver_at is {deliver_at}, more than {self._config.delay_s_max} s ahead (delay_s_max)")
        if ttl_s is not None:
            self._expiry(ttl_s)
        waiting, notes = delays.wrap(topic, headers, max(0, due_us), ttl_s, retain, by)
        part = Part(delays.ROOT, (waiting,), (payload,), (0,), None, (key,), (notes,), None)
        weight = len(payload) + MESSAGE_WEIGHT + _weight(key, headers)
        return Publish((topic,), [part], is_one=True, is_delayed=True, weight=weight)

    def contents(
        self, topic: str, payload: Payload, key: bytes | None, headers: GivenHeaders
    ) -> tuple[bytes, bytes | None, Headers]:
        """What a message says, checked."""
        payload, headers = encoded(payload, headers)
        self._check_lengths((payload,))
        self.check_fit(topic, payload)
        return payload, None if key is None else self._key(key), self._headers(headers)

    def released(
        self,
        topic: str,
        payload: bytes,
        key: bytes | None,
        headers: Headers,
        ttl_s: float | None,
        retain: bool,
        due_us: int,
        offset: int,
    ) -> Publish:
        """A delayed message that is due, on its way to its topic; SchemaMismatch (422) if it fits no more."""
        self.check_fit(topic, payload, retain)
        part = Part(
            topic.partition("/")[0],
            (topic,),
            (payload,),
            (0,),
            (retain,),
            (key,),
            (headers,),
            None if ttl_s is None else (self._expiry(ttl_s),),
        )
        return Publish((topic,), [part], f"{delays.ROOT}/{due_us}", offset, is_one=True, weight=len(payload))

    def scheduled(self, one: ScheduleInfo, producer: str, owner: str) -> Publish:
        """A schedule's message that is due, on its way to its topic: once for each time that it is for. SchemaMismatch
        (422) if it fits no more."""
        self.check_fit(one.topic, one.payload, one.retain)
        due = (SCHEDULED_FOR, to_datetime(one.next_us).isoformat())
        part = Part(
            one.topic.partition("/")[0],
            (one.topic,),
            (one.payload,),
            ONLY,
            (True,) if one.retain else None,
            (one.key,) if one.key is not None else None,
            ((*one.headers, due),),
            None if one.ttl_s is None else (self._expiry(one.ttl_s),),
        )
        weight = len(one.payload) + MESSAGE_WEIGHT
        return Publish((one.topic,), [part], producer, one.next_us, is_one=True, made_by=owner, weight=weight)

    def own(self, messages: Sequence[Outgoing]) -> Publish:
        """What the broker tells about itself, on topics of `$sys` as nobody else may publish to."""
        topics = [message.topic for message in messages]
        for topic in dict.fromkeys(topics):
            if check_topic(topic, self._config) != SYS:
                raise Malformed(f'"{topic}" is none of the broker\'s own topics; they begin with "{SYS}/"')
        payloads = [encode(message.payload)[0] for message in messages]
        weight = self._check_lengths(payloads)
        retain = [message.retain for message in messages]
        part = Part(SYS, topics, payloads, range(len(topics)), retain if any(retain) else None)
        return self._encoded([part], topics, weight, None, 0)

    def letters(self, messages: Sequence[Outgoing], first: int) -> Publish:
        """Dead letters on their way to their topics, whose rows are numbered from `first` on."""
        topics, payloads = (
            [message.topic for message in messages],
            [cast(bytes, message.payload) for message in messages],
        )
        for topic in topics:
            check_topic(topic, self._config)
        keys = [message.key for message in messages]
        headers = [cast(Headers, message.headers) for message in messages]
        weight = self._check_lengths(payloads) + sum(map(_weight, keys, headers))
        part = Part(LETTERS, topics, payloads, range(len(topics)), None, keys, headers)
        return self._encoded([part], topics, weight, LETTERS, first)

    # Checks

    def _check_topic(self, topic: str) -> str:
        root = check_topic(topic, self._config)
        if root == STAGED:
            raise Malformed(f'"{STAGED}" is where staged messages wait; use bus.stage and bus.commit_stage instead')
        if root == delays.ROOT:
            raise Malformed(f'"{delays.ROOT}" is where delayed messages wait; publish with deliver_at=datetime instead')
        if root == LETTERS:
            raise NotAllowed(f'"{root}" is where dead letters are; publish under a root of yours')
        if root in (SYS, MQTT_SYS):
            raise NotAllowed(f'"{root}" is where the broker tells about itself; publish under a root of yours')
        if len(self._checked) >= CHECKED_TOPICS_MAX:
            self._checked.clear()
            self._seen.clear()
        self._seen[root].add(topic)
        self._checked[topic] = root
        return root

    def _bytes(self, what: str, value: object) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        hint = "; encode text with .encode()" if isinstance(value, str) else ""
        raise Malformed(f"the {what} is of type {type(value).__name__}; it has to be bytes{hint}")

    def _too_large(self, length: int) -> TooLarge:
        return TooLarge(
            f"a payload of {length} bytes is over message_bytes_max ({self._config.message_bytes_max}); "
            "split it, store it elsewhere and publish its address, or raise the setting"
        )

    def _key(self, key: object) -> bytes:
        checked = key if type(key) is bytes else self._bytes("key", key)
        if len(checked) > self._config.key_bytes_max:
            raise TooLarge(f"a key of {len(checked)} bytes is over key_bytes_max ({self._config.key_bytes_max})")
        return checked

    def _given(self, headers: object) -> Headers:
        """Headers that somebody publishes, without the one that is the broker's own: who passes a message on need not
        look for it."""
        pairs = self._headers(headers)
        if any(name == FROM for name, _ in pairs):
            return tuple(pair for pair in pairs if pair[0] != FROM)
        return pairs

    def _headers(self, headers: object) -> Headers:
        given = headers.items() if isinstance(headers, Mapping) else headers
        try:
            pairs = tuple((name, value) for name, value in given)  # type: ignore[attr-defined]  # checked by trying
            size = sum(len(name.encode()) + len(value.encode()) for name, value in pairs)
        except (TypeError, ValueError, AttributeError):
            raise Malformed("headers are a dict of str to str, or (name, value) pairs of str, in UTF-8") from None
        if len(pairs) > self._config.headers_max:
            raise Malformed(f"{len(pairs)} headers are more than headers_max ({self._config.headers_max})")
        if size > self._config.header_bytes_max:
            raise TooLarge(f"headers of {size} bytes are over header_bytes_max ({self._config.header_bytes_max})")
        return pairs

    def _expiry(self, ttl_s: object) -> int:
        if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not 0 < ttl_s < 1e10:
            raise Malformed(f"ttl_s is {ttl_s!r}; use seconds above 0, or None for a message that does not expire")
        return self._clock.now_us() + round(ttl_s * SECOND_US)

    def sequence(self, producer: str | None, sequence: int | None) -> int:
        """The number that a producer gave to a publish; Malformed if that, or its name, is not one."""
        if producer is None:
            if sequence is not None:
                raise Malformed("a sequence needs a producer: publish(…, producer=name, sequence=n)")
            return 0
        if type(sequence) is not int or not 0 <= sequence < 1 << 63:
            raise Malformed(
                f"sequence is {sequence!r}; a producer states a whole number from 0 on that grows with each publish"
            )
        if type(producer) is not str or not producer or producer.startswith("$"):
            raise Malformed(f'producer is {producer!r}; use a name that does not start with "$"')
        if not 0 < len(producer.encode("utf-8", "ignore")) <= self._config.producer_bytes_max:
            raise Malformed(f"a producer's name of {len(producer)} characters is over producer_bytes_max")
        if not is_utf8(producer):
            raise Malformed(f"producer {producer!r} cannot be written as UTF-8; use another name")
        return sequence


def _only(place: int) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    return lambda column: (column[place],)


def _as_outgoing(message: tuple[str, Payload] | Outgoing) -> Outgoing:
    if isinstance(message, Outgoing):
        return message
    try:
        topic, payload = message
    except (TypeError, ValueError):
        raise Malformed("publish_many takes (topic, payload) pairs or headwater.Outgoing values") from None
    return Outgoing(topic, payload)


def _weight(key: bytes | None, headers: Headers) -> int:
    return len(key or b"") + sum(len(name) + len(value) for name, value in headers)
