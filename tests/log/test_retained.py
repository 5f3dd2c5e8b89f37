"""Retained messages of one root: the last of each topic, in memory until the checkpoint and in the state after it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import headwater
from headwater.config import Config
from headwater.errors import QuotaExceeded
from headwater.log.retained import Retained
from headwater.message import Outgoing
from headwater.store.batch import Batch, Seed, checksum, read_batch, seal_header
from headwater.store.body import encode_body
from headwater.store.state import MemoryState, key_u32

NOW_US = 1_700_000_000_000_000


def batch_of(first_offset: int, *messages: Outgoing) -> Batch:
    """A batch of messages; their ttl_s is taken as the moment, in µs, at which they expire."""
    body = encode_body(
        [m.topic for m in messages],
        [m.payload for m in messages if isinstance(m.payload, bytes)],
        NOW_US + first_offset,
        retain=[m.retain for m in messages],
        keys=[m.key for m in messages],
        headers=[tuple(dict(m.headers).items()) for m in messages],
        expiries=[int(m.ttl_s or 0) for m in messages],
    )
    header = seal_header(Seed(0), b"home", first_offset, len(messages), NOW_US, 0, len(body), checksum(body))
    batch = read_batch(Seed(0), header + body)
    assert batch is not None
    return batch


def kept(topic: str, payload: bytes, expires_us: int = 0) -> Outgoing:
    return Outgoing(topic, payload, retain=True, ttl_s=expires_us or None)


class Place:
    """A `Retained` and the state that it stands on."""

    def __init__(self, config: Config | None = None) -> None:
        self.state = MemoryState()
        self.config = config or Config()
        self.retained = Retained(1, self.state, self.config, 0)
        self.offset = 0

    def apply(self, *messages: Outgoing) -> None:
        self.retained.apply(batch_of(self.offset + 1, *messages))
        self.offset += len(messages)

    def checkpoint(self) -> None:
        self.state.write(self.retained.rows())
        self.retained.checkpointed()

    def reopen(self) -> None:
        """As after a restart: what the state has, and what a row of the root says about it."""
        self.checkpoint()
        known = self.retained
        self.retained = Retained(1, self.state, self.config, known.count, known.expires_from_us, known.size)

    def measure(self) -> int:
        """Their bytes as a folder that does not tell them has them counted."""
        self.checkpoint()
        return Retained(1, self.state, self.config, self.retained.count).size

    def payloads(self, wanted: Callable[[str], bool] = lambda _: True, now_us: int = NOW_US) -> dict[str, bytes]:
        return {topic: row.payload for topic, row in self.retained.matching(wanted, now_us)}


@pytest.fixture
def place() -> Place:
    return Place()


def between(place: Place) -> list[Callable[[], None]]:
    """What may happen at any time and must change nothing."""
    return [lambda: None, place.checkpoint, place.reopen]


@pytest.mark.parametrize("step", range(3))
def test_the_last_message_with_the_flag_is_kept_whatever_happens_between(place: Place, step: int) -> None:
    place.apply(kept("home/a", b"1"), Outgoing("home/a", b"not retained"), kept("home/b", b"2"))
    between(place)[step]()
    place.apply(kept("home/a", b"3"))
    between(place)[step]()
    assert place.payloads() == {"home/a": b"3", "home/b": b"2"}
    assert place.retained.count == 2


def test_it_is_kept_with_all_that_it_was_published_with(place: Place) -> None:
    place.apply(Outgoing("home/a", b"0"), Outgoing("home/b", b"1", True, b"k", {"h": "v"}, NOW_US + 5))
    place.reopen()
    row = place.retained.get("home/b")
    assert row is not None
    assert (row.offset, row.payload, row.time_us) == (2, b"1", NOW_US + 1)
    assert (row.key, row.headers, row.expires_us) == (b"k", (("h", "v"),), NOW_US + 5)


@pytest.mark.parametrize("step", range(3))
def test_an_empty_payload_clears_it(place: Place, step: int) -> None:
    place.apply(kept("home/a", b"1"), kept("home/b", b"2"))
    between(place)[step]()
    place.apply(kept("home/a", b""), kept("home/never", b""))
    between(place)[step]()
    assert place.payloads() == {"home/b": b"2"}
    assert place.retained.get("home/a") is None
    assert place.retained.count == 1


def test_within_a_batch_the_last_one_counts(place: Place) -> None:
    place.apply(
        kept("home/a", b"1"), kept("home/a", b""), kept("home/a", b"2"), kept("home/b", b"x"), kept("home/b", b"")
    )
    assert place.payloads() == {"home/a": b"2"}
    assert place.retained.count == 1


def test_a_batch_without_the_flag_changes_nothing(place: Place) -> None:
    place.apply(Outgoing("home/a", b"1"))
    assert place.retained.rows() == {}
    assert place.retained.count == 0


def test_they_come_by_name_and_only_those_that_are_wanted(place: Place) -> None:
    for topic in ("home/c", "home/a", "home/b"):
        place.apply(kept(topic, b"x"))
        place.checkpoint()
    place.apply(kept("home/aa", b"x"))
    assert list(place.payloads()) == ["home/a", "home/aa", "home/b", "home/c"]
    assert list(place.payloads(lambda topic: topic > "home/aa")) == ["home/b", "home/c"]


@pytest.mark.parametrize("step", range(3))
def test_past_its_ttl_it_is_not_shown_and_then_forgotten(place: Place, step: int) -> None:
    place.apply(kept("home/a", b"1", NOW_US + 10), kept("home/b", b"2", NOW_US + 20), kept("home/c", b"3"))
    between(place)[step]()
    assert len(place.payloads(now_us=NOW_US + 9)) == 3
    assert list(place.payloads(now_us=NOW_US + 10)) == ["home/b", "home/c"]
    assert not place.retained.is_kept("home/a", NOW_US + 10)
    assert place.retained.is_kept("home/b", NOW_US + 10)
    assert place.retained.expire(NOW_US + 9) == 0
    assert place.retained.expire(NOW_US + 10) == 1
    assert place.retained.expire(NOW_US + 10) == 0
    assert (place.retained.count, place.retained.get("home/a")) == (2, None)
    between(place)[step]()
    assert place.retained.expire(NOW_US + 100) == 1
    assert place.payloads(now_us=0) == {"home/c": b"3"}
    assert place.retained.expire(1 << 62) == 0


def test_a_newer_message_without_ttl_does_not_expire_with_the_older(place: Place) -> None:
    place.apply(kept("home/a", b"1", NOW_US + 10))
    place.checkpoint()
    place.apply(kept("home/a", b"2"))
    assert place.retained.expire(NOW_US + 10) == 0
    assert place.payloads(now_us=NOW_US + 10) == {"home/a": b"2"}


@pytest.mark.parametrize("step", range(3))
def test_forget_removes_those_of_the_wanted_topics_at_once(place: Place, step: int) -> None:
    place.apply(kept("home/a", b"1"), kept("home/b", b"2"), kept("home/c", b"3"))
    between(place)[step]()
    place.state.write(place.retained.forget({"home/a", "home/b", "home/never"}.__contains__))
    assert place.payloads() == {"home/c": b"3"}
    assert place.retained.count == 1
    between(place)[step]()
    assert place.payloads() == {"home/c": b"3"}


def sizes(*topics: str, size: int = 1) -> dict[str, int]:
    """What a publish to these would retain."""
    return dict.fromkeys(topics, size)


def test_more_than_the_limit_is_refused_and_changes_nothing() -> None:
    place = Place(Config(retained_per_root_max=2))
    place.apply(kept("home/a", b"1"))
    place.retained.admit(sizes("home/b"))
    place.retained.admit(sizes("home/a", "home/b"))
    with pytest.raises(QuotaExceeded, match="retained_per_root_max"):
        place.retained.admit(sizes("home/b", "home/c"))
    place.retained.promise(sizes("home/b"))
    place.retained.admit(sizes("home/a", "home/b"))
    with pytest.raises(QuotaExceeded):
        place.retained.admit(sizes("home/c"))
    place.retained.admit(sizes("home/c", size=0))
    place.retained.forget_promises()
    place.retained.admit(sizes("home/c"))
    assert place.payloads() == {"home/a": b"1"}


@pytest.mark.parametrize("step", range(3))
def test_more_bytes_than_the_limit_are_refused_and_change_nothing(step: int) -> None:
    place = Place(Config(retained_bytes_per_root_max=10))
    place.apply(
        kept("home/a", b"1234"), Outgoing("home/b", b"12", True, b"k", {"h": "v"}), Outgoing("home/c", b"1" * 9)
    )
    between(place)[step]()
    assert place.retained.size == place.measure() == 4 + 5
    place.retained.admit(sizes("home/c"))
    place.retained.admit(sizes("home/a", size=5))
    with pytest.raises(QuotaExceeded, match="retained_bytes_per_root_max"):
        place.retained.admit(sizes("home/c", size=2))
    with pytest.raises(QuotaExceeded, match="have 9 bytes"):
        place.retained.admit(sizes("home/a", size=6))
    place.retained.promise(sizes("home/a", size=2))
    place.retained.admit(sizes("home/c", size=3))
    place.retained.promise(sizes("home/c", size=3))
    with pytest.raises(QuotaExceeded):
        place.retained.admit(sizes("home/a", size=3))
    place.retained.admit(sizes("home/b", size=0))
    place.retained.forget_promises()
    place.retained.admit(sizes("home/a", size=5))
    assert place.payloads() == {"home/a": b"1234", "home/b": b"12"}


def test_where_there_are_more_than_a_new_limit_allows_smaller_ones_are_taken() -> None:
    place = Place()
    place.apply(kept("home/a", b"1234"), kept("home/b", b"12"))
    place.config = Config(retained_bytes_per_root_max=3, retained_per_root_max=1)
    place.reopen()
    place.retained.admit(sizes("home/a", size=4))
    place.retained.admit(sizes("home/b", size=0))
    with pytest.raises(QuotaExceeded):
        place.retained.admit(sizes("home/b", size=3))


def test_another_root_s_messages_are_not_its_own() -> None:
    place = Place()
    place.apply(kept("home/a", b"1"))
    place.checkpoint()
    other = Retained(2, place.state, place.config, 1)
    assert other.get("home/a") is None
    assert list(other.matching(lambda _: True, NOW_US)) == []


TOPICS = st.sampled_from(["home/a", "home/b", "home/c"])


class RetainedAgainstADict(RuleBasedStateMachine):
    """Publishes, checkpoints, restarts, expiry and purges leave what a dict of the last messages has."""

    @initialize()
    def start(self) -> None:
        self.place = Place()
        self.model: dict[str, tuple[bytes, int]] = {}
        self.now_us = NOW_US

    @rule(
        messages=st.lists(
            st.tuples(TOPICS, st.sampled_from([b"", b"x", b"yy"]), st.integers(0, 3)), min_size=1, max_size=4
        )
    )
    def publish(self, messages: list[tuple[str, bytes, int]]) -> None:
        made = []
        for topic, payload, ttl in messages:
            expires_us = self.now_us + ttl if ttl else 0
            made.append(kept(topic, payload, expires_us))
            self.model.pop(topic, None)
            if payload:
                self.model[topic] = (payload, expires_us)
        self.place.apply(*made)

    @rule()
    def checkpoint(self) -> None:
        self.place.checkpoint()

    @rule()
    def reopen(self) -> None:
        self.place.reopen()

    @rule(seconds=st.integers(0, 2))
    def expire(self, seconds: int) -> None:
        self.now_us += seconds
        gone = [topic for topic, (_, expires_us) in self.model.items() if 0 < expires_us <= self.now_us]
        assert self.place.retained.expire(self.now_us) == len(gone)
        for topic in gone:
            del self.model[topic]

    @rule(topic=TOPICS)
    def forget(self, topic: str) -> None:
        self.place.state.write(self.place.retained.forget(topic.__eq__))
        self.model.pop(topic, None)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "place"):
            return
        shown = {topic: payload for topic, (payload, e) in self.model.items() if not 0 < e <= self.now_us}
        assert self.place.payloads(now_us=self.now_us) == shown
        assert self.place.retained.count == len(self.model)
        assert self.place.retained.size == sum(len(payload) for payload, _ in self.model.values())

    @invariant()
    def a_checkpoint_would_leave_nothing_else(self) -> None:
        if not hasattr(self, "place"):
            return
        rows = dict(self.place.state.scan(key_u32(b"R", 1)))
        for key, value in self.place.retained.rows().items():
            rows.pop(key, None) if value is None else rows.__setitem__(key, value)
        assert len(rows) == len(self.model)


TestRetainedAgainstADict = RetainedAgainstADict.TestCase
TestRetainedAgainstADict.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


def test_exactly_as_many_bytes_as_a_root_may_retain_are_taken() -> None:
    with headwater.open(":memory:", config=Config(retained_bytes_per_root_max=1000)) as bus:
        bus.publish("home/a", b"x", retain=True)
        size = bus.core.roots.get("home").retained.size  # type: ignore[union-attr]  # it is there
    with headwater.open(":memory:", config=Config(retained_bytes_per_root_max=size)) as bus:
        bus.publish("home/a", b"x", retain=True)
        with pytest.raises(QuotaExceeded, match="retained_bytes_per_root_max"):
            bus.publish("home/b", b"x", retain=True)
