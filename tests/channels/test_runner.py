from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.channels.runner import ChannelRunner
from headwater.message import Message
from headwater.wire import administration, batches, requests
from headwater.wire.frame import HEADER, Kind, pack
from headwater.wire.requests import encode
from server.harness import PATIENCE_S, SECRET, Running, code
from server.site import Scripted, Teller, free_port, until

SOON: dict[str, Any] = {"channel_retry_s": 0.01, "channel_retry_s_max": 0.05}
AGAIN: dict[str, Any] = {"retry_delay_s": 0.01, "retry_delay_s_max": 0.02}


@pytest.fixture
def running() -> Iterator[Running]:
    with Running(**SOON) as made:
        yield made


@pytest.fixture
def receiver() -> Iterator[headwater.client.receiver.Receiver]:
    with headwater.receive(0) as made:
        yield made


def add(running: Running, port: int, filter: str = "home/#", **others: Any) -> administration.ChannelInfo:
    (made,) = running.bus.channels.add("alarms", filter, "127.0.0.1", port, **{"id": "a", **others})
    return made


def info(running: Running, id: str = "a") -> administration.ChannelInfo:
    (found,) = running.bus.channels.list(id)
    return found


def publish(running: Running, *payloads: bytes, topic: str = "home/x") -> None:
    running.bus.publish_many([(topic, payload) for payload in payloads])


def take(receiver: Any, count: int) -> list[Message]:
    """So many messages, acked."""
    found: list[Message] = []
    while len(found) < count:
        more = receiver.batch(count - len(found), PATIENCE_S)
        assert more, f"only {len(found)} of {count} came"
        receiver.ack(more)
        found += more
    return found


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


# Delivering


def test_what_matches_is_pushed_in_order_and_acked(running: Running, receiver: Any):
    add(running, receiver.port)
    publish(running, *(b"%d" % number for number in range(100)))
    publish(running, b"no", topic="garden/x")
    publish(running, b"last")
    found = take(receiver, 101)
    assert payloads(found) == [*(b"%d" % number for number in range(100)), b"last"]
    assert receiver.channel_of(found[0]) == "a"
    until(lambda: info(running).lag == 0)
    assert (info(running).delivered, info(running).state, info(running).address) == (101, "idle", "127.0.0.1")


def test_dead_letters_of_a_subscription_are_pushed_with_what_became_of_them(running: Running, receiver: Any):
    add(running, receiver.port, "$dead/thermostat")
    publish(running, b"warm", b"20")
    with running.bus.subscribe("home/#", id="thermostat", start="earliest") as sub:
        warm, well = sub.batch(2, PATIENCE_S)
        warm.reject("not a number")
        well.ack()
    (letter,) = take(receiver, 1)
    assert (letter.topic, letter.payload) == ("$dead/thermostat", b"warm")
    assert (letter.headers["headwater-dead-topic"], letter.headers["headwater-dead-error"]) == (
        "home/x",
        "not a number",
    )


def test_a_receiver_is_three_lines(running: Running):
    got: list[bytes] = []
    with headwater.receive(port=0) as receiver:

        def listen() -> None:
            for message in receiver:
                got.append(message.payload)
                message.ack()

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        add(running, receiver.port)
        publish(running, b"1", b"2")
        until(lambda: info(running).delivered == 2)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert got == [b"1", b"2"]


def test_a_channel_begins_with_what_there_is_if_it_is_told_to(running: Running, receiver: Any):
    publish(running, b"old")
    add(running, receiver.port, start="earliest")
    add(running, receiver.port, id="b")
    publish(running, b"new")
    found = take(receiver, 3)
    assert sorted((receiver.channel_of(one), one.payload) for one in found) == [
        ("a", b"new"),
        ("a", b"old"),
        ("b", b"new"),
    ]


