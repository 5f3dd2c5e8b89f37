"""Publishing, step by step as the notes say it: rights, topics that are made, the ack, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path

import pytest

import headwater
from headwater.config import Config
from headwater.errors import Conflict, Failed, HeadwaterError, Unavailable
from headwater.store.batch import checksum
from headwater.wire import batches, requests
from headwater.wire.frame import Kind
from server.harness import Peer, Running, code, make_body, nothing_is_committed


def test_a_publish_is_acked_once_it_is_on_disk_and_its_subscribers_get_it(tmp_path: Path):
    with Running(tmp_path) as running:
        ann, bob = running.peer("ann"), running.peer("bob")
        bob.subscribe(1, "home/#", kind="named", id="s")
        bob.subscribe(2, "home/#")
        done = ann.published(ann.publish_soon("home/x", b"1"))
        assert (done.first_offset, done.is_repeat) == (1, False)
        assert bob.payloads(1, 1) == [b"1"]
        assert bob.payloads(2, 1) == [b"1"]
    with headwater.open(tmp_path) as bus:
        assert [one.payload for one in bus.replay("home/#")] == [b"1"]


def test_while_nothing_is_taken_a_publish_is_refused_at_once_and_the_next_is_stored_when_it_is():
    with Running() as running:
        peer, commit = running.peer(), running.server.core.roots.commit
        assert peer.publish("home/x") == 1
        commit.refuse(Unavailable("nothing can be stored at the moment; try again soon"))
        with code(503, "nothing can be stored at the moment"):
            peer.publish("home/x")
        with code(503):
            peer.publish(["home/x", "home/y"])
        commit.accept()
        assert peer.publish("home/x") == 2


def test_a_batch_of_many_topics_is_one_publish_with_dense_offsets():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a/+")
        assert peer.publish([f"a/{n}" for n in range(500)], [b"%d" % n for n in range(500)]) == 1
        assert peer.publish("a/0") == 501
        assert [one.offset for one in peer.take(1, 501)] == list(range(1, 502))


def test_a_topic_that_does_not_exist_is_made_for_who_has_the_right():
    with Running(auth="scram") as running:
        running.client("ann", allow=["publish home/#", "create home/ann/#"])
        peer = running.peer("ann")
        assert peer.publish("home/ann/x") == 1
        with code(403, 'may not create topic "home/x"', "headwater acl allow ann create"):
            peer.publish("home/x")
        with code(403):
            peer.publish(["home/ann/y", "home/bob/y"])
        assert [one.topic for one in running.bus.topics()] == ["home/ann/x"]
        running.bus.publish("home/x", b"")
        assert peer.publish("home/x") == 3


def test_a_client_without_the_right_gets_403_with_the_missing_rule_in_the_text_and_nothing_is_stored():
    with Running(auth="scram") as running:
        running.client("ann", allow=["publish home/#", "create #"])
        peer = running.peer("ann")
        with code(403, 'client "ann" may not publish to "other/x"', "headwater acl allow ann publish"):
            peer.publish("other/x")
        with code(422, "topics of that root"):
            peer.publish(["other/x", "other/y"], root="home")
        assert running.bus.topics() == []


def test_topics_over_the_quota_of_a_minute_get_429_and_nothing_is_made():
    with Running(auth="scram", topics_created_per_minute_max=3) as running:
        for name in ("ann", "bob"):
            running.client(name, allow=["publish #", "create #"])
        ann, bob = running.peer("ann"), running.peer("bob")
        for number in range(3):
            ann.publish(f"a/{number}")
        with code(429, "3 new topics a minute"):
            ann.publish("a/random")
        with code(429):
            ann.publish([f"b/{number}" for number in range(4)])
        assert len(running.bus.topics()) == 3
        assert ann.publish("a/0") == 4
        bob.publish("a/random")


@pytest.mark.parametrize(
    ("config", "topics"),
    [(Config(topics_per_root_max=2), ["a/1", "a/2", "a/3"]), (Config(roots_max=1), ["a/1", "b/1"])],
)
def test_a_topic_over_the_caps_gets_429_and_nothing_is_made(config: Config, topics: list[str]):
    with Running(config=config) as running:
        peer = running.peer()
        for topic in topics[:-1]:
            peer.publish(topic)
        with code(429):
            peer.publish(topics[-1])
        assert len(running.bus.topics()) == len(topics) - 1
        peer.publish(topics[0])


def test_the_publisher_is_told_when_forwarding_fails(monkeypatch: pytest.MonkeyPatch):
    with Running() as running:
        peer = running.peer()
        peer.publish("a")
        roots = running.bus.core.roots
        monkeypatch.setattr(roots.committer, "_append", lambda _: (_ for _ in ()).throw(Failed("the disk is gone")))
        with code(500, "the disk is gone"):
            peer.publish("a")
        monkeypatch.undo()
        peer.publish("a")


def test_a_repeat_of_an_idempotent_publish_is_answered_with_the_first_offset():
    with Running() as running:
        peer = running.peer()
        first = peer.published(peer.publish_soon("a", b"1", producer="p", sequence=1))
        again = peer.published(peer.publish_soon("a", b"1", producer="p", sequence=1))
        assert (again.first_offset, again.is_repeat, again.time_us) == (first.first_offset, True, first.time_us)
        assert peer.publish("a", b"2", producer="p", sequence=2) == 2
        assert [one.payload for one in running.bus.replay("a")] == [b"1", b"2"]


def test_repeats_in_one_breath_are_stored_once():
    with Running() as running:
        peer = running.peer()
        numbers = [peer.publish_soon("a", b"%d" % (n // 3), producer="p", sequence=n // 3) for n in range(30)]
        offsets = [peer.published(number).first_offset for number in numbers]
        assert offsets == [n // 3 + 1 for n in range(30)]
        assert len(list(running.bus.replay("a"))) == 10


def test_a_publish_refused_before_its_commit_does_not_break_its_producer_and_one_refused_at_it_does():
    with Running(config=Config(topics_per_root_max=1)) as running:
        peer = running.peer()
        peer.publish("a/1", producer="p", sequence=1)
        with code(422):
            peer.publish("a/+", producer="p", sequence=2)
        peer.publish("a/1", producer="p", sequence=2)
        with code(429):
            peer.publish("a/2", producer="p", sequence=3)
        with pytest.raises(Conflict):
            peer.publish("a/1", producer="p", sequence=4)
        peer.publish("a/1", producer="p", sequence=3)
        peer.publish("a/1", producer="p", sequence=4)


def test_a_quiet_publish_is_not_answered():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a")
        peer.publish_soon("a", b"1", flags=batches.QUIET)
        assert peer.payloads(1, 1) == [b"1"]
        peer.quiet(0.05, Kind.PUBLISHED)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a/#/b", "$staged", "$staged/x", "$delayed", "a\0", "x" * 2000])
def test_a_topic_that_is_none_gets_422(topic: str):
    with Running() as running:
        peer = running.peer()
        with code(422):
            peer.publish(topic)
        peer.publish("a")
        assert [one.topic for one in running.bus.topics()] == ["a"]


def test_a_message_over_its_limit_gets_413_and_the_session_goes_on():
    with Running(config=Config(message_bytes_max=1000, batch_bytes_max=10_000, key_bytes_max=10)) as running:
        peer = running.peer()
        with code(413, "message_bytes_max"):
            peer.publish("a", bytes(1001))
        with code(413):
            peer.publish("a", keys=[b"x" * 11])
        with code(413, "batch_bytes_max"):
            peer.publish(["a"] * 13, bytes(900))
        peer.publish("a", bytes(1000))


def test_publishes_of_several_clients_to_one_root_are_each_answered_and_all_there():
    with Running() as running:
        peers = [running.peer(f"p{n}") for n in range(4)]
        offsets: list[int] = []

        def publish(peer):
            numbers = [peer.publish_soon("a", b"%d" % n) for n in range(200)]
            offsets.extend(peer.published(number).first_offset for number in numbers)

        threads = [threading.Thread(target=publish, args=(peer,)) for peer in peers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(offsets) == list(range(1, 801))


def test_publishes_over_those_that_may_be_in_flight_wait_and_are_not_lost():
    with Running(publishes_in_flight_max=2, publish_bytes_in_flight_max=4000) as running:
        peer = running.peer()
        numbers = [peer.publish_soon("a", b"%d" % n) for n in range(300)]
        numbers += [peer.publish_soon("a", bytes(3000)) for n in range(20)]
        assert [peer.published(number).first_offset for number in numbers] == list(range(1, 321))


def test_a_group_that_others_have_filled_does_not_stop_publishing():
    with Running(config=Config(group_bytes_max=1000)) as running:
        peer = running.peer()
        peer.publish("a")
        commit, inside, go_on = running.bus.core.roots.commit, threading.Event(), threading.Event()

        def block() -> None:
            inside.set()
            go_on.wait(60)

        blocking = threading.Thread(target=commit.run, args=(block,))
        blocking.start()
        assert inside.wait(60)
        others = running.bus.publish_soon("b", bytes(2000))
        number = peer.publish_soon("a", b"mine")
        peer.ping()
        running.until(lambda: running.server.entry._waiting)
        go_on.set()
        others.result(60)
        assert peer.published(number).first_offset == 2
        assert peer.publish("a") == 3
        blocking.join()


def test_an_answer_goes_back_with_the_request_of_who_asked():
    with Running(auth="scram") as running:
        running.client("asks", allow=["publish rpc/#", "create rpc/#"])
        running.client("answers", allow=["subscribe rpc/#"])
        asks, answers = running.peer("asks"), running.peer("answers")
        answers.subscribe(1, "rpc/sum")
        asks.subscribe(1, f"$reply/{asks.session}")
        asks.publish("rpc/sum", b"1+1", headers=[(("reply-to", f"$reply/{asks.session}"), ("correlation-id", "7"))])
        assert answers.payloads(1, 1) == [b"1+1"]
        answers.publish(f"$reply/{asks.session}", b"2")
        assert asks.payloads(1, 1) == [b"2"]


def test_reply_topics_are_counted_as_made_by_who_first_answers_there():
    with Running(auth="scram", topics_created_per_minute_max=2) as running:
        running.client("ann").client("bob")
        ann, asked = running.peer("ann"), [running.peer("bob").session for _ in range(3)]
        for session in asked[:2]:
            ann.publish(f"$reply/{session}")
        with code(429):
            ann.publish(f"$reply/{asked[2]}")
        ann.publish(f"$reply/{asked[0]}")


def test_a_delayed_message_is_delivered_when_it_is_due_and_not_before():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "a")
        now_us = running.bus.core.clock.now_us()
        peer.ask(requests.Delay(topic="a", payload=b"later", deliver_at_us=now_us + 300_000))
        peer.publish("a", b"now")
        assert peer.payloads(1, 2) == [b"now", b"later"]
        with code(422):
            peer.ask(requests.Delay(topic="a/#", payload=b"", deliver_at_us=now_us))
        with code(422):
            peer.ask(requests.Delay(topic="a", payload=b"", deliver_at_us=1 << 60))


def test_staged_messages_are_seen_by_nobody_and_then_by_all_once():
    with Running(auth="scram") as running:
        for name in ("ann", "bob"):
            running.client(name, allow=["publish a/#", "create a/#", "subscribe a/#"])
        ann, bob = running.peer("ann"), running.peer("bob")
        bob.subscribe(1, "a/#", kind="session")

        def stage(peer, part, topic="a/x", epoch=1):
            body = make_body([topic], [part.encode()])
            root = topic.partition("/")[0]
            peer.ask(
                requests.Stage(producer="p", epoch=epoch, part=part, root=root, count=1, crc=checksum(body), body=body)
            )

        stage(ann, "1"), stage(ann, "2")
        with code(403):
            stage(ann, "3", "b/x")
        bob.quiet(0.05)
        with code(404):
            bob.ask(requests.CommitStage(producer="p", epoch=1, parts=("1",)))
        bob.ask(requests.DropStage(producer="p", epoch=1))
        commit = requests.CommitStage(producer="p", epoch=1, parts=("2", "1"))
        assert ann.ask(commit) == {"a": (1, 2)}
        assert ann.ask(commit) == {"a": (1, 2)}
        assert bob.payloads(1, 2) == [b"2", b"1"]
        stage(ann, "x", epoch=2)
        ann.ask(requests.DropStage(producer="p", epoch=2))
        with code(404):
            ann.ask(requests.CommitStage(producer="p", epoch=2, parts=("x",)))


def test_a_producer_of_the_same_name_of_another_client_is_another_producer():
    with Running(auth="scram") as running:
        for name in ("ann", "eve"):
            running.client(name, allow=["publish a", "create a"])
        ann, eve = running.peer("ann"), running.peer("eve")
        ann.publish("a", b"ann 1", producer="importer", sequence=1)
        eve.publish("a", b"eve 2", producer="importer", sequence=2)
        eve.publish("a", b"eve 9", producer="importer", sequence=1 << 60)
        done = ann.published(ann.publish_soon("a", b"ann 2", producer="importer", sequence=2))
        assert not done.is_repeat
        assert ann.published(ann.publish_soon("a", b"ann 2", producer="importer", sequence=2)).is_repeat
        assert [one.payload for one in running.bus.replay("a")] == [b"ann 1", b"eve 2", b"eve 9", b"ann 2"]


def test_a_refused_publish_of_one_client_holds_up_no_producer_of_another():
    with Running(auth="scram") as running:
        running.client("ann", allow=["publish a", "create a"]).client("eve")
        ann, eve = running.peer("ann"), running.peer("eve")
        ann.publish("a", producer="importer", sequence=1)
        with code(403):
            eve.publish("a", producer="importer", sequence=0)
        assert ann.publish("a", producer="importer", sequence=2) == 2


def test_what_one_client_stages_is_not_another_clients_whose_name_and_producer_read_the_same():
    with Running(auth="scram") as running:
        for name in ("a:b", "a"):
            running.client(name, allow=["publish x", "create x"])
        one, two = running.peer("a:b"), running.peer("a")
        body = make_body(["x"], [b"1"])
        one.ask(requests.Stage(producer="c", epoch=1, part="p", root="x", count=1, crc=checksum(body), body=body))
        two.ask(requests.DropStage(producer="b:c", epoch=1))
        with code(404):
            two.ask(requests.CommitStage(producer="b:c", epoch=1, parts=("p",)))
        assert one.ask(requests.CommitStage(producer="c", epoch=1, parts=("p",))) == {"x": (1, 1)}


def in_one_breath(peer: Peer, *topics: str, wrong: Collection[int] = (), flags: int = 0) -> list[int]:
    """PUBLISH frames of one message each, sent together; those at some places say a wrong checksum."""
    numbers, pieces = [], []
    for place, topic in enumerate(topics):
        body = make_body([topic], [b"%d" % place])
        number = peer.next_id()
        crc = checksum(body) ^ (place in wrong)
        pieces += batches.pack_publish(number, topic.partition("/")[0], 1, crc, body, flags=flags)
        numbers.append(number)
    peer.send(*pieces)
    return numbers


def test_publishes_that_come_together_are_stored_together_and_each_is_answered(tmp_path: Path):
    with Running(tmp_path) as running:
        ann, bob = running.peer(), running.peer()
        ann.publish(["home/x", "home/y"])
        ann.publish("yard/x")
        bob.subscribe(1, "#")
        topics = ["home/x", "home/y", "home/x", "yard/x", "home/y", "yard/x", "yard/x", "home/new", "home/x"]
        numbers = in_one_breath(ann, *topics)
        offsets = [ann.published(number).first_offset for number in numbers]
        assert offsets == [3, 4, 5, 2, 6, 3, 4, 7, 8]
        got = bob.take(1, len(topics))
    with headwater.open(tmp_path) as bus:
        stored = {(one.root, one.offset): (one.topic, one.payload) for one in bus.replay("#")}
    for place, (topic, offset) in enumerate(zip(topics, offsets, strict=True)):
        assert stored[topic.partition("/")[0], offset] == (topic, b"%d" % place)
    assert sorted((one.topic, one.payload) for one in got) == sorted(
        (topic, b"%d" % place) for place, topic in enumerate(topics)
    )


def test_one_that_was_damaged_among_those_that_come_together_is_refused_alone():
    with Running() as running:
        ann = running.peer()
        ann.publish("home/x")
        numbers = in_one_breath(ann, *["home/x"] * 6, wrong={3})
        for place, number in enumerate(numbers):
            with code(422) if place == 3 else nullcontext():
                ann.published(number)
        assert [one.payload for one in running.bus.replay("home/x", after=1)] == [b"0", b"1", b"2", b"4", b"5"]


@pytest.mark.parametrize("wrong", [set(), {0}, {11}, {3, 19}])
def test_many_that_are_alike_are_each_checked_and_keep_their_times_and_payloads(wrong: set[int]):
    with Running() as running:
        ann = running.peer()
        ann.publish("home/x")
        numbers, pieces = [], []
        for place in range(20):
            body = make_body(["home/x"], [b"%03d" % place], time_us=1_000_000 + place)
            numbers.append(ann.next_id())
            pieces += batches.pack_publish(numbers[-1], "home", 1, checksum(body) ^ (place in wrong), body)
        ann.send(*pieces)
        for place, number in enumerate(numbers):
            with code(422) if place in wrong else nullcontext():
                ann.published(number)
        stored = [(one.payload, one.time_us) for one in running.bus.replay("home/x", after=1)]
        assert stored == [(b"%03d" % place, 1_000_000 + place) for place in range(20) if place not in wrong]


@pytest.mark.parametrize("batch_bytes_max", [10_000, 100_000])
def test_one_that_is_too_long_among_those_that_come_together_is_refused_alone(batch_bytes_max: int):
    with Running(config=Config(message_bytes_max=1000, batch_bytes_max=batch_bytes_max)) as running:
        ann = running.peer()
        ann.publish("home/x")
        numbers, pieces = [], []
        for place in range(60):
            body = make_body(["home/x"], [b"%03d" % place * (334 if place == 41 else 100 + place % 2 * 8)])
            numbers.append(ann.next_id())
            pieces += batches.pack_publish(numbers[-1], "home", 1, checksum(body), body)
        ann.send(*pieces)
        for place, number in enumerate(numbers):
            with code(413) if place == 41 else nullcontext():
                ann.published(number)
        stored = [int(one.payload[:3]) for one in running.bus.replay("home/x", after=1)]
        assert stored == [*range(41), *range(42, 60)]


def of_all_sorts() -> list[bytes]:
    """PUBLISH frames, most of them alike; some are to be refused."""
    frames = []
    for number in range(1001, 1121):
        topic = f"home/{number % 3}" if number % 40 < 37 else f"yard/{number}/#"
        payloads = [b"%d" % number] * (2 if number % 50 == 7 else 1)
        body = make_body([topic] * len(payloads), payloads, time_us=1_000_000 + number)
        crc = checksum(body) ^ (number % 31 == 13)
        frames.append(b"".join(batches.pack_publish(number, topic[:4], len(payloads), crc, body)))
    return frames


def test_what_is_stored_and_answered_does_not_depend_on_how_bytes_come():
    outcomes = []
    for together in (1, 3, 120):
        with Running() as running:
            ann = running.peer()
            ann.publish([f"home/{number}" for number in range(3)])
            frames = of_all_sorts()
            for at in range(0, len(frames), together):
                ann.send(*frames[at : at + together])
                ann.ping()
            answers: list[tuple[int, int]] = []
            for number in range(1001, 1001 + len(frames)):
                try:
                    answers.append((number, ann.published(number).first_offset))
                except HeadwaterError as error:
                    answers.append((number, -error.code))
            stored = [
                (one.offset, one.topic, one.payload, one.time_us) for one in running.bus.replay("home/#", after=3)
            ]
            outcomes.append((answers, stored))
    assert len(outcomes[0][1]) > 100
    assert outcomes[1:] == outcomes[:1] * 2


def test_those_that_may_not_be_published_among_those_that_come_together_are_refused_alone():
    with Running(auth="scram") as running:
        running.client("ann", allow=["publish home/x", "publish home/z", "create home/x"])
        for topic in ("home/x", "home/y"):
            running.bus.publish(topic, b"")
        ann = running.peer("ann")
        topics = ["home/x", "home/y", "home/x", "home/z", "home/x"]
        for topic, number in zip(topics, in_one_breath(ann, *topics), strict=True):
            with nullcontext() if topic == "home/x" else code(403):
                ann.published(number)
        assert [one.payload for one in running.bus.replay("home/x", after=2)] == [b"0", b"2", b"4"]


def test_quiet_ones_that_come_together_are_shown_and_stored_in_their_order():
    with Running() as running:
        ann, bob = running.peer(), running.peer()
        ann.publish("home/x")
        bob.subscribe(1, "home/#")
        with nothing_is_committed(running.bus):
            in_one_breath(ann, *["home/x"] * 5, flags=batches.QUIET)
            assert bob.payloads(1, 5) == [b"%d" % place for place in range(5)]
        running.until(lambda: running.bus.ends()["home"] == 6)
        assert [one.payload for one in running.bus.replay("home/#", after=1)] == [b"%d" % place for place in range(5)]
