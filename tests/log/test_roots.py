"""All roots: how publishes become groups and batches, what is refused, and what a restart brings back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import msgpack

from faults.faulty_files import FaultyFiles
from faults.faulty_state import FaultyState
from headwater.clock import ManualClock
from headwater.config import Config
from headwater.errors import (
    Closed,
    Conflict,
    Damaged,
    DiskFull,
    Failed,
    HeadwaterError,
    PartlyStored,
    QuotaExceeded,
    ReadOnly,
)
from headwater.log.checks import Checks
from headwater.log.publish import Publish, parts_by_root
from headwater.log.root import Root
from headwater.log.roots import DISK_CHECK_BYTES, Roots
from headwater.message import Outgoing, Receipt
from headwater.store.batch import Batch, Seed
from headwater.store.files import DiskFiles, Files
from headwater.store.log import Found
from headwater.store.state import RETAINED, STREAM, MemoryState, State, key_name, key_u32
from headwater.store.streams import Streams
from headwater.topics.name import compile_filter

WAIT_S = 60.0


class Place:
    """The roots of a folder, and what they told."""

    def __init__(
        self, folder: str, config: Config | None = None, files: Files | None = None, state: State | None = None
    ) -> None:
        self.config = config or Config()
        self.files = files or DiskFiles()
        self.state = state or MemoryState()
        self.clock = ManualClock()
        self.told: list[tuple[str, list[tuple[int, int]]]] = []
        self.troubles: list[str] = []
        self.files.make_folder(folder)
        self.log = Streams(self.files, folder, Seed(0), self.config)
        self.roots = Roots(self.log, self.state, self.config, self.clock, self._on_durable, self.troubles.append)
        self.met: dict[str, Found] = self.roots.recover()
        self.checks = Checks(self.config, self.clock)

    def _on_durable(self, appended: Mapping[Root, Sequence[Batch]]) -> None:
        for root, batches in appended.items():
            self.told.append((root.name, [(batch.first_offset, batch.last_offset) for batch in batches]))

    def one(self, topic: str, payload: bytes = b"x", **more: Any) -> Publish:
        given = {
            "retain": False,
            "key": None,
            "headers": (),
            "ttl_s": None,
            "producer": None,
            "sequence": None,
            "deliver_at": None,
        }
        return self.checks.one(topic, payload, **{**given, **more})

    def many(self, *topics: str, producer: str | None = None, sequence: int | None = None) -> Publish:
        return self.checks.many([(topic, topic.encode()) for topic in topics], producer, sequence)

    def publish(self, item: Publish) -> Any:
        self.roots.commit.submit_and_wait(item)
        return item.result()

    def group(self, *items: Publish) -> None:
        """Commit these together; each may be refused."""
        inside, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            inside.set()
            assert go_on.wait(WAIT_S)

        holder = threading.Thread(target=lambda: self.roots.commit.run(hold))
        holder.start()
        assert inside.wait(WAIT_S)
        for item in items:
            self.roots.commit.submit(item)
        go_on.set()
        holder.join(WAIT_S)
        for item in items:
            with suppress(HeadwaterError):
                item.wait()

    def payloads(self, name: str) -> list[bytes]:
        root = self.roots.get(name)
        found: list[bytes] = []
        offset = 1
        while root is not None and (pieces := root.stream.read(offset, 1 << 20)):
            for piece in pieces:
                assert isinstance(piece, Batch)
                found += [message.payload for message in piece.body.messages(piece.first_offset)]
                offset = piece.last_offset + 1
        return found

    def topics(self) -> dict[str, int]:
        everything = compile_filter("#")
        return {info.topic: info.messages for root in self.roots.all() for info in root.topics(everything)}

    def close(self) -> None:
        self.roots.close()
        self.log.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(str(tmp_path / "data"))
    yield made
    made.close()


# Groups and batches


def test_a_publish_makes_a_batch_and_its_receipt(place: Place) -> None:
    receipt = place.publish(place.one("home/a"))
    assert receipt == Receipt("home/a", 1, place.clock.now_us())
    assert place.told == [("home", [(1, 1)])]


def test_loose_messages_of_a_root_that_arrive_together_become_one_batch(place: Place) -> None:
    items = [place.one(f"{root}/x", b"%d" % number) for number in range(5) for root in ("home", "hall")]
    place.group(*items)
    assert sorted(place.told) == [("hall", [(1, 5)]), ("home", [(1, 5)])]
    assert [item.result() for item in items] == [
        Receipt(f"{root}/x", number + 1, place.clock.now_us()) for number in range(5) for root in ("home", "hall")
    ]
    assert place.payloads("home") == place.payloads("hall") == [b"0", b"1", b"2", b"3", b"4"]


def test_loose_messages_that_were_encoded_elsewhere_become_one_batch_too_though_their_topics_are_new(
    place: Place,
) -> None:
    items = [place.one("a/1"), place.one("a/2")]
    for item in items:
        item.parts[0].encode(1)
    place.group(*items)
    assert place.told == [("a", [(1, 2)])]


def test_loose_messages_keep_what_each_has_of_its_own(place: Place) -> None:
    place.group(
        place.one("home/a"),
        place.one("home/b", key=b"k"),
        place.one("home/c", headers={"h": "v"}, ttl_s=5),
        place.one("home/d", retain=True),
    )
    root = place.roots.get("home")
    assert root is not None
    (batch,) = root.stream.read(1, 1 << 20)
    assert isinstance(batch, Batch)
    messages = batch.body.messages(1)
    assert [message.key for message in messages] == [None, b"k", None, None]
    assert [message.headers for message in messages] == [(), (), (("h", "v"),), ()]
    assert list(batch.body.expiries or ()) == [0, 0, place.clock.now_us() + 5_000_000, 0]
    assert list(batch.body.retain or ()) == [0, 0, 0, 1]


def test_the_order_of_submission_is_the_order_of_offsets_however_they_come(place: Place) -> None:
    items = [
        place.one("home/a", b"1"),
        place.many("home/b", "home/c"),
        place.one("home/a", b"4"),
        place.one("home/a", b"5", producer="p", sequence=1),
        place.one("home/a", b"6"),
        place.many("home/d"),
    ]
    place.group(*items)
    assert place.payloads("home") == [b"1", b"home/b", b"home/c", b"4", b"5", b"6", b"home/d"]
    assert place.told == [("home", [(1, 1), (2, 3), (4, 4), (5, 5), (6, 6), (7, 7)])]


def test_a_call_over_several_roots_makes_a_batch_in_each(place: Place) -> None:
    receipts = place.publish(place.many("b/1", "a/1", "b/2"))
    assert [(receipt.topic, receipt.offset) for receipt in receipts] == [("b/1", 1), ("a/1", 1), ("b/2", 2)]
    assert sorted(place.told) == [("a", [(1, 1)]), ("b", [(1, 2)])]


def test_parts_by_root_keeps_the_order_of_the_call() -> None:
    topics = ["b/1", "a/1", "b/2", "c", "a/2"]
    roots = {topic: topic.partition("/")[0] for topic in topics}
    assert parts_by_root(topics, roots) == {"b": [0, 2], "a": [1, 4], "c": [3]}
    assert list(parts_by_root(topics, roots)) == ["b", "a", "c"]


# Refusals


def test_what_is_refused_leaves_the_others_of_its_group_alone(tmp_path: Path) -> None:
    place = Place(str(tmp_path), Config(topics_per_root_max=2, roots_max=2))
    items = [
        place.one("a/1"),
        place.many("a/2", "a/3"),
        place.many("b/1", "c/1"),
        place.one("a/2"),
        place.one("a/3"),
        place.one("b/1"),
        place.one("c/1"),
    ]
    place.group(*items)
    assert [type(item.error) for item in items] == [
        type(None),
        QuotaExceeded,
        PartlyStored,
        type(None),
        QuotaExceeded,
        type(None),
        QuotaExceeded,
    ]
    assert place.topics() == {"a/1": 1, "a/2": 1, "b/1": 2}
    assert [root.name for root in place.roots.all()] == ["a", "b"]
    assert set(place.roots.showing._ways) == {"a", "b"}, "nothing is kept of roots that were not made"
    place.close()


def test_what_was_stored_before_keeps_its_receipt_though_the_rest_of_the_call_fails(tmp_path: Path) -> None:
    files = FaultyFiles()
    place = Place("data", Config(), files)
    place.publish(place.many("a/1", producer="p", sequence=1))
    files.fail_write_at = files.writes + 3  # two lines of the manifest come first
    with pytest.raises(PartlyStored, match=r'those of "a", and those of "b" perhaps not: Failed\(500\)') as raised:
        place.publish(place.many("b/1", "a/1", producer="p", sequence=1))
    assert [receipt and receipt.offset for receipt in raised.value.receipts] == [None, 1]
    with pytest.raises(Conflict, match="send 1 again first"):
        place.publish(place.many("b/1", producer="p", sequence=2))
    place.publish(place.many("a/1", producer="p", sequence=2))
    assert [one.duplicate for one in place.publish(place.many("b/1", "a/1", producer="p", sequence=1))] == [False, True]
    place.close()


@pytest.mark.parametrize(("producer", "is_retryable"), [(None, False), ("p", True)])
def test_a_call_that_was_partly_stored_may_be_repeated_only_by_a_producer(
    tmp_path: Path, producer: str | None, is_retryable: bool
) -> None:
    place = Place(str(tmp_path), Config(roots_max=1))
    place.publish(place.one("a/1"))
    with pytest.raises(PartlyStored) as raised:
        place.publish(place.many("a/1", "b/1", producer=producer, sequence=None if producer is None else 1))
    assert raised.value.retryable is is_retryable
    assert ("with the same producer and sequence" in str(raised.value)) is is_retryable
    place.close()


def test_what_a_checkpoint_could_not_make_durable_is_written_again_by_the_next() -> None:
    state = FaultyState()
    place = Place("data", Config(), FaultyFiles(), state)
    place.publish(place.one("a/1", b"kept", retain=True))
    state.fail_sync_at = state.syncs + 1
    with pytest.raises(Failed, match="no checkpoint"):
        place.roots.checkpoint()
    state.mends = True
    assert state.mend()
    place.publish(place.one("b/1"))
    place.roots.checkpoint()
    stored = state.durable()
    assert {key[1:5] for key in stored if key[:1] == STREAM} == {b"\0\0\0\1", b"\0\0\0\2"}
    place.close()


def test_what_may_be_stored_as_the_disk_failed_is_not_refused_for_sure_when_it_comes_again() -> None:
    files = FaultyFiles()
    place = Place("data", Config(), files)
    place.publish(place.one("a/1", producer="p", sequence=1))
    files.fail_sync_at = files.syncs + 1
    with pytest.raises(Failed):
        place.publish(place.one("a/1", producer="p", sequence=2))
    with pytest.raises(Failed, match="stored or not"):
        place.publish(place.one("a/1", producer="p", sequence=2))
    with pytest.raises(ReadOnly):
        place.publish(place.one("a/1", producer="q", sequence=2))
    with pytest.raises(ReadOnly):
        place.publish(place.one("a/1"))
    place.close()


def test_a_repeat_of_what_is_stored_is_answered_though_its_group_fails_or_the_disk_is_full() -> None:
    files = FaultyFiles(capacity_bytes=24 << 20)
    place = Place("data", Config(disk_free_bytes_min=1 << 20), files)
    place.publish(place.one("a/1", producer="p", sequence=1))
    fresh, again = place.one("a/1", producer="q", sequence=1), place.one("a/1", producer="p", sequence=1)
    files.fail_write_at = files.writes + 1
    place.roots.commit.submit_all([fresh, again])
    place.roots.commit.run(lambda: None)
    assert isinstance(fresh.error, Failed)
    assert (again.error, again.runs[0][1], again.runs[0][3]) == (None, 1, True)
    place.roots.has_room = False
    files.capacity_bytes = 1
    with pytest.raises(DiskFull):
        place.publish(place.one("a/1", producer="p", sequence=2))
    receipt = place.publish(place.one("a/1", producer="p", sequence=1))
    assert (receipt.offset, receipt.duplicate) == (1, True)
    files.capacity_bytes = None
    place.close()


def test_what_failed_to_be_written_is_not_counted(tmp_path: Path) -> None:
    files = FaultyFiles()
    place = Place("data", Config(topics_per_root_max=2), files)
    place.publish(place.one("a/1"))
    files.fail_write_at = files.writes + 1
    with pytest.raises(Failed):
        place.publish(place.one("a/2"))
    place.publish(place.one("a/3"))
    assert place.topics() == {"a/1": 1, "a/3": 1}
    assert place.payloads("a") == [b"x", b"x"]
    place.close()


def test_a_row_that_cannot_be_read_while_a_publish_is_admitted_leaves_no_promise_behind(tmp_path: Path) -> None:
    class Bad(MemoryState):
        bad: bytes | None = None

        def get(self, key: bytes) -> bytes | None:
            if key == self.bad:
                raise Damaged("a flipped bit")
            return super().get(key)

    state = Bad()
    place = Place(str(tmp_path / "data"), Config(topics_per_root_max=3), state=state)
    place.publish(place.one("a/1", retain=True))
    place.roots.commit.run(place.roots.checkpoint)
    state.bad = key_name(RETAINED, 1, "a/1")
    messages = [Outgoing(topic, b"x", retain=True) for topic in ("a/1", "a/2")]
    with pytest.raises(Damaged):
        place.publish(place.checks.many(messages, None, None))
    place.publish(place.many("a/3", "a/4"))
    state.bad = None
    assert place.topics() == {"a/1": 1, "a/3": 1, "a/4": 1}
    place.close()


def test_with_too_little_room_publishes_are_refused_until_there_is_some() -> None:
    files = FaultyFiles(capacity_bytes=24 << 20)
    place = Place("data", Config(disk_free_bytes_min=10 << 20, preallocate_bytes=0), files)
    with pytest.raises(DiskFull, match="disk_free_bytes_min"):
        for _ in range(100):
            place.publish(place.one("a/1", bytes(1 << 20)))
    assert files.free_bytes("data") > (10 << 20) - DISK_CHECK_BYTES - (2 << 20), "acks and recovery use the rest"
    with pytest.raises(DiskFull):
        place.publish(place.many("a/1", "b/1"))
    assert place.roots.get("b") is None
    files.capacity_bytes = 100 << 20
    place.publish(place.one("a/1", b"again"))
    assert place.payloads("a")[-1] == b"again"
    place.close()


def test_a_write_that_finds_the_disk_full_is_503_and_so_is_the_next_until_there_is_room() -> None:
    files = FaultyFiles()
    place = Place("data", Config(disk_free_bytes_min=0), files)
    place.publish(place.one("a/1"))
    files.short_write_at = files.writes + 1
    with pytest.raises(DiskFull):
        place.publish(place.one("a/1", bytes(100)))
    assert place.publish(place.one("a/1", b"fits")).offset == 2
    assert place.payloads("a") == [b"x", b"fits"]
    place.close()


def test_a_failed_sync_finishes_its_group_with_the_error_and_others_go_on() -> None:
    files = FaultyFiles()
    place = Place("data", files=files)
    place.publish(place.one("a/1"))
    place.publish(place.one("b/1"))
    files.fail_sync_at = files.syncs + 1
    lost = [place.one("a/1"), place.many("a/2")]
    place.group(*lost)
    assert all(isinstance(item.error, Failed) for item in lost)
    assert place.troubles
    assert sum(place.roots.counts.commits.counts) == 2
    with pytest.raises(ReadOnly):
        place.publish(place.one("a/1"))
    place.publish(place.one("b/1"))
    assert place.topics() == {"a/1": 1, "b/1": 2}


# Producers


def test_after_a_commit_that_was_interrupted_its_stream_takes_nothing_more(tmp_path: Path) -> None:
    """Nobody can say how far it got: what came next could stand behind half a batch."""
    files = FaultyFiles()
    place = Place("data", files=files)
    place.publish(place.one("a/1"))
    place.publish(place.one("b/1"))

    def interrupt(*_: object) -> None:
        files.on_sync = None
        raise KeyboardInterrupt

    files.on_sync = interrupt
    with pytest.raises(KeyboardInterrupt):
        place.publish(place.one("a/1"))
    with pytest.raises(ReadOnly, match="interrupted"):
        place.publish(place.one("a/1"))
    assert place.publish(place.one("b/1")).offset == 2
    assert place.payloads("a") == [b"x"]


def test_repeats_in_one_group_and_after_it_are_answered_with_the_first(place: Place) -> None:
    items = [place.many("home/a", "hall/a", producer="p", sequence=1) for _ in range(3)]
    place.group(*items)
    place.publish(later := place.many("home/a", "hall/a", producer="p", sequence=1))
    for item, duplicate in zip([*items, later], [False, True, True, True], strict=True):
        receipts: Any = item.result()
        assert [(receipt.offset, receipt.duplicate) for receipt in receipts] == [(1, duplicate)] * 2
    assert place.payloads("home") == [b"home/a"]


def test_a_lower_sequence_in_the_same_group_is_refused(place: Place) -> None:
    items = [place.one("home/a", producer="p", sequence=sequence) for sequence in (5, 4, 6)]
    place.group(*items)
    assert [type(item.error) for item in items] == [type(None), Conflict, type(None)]


def test_when_a_group_fails_its_producers_send_the_first_again(tmp_path: Path) -> None:
    files = FaultyFiles()
    place = Place("data", files=files)
    place.publish(place.one("home/a", producer="p", sequence=1))
    files.fail_write_at = files.writes + 1
    lost = [place.one("home/a", producer="p", sequence=sequence) for sequence in (2, 3)]
    place.group(*lost)
    assert all(isinstance(item.error, Failed) for item in lost)
    with pytest.raises(Conflict, match="send 2 again"):
        place.publish(place.one("home/a", producer="p", sequence=3))
    assert place.publish(place.one("home/a", producer="p", sequence=2)).offset == 2
    assert place.publish(place.one("home/a", producer="p", sequence=3)).offset == 3
    place.close()


# Checkpoints and restarts


def test_the_state_reflects_the_streams_after_so_many_batches_or_bytes(tmp_path: Path) -> None:
    for config in (Config(checkpoint_batches=3), Config(checkpoint_bytes=1000)):
        place = Place(str(tmp_path / str(config.checkpoint_batches)), config)
        for _ in range(2):
            place.publish(place.one("a/1", bytes(400)))
        assert place.state.get(key_u32(b"S", 1)) is None
        place.publish(place.one("b/1", bytes(400)))
        assert place.state.get(key_u32(b"S", 1)) is not None
        assert place.state.get(key_u32(b"S", 2)) is not None
        place.close()


def test_the_state_reflects_the_streams_after_so_many_topics(tmp_path: Path) -> None:
    place = Place(str(tmp_path), Config(checkpoint_topics=3))
    for _ in range(5):
        place.publish(place.many("a/1", "a/2"))
    assert place.state.get(key_u32(b"S", 1)) is None
    place.publish(place.one("b/1"))
    assert place.state.get(key_u32(b"S", 1)) is not None
    place.publish(place.many("a/1", "a/2"))
    assert place.state.get(key_name(b"T", 1, "a/1")) == msgpack.encode((5, 9))
    place.publish(place.one("a/3"))
    assert place.state.get(key_name(b"T", 1, "a/1")) == msgpack.encode((6, 11))
    place.close()


class AskedState(FaultyState):
    """A state that remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        self.asked.append(key)
        return super().get(key)