def test_a_message_that_is_refused_comes_again_before_those_after_it_and_then_dies(running: Running, receiver: Any):
    add(running, receiver.port, options={"max_attempts": 3, **AGAIN})
    publish(running, b"poison", b"1", b"2")
    for attempt in (1, 2, 3):
        message = receiver.next(PATIENCE_S)
        assert (message.payload, message.attempt) == (b"poison", attempt)
        message.nack(f"no, for the time {attempt}")
        assert "no, for the time" in info(running).error
    assert payloads(take(receiver, 2)) == [b"1", b"2"]
    (dead,) = running.bus.dead_letters("channel:a")
    assert (dead.payload, dead.errors[-1]) == (b"poison", "no, for the time 3")
    assert info(running).dead == 1
    assert running.bus.redrive("channel:a") == 1
    assert payloads(take(receiver, 1)) == [b"poison"]


def test_a_message_that_is_rejected_dies_at_once(running: Running, receiver: Any):
    add(running, receiver.port)
    publish(running, b"poison", b"1")
    receiver.next(PATIENCE_S).reject("never")
    assert payloads(take(receiver, 1)) == [b"1"]
    assert [letter.errors for letter in running.bus.dead_letters("channel:a")] == [("never",)]


def test_a_message_that_is_not_acked_in_time_comes_again(running: Running, receiver: Any):
    add(running, receiver.port, options={"ack_timeout_s": 0.05, **AGAIN})
    publish(running, b"1")
    assert receiver.next(PATIENCE_S).attempt == 1
    assert receiver.next(PATIENCE_S).attempt == 2


def test_a_destination_that_is_down_costs_no_attempts_and_gets_everything_once_it_is_back(running: Running):
    with free_port() as port:
        add(running, port, options={"max_attempts": 1})
        publish(running, b"1", b"2")
        until(lambda: "cannot be reached" in info(running).error)
        assert info(running).state == "failing"
        with headwater.receive(port) as receiver:
            assert [(one.payload, one.attempt) for one in receiver.batch(1, PATIENCE_S)] == [(b"1", 1)]
        until(lambda: info(running).state == "failing")
        with headwater.receive(port) as receiver:
            found = take(receiver, 2)
        assert [(one.payload, one.attempt) for one in found] == [(b"1", 1), (b"2", 1)]
        until(lambda: info(running).lag == 0)
        assert info(running).dead == 0


def test_an_ack_of_a_message_whose_connection_is_gone_is_nothing_and_it_comes_again(running: Running, receiver: Any):
    add(running, receiver.port)
    publish(running, b"1")
    message = receiver.next(PATIENCE_S)
    channel: Any = running.server.extension(ChannelRunner)._channels["a"]
    running.call(channel.connection.abort)
    again = receiver.next(PATIENCE_S)
    message.ack()
    assert info(running).lag == 1
    again.ack()
    until(lambda: info(running).lag == 0)
    assert again.payload == b"1"


# Looking after


def test_a_channel_that_is_paused_keeps_its_place(running: Running, receiver: Any):
    add(running, receiver.port)
    assert running.bus.channels.change("a", paused=True).state == "paused"
    publish(running, b"1")
    assert receiver.next(0.1) is None
    assert info(running).lag == 1
    running.bus.channels.change("a", paused=False)
    assert payloads(take(receiver, 1)) == [b"1"]


def test_a_channel_with_undelivered_messages_is_removed_by_force_alone(running: Running):
    with free_port() as port:
        add(running, port)
        publish(running, b"1")
        with code(409, "messages to deliver: 1"):
            running.bus.channels.remove("a")
        assert info(running).lag == 1
        running.bus.channels.remove("a", force=True)
    with code(404):
        info(running)
    assert running.bus.subscriptions() == []


def test_a_channel_whose_destination_changes_goes_on_from_its_place(running: Running, receiver: Any):
    with free_port() as port:
        add(running, port)
        publish(running, b"1")
        running.bus.channels.change("a", destination_port=receiver.port, name="sirens")
        assert payloads(take(receiver, 1)) == [b"1"]
    assert (info(running).name, info(running).destination_port) == ("sirens", receiver.port)


def test_a_channel_is_removed_under_way(running: Running, receiver: Any):
    add(running, receiver.port)
    publish(running, b"1", b"2")
    assert receiver.next(PATIENCE_S).payload == b"1"
    running.bus.channels.remove("a", force=True)
    until(lambda: not receiver._lines)
    publish(running, b"3")
    assert receiver.next(0.05) is None


