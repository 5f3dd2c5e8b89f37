"""One root: its stream, and everything that a publish into it changes.

Counts per topic, retained messages and producers' sequences reflect the stream. They change here, in memory, when a
batch is durable or is met again by recovery, and reach the state at the next checkpoint. So memory holds what changed
since then, and no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from headwater.config import Config
from headwater.errors import QuotaExceeded
from headwater.log.producers import Producers
from headwater.log.purges import Purges, purges_in
from headwater.log.retained import Retained, RetainedRow, merged
from headwater.memo import Memo
from headwater.message import Kept, Message, TopicInfo
from headwater.store import state as rows
from headwater.store.batch import Batch
from headwater.store.log import Checkpoint, Stream
from headwater.store.state import Rows, State
from headwater.topics.name import compile_filter, is_everything_of

DELAYED = "$delayed"
"""Root in which delayed messages wait; also how the batch says so that releases one."""
WILLS = "$will"
"""How the batch says so that is an MQTT client's last will; the will's id follows."""
LETTERS = "$dead"
"""Root of what subscriptions gave up on; also how the batches say so that bring letters there."""
UNCOUNTED = (DELAYED, WILLS, LETTERS)
"""How producers begin whose batches take a row with them, and whose sequences nobody has to remember."""
SYS = "$sys"
"""Root that belongs to the broker: what it tells about itself. Nobody else publishes there."""
CLOSED = (f"{SYS}/audit", "$staged/#", f"{DELAYED}/#", "$reply/#")
"""Who changed what, and what is not published yet, or is for one session alone: nobody comes to see it by another way
than by these names."""
MQTT_SYS = "$SYS"
"""What MQTT clients call it. Nothing is stored there."""
MAKERS_MAX = 1000
"""Clients whose topics are counted in a root, those who made most."""
KNOWN_TOPICS_MAX = 100_000
RUNS_MAX = 16
RUN_TOPICS_MIN = 64
"""Topics of a batch that are remembered as a whole, as the same devices tend to report together."""

pack = msgspec.msgpack.Encoder().encode
decode_counts = msgspec.msgpack.Decoder(tuple[int, int]).decode
"""A topic's row: how many messages it had, and the last one's offset."""


class RootRow(msgspec.Struct, frozen=True, array_like=True):
    """What the state keeps about a root."""

    root: str
    checkpoint: Checkpoint = Checkpoint()
    topics: int = 0
    retained: int = 0
    expires_from_us: int = 0
    """No retained message expires before; 0 if none does."""
    producers: int = 0
    purged_upto: int = 0
    """Everything up to here was purged, and nobody is to miss it."""
    retained_size: int | None = None
    """Bytes of the retained messages; None in folders of an earlier version."""
    owner: str = ""
    """The client of a server who made it; empty if that was nobody's."""
    makers: dict[str, int] = {}
    """How many of its topics clients of a server have made, of those who made most."""