def test_recovery_asks_the_state_once_about_a_topic_and_once_about_what_it_retains() -> None:
    files, state = FaultyFiles(), AskedState()
    place = Place("data", Config(), files, state)
    topics = [f"home/{number}" for number in (3, 1, 2)]
    for topic in topics[:2]:
        place.publish(place.one(topic, b"on", retain=True))
    place.roots.commit.run(place.roots.checkpoint)
    for topic in topics * 2:
        place.publish(place.one(topic, b"off!", retain=True))
    place.publish(place.one("home/1", b"", retain=True))
    state.asked.clear()
    again = Place("data", Config(), files.process_kill(), state)
    in_order = sorted(topics)
    assert [key for key in state.asked if key[:1] in b"TR"] == [
        key_name(kind, 1, topic) for kind in (b"T", b"R") for topic in in_order
    ]
    root = again.roots.get("home")
    assert root is not None
    assert (root.topic_count, root.retained.count, root.retained.size) == (3, 2, 8)
    assert again.topics() == {"home/1": 4, "home/2": 2, "home/3": 3}


def test_a_new_topic_is_looked_for_once_until_it_is_stored(tmp_path: Path) -> None:
    state = AskedState()
    place = Place(str(tmp_path), Config(), state=state)
    place.publish(place.one("home/0"))
    state.asked.clear()
    place.publish(place.one("home/a", b"on", retain=True))
    place.roots.commit.run(place.roots.checkpoint)
    assert state.asked.count(key_name(b"T", 1, "home/a")) == 1
    assert key_name(b"R", 1, "home/a") not in state.asked
    place.close()