def test_a_destination_is_tried_out(running: Running, receiver: Any):
    add(running, receiver.port)
    trial = running.bus.channels.test("a")
    assert trial.ok
    assert "greeted" in trial.detail
    with free_port() as port:
        add(running, port, id="b")
        trial = running.bus.channels.test("b")
    assert not trial.ok
    assert "cannot be reached" in trial.detail
    with code(404):
        running.bus.channels.test("c")


# Receivers that lie, hang, and come back


def garbage(teller: Teller) -> None:
    teller.hello()
    teller.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    teller.frame()


def silence(teller: Teller) -> None:
    teller.frame(Kind.GOODBYE)


def refusal(teller: Teller) -> None:
    teller.hello()
    teller.send(
        pack(Kind.GOODBYE, 0, encode(requests.Goodbye(problem=requests.problem_of(headwater.Conflict("full")))))
    )


def wrong_version(teller: Teller) -> None:
    teller.hello()
    teller.welcome(version=99)
    teller.frame()


def own_hello(teller: Teller) -> None:
    teller.send(pack(Kind.HELLO, 0, b"\x80"))
    teller.frame(Kind.GOODBYE)


def publisher(teller: Teller) -> None:
    teller.hello()
    teller.welcome()
    teller.delivered()
    teller.send(pack(Kind.PUBLISH, 7, bytes(64)))
    teller.frame(Kind.GOODBYE)


def huge_frame(teller: Teller) -> None:
    teller.hello()
    teller.welcome()
    teller.delivered()
    teller.send(HEADER.pack(1 << 30, Kind.ACK, 0, 0, 1))
    teller.frame(Kind.GOODBYE)


def rubbish_after_the_greeting(teller: Teller) -> None:
    teller.hello()
    teller.welcome()
    teller.delivered()
    teller.send(b"\xff" * 64)
    teller.frame(Kind.GOODBYE)


def sudden_death(teller: Teller) -> None:
    teller.hello()
    teller.welcome()
    teller.delivered()


def endless_credit_and_nothing_else(teller: Teller) -> None:
    teller.hello()
    teller.welcome()
    teller.delivered()
    teller.send(batches.pack_credit(1, (1 << 64) - 1, (1 << 64) - 1) * 100)
    teller.send(batches.pack_credit(9, 1, 1))
    teller.frame(Kind.GOODBYE)


LIARS = [
    garbage,
    silence,
    refusal,
    wrong_version,
    own_hello,
    publisher,
    huge_frame,
    rubbish_after_the_greeting,
    sudden_death,
    endless_credit_and_nothing_else,
]


@pytest.mark.parametrize("liar", LIARS, ids=lambda liar: liar.__name__)
def test_whatever_a_receiver_does_the_next_one_gets_every_message(liar: Callable[[Teller], None]):
    with Running(**SOON, channel_connect_s=0.1) as running, free_port() as port:
        with Scripted(liar, port) as scripted:
            add(running, port, options={"max_attempts": 1})
            publish(running, b"1", b"2")
            until(lambda: scripted.served > 1)
            until(lambda: info(running).error)
        with headwater.receive(port) as receiver:
            assert [(one.payload, one.attempt) for one in take(receiver, 2)] == [(b"1", 1), (b"2", 1)]
        assert info(running).dead == 0


def test_acks_of_what_was_never_sent_change_nothing(running: Running):
    met: list[Any] = []

    def wrong(teller: Teller) -> None:
        teller.hello()
        teller.welcome()
        (one,) = teller.delivered()
        answers = (
            teller.ack((one.lease + 1, one.offset, one.offset)),
            teller.ack((one.lease, one.offset + 1, one.offset + 9)),
            teller.ack((0, 0, (1 << 64) - 1)),
            teller.ack((one.lease, one.offset, one.offset), number=2),
        )
        met.extend(requests.decode(answer.payload, requests.Problem).code for answer in answers)
        teller.frame(Kind.GOODBYE)

    with Scripted(wrong) as scripted:
        add(running, scripted.port)
        publish(running, b"1")
        until(lambda: len(met) == 4)
        assert met == [409, 422, 409, 404]
        assert info(running).lag == 1
        assert info(running).delivered == 0


