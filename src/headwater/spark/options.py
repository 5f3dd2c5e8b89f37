"""What the options of `format("headwater")` mean; a wrong one is refused here, before any row is read.

| option                | meaning                                                        | default   |
|-----------------------|----------------------------------------------------------------|-----------|
| data                  | folder of the bus, read beside its owner; or else `url`        |           |
| url                   | server to read from: headwater://name:secret@host:7411         |           |
| topics                | a filter, or several with commas between them, or a JSON list  | #         |
| startingOffsets       | earliest, latest, JSON of the first offset per root, or a time | earliest  |
| endingOffsets         | the same; offsets are the first that is not read any more      | latest    |
| maxMessagesPerTrigger | at most so many messages that match a micro-batch              | all       |
| minMessagesPerTrigger | a micro-batch waits until so many match                        | 1         |
| maxTriggerDelay       | but no longer than this: 30s, 15m                              | 15m       |
| messagesPerPartition  | at most so many messages a partition                           | by bytes  |
| minPartitions         | at least so many partitions, where there are as many messages  | by bytes  |
| failOnDataLoss        | whether messages that are gone are an error                    | true      |
| lake                  | the lake of the bus: what the log no longer has is read there  |           |
| subscription          | of a stream: what stands on the broker where the query is      |           |
| subscriptionExpireAfterS | the query not having run for so long, it is given up        | 35 days   |
| pushFilters           | let a query's filters prune what is read (batch reads)         | false     |
| columns               | of append_time, expires_at, retained and producer, those that are wanted | |
| reader                | jvm, python, or auto: the one in Spark's process if it can     | auto      |
| table                 | messages, dead_letters, subscriptions or message_states        | messages  |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from math import inf, nan
from pathlib import Path

import msgspec

from headwater.client.url import parse_url
from headwater.clock import from_datetime
from headwater.config import Config
from headwater.delivery.options import Options, check_not_of_channel
from headwater.errors import HeadwaterError, Malformed
from headwater.spark.topics import Topics, topics_of
from headwater.units import number_of

EARLIEST = "earliest"
LATEST = "latest"
MESSAGES = "messages"
TABLES = (MESSAGES, "dead_letters", "subscriptions", "message_states")
NAMES = (
    "data",
    "url",
    "topics",
    "startingOffsets",
    "endingOffsets",
    "maxMessagesPerTrigger",
    "minMessagesPerTrigger",
    "maxTriggerDelay",
    "messagesPerPartition",
    "minPartitions",
    "failOnDataLoss",
    "lake",
    "subscription",
    "subscriptionExpireAfterS",
    "pushFilters",
    "typed",
    "columns",
    "reader",
    "table",
)
AUTO, JVM, PYTHON = READERS = ("auto", "jvm", "python")
OF_ANY_TABLE = ("data", "url", "reader", "table")
INSTEAD = {"path": "data", "topic": "topics", "subscribe": "topics"}
OF_CATALOG = "provider"
"""Among the options of a table in a catalog, and of no other: such a table is both read and written."""
WRITE_NAMES = ("url", "writeId", "writeEpoch", "mode", "reconnectS", "topic", "ttl")
OF_KAFKA = {
    "maxOffsetsPerTrigger": "maxMessagesPerTrigger",
    "minOffsetsPerTrigger": "minMessagesPerTrigger",
    "maxRecordsPerPartition": "messagesPerPartition",
}
"""Names that Kafka's source has for the same."""
OFFSET_MAX = (1 << 48) - 1
"""As far as watermarks count."""
IN_BODIES = ("expires_at", "retained")
IN_HEADERS = ("append_time", "producer")
"""Columns that are read on request, by where they stand."""
EXPIRE_AFTER_S = 35 * 86_400.0
"""A job that runs each month keeps its place; one that nobody runs any more does not hold retention for ever."""
TRIGGER_DELAY_S = 900.0
"""As Kafka's source has it."""
TRIGGER_DELAY_S_MAX = 86_400.0


class Location(msgspec.Struct, frozen=True):
    """Where to begin or to end: at a word, at a time, or at an offset or word of each root."""

    word: str = EARLIEST
    time_us: int | None = None
    roots: dict[str, int | str] | None = None