class Root:
    """A root as its owner keeps it; only the thread that commits changes it."""

    def __init__(self, stream: Stream, state: State, config: Config, row: RootRow | None = None) -> None:
        row = row or RootRow(stream.root)
        self.name = stream.root
        self._prefix = rows.key_u32(rows.TOPIC, stream.number)
        self.stream = stream
        self.checkpoint = row.checkpoint
        self.is_dirty = False
        self._state = state
        self._config = config
        self.purges = self._load_purges()
        self.purged_upto = row.purged_upto
        self.is_archived = False
        """Whether a lake has left a mark, as far as anybody has looked."""
        self.owner = row.owner
        self._makers: Counter[str] = Counter(row.makers)
        self.topic_count = row.topics
        self.retained = Retained(stream.number, state, config, row.retained, row.expires_from_us, row.retained_size)
        self._messages: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        self._runs: dict[tuple[str, ...], tuple[int, int]] = {}
        """Topics of batches that came before and came again: how often since, and the last one's first offset."""
        self._known: set[str] = set()
        self.knows, self.knows_all = self._known.__contains__, self._known.issuperset
        """Whether a topic, or all of several, is known to exist, without asking the state."""
        self._before: Memo[str, int] = Memo(KNOWN_TOPICS_MAX)
        """Messages that topics had at the last checkpoint, of those that were looked up since; 0 of new ones."""
        self._promised: set[str] = set()
        self.producers = Producers(stream.number, state, config, row.producers)
        self.bytes_in = 0
        """Of batches that were appended since the bus was opened."""

    def _load_purges(self) -> Purges:
        found = self._state.scan(rows.key_u32(rows.PURGE, self.stream.number))
        return Purges(purges_in(found), self._config.match_cache_topics)

    def note_made(self, owner: str, upto: int) -> None:
        """It is new, and whose; if it was there before, and removed with all that it had, nobody is to miss that."""
        self.owner, self.purged_upto = owner, upto
        if owner or upto:
            self.is_dirty = True
            row = RootRow(self.name, Checkpoint(upto), purged_upto=upto, owner=owner)
            self._state.write({rows.key_u32(rows.STREAM, self.stream.number): rows.pack(row)})

    def joined(self, filter: str, upto: int, key: bytes | None = None) -> Purges:
        """The purges with one more, for `purge`; QuotaExceeded if that is one too many. Changes nothing."""
        return self._needed(self.purges).joined(filter, upto, self._config.purges_max, key)

    def purge(self, filter: str, upto: int, joined: Purges) -> Rows:
        """Hide the messages that a filter matches, up to an offset; the rows to write for that."""
        if is_everything_of(filter, self.name):
            self.purged_upto = upto
        changed = self.forget_topics(compile_filter(filter))
        changed.update(self.rows(self.checkpoint))  # so that the counts agree with what is left, crash or not
        changed.update(self._exchange(joined))
        return changed

    def erase(self, key: bytes, filter: str, joined: Purges) -> Rows:
        """Hide what a filter matches of one key; the rows to write for that. Topics stay, and their counts."""
        changed = self.retained.forget(self.retained.of_key(key, filter).__contains__)
        self.is_dirty = True
        changed.update(self.rows(self.checkpoint))
        changed.update(self._exchange(joined))
        return changed

    def forget_purges(self) -> Rows:
        """Rows of purges whose messages are all gone by now."""
        return self._exchange(self._needed(self.purges))

    def _needed(self, purges: Purges) -> Purges:
        # With a lake, what was purged may come to light again.
        return purges if self._config.lake or self.is_archived else purges.since(self.stream.first_offset)

    def _exchange(self, purges: Purges) -> Rows:
        """These instead of those before; the rows to write for that."""
        before, number = {purge.place: purge for purge in self.purges}, self.stream.number
        changed: Rows = {}
        for purge in purges:
            if before.pop(purge.place, None) is not purge:
                changed[rows.key_offset(rows.PURGE, number, purge.place)] = purge.row()
        for place in before:
            changed[rows.key_offset(rows.PURGE, number, place)] = None
        self.purges = purges
        return changed

    # Before the append

    def admit(self, topics: Sequence[str], retained: Mapping[str, int], owner: str = "") -> None:
        """Refuse what would go over a limit, or over the share of who makes it; changes nothing."""
        fresh = self._fresh(topics)
        if fresh:
            check_topics(self.name, self.topic_count, len(self._promised | fresh), self._config)
            if owner:
                check_share(self.name, owner, self._makers[owner], len(fresh - self._promised), self._config)
        if retained:
            self.retained.admit(retained, fresh)

    def foresee(self, topics: Sequence[str], retained: Mapping[str, int]) -> None:
        """The same from any thread, as of some moment ago; topics are looked up near the limit alone."""
        if self.topic_count + len(topics) > self._config.topics_per_root_max and not self.knows_all(topics):
            fresh = sum(not self.has(topic) for topic in set(topics))
            if fresh:
                check_topics(self.name, self.topic_count, fresh, self._config)
        if retained:
            self.retained.admit(retained)

    def promise(self, topics: Sequence[str], retained: Mapping[str, int], owner: str = "") -> None:
        """These will be appended, if all goes well: others in their group are admitted with them in mind."""
        fresh = self._fresh(topics)
        if owner:
            self._makers[owner] += len(fresh - self._promised)
            if len(self._makers) > 2 * MAKERS_MAX:
                self._makers = Counter(dict(self._makers.most_common(MAKERS_MAX)))
        self._promised |= fresh
        if retained:
            self.retained.promise(retained, self._promised)

    def forget_promises(self) -> None:
        """Their group was appended, or was not."""
        if self._promised:
            self._promised.clear()
        self.retained.forget_promises()

    def has(self, topic: str) -> bool:
        """Whether a topic exists; from any thread, as of some moment ago."""
        if topic in self._known or topic in self._messages:
            return True
        return self._state.get(rows.key_name(rows.TOPIC, self.stream.number, topic)) is not None

    def _fresh(self, names: Sequence[str]) -> set[str]:
        if self._known.issuperset(names):
            return set()
        unknown = set(names) - self._known
        fresh = {name for name in unknown if name not in self._messages and not self._look_up(name)}
        self._remember(unknown - fresh)
        return fresh

    def _look_up(self, name: str) -> bool:
        """Whether the state has a row of this topic; what it says is remembered until the next checkpoint."""
        before = self._before.known.get(name)
        if before is not None:
            return before > 0
        row = self._state.get(self._prefix + name.encode())
        self._before.keep(name, 0 if row is None else decode_counts(row)[0])
        return row is not None

    def _remember(self, names: Iterable[str]) -> None:
        if len(self._known) > KNOWN_TOPICS_MAX:
            self._known.clear()
        self._known.update(names)

    # After the append

    def apply(self, batch: Batch, topics: Sequence[str], owner: str = "") -> int:
        """A batch is durable: let topics, retained messages and producers reflect it; answers how many more topics'
        rows the next checkpoint writes. A producer is from now on its owner's."""
        before, header, body = len(self._messages), batch.header, batch.decoded
        names = topics if body is None or len(body.names) > 1 else body.names
        fresh: set[str] = set()
        if not self._known.issuperset(names):
            fresh = self._fresh(names)
            self.topic_count += len(fresh)
            self._remember(fresh)
        if len(names) == 1:
            self._messages[names[0]] += batch.count
            self._last[names[0]] = batch.last_offset
        else:
            self._count(topics, batch.first_offset)
        if batch.has_retained:
            self.retained.apply(batch, fresh)
        if header.producer is not None and not header.producer.startswith(UNCOUNTED):
            self.producers.note(header.producer, header, owner)
        self.is_dirty = True
        return len(self._messages) - before

    def apply_again(self, batch: Batch) -> None:
        """A batch was met that the state does not reflect. The state is asked about its topics by `settle` alone: for
        all batches at once, and in the order of its keys, it is several times faster."""
        self._count(batch.body.topics, batch.first_offset)
        if batch.has_retained:
            self.retained.gather(batch)
        producer = batch.header.producer
        if producer is not None and not producer.startswith(UNCOUNTED):
            self.producers.note(producer, batch.header, None)
        self.is_dirty = True

    def settle(self) -> None:
        """Every batch was applied again: count the topics that are new, and what is retained."""
        for name in sorted(self._messages):
            self.topic_count += not self._look_up(name)
        self.retained.settle()

    def _count(self, topics: Sequence[str], first_offset: int) -> None:
        count = len(topics)
        if count == 1 or (topics[0] == topics[-1] and topics.count(topics[0]) == count):
            self._messages[topics[0]] += count
            self._last[topics[0]] = first_offset + count - 1
            return
        run = tuple(topics) if count >= RUN_TOPICS_MIN else ()
        again = self._runs.get(run)
        if again is not None:
            self._runs[run] = (again[0] + 1, first_offset)
            return
        self._messages.update(topics)
        self._last.update(zip(topics, range(first_offset, first_offset + count), strict=True))
        if run and len(self._runs) < RUNS_MAX:
            self._runs[run] = (0, 0)

    def _fold(self, messages: dict[str, int], last: dict[str, int]) -> None:
        """Count what came again into these, which may be a copy that was made a moment before."""
        for run, (times, first_offset) in tuple(self._runs.items()):
            if times:
                for offset, topic in enumerate(run, first_offset):
                    messages[topic] = messages.get(topic, 0) + times
                    last[topic] = max(last.get(topic, 0), offset)

    # Checkpoints

    def rows(self, checkpoint: Checkpoint) -> Rows:
        """Rows that bring the state up to this moment."""
        number = self.stream.number
        changed: Rows = {}
        messages, last = dict(self._messages), dict(self._last)
        self._fold(messages, last)
        prefix, known, get = self._prefix, self._before.known, self._state.get
        for topic in sorted(messages):  # neighbours stand together in the state
            key = prefix + topic.encode()
            before = known.get(topic)
            if before is None:
                row = get(key)
                before = 0 if row is None else decode_counts(row)[0]
            changed[key] = pack((before + messages[topic], last[topic]))
        changed.update(self.producers.rows())
        changed.update(self.retained.rows())
        changed[rows.key_u32(rows.STREAM, number)] = rows.pack(
            RootRow(
                self.name,
                checkpoint,
                self.topic_count,
                self.retained.count,
                self.retained.expires_from_us,
                self.producers.count,
                self.purged_upto,
                self.retained.size,
                self.owner,
                dict(self._makers.most_common(MAKERS_MAX)),
            )
        )
        return changed

    def checkpointed(self, checkpoint: Checkpoint) -> None:
        """The rows are in the state: start gathering anew."""
        self.checkpoint = checkpoint
        self._messages = Counter()
        self._last = {}
        self._runs = {}
        self._before.forget()
        self.producers.checkpointed()
        self.retained.checkpointed()
        self.is_dirty = False

    # Looking

    def topics(self, wanted: Callable[[str], bool], now_us: int = 0) -> Iterator[TopicInfo]:
        """Topics of this root, in order of their names."""
        messages, last = dict(self._messages), dict(self._last)
        self._fold(messages, last)
        found: dict[str, tuple[int, int]] = {}
        for key, value in self._state.scan(self._prefix):
            topic = rows.name_in(key)
            if wanted(topic):
                found[topic] = decode_counts(value)
        for topic, count in messages.items():
            if wanted(topic):
                before = found.get(topic, (0, 0))[0]
                found[topic] = (before + count, last[topic])
        for topic in sorted(found):
            count, offset = found[topic]
            yield TopicInfo(topic, count, offset, self.retained.is_kept(topic, now_us))

    def topics_after(
        self, after: str, beginning: str, wanted: Callable[[str], bool], now_us: int
    ) -> Iterator[tuple[str, TopicInfo | None]]:
        """The same, after one, of those that begin so, as far as somebody takes them; also the names of those that are
        not wanted."""
        messages, last = dict(self._messages), dict(self._last)
        self._fold(messages, last)
        fresh = sorted(topic for topic in messages if topic > after and topic.startswith(beginning))
        for topic, value in merged(fresh, rows.scan_after(self._state, self._prefix, after, beginning)):
            if not wanted(topic):
                yield topic, None
                continue
            count, offset = (0, 0) if value is None else decode_counts(value)
            count, offset = count + messages.get(topic, 0), last.get(topic, offset)
            yield topic, TopicInfo(topic, count, offset, self.retained.is_kept(topic, now_us))

    def topic(self, name: str) -> tuple[int, int] | None:
        """How many messages a topic had, and the last one's offset; None if there is no such topic."""
        if not self.has(name):
            return None
        row = self._state.get(self._prefix + name.encode())
        count, last = (0, 0) if row is None else decode_counts(row)
        count, last = count + self._messages.get(name, 0), self._last.get(name, last)
        for run, (times, first_offset) in tuple(self._runs.items()):
            if times and name in run:
                count += times * run.count(name)
                last = max(last, first_offset + len(run) - 1 - run[::-1].index(name))
        return count, last

    def counted(self, prefix: str) -> Iterator[tuple[str, int, int]]:
        """Topics whose names begin with this, in no order: how many messages each had, and the last one's offset."""
        messages, last = dict(self._messages), dict(self._last)
        self._fold(messages, last)
        for key, value in self._state.scan(self._prefix + prefix.encode()):
            topic = rows.name_in(key)
            count, offset = decode_counts(value)
            yield topic, count + messages.pop(topic, 0), last.pop(topic, offset)
        for topic, count in messages.items():
            if topic.startswith(prefix):
                yield topic, count, last[topic]

    def forget_topics(self, wanted: Callable[[str], bool]) -> Rows:
        """Purged topics are no topics any more; the rows to write for that."""
        changed: Rows = {}
        self._fold(self._messages, self._last)
        self._runs = {}
        before = self.topic_count
        for info in list(self.topics(wanted)):
            changed[self._prefix + info.topic.encode()] = None
            self._messages.pop(info.topic, None)
            self._last.pop(info.topic, None)
            self._known.discard(info.topic)
            self._before.known.pop(info.topic, None)
            self.topic_count -= 1
        if self.topic_count < before:  # nobody knows whose they were
            self._makers = Counter({who: made * self.topic_count // before for who, made in self._makers.items()})
        changed.update(self.retained.forget(wanted))
        self.is_dirty = True
        return changed


def retained_message(row: RetainedRow, topic: str) -> Message:
    """A retained message as a new subscriber sees it."""
    return Kept(
        topic,
        row.offset,
        row.payload,
        row.time_us,
        row.key,
        row.headers,
        True,
        retain=True,
        flags=row.flags,
        expires_us=row.expires_us,
    )


def check_topics(root: str, known: int, more: int, config: Config) -> None:
    """Refuse more topics than a root may have."""
    if known + more > config.topics_per_root_max:
        raise QuotaExceeded(
            f'root "{root}" has {known} topics, and topics_per_root_max is {config.topics_per_root_max}; '
            "publish to topics that exist, or raise the setting"
        )


def check_share(root: str, owner: str, made: int, more: int, config: Config) -> None:
    """Refuse more topics of a root than one client may make."""
    if made + more > config.topics_per_client_max:
        raise QuotaExceeded(
            f'client "{owner}" has made {made} topics of root "{root}", and topics_per_client_max is '
            f"{config.topics_per_client_max}; publish to topics that exist, or raise the setting"
        )