def test_no_more_is_sent_than_a_slow_receiver_has_room_for(running: Running):
    got: list[int] = []
    more = threading.Event()

    def slow(teller: Teller) -> None:
        teller.hello()
        teller.welcome(messages=2)
        got.append(len(teller.delivered()))
        more.wait(PATIENCE_S)
        teller.send(batches.pack_credit(1, 3, 1 << 20))
        got.append(len(teller.delivered()))
        teller.frame(Kind.GOODBYE)

    with Scripted(slow) as scripted:
        add(running, scripted.port)
        until(lambda: info(running).state == "idle")
        publish(running, *[b"x"] * 10)
        until(lambda: got == [2])
        more.set()
        until(lambda: got == [2, 3])
        assert info(running).state == "delivering"


def test_a_receiver_that_hangs_is_given_up(tmp_path: Path):
    hanging = threading.Event()

    def hang(teller: Teller) -> None:
        teller.hello()
        teller.welcome()
        hanging.wait(PATIENCE_S)

    with Running(**SOON, keepalive_s=0.05) as running, Scripted(hang) as scripted:
        add(running, scripted.port)
        publish(running, b"1")
        until(lambda: scripted.served > 1 and "nothing was heard" in info(running).error)
        hanging.set()


def test_a_batch_is_never_larger_than_the_channel_says(running: Running):
    sizes: list[int] = []

    def count(teller: Teller) -> None:
        teller.hello()
        teller.welcome()
        while True:
            found = teller.delivered()
            sizes.append(len(found))
            teller.ack_all(found)

    with Scripted(count) as scripted:
        add(running, scripted.port, batch_messages_max=7)
        publish(running, *[b"x"] * 20)
        until(lambda: sum(sizes) == 20)
    assert max(sizes) == 7


# Rights


def test_channels_are_for_administrators():
    with Running(auth="scram") as running:
        running.client("ann", allow=["subscribe home/#", "channel home/#"])
        running.client("root", admin=True)
        ann, root = running.peer("ann"), running.peer("root")
        spec = administration.ChannelSpec(
            id="a", name="n", filter="home/#", destination_host="127.0.0.1", destination_port=1
        )
        for request in (
            administration.AddChannels(channels=(spec,)),
            administration.ChangeChannel(id="a", paused=True),
            administration.RemoveChannel(id="a"),
            administration.ListChannels(),
            administration.TryChannel(id="a"),
        ):
            with code(403):
                ann.ask(request)
        (made,) = root.ask(administration.AddChannels(channels=(spec,)))
        assert (made.id, made.owner) == ("a", "")
        with code(409, '"n", "home/#" to tcp 127.0.0.1:1'):
            root.ask(administration.AddChannels(channels=(spec,)))


def audit_of(running: Running) -> list[tuple[str, str, str]]:
    """What was done, to which channel, and who wanted it."""
    found = [json.loads(message.payload) for message in running.bus.replay("$sys/audit")]
    return [(entry["what"], entry["target"], entry["who"]) for entry in found if entry["what"].startswith("channel")]


def test_every_change_of_a_channel_is_in_the_audit_and_no_secret():
    with Running(auth="scram") as running, headwater.receive(0) as receiver:
        running.client("root", admin=True), running.client("ann", allow=["subscribe home/#", "channel home/#"])
        with bus_of(running, "root") as root, bus_of(running, "ann") as ann:
            (made,) = root.channels.add("n", "home/#", "127.0.0.1", receiver.port, "http", id="a")
            changed = root.channels.change("a", name="m", secret="")
            root.channels.change("a", paused=True)
            root.channels.change("a", paused=True)
            root.channels.change("a", paused=False)
            root.channels.remove("a")
            mine = ann.subscribe("home/#", destination=("127.0.0.1", receiver.port))
            ann.unsubscribe(mine)
        assert audit_of(running) == [
            ("channel-added", "a", "root"),
            ("channel-changed", "a", "root"),
            ("channel-paused", "a", "root"),
            ("channel-resumed", "a", "root"),
            ("channel-removed", "a", "root"),
            ("channel-added", mine, "ann"),
            ("channel-removed", mine, "ann"),
        ]
        written = b"".join(message.payload for message in running.bus.replay("$sys/audit"))
        assert b"whsec" not in written
        for secret in (made.secret, changed.secret):
            assert secret.removeprefix("whsec_").encode() not in written