def test_a_checkpoint_that_fails_fails_no_publish(tmp_path: Path) -> None:
    state = FaultyState()
    place = Place(str(tmp_path), Config(checkpoint_batches=1), state=state)
    state.fail_sync_at = 1
    assert place.publish(place.one("a/1")).offset == 1
    assert len(place.troubles) == 1
    assert place.publish(place.one("a/1")).offset == 2


def crashed(place: Place, folder: str) -> Place:
    """The place as the next process finds it after a kill -9."""
    assert isinstance(place.files, FaultyFiles)
    assert isinstance(place.state, FaultyState)
    return Place(folder, place.config, place.files.process_kill(), place.state.process_kill())


@pytest.mark.parametrize("checkpoint_batches", [1, 2, 3, 100])
def test_a_restart_brings_back_what_publishes_changed(checkpoint_batches: int) -> None:
    place = Place("data", Config(checkpoint_batches=checkpoint_batches), FaultyFiles(), FaultyState())
    place.publish(place.one("home/a", b"on", retain=True))
    place.publish(place.many("home/a", "hall/b", producer="p", sequence=1))
    place.publish(place.one("home/a", b"", retain=True))
    place.publish(place.one("hall/c", b"off", retain=True))
    for _ in range(2):
        place = crashed(place, "data")
        assert place.topics() == {"home/a": 3, "hall/b": 1, "hall/c": 1}
        home, hall = place.roots.get("home"), place.roots.get("hall")
        assert home is not None
        assert hall is not None
        assert (home.topic_count, hall.topic_count) == (1, 2)
        assert (home.retained.count, hall.retained.count) == (0, 1)
        assert home.producers.repeated("p", 1) is not None
        assert all(found.holes == [] for found in place.met.values())
    assert place.publish(place.one("home/a")).offset == 4