class ReadOptions(msgspec.Struct, frozen=True):
    """Checked options of a read."""

    data: str | None
    url: str | None
    topics: Topics
    start: Location
    end: Location
    messages_per_trigger_max: int | None
    messages_per_partition: int | None
    fail_on_data_loss: bool
    subscription: str | None
    subscription_expire_after_s: float | None
    """If it was said."""
    push_filters: bool
    typed: bool
    """Whether what payloads say is columns, by the schemas of their topics."""

    def __repr__(self) -> str:
        # The address may have a secret in it.
        place = self.data if self.url is None else str(parse_url(self.url))
        return f"ReadOptions({place}, topics={self.topics})"

    table: str
    lake: str | None = None
    reader: str = AUTO
    messages_per_trigger_min: int | None = None
    trigger_delay_s: float = TRIGGER_DELAY_S
    """So long a micro-batch waits for that many."""
    partitions_min: int | None = None
    columns: tuple[str, ...] = ()
    """What messages have besides, and is asked for."""
    cores: int | None = None
    """Cores of the cluster, where whoever plans knows of more than its own machine."""


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Understand the options of a read; `Malformed` says what to write instead."""
    options = _in_our_words(given_options(given, NAMES, WRITE_NAMES))
    check_names(options, NAMES, INSTEAD)
    data, url = options.get("data"), options.get("url")
    if (data is None) == (url is None):
        raise Malformed(
            'say where the messages are: option("data", FOLDER) of a bus on this machine, '
            'or option("url", "headwater://host:7411") of a server' + (", not both" if data is not None else "")
        )
    table = _table(options)
    topics = topics_of(options.get("topics", "#"))
    most, least = _count("maxMessagesPerTrigger", options), _count("minMessagesPerTrigger", options)
    if most is not None and least is not None and least > most:
        raise Malformed(
            f'option "minMessagesPerTrigger" is {least}, and a micro-batch has at most {most} by '
            '"maxMessagesPerTrigger"; make the one less, or the other more'
        )
    return ReadOptions(
        data=None if data is None else _folder(data),
        url=url,
        topics=topics,
        start=_place("startingOffsets", options, EARLIEST, topics),
        end=_place("endingOffsets", options, LATEST, topics),
        messages_per_trigger_max=most,
        messages_per_partition=_count("messagesPerPartition", options),
        fail_on_data_loss=_flag("failOnDataLoss", options, default=True),
        subscription=_subscription(options, topics),
        subscription_expire_after_s=seconds(
            "subscriptionExpireAfterS", options, lambda found: 0 < found < inf, "seconds above 0"
        ),
        push_filters=_flag("pushFilters", options, default=False),
        typed=_flag("typed", options, default=False),
        table=table,
        lake=_lake(options),
        reader=_reader(options),
        messages_per_trigger_min=least,
        trigger_delay_s=_trigger_delay_s(options),
        partitions_min=_count("minPartitions", options),
        columns=_columns(options),
    )


def given_options(given: Mapping[str, str], names: Sequence[str], others: Sequence[str]) -> dict[str, str]:
    """What was given, by lower names; of a table in a catalog, without what is for its other use."""
    options = {name.lower(): value for name, value in given.items()}
    if options.pop(OF_CATALOG, None) is None:
        return options
    left_out = {name.lower() for name in others} - {name.lower() for name in names}
    return {name: value for name, value in options.items() if name not in left_out}


def _in_our_words(options: Mapping[str, str]) -> dict[str, str]:
    """Options by our names, where Kafka's source has others for them."""
    found = dict(options)
    for theirs, ours in OF_KAFKA.items():
        if theirs.lower() not in found:
            continue
        if ours.lower() in found:
            raise Malformed(f'option "{theirs}" is another name of "{ours}"; leave out one of them')
        found[ours.lower()] = found.pop(theirs.lower())
    return found


def _trigger_delay_s(options: Mapping[str, str]) -> float:
    text = options.get("maxtriggerdelay")
    if text is None:
        return TRIGGER_DELAY_S
    if "minmessagespertrigger" not in options:
        raise Malformed('option "maxTriggerDelay" says nothing without option "minMessagesPerTrigger"')
    try:
        delay_s = float(number_of("delay_s", text))
    except ValueError:
        delay_s = nan
    if not 0 < delay_s <= TRIGGER_DELAY_S_MAX:
        raise Malformed(f'option "maxTriggerDelay" is "{text}"; use a time such as 30s, 15m or 1h, and at most a day')
    return delay_s


def check_streaming(options: ReadOptions) -> None:
    """That a stream can be made of it."""
    if options.table != MESSAGES:
        raise Malformed(f'table "{options.table}" is no stream: read it with spark.read')
    if options.push_filters:
        raise Malformed('option "pushFilters" is for batch reads: Spark pushes no filters into streams')
    if options.end != Location(LATEST):
        raise Malformed(
            'option "endingOffsets" is for batch reads: a stream ends when it is stopped, '
            "or by itself with trigger(availableNow=True)"
        )


def check_batch(options: ReadOptions) -> None:
    """That a batch read can be made of it."""
    if options.messages_per_trigger_max is not None:
        raise Malformed('option "maxMessagesPerTrigger" is for streams; limit a batch read with endingOffsets')
    if options.messages_per_trigger_min is not None:
        raise Malformed('option "minMessagesPerTrigger" is for streams; a batch read has what there is: leave it out')
    if options.start == Location(LATEST):
        raise Malformed('option "startingOffsets": a batch read from "latest" on has no rows; use another start')


def check_names(
    options: Mapping[str, str], names: Sequence[str], instead: Mapping[str, str], of: str = "", there: str = "there are"
) -> None:
    """Malformed for an option that is none of these names, with the one that may be meant."""
    known = {name.lower(): name for name in names}
    for name in options:
        if name in known:
            continue
        near = get_close_matches(name, known, 1, 0.6)
        meant = instead.get(name) or (known[near[0]] if near else None)
        hint = f'did you mean "{meant}"?' if meant else f"{there} {', '.join(names)}"
        raise Malformed(f'no option "{name}"{of}; {hint}')