def test_nobody_takes_from_a_channels_subscription_or_deletes_it():
    with Running(auth="scram") as running, headwater.receive(0) as receiver:
        running.client("ann", allow=["subscribe #", "channel #"]), running.client("root", admin=True)
        running.rules("root", allow=["subscribe #"])
        add(running, receiver.port)
        publish(running, b"1")
        receiver.batch(1, PATIENCE_S)[0].reject("no")
        ann, root = running.peer("ann"), running.peer("root")
        for peer in (ann, root):
            with code(409):
                peer.subscribe(1, "home/#", kind="named", id="channel:a")
            with code(409):
                peer.subscribe(1, "home/#", kind="named", id="channel:other")
            with code(403):
                peer.ask(requests.Unsubscribe(id="channel:a"))
        for request in (
            requests.DeadLetters(id="channel:a"),
            requests.Redrive(id="channel:a"),
            requests.DropDeadLetters(id="channel:a"),
            requests.States(id="channel:a"),
        ):
            with code(403):
                ann.ask(request)
        assert ann.ask(requests.Subscriptions()) == []
        assert len(root.ask(requests.DeadLetters(id="channel:a"))) == 1
        with code(409):
            running.bus.subscribe("home/#", id="channel:a")
        with code(409):
            running.bus.unsubscribe("channel:a")
        with code(409):
            root.ask(administration.DeleteSubscription(id="channel:a", force=True))
        with code(409):
            root.ask(administration.CreateSubscription(id="channel:b", filter="home/#"))
        with code(403):
            ann.ask(administration.SeekSubscription(id="channel:a", to="earliest"))


def bus_of(running: Running, name: str) -> Any:
    return headwater.connect(f"headwater://{name}:{SECRET.replace(' ', '%20')}@127.0.0.1:{running.server.port}")


def test_a_client_subscribes_with_a_destination_and_unsubscribes():
    with Running(auth="scram", channels_per_client_max=1) as running, headwater.receive(0) as receiver:
        running.client("ann", allow=["subscribe home/#", "channel home/#"])
        running.client("eve", allow=["subscribe home/#", "channel home/#"])
        with bus_of(running, "ann") as ann, bus_of(running, "eve") as eve:
            to = ("127.0.0.1", receiver.port)
            channel = ann.subscribe("home/+", destination=to)
            assert ann.subscribe("home/+", destination=to) == channel
            assert (info(running, channel).owner, info(running, channel).kind) == ("ann", "tcp")
            publish(running, b"1")
            assert payloads(take(receiver, 1)) == [b"1"]
            assert [one.id for one in ann.subscriptions()] == [f"channel:{channel}"]
            assert eve.subscriptions() == []
            with code(429, "channels_per_client_max"):
                ann.subscribe("home/#", destination=to)
            with code(403):
                eve.unsubscribe(channel)
            with code(404):
                eve.unsubscribe("no-such")
            publish(running, b"2")
            ann.unsubscribe(channel)
            with code(404):
                info(running, channel)
            other = ann.subscribe("home/+", destination=to, id="mine", start="earliest")
            assert other == "mine"
            ann.unsubscribe("channel:mine")


@pytest.mark.parametrize("missing", ["subscribe", "channel"])
def test_both_rights_are_needed_for_a_destination_and_both_are_looked_at_when_rules_change(missing: str):
    with Running(auth="scram", **SOON) as running, headwater.receive(0) as receiver:
        rights = {"subscribe home/#", "channel home/#"}
        running.client("ann", allow=[right for right in rights if not right.startswith(missing)])
        with bus_of(running, "ann") as ann:
            to = ("127.0.0.1", receiver.port)
            with code(403, f"headwater acl allow ann {missing}"):
                ann.subscribe("home/#", destination=to)
            running.rules("ann", allow=[f"{missing} home/#"])
            channel = ann.subscribe("home/#", destination=to)
            with code(403, "channel_hosts"):
                ann.subscribe("home/#", destination=("192.0.2.1", 80))
            publish(running, b"1")
            assert payloads(take(receiver, 1)) == [b"1"]
            running.bus.acl.remove("ann", missing, "home/#")  # type: ignore[arg-type]  # one of the actions
            until(lambda: "may not" in info(running, channel).error)
            publish(running, b"2")
            assert receiver.next(0.1) is None
            running.rules("ann", allow=[f"{missing} home/#"])
            assert payloads(take(receiver, 1)) == [b"2"]