def test_closing_well_leaves_nothing_to_apply(tmp_path: Path) -> None:
    place = Place("data", files=FaultyFiles(), state=FaultyState())
    place.publish(place.many("a/1", "b/1"))
    place.close()
    again = crashed(place, "data")
    assert [found.batches for found in again.met.values()] == [0, 0]
    assert again.topics() == {"a/1": 1, "b/1": 1}


def test_nothing_is_published_after_closing(tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    place.close()
    with pytest.raises(Closed):
        place.publish(place.one("a/1"))


def test_a_reader_sees_roots_as_the_owner_has_them(tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    place.publish(place.one("a/1", retain=True))
    log = Streams(DiskFiles(), str(tmp_path), Seed(0), place.config, read_only=True)
    reader = Roots(log, place.state, place.config, place.clock, lambda *_: None, lambda _: None)
    everything: Callable[[str], bool] = compile_filter("#")

    def look() -> list[tuple[str, int, bool]]:
        reader.look()
        return [(i.topic, i.messages, i.retained) for root in reader.all() for i in root.topics(everything)]

    assert look() == [("a/1", 1, True)]
    place.publish(place.many("a/1", "b/1"))
    assert look() == [("a/1", 2, True), ("b/1", 1, False)]
    place.roots.commit.run(place.roots.checkpoint)
    assert look() == look() == [("a/1", 2, True), ("b/1", 1, False)]
    log.close()
    place.close()