def _table(options: Mapping[str, str]) -> str:
    table = options.get("table", MESSAGES)
    if table not in TABLES:
        raise Malformed(f'option "table" is "{table}"; use one of {", ".join(TABLES)}')
    if table != MESSAGES:
        for name in NAMES:
            if name not in OF_ANY_TABLE and name.lower() in options:
                raise Malformed(f'option "{name}" says nothing about table "{table}"; leave it out, and use a filter')
    return table


def _reader(options: Mapping[str, str]) -> str:
    reader = options.get("reader", AUTO).lower()
    if reader not in READERS:
        raise Malformed(f'option "reader" is "{reader}"; use one of {", ".join(READERS)}')
    return reader


def _folder(data: str) -> str:
    if not data:
        raise Malformed('option "data" is empty; name the folder of the bus')
    return str(Path(data).absolute())


def _lake(options: Mapping[str, str]) -> str | None:
    lake = options.get("lake")
    if lake == "":
        raise Malformed('option "lake" is empty; name the folder of the lake, or "catalog:NAME"')
    return lake if lake is None or lake.startswith("catalog:") else str(Path(lake).absolute())


def _count(name: str, options: Mapping[str, str]) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise Malformed(f'option "{name}" is "{text}"; use a whole number from 1 on')
    return int(text)


def seconds(name: str, options: Mapping[str, str], is_right: Callable[[float], bool], use: str) -> float | None:
    """What an option says in seconds; None if it is not there."""
    text = options.get(name.lower())
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = nan
    if not is_right(found):
        raise Malformed(f'option "{name}" is "{text}"; use {use}')
    return found


def _subscription(options: Mapping[str, str], topics: Topics) -> str | None:
    name = options.get("subscription")
    if name is None:
        if "subscriptionexpireafters" in options:
            raise Malformed('option "subscriptionExpireAfterS" says nothing without option "subscription"')
        return None
    if len(topics.filters) > 1:
        raise Malformed(f'option "subscription": a subscription has one filter, and these topics are {topics}; use one')
    try:
        check_not_of_channel(name)
        Options(id=name, filter=topics.filters[0]).check(Config())
    except HeadwaterError as error:
        raise Malformed(f'option "subscription": {error.args[0]}') from error
    return name


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(one.strip() for one in options.get("columns", "").split(",") if one.strip()))
    for name in names:
        if name not in IN_BODIES + IN_HEADERS:
            raise Malformed(f'option "columns" names "{name}"; use any of {", ".join(IN_BODIES + IN_HEADERS)}')
        if name in IN_HEADERS and "url" in options:
            raise Malformed(
                f'option "columns": {name} stands in the header of a stored batch, which a server does not send; '
                'read its folder with option("data", …)'
            )
    if names and "lake" in options:
        raise Malformed('option "columns" is of the log, and the lake has none of these columns; leave out "lake"')
    return names


def _flag(name: str, options: Mapping[str, str], *, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.lower() not in {"true", "false"}:
        raise Malformed(f'option "{name}" is "{text}"; use true or false')
    return text.lower() == "true"


def _place(name: str, options: Mapping[str, str], default: str, topics: Topics) -> Location:
    text = options.get(name.lower(), default).strip()
    if text.lower() in {EARLIEST, LATEST}:
        return Location(text.lower())
    if text.startswith("{"):
        return Location(default, roots=_roots(name, text, topics))
    return Location(default, time_us=_time(name, text))


def _roots(name: str, text: str, topics: Topics) -> dict[str, int | str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _bad_place(name, text, f"it is no JSON: {error}") from error
    for root, offset in found.items():
        if not topics.covers_root(root):
            raise _bad_place(name, text, f'no topic of root "{root}" matches "{topics}"')
        is_word = offset in (EARLIEST, LATEST)
        if not is_word and (type(offset) is not int or not 1 <= offset <= OFFSET_MAX):
            raise _bad_place(name, text, f'the offset of "{root}" is {offset!r}; they count from 1')
    return dict(found)


def _time(name: str, text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _bad_place(name, text) from None
    if moment.tzinfo is None:
        raise _bad_place(name, text, "it has no time zone; add Z for UTC, or an offset like +02:00")
    return from_datetime(moment)


def _bad_place(name: str, text: str, why: str = "") -> Malformed:
    return Malformed(
        f'option "{name}" is "{text}"{": " + why if why else ""}; use earliest, latest, {{"root": offset, …}} '
        "or a time like 2026-01-31T08:00:00Z"
    )


def resolve(place: Location, root: str, first: int, end: int, offset_at: Callable[[int], int]) -> int:
    """The offset that a place means in a root: the first to read, or the first not to read any more.

    `first` is the oldest that is kept, `end` one past the newest.
    """
    stated = place.roots.get(root, place.word) if place.roots is not None else place.word
    if isinstance(stated, int):
        return stated
    if place.time_us is not None:
        return offset_at(place.time_us)
    return first if stated == EARLIEST else end