def test_the_channels_of_a_client_go_with_it():
    with Running(auth="scram") as running, headwater.receive(0) as receiver:
        running.client("ann", allow=["subscribe home/#", "channel home/#"]), running.client("root", admin=True)
        add(running, receiver.port, id="kept")
        with bus_of(running, "ann") as ann:
            ann.subscribe("home/#", destination=("127.0.0.1", receiver.port))
        root = running.peer("root")
        root.ask(administration.RemoveClient(name="ann"))
        until(lambda: [one.id for one in running.bus.channels.list()] == ["kept"])


def test_a_client_that_was_removed_while_no_server_ran_has_no_channels_after():
    with headwater.open(":memory:") as bus, headwater.receive(0) as receiver:
        with Running(bus=bus, auth="scram") as running:
            running.client("ann", allow=["subscribe home/#", "channel home/#"])
            with bus_of(running, "ann") as ann:
                ann.subscribe("home/#", destination=("127.0.0.1", receiver.port))
        bus.clients.remove("ann")
        bus.clients.add("ann")
        with Running(bus=bus, auth="scram"):
            until(lambda: bus.channels.list() == [])


def test_a_host_that_is_on_the_list_no_more_is_not_connected_to(receiver: Any):
    with headwater.open(":memory:") as bus:
        with Running(bus=bus, **SOON) as running:
            add(running, receiver.port)
        bus.publish("home/x", b"1")
        with Running(bus=bus, channel_hosts=("192.0.2.0/24",), **SOON) as running:
            until(lambda: info(running).state == "failing")
            assert "channel_hosts" in info(running).error
            assert receiver.next(0.1) is None
        with Running(bus=bus, **SOON):
            assert payloads(take(receiver, 1)) == [b"1"]


# Restarts


def serve(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    command = [sys.executable, "-m", "headwater", "serve", "--data", str(folder), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--set", "channel_retry_s=0.01"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().decode().split()[-1]


def test_after_kill_9_everything_is_delivered_at_least_once_and_in_order(tmp_path: Path):
    count, seen = 3000, list[int]()
    with headwater.receive(0) as receiver:
        process, url = serve(tmp_path / "data")
        try:
            with headwater.connect(url) as bus:
                bus.channels.add("n", "home/#", "127.0.0.1", receiver.port, id="a")
                for start in range(0, count, 100):
                    bus.publish_many([("home/x", b"%d" % number) for number in range(start, start + 100)])
                seen += [int(one.payload) for one in take(receiver, count // 3)]
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        process.stdout.close()  # type: ignore[union-attr]
        process, url = serve(tmp_path / "data")
        try:
            while not seen or max(seen) < count - 1:
                more = receiver.batch(500, PATIENCE_S)
                assert more
                receiver.ack(more)
                seen += [int(one.payload) for one in more]
            with headwater.connect(url) as bus:
                until(lambda: bus.channels.list("a")[0].lag == 0)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
    firsts = list(dict.fromkeys(seen))
    assert firsts == list(range(count))


def test_a_channel_whose_subscription_a_crash_kept_from_being_made_gets_one(receiver: Any):
    with headwater.open(":memory:") as bus:
        bus.channels.add("n", "home/#", "127.0.0.1", receiver.port, id="a")
        bus.core.roots.commit.run(lambda: bus.core.dispatcher.delete("channel:a"))
        assert bus.channels.list("a")[0].lag == 0
        with Running(bus=bus, **SOON):
            until(lambda: len(bus.subscriptions()) == 1)
            bus.publish("home/x", b"1")
            assert payloads(take(receiver, 1)) == [b"1"]


def test_nothing_is_pushed_to_a_port_that_is_not_a_receivers(running: Running):
    with socket.socket() as deaf:  # takes connections and says nothing
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        add(running, deaf.getsockname()[1])
        publish(running, b"1")
        assert info(running).delivered == 0
