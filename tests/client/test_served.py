"""A client and a real server: the same objects, names and errors as the embedded bus."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headwater
import headwater.aio
from client.served import Served
from headwater import Closed, Conflict, Connecting, Malformed, Message, NotFound, QuotaExceeded, Recalled
from headwater.client.bus import Bus
from headwater.wire import requests

WAIT_S = 60.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as made:
        yield made


@pytest.fixture
def bus(served: Served) -> Iterator[Bus]:
    made = headwater.connect(served.url, Connecting(reconnect_delay_s=0.01, reconnect_delay_s_max=0.1))
    yield made
    made.close()


def test_publish_and_read_back(bus: Bus) -> None:
    assert bus.publish("a/b", b"1", retain=True, key=b"k", headers={"x": "y"}).offset == 1
    receipts = bus.publish_many([("a/b", b"2"), ("z/c", b"3"), ("a/c", b"4")])
    assert [(one.topic, one.offset) for one in receipts] == [("a/b", 2), ("z/c", 1), ("a/c", 3)]
    assert sorted(m.payload for m in bus.replay("#")) == [b"1", b"2", b"3", b"4"]
    assert [m.payload for m in bus.replay("a/#", after=1)] == [b"2", b"4"]
    (first,) = bus.replay("a/b", after=0).batch(1)
    assert (first.key, first.header_pairs) == (b"k", (("x", "y"),))
    assert bus.ends() == {"a": 3, "z": 1}
    assert [info.topic for info in bus.topics("a/#")] == ["a/b", "a/c"]
    (retained,) = bus.retained("a/#").values()
    assert (retained.payload, retained.retained) == (b"1", True)


def test_a_server_tells_which_bus_it_serves_and_after_a_restart_again(served: Served, bus: Bus) -> None:
    assert bus.id == served.bus.id != ""

    async def ask() -> str:
        async with headwater.aio.connect(served.url) as other:
            return other.id

    assert asyncio.run(ask()) == served.bus.id
    served.stop()
    served.start()
    bus.ends()
    assert bus.id == served.bus.id


def test_a_users_sequence_is_stored_once(bus: Bus) -> None:
    first = bus.publish("a/b", b"1", producer="me", sequence=1)
    again = bus.publish("a/b", b"1", producer="me", sequence=1)
    assert (first.duplicate, again.duplicate) == (False, True)
    assert first.offset == again.offset
    bus.publish_many([("a/b", b"2")], producer="me", sequence=2)
    assert len(list(bus.replay("a/#"))) == 2


def test_a_durable_subscription_keeps_its_place_between_clients(served: Served, bus: Bus) -> None:
    bus.publish_many([("a/b", b"%d" % n) for n in range(10)])
    with bus.subscribe("a/#", id="x", start="earliest") as sub:
        found = sub.batch(4, WAIT_S)
        sub.ack(found)
    with headwater.connect(served.url) as other, other.subscribe("a/#", id="x") as sub:
        message = sub.next(WAIT_S)
        assert message.payload == b"4"  # type: ignore[union-attr]
        message.ack()  # type: ignore[union-attr]
    (info,) = bus.subscriptions()
    assert (info.id, info.floors) == ("x", {"a": 5})


def test_other_options_for_what_this_client_takes_from_are_refused_as_those_of_any(served: Served, bus: Bus) -> None:
    sub = bus.subscribe("a/#", id="s", start="earliest", max_attempts=2)
    again = bus.subscribe("a/#", id="s", start="earliest", max_attempts=2)  # shares what is sent
    bus.subscribe("a/#", id="s").close()
    with pytest.raises(Conflict, match="in use with other options: its max_attempts is 2, not 3; close"):
        bus.subscribe("a/#", id="s", max_attempts=3)
    with pytest.raises(Malformed, match="max_attempts is -1"):
        bus.subscribe("a/#", id="s", max_attempts=-1)
    bus.publish("a/b", b"1")
    assert [message.payload for message in sub.batch(1, 60)] == [b"1"]
    assert served.bus.durables.options("s")["max_attempts"] == 2
    sub.close()
    again.close()
    bus.subscribe("a/#", id="s", max_attempts=3).close()
    assert served.bus.durables.options("s")["max_attempts"] == 3


def test_a_message_that_fails_comes_again_and_dies_in_the_end(bus: Bus) -> None:
    bus.publish("a/b", b"x")
    sub = bus.subscribe("a/#", id="x", start="earliest", max_attempts=2, retry_delay_s=0.01, retry_delay_s_max=0.01)
    sub.next(WAIT_S).nack("first", delay_s=0)  # type: ignore[union-attr]
    second = sub.next(WAIT_S)
    assert second.attempt == 2  # type: ignore[union-attr]
    assert (bus.states("x")[0].topic, bus.states("x")[0].offset) == ("a/b", 1)
    second.nack(ValueError("second"))  # type: ignore[union-attr]
    (letter,) = bus.dead_letters("x")
    assert letter.errors == ("first", "ValueError: second")
    assert bus.dead_letter("x", 1) == letter
    with pytest.raises(NotFound):
        bus.dead_letter("x", 7)
    assert bus.redrive("x") == 1
    sub.next(WAIT_S).reject("never")  # type: ignore[union-attr]
    assert bus.drop_dead_letters("x", [1]) == 1
    assert bus.dead_letters("x") == []


def test_mended_letters_are_redriven_in_order_and_a_write_once(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "LETTERS_MAX", 100)
    bus.publish_many([("a/b", b"%d" % n) for n in range(250)])
    sub = bus.subscribe("a/#", id="x", start="earliest", order="none", max_in_flight=5000)
    count = 0
    while count < 250:
        for message in sub.batch(100, WAIT_S):
            message.reject("no")
            count += 1
    letters = bus.dead_letters("x")
    mended = [letter.mend(payload=b"m" + letter.payload, headers={"by": "hand"}) for letter in reversed(letters)]
    with pytest.raises(NotFound):  # in the last of several requests: nothing has changed
        bus.redrive("x", mended=[*mended, msgspec.structs.replace(letters[0], offset=9999)])
    with pytest.raises(Malformed, match="twice"):
        bus.redrive("x", mended=[*mended, letters[-1]])
    assert len(bus.dead_letters("x")) == 250
    for _ in range(2):
        assert bus.redrive("x", mended=mended, write="w") == 250
    found: list[Any] = []
    while len(found) < 250:
        found += sub.batch(1000, WAIT_S)
    assert [message.payload for message in found] == [b"m%d" % n for n in range(250)]
    sub.ack(found)
    assert bus.redrive("x", mended=mended, write="w") == 250
    assert sub.next(0.05) is None
    with pytest.raises(NotFound, match="read them again"):
        bus.redrive("x", mended=mended)


def test_an_ack_is_of_no_message_that_came_again_between_two_others(bus: Bus) -> None:
    """What comes again goes key by key: 2 and 4 after or before 3, whose attempt is another."""
    for key in (b"a", b"a", b"b", b"a"):
        bus.publish("a/b", b"", key=key)
    sub = bus.subscribe("a/#", id="x", start="earliest", order="key")
    found = by_offset(sub, 4)
    found[1].nack("once", delay_s=0)
    found |= by_offset(sub, 1)
    sub.pause()
    found[3].nack("once", delay_s=0)
    found[1].ack()
    sub.resume()
    found = by_offset(sub, 3)
    assert [found[offset].attempt for offset in (2, 3, 4)] == [1, 2, 1]
    sub.ack([found[2], found[4]])
    assert [(one.offset, one.state) for one in bus.states("x") if one.state != "acked"] == [(3, "in_flight")]
    found[3].nack("again", delay_s=0)
    assert by_offset(sub, 1)[3].attempt == 3


def by_offset(sub: Any, count: int) -> dict[int, Message]:
    """So many messages."""
    found: dict[int, Message] = {}
    while len(found) < count:
        found |= {message.offset: message for message in sub.batch(10, WAIT_S)}
    return found


def test_what_fails_takes_back_what_was_handed_out_after_it(bus: Bus) -> None:
    bus.publish_many([("a/b", b"%d" % n) for n in range(6)])
    sub = bus.subscribe("a/#", id="x", start="earliest", retry_delay_s=0, retry_delay_s_max=0)
    one, two = sub.batch(2, WAIT_S)
    one.nack(delay_s=0)
    with pytest.raises(Recalled):
        two.ack()
    seen: list[bytes] = []
    while len(seen) < 6:
        for message in sub.batch(10, WAIT_S):
            message.ack()
            seen.append(message.payload)
    assert seen == [b"%d" % n for n in range(6)]


def test_seek_pause_and_resume(bus: Bus) -> None:
    bus.publish_many([("a/b", b"%d" % n) for n in range(5)])
    sub = bus.subscribe("a/#", id="x", start="earliest")
    sub.ack(sub.batch(5, WAIT_S))
    sub.seek(3)
    assert sub.next(WAIT_S).payload == b"2"  # type: ignore[union-attr]
    sub.seek("earliest")
    assert sub.next(WAIT_S).payload == b"0"  # type: ignore[union-attr]
    sub.seek("latest")
    assert sub.next(0.2) is None
    sub.pause()
    bus.publish("a/b", b"5")
    assert sub.next(0.2) is None
    sub.resume()
    assert sub.next(WAIT_S).payload == b"5"  # type: ignore[union-attr]
    with pytest.raises(Malformed):
        sub.seek("middle")  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout_s", ["1", timedelta(seconds=1), float("inf"), float("nan")])
def test_a_timeout_is_a_number_of_seconds(bus: Bus, timeout_s: Any) -> None:
    bus.publish("a/b", b"1", retain=True)
    values = bus.retained("a/#")
    readers = (bus.subscribe("a/#"), bus.subscribe("a/#", id="s"), bus.replay("a/#"), bus.follow("a/#"), values.watch())
    for reader in readers:
        with reader, pytest.raises(Malformed, match=r"timeout_s is .*; use a number of seconds"):
            reader.next(timeout_s)
    with pytest.raises(Malformed, match=r"timeout_s is .*; use a number of seconds"):
        bus.request("a/b", b"?", timeout_s=timeout_s)


@pytest.mark.parametrize("kind", [{"id": "s"}, {"kind": "session"}])
def test_what_a_slow_reader_may_do_is_asked_of_live_subscriptions_alone(bus: Any, kind: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match="only a live subscription has it"):
        bus.subscribe("a/#", when_full="disconnect", **kind)
    with pytest.raises(Malformed, match="when_full is 'wait'"):
        bus.subscribe("a/#", when_full="wait", **kind)
    assert bus.subscriptions() == []


@pytest.mark.parametrize(
    "offsets", [1, "1", b"1", ["1"], [None], [("a", 1, 2)], [("a", "1")], [1.5], [True], [-1], [1 << 64]]
)
def test_what_is_no_place_of_a_dead_letter_is_422_and_they_stay(bus: Any, offsets: Any) -> None:
    bus.publish("a/b", b"1")
    sub = bus.subscribe("a/#", id="s", start="earliest")
    sub.next(WAIT_S).reject("no")
    for use in (bus.redrive, bus.drop_dead_letters):
        with pytest.raises(Malformed, match=r"offsets is|is no place of a dead letter"):
            use("s", offsets)
    assert [letter.offset for letter in bus.dead_letters("s")] == [1]
    assert bus.redrive("s", (offset for offset in [7, 1])) == 1


def test_a_request_that_cannot_be_written_is_over_and_not_kept_for_the_next_connection(bus: Bus, caplog: Any) -> None:
    with pytest.raises(TypeError):
        bus.states(object())  # type: ignore[arg-type]  # which is the point
    bus.close()
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_live_subscription_gets_retained_messages_first(bus: Bus) -> None:
    bus.publish("a/b", b"kept", retain=True)
    with bus.subscribe("a/#") as live:
        first = live.next(WAIT_S)
        assert (first.payload, first.retained) == (b"kept", True)  # type: ignore[union-attr]
        bus.publish("a/c", b"new")
        second = live.next(WAIT_S)
        assert (second.payload, second.retained, second.offset) == (b"new", False, 2)  # type: ignore[union-attr]


def test_follow_crosses_from_history_to_live(bus: Bus) -> None:
    bus.publish_many([("a/b", b"%d" % n) for n in range(100)])
    follow = bus.follow("#")
    seen = [next(follow).payload for _ in range(50)]
    bus.publish_many([("a/b", b"%d" % n) for n in range(100, 150)])
    seen += [next(follow).payload for _ in range(100)]
    assert seen == [b"%d" % n for n in range(150)]
    follow.close()
    assert list(follow) == []


def test_request_and_reply(bus: Bus) -> None:
    ready = threading.Event()

    def serve() -> None:
        with bus.subscribe("rpc/#") as live:
            ready.set()
            for _ in range(3):
                message = live.next(WAIT_S)
                message.reply(message.payload.upper())  # type: ignore[union-attr]

    thread = threading.Thread(target=serve)
    thread.start()
    ready.wait(WAIT_S)
    assert [bus.request("rpc/up", word).payload for word in (b"a", b"b", b"c")] == [b"A", b"B", b"C"]
    thread.join(WAIT_S)
    with pytest.raises(headwater.NoResponders, match='nobody listens on "nobody/here"'):
        bus.request("nobody/here", b"", timeout_s=WAIT_S)
    with bus.subscribe("mute/#"), pytest.raises(headwater.TimedOut, match="nobody answered"):
        bus.request("mute/here", b"", timeout_s=0.1)


def test_a_question_is_for_live_and_durable_subscriptions(served: Served, bus: Bus) -> None:
    bus.publish("rpc/up", b"so that the topic is known")
    bus.subscribe("rpc/#", id="service").close()
    _, answer = bus.request_soon("rpc/up", b"at rest")
    with headwater.connect(served.url) as other, other.subscribe("rpc/#", id="service") as durable:
        question = durable.next(WAIT_S)
        receipt = question.reply(b"1")  # type: ignore[union-attr]
        assert (receipt.topic, receipt.offset) == (dict(question.headers)["reply-to"], 0)  # type: ignore[union-attr]
        question.ack()  # type: ignore[union-attr]
        assert answer.result(WAIT_S).payload == b"1"
        _, answer = bus.request_soon("rpc/up", b"taken from")
        durable.next(WAIT_S).reply(b"2")  # type: ignore[union-attr]
        assert answer.result(WAIT_S).payload == b"2"
        with other.subscribe("rpc/#") as live:
            _, answer = bus.request_soon("rpc/up", b"both")
            assert live.next(WAIT_S).payload == b"both"  # type: ignore[union-attr]
            durable.next(WAIT_S).reply(b"3")  # type: ignore[union-attr]
            assert answer.result(WAIT_S).payload == b"3"
            _, answer = bus.request_soon("rpc/up", b"durable", durable=True)
            receipt = live.next(WAIT_S).reply(b"4")  # type: ignore[union-attr]
            assert receipt.offset == answer.result(WAIT_S).offset > 0
    stored = [one.payload for one in bus.replay("rpc/#", after=1)]
    assert stored == [b"at rest", b"taken from", b"both", b"durable"]


def test_a_question_that_may_not_be_asked_is_refused_and_the_next_is_answered(served: Served, bus: Bus) -> None:
    with pytest.raises(Malformed):
        bus.request("rpc/+", b"")
    with pytest.raises(headwater.TooLarge):
        bus.request("rpc/up", b"x" * (bus.config.message_bytes_max + 1))
    with headwater.connect(served.url) as other, other.subscribe("rpc/#") as live:
        _, answer = bus.request_soon("rpc/up", b"?")
        live.next(WAIT_S).reply(b"!")  # type: ignore[union-attr]
        assert answer.result(WAIT_S).payload == b"!"


def test_an_answer_comes_though_the_connection_was_lost_meanwhile(served: Served, bus: Bus) -> None:
    with headwater.connect(served.url) as other, other.subscribe("rpc/#", id="service") as durable:
        _, answer = bus.request_soon("rpc/up", b"1")
        question = durable.next(WAIT_S)
        connection = bus._client.link._connection
        assert connection is not None
        bus._loop.call_soon_threadsafe(connection.fail, headwater.Disconnected("cut"))
        bus.ends()
        bus.request_soon("rpc/up", b"asked once answers would come again")
        question.reply(b"!")  # type: ignore[union-attr]
        assert answer.result(WAIT_S).payload == b"!"


def test_a_delayed_message_comes_when_it_is_due(bus: Bus) -> None:
    with bus.subscribe("a/#") as live:
        due = bus.now + timedelta(seconds=0.2)
        receipt = bus.publish("a/b", b"later", deliver_at=due)
        assert receipt.offset == 0
        assert bus.publish_soon("a/c", b"later", deliver_at=bus.now + timedelta(days=1)).result(WAIT_S).offset == 0
        message = live.next(WAIT_S)
        assert message.payload == b"later"  # type: ignore[union-attr]
        assert message.timestamp >= due  # type: ignore[union-attr]


def test_purge_unsubscribe_and_backup(bus: Bus, tmp_path: Path) -> None:
    bus.publish("a/b", b"x")
    sub = bus.subscribe("a/#", id="x")
    bus.unsubscribe("x")
    with pytest.raises(Closed):
        sub.next(WAIT_S)
    with pytest.raises(NotFound):
        bus.unsubscribe("x")
    assert bus.purge("a/#") == 1
    bus.backup(tmp_path / "backup")
    assert (tmp_path / "backup").is_dir()
    assert bus.events() == bus.events()


def test_staged_messages_are_seen_once_they_are_committed(bus: Bus) -> None:
    bus.stage("job", 1, [("a/b", b"0"), ("z/b", b"1")], part="p0")
    bus.stage("job", 1, [("a/b", b"2")], part="p1")
    assert bus.ends().get("a", 0) == 0
    assert bus.commit_stage("job", 1, ["p0", "p1"]) == {"a": (1, 2), "z": (1, 1)}
    assert bus.commit_stage("job", 1, ["p0", "p1"]) == {"a": (1, 2), "z": (1, 1)}
    assert sorted(m.payload for m in bus.replay("#")) == [b"0", b"1", b"2"]
    bus.stage("job", 2, [("a/b", b"never")])
    bus.drop_stage("job", 2)


def test_clients_and_rules(bus: Bus) -> None:
    made = bus.clients.add("sensor-7")
    assert made.name == "sensor-7"
    assert made.secret
    assert bus.clients.rotate("sensor-7").secret != made.secret
    bus.acl.allow("sensor-7", "publish", "home/#")
    bus.acl.deny("sensor-7", "publish", "home/door")
    assert [(rule.filter, rule.allow) for rule in bus.acl.list()] == [("home/#", True), ("home/door", False)]
    bus.acl.remove("sensor-7", "publish", "home/door")
    assert len(bus.acl.list()) == 1
    assert [client.name for client in bus.clients.list()] == ["sensor-7"]
    bus.clients.remove("sensor-7")
    assert bus.clients.list() == []


def test_a_client_with_a_secret_may_do_what_it_was_granted(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as embedded:
        secret = embedded.clients.add("me").secret
        embedded.acl.allow("me", "publish", "mine/#")
        embedded.acl.allow("me", "create", "mine/#")
        embedded.acl.allow("me", "subscribe", "mine/#")
    with Served(tmp_path / "data", auth="scram") as served:
        with pytest.raises(headwater.Unauthenticated):
            headwater.connect(served.url.replace("//", "//me:wrong@"))
        with pytest.raises(headwater.Unauthenticated):
            headwater.connect(served.url)
        with headwater.connect(served.url.replace("//", f"//me:{secret}@")) as bus:
            bus.publish("mine/x", b"1")
            with pytest.raises(headwater.NotAllowed):
                bus.publish("yours/x", b"1")
            with pytest.raises(headwater.NotAllowed):
                bus.subscribe("#")
            live = bus.subscribe("mine/#")
            good, bad = bus.publish_soon("mine/x", b"2"), bus.publish_soon("yours/y", b"3")
            assert good.result(WAIT_S).offset == 2
            with pytest.raises(headwater.HeadwaterError):
                bad.result(WAIT_S)
            assert live.next(WAIT_S).payload == b"2"  # type: ignore[union-attr]
            served.bus.acl.remove("me", "subscribe", "mine/#")
            with pytest.raises(headwater.NotAllowed):
                live.next(WAIT_S)


def test_tls_with_a_certificate_that_is_checked(tmp_path: Path) -> None:
    from server.authority import LOCAL, Authority

    authority = Authority(tmp_path, "authority")
    cert, key = authority.issue("server", "broker", others=LOCAL)
    with Served(tmp_path / "data", host="localhost", tls_certificate=cert, tls_key=key) as served:
        url = f"headwaters://localhost:{served.port}"
        with headwater.connect(f"{url}?ca={authority.path}") as bus:
            assert bus.publish_many([("a/b", bytes(1000))] * 1000)[-1].offset == 1000
            assert len(list(bus.replay("a/#"))) == 1000
        with pytest.raises(headwater.Disconnected, match=r"not trusted.*\?ca="):
            headwater.connect(url)
        with headwater.connect(f"{url}?verify=no") as bus:
            assert bus.ends() == {"a": 1000}
        with pytest.raises(Malformed, match=r"cannot be used \(ca=.*nothing.pem\): No such file or directory$"):
            headwater.connect(f"{url}?ca={tmp_path}/nothing.pem")
        with pytest.raises(Malformed, match="begin the address with headwaters://"):
            headwater.connect(f"headwater://localhost:{served.port}")


def test_a_client_with_tls_on_a_plain_port_is_told_so(served: Served) -> None:
    with pytest.raises(headwater.Disconnected, match="begins with headwater://"):
        headwater.connect(f"headwaters://127.0.0.1:{served.port}")


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"this is HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"begin the address with headwater://"),
        (b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04trial", b"this is MQTT"),
    ],
)
def test_who_speaks_another_protocol_at_the_port_for_clients_is_told_which(
    served: Served, first: bytes, says: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", served.port), 10.0) as peer:
        peer.sendall(first)
        assert says in peer.makefile("rb").read()


@pytest.mark.parametrize(
    ("first", "says"),
    [(b"\x15\x03\x03\x00\x02\x02\x46", "headwaters://"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP")],
)
def test_a_port_that_speaks_something_else_is_named(first: bytes, says: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            with door.accept()[0] as caller:
                caller.sendall(first)
                caller.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(headwater.Disconnected, match=says):
            headwater.connect(f"headwater://127.0.0.1:{door.getsockname()[1]}")
        thread.join()


def test_a_client_is_known_by_its_certificate(tmp_path: Path) -> None:
    from server.authority import LOCAL, Authority

    authority = Authority(tmp_path, "authority")
    cert, key = authority.issue("server", "broker", others=LOCAL)
    mine, my_key = authority.issue("client", "sensor-7")
    serving: dict[str, Any] = {
        "tls_certificate": cert,
        "tls_key": key,
        "tls_client_ca": authority.path,
        "auth": "certificate",
    }
    with headwater.open(tmp_path / "data") as embedded:
        embedded.clients.add("sensor-7")
        embedded.acl.allow("sensor-7", "publish", "a/#")
        embedded.acl.allow("sensor-7", "create", "a/#")
    with Served(tmp_path / "data", host="localhost", **serving) as served:
        url = f"headwaters://localhost:{served.port}?ca={authority.path}"
        with headwater.connect(f"{url}&cert={mine}&key={my_key}") as bus:
            assert bus.publish("a/b", b"x").offset == 1
        with pytest.raises(headwater.HeadwaterError):
            headwater.connect(url, Connecting(connect_timeout_s=2))


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "hw.sock"
    with Served(tmp_path / "data", unix_path=str(path)), headwater.connect(f"headwater+unix://{path}") as bus:
        assert bus.publish("a/b", b"x").offset == 1


def test_what_is_wrong_is_told_as_the_embedded_bus_tells_it(served: Served, bus: Bus) -> None:
    for wrong in (
        lambda bus: bus.publish("a/+", b""),
        lambda bus: bus.publish("a/b", None),
        lambda bus: bus.publish("a/b", b"", ttl_s=-1),
        lambda bus: bus.publish("a/b", b"", sequence=1),
        lambda bus: bus.publish_many([1]),
        lambda bus: bus.subscribe("a/*"),
        lambda bus: bus.replay("#", after=1),
        lambda bus: bus.topics("a/#/b"),
        lambda bus: bus.unsubscribe("nobody"),
        lambda bus: bus.dead_letters("nobody"),
        lambda bus: bus.purge("a/#/b"),
        lambda bus: bus.subscribe("a/b", id="x", max_in_flight=0),
        lambda bus: bus.subscribe("a/b", id="x", order="odd"),
    ):
        said = []
        for one in (served.bus, bus):
            with pytest.raises(headwater.HeadwaterError) as caught:
                wrong(one)
            said.append(str(caught.value))
        assert said[0] == said[1]


def test_a_server_that_is_started_again_is_come_back_to(served: Served, bus: Bus) -> None:
    bus.publish("a/b", b"0")
    sub = bus.subscribe("a/#", id="x", start="earliest")
    sub.next(WAIT_S).ack()  # type: ignore[union-attr]
    follow = bus.follow("a/#")
    assert next(follow).payload == b"0"
    served.stop()
    soon = bus.publish_soon("a/b", b"1")
    served.start()
    assert soon.result(WAIT_S).offset == 2
    assert sub.next(WAIT_S).payload == b"1"  # type: ignore[union-attr]
    assert next(follow).payload == b"1"


def test_messages_are_the_same_class(bus: Bus) -> None:
    bus.publish("a/b", b"0")
    (message,) = bus.replay("a/#").batch()
    assert type(message) is Message


# asyncio


def test_a_reading_may_be_closed_while_it_is_being_opened_and_read(served: Served) -> None:
    async def main() -> None:
        async with headwater.aio.connect(served.url) as bus:
            reading = bus.follow("a/#")
            taking = asyncio.ensure_future(reading.batch(1))  # both wait for the server's answer
            await asyncio.sleep(0)
            await reading.close()
            assert await taking == []

    asyncio.run(main())


def test_who_subscribes_as_the_last_reader_of_the_same_leaves_is_served(served: Served) -> None:
    async def main() -> None:
        async with headwater.aio.connect(served.url) as bus:
            await bus.publish_many([("a/b", b"1"), ("a/b", b"2")])
            first = await bus.subscribe("a/#", id="s", start="earliest")
            assert len(await first.batch(1, WAIT_S)) == 1
            leaving = asyncio.ensure_future(first.close())  # begins once `subscribe` waits for its answer
            async with bus.subscribe("a/#", id="s") as second:
                assert [message.payload for message in await second.batch(1, WAIT_S)] == [b"1"]
            await leaving

    asyncio.run(main())


def test_the_same_for_asyncio(served: Served) -> None:
    async def main() -> None:
        async with headwater.aio.connect(served.url) as bus:
            assert (await bus.publish("a/b", b"0", retain=True)).offset == 1
            receipts = await bus.publish_many([("a/b", b"1"), ("a/b", b"2")])
            assert [one.offset for one in receipts] == [2, 3]
            tasks = [bus.publish_soon("a/b", b"%d" % n) for n in range(3, 100)]
            assert [(await task).offset for task in tasks] == list(range(4, 101))
            assert [m.payload async for m in bus.replay("a/#")] == [b"%d" % n for n in range(100)]
            async with bus.subscribe("a/#", id="x", start="earliest") as sub:
                first = await sub.next(WAIT_S)
                assert type(first) is headwater.aio.Message
                await first.nack("no", delay_s=0)
                again = await sub.next(WAIT_S)
                assert again.attempt == 2  # type: ignore[union-attr]
                await again.extend(60)  # type: ignore[union-attr]
                await again.ack()  # type: ignore[union-attr]
                found = await sub.batch(10, WAIT_S)
                await sub.ack(found)
                async for message in sub:
                    await message.ack(wait=False)
                    if message.offset == 50:
                        break
                await (await sub.next(WAIT_S)).reject("never")  # type: ignore[union-attr]
            async with bus.subscribe("rpc/#") as service:
                asking = asyncio.ensure_future(bus.request("rpc/up", b"a"))
                asked = await service.next(WAIT_S)
                await asked.reply(b"A")  # type: ignore[union-attr]
                assert (await asking).payload == b"A"
            follow = bus.follow("a/#", after=99)
            (last,) = await follow.batch(1, WAIT_S)
            assert last.payload == b"99"
            assert await follow.next(0.05) is None
            await follow.close()
            assert [m async for m in follow] == []
            assert (await bus.ends())["a"] == 100
            assert [m.payload for m in (await bus.retained("a/#")).values()] == [b"0"]
            with pytest.raises(Malformed):
                bus.replay("#", after=1)
            with pytest.raises(NotFound):
                await bus.unsubscribe("nobody")
            await bus.unsubscribe("x")
            assert await bus.subscriptions() == []
        with pytest.raises(Closed):
            await bus.publish("a/b", b"")

    asyncio.run(main())


def test_a_fork_is_told_to_connect_again(bus: Bus) -> None:
    bus._process -= 1
    try:
        with pytest.raises(Conflict, match="fork"):
            bus.publish("a/b", b"")
    finally:
        bus._process += 1


def test_import_headwater_loads_no_client() -> None:
    import subprocess
    import sys

    code = "import sys, headwater; print(*[name for name in sys.modules if 'headwater.client' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_batches_of_a_stretch_come_as_they_were_sent(bus: Bus) -> None:
    bus.publish_many([(f"home/{n % 2}", b"%d" % n) for n in range(100)])
    bus.publish_many([("home/0", b"%d" % n) for n in range(50)])
    (extent,) = bus.extents("home/#")
    assert (extent.first, extent.end) == (1, 151)
    with bus.replay("home/1", after={"home": 10}, upto={"home": 50}) as reading:
        found = reading.take_batch()
        assert found is not None
        assert found.deltas is not None
        assert [found.first_offset + delta for delta in found.deltas] == list(range(12, 51, 2))
        assert reading.take_batch() is None
    with bus.replay("#", upto={"home": 150}) as reading:
        counts = []
        while (found := reading.take_batch()) is not None:
            counts.append(found.count)
        assert sum(counts) == 150


def test_a_stretch_ends_before_what_matches_in_its_last_batch(bus: Bus) -> None:
    bus.publish_many([("home/often", b"1"), ("home/rare", b"2")])
    assert list(bus.replay("home/rare", after={"home": 0}, upto={"home": 1})) == []
    assert [message.offset for message in bus.replay("home/rare", upto={"home": 2})] == [2]


def test_a_reader_with_a_place_of_its_own_shows_it_as_a_subscription(bus: Bus) -> None:
    bus.publish_many([("home/a", b"x")] * 10 + [("office/a", b"x")] * 5)
    bus.show_progress("#", "job", {"home": 4, "office": 1})
    (info,) = bus.subscriptions()
    assert (info.floors, info.lag, info.in_flight) == ({"home": 3, "office": 0}, 12, 0)
    bus.show_progress("#", "job", {"home": 11, "elsewhere": 7})
    (info,) = bus.subscriptions()
    assert (info.floors, info.lag) == ({"home": 10, "office": 0}, 5)


# Readers that were forgotten


@pytest.fixture
def narrow() -> Iterator[Served]:
    """A server that has room for two subscriptions and readings of a session."""
    with Served(":memory:", mqtt_port=0, sys_every_s=0.0, subscriptions_per_session_max=2) as made:
        made.bus.publish("home/a", b"x")
        yield made


def test_readers_that_were_forgotten_let_go_of_their_place_at_the_server(narrow: Served) -> None:
    with headwater.connect(narrow.url) as bus:
        for _ in range(5):
            for message in bus.follow("home/#", after=0):
                assert message.payload == b"x"
                break
            for message in bus.replay("home/#"):
                assert message.payload == b"x"
                break
            bus.follow("home/#")
            bus.subscribe("home/#")
        with bus.follow("home/#", after=0) as one, bus.follow("home/#", after=0) as two:
            assert len(one.batch()) == len(two.batch()) == 1


def test_a_forgotten_reader_in_a_reference_cycle_is_let_go_of_when_it_is_collected(narrow: Served) -> None:
    with headwater.connect(narrow.url) as bus:
        for _ in range(5):
            holder: list[object] = [bus.follow("home/#")]
            holder.append(holder)
            del holder
            gc.collect()


def test_what_a_forgotten_consumer_handed_out_can_be_acked(narrow: Served) -> None:
    with headwater.connect(narrow.url) as bus:
        (message,) = bus.subscribe("home/#", id="s", start="earliest").batch(1)
        gc.collect()
        assert bus.topics()
        message.ack()
        assert bus.subscriptions()[0].lag == 0


def test_what_a_forgotten_consumer_had_goes_to_the_one_that_took_its_name(narrow: Served) -> None:
    """As a cell of a notebook does that is run again: the next consumer is made while the one before is still held."""
    with headwater.connect(narrow.url) as bus:
        bus.publish("home/b", b"y")
        sub = bus.subscribe("home/#", id="s", start="earliest")
        held = sub.next(WAIT_S)
        sub = bus.subscribe("home/#", id="s", start="earliest")
        gc.collect()
        found = [sub.next(WAIT_S), sub.next(WAIT_S)]
        assert [message and (message.payload, message.attempt) for message in found] == [(b"x", 1), (b"y", 1)]
        assert held is not None
        with pytest.raises(Recalled, match="a consumer that is closed"):
            held.ack()
        sub.ack([message for message in found if message is not None])
        assert bus.subscriptions()[0].lag == 0


def test_a_consumer_that_is_made_while_a_forgotten_ones_message_is_held_gets_it(narrow: Served) -> None:
    with headwater.connect(narrow.url) as bus:
        (held,) = bus.subscribe("home/#", id="s", start="earliest").batch(1)
        gc.collect()
        with bus.subscribe("home/#", id="s") as sub:
            again = sub.next(WAIT_S)
            assert again is not None
            assert again.offset == held.offset
            again.ack()


def test_what_one_of_two_consumers_had_when_it_was_closed_goes_to_the_other(narrow: Served) -> None:
    with headwater.connect(narrow.url) as bus, bus.subscribe("home/#", id="s", start="earliest") as other:
        with bus.subscribe("home/#", id="s") as sub:
            assert sub.next(WAIT_S)
        assert other.next(WAIT_S)
        with bus.subscribe("home/#", id="s") as third:
            bus.publish("home/b", b"y")
            assert third.next(WAIT_S)
        assert other.next(0) is None  # nothing is taken back from one that is at work


def test_an_asynchronous_consumer_gets_what_a_forgotten_one_had(narrow: Served) -> None:
    async def work() -> None:
        async with headwater.aio.connect(narrow.url) as bus:
            sub = await bus.subscribe("home/#", id="s", start="earliest")
            held = await sub.next(WAIT_S)
            sub = await bus.subscribe("home/#", id="s", start="earliest")
            gc.collect()
            again = await sub.next(WAIT_S)
            assert held is not None
            assert again is not None
            assert again.offset == held.offset
            await again.ack()
            await sub.close()

    asyncio.run(work())


def test_asynchronous_readers_that_were_forgotten_let_go_of_their_place_too(narrow: Served) -> None:
    async def work() -> None:
        async with headwater.aio.connect(narrow.url) as bus:
            for _ in range(5):
                async for message in bus.follow("home/#", after=0):
                    assert message.payload == b"x"
                    break
                assert await bus.topics()  # the loop closes the abandoned iteration meanwhile
                await bus.subscribe("home/#")
            async with asyncio.timeout(WAIT_S):
                reading = bus.follow("home/#", after=0)
                assert len(await reading.batch()) == 1
                await reading.close()

    asyncio.run(work())


@pytest.mark.parametrize("id", ["s", None])
def test_a_subscribe_that_is_cancelled_leaves_nothing_at_the_server(narrow: Served, id: str | None) -> None:
    named: dict[str, Any] = {} if id is None else {"id": id}

    async def work() -> None:
        async with headwater.aio.connect(narrow.url) as bus:
            for _ in range(2):
                subscribing = asyncio.ensure_future(bus.subscribe("home/#", **named).__aenter__())
                for _ in range(3):
                    await asyncio.sleep(0)  # it is on its way
                assert subscribing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await subscribing
            while id and [one.consumers for one in await bus.subscriptions()] != [0]:
                continue
            readings: list[object] = []
            while len(readings) < 2:  # all the room there is
                reading = bus.replay("home/#")
                try:
                    assert await reading.next()
                except QuotaExceeded:
                    continue  # not yet
                readings.append(reading)

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


def test_the_limit_of_readings_says_what_it_is_and_what_to_do(narrow: Served) -> None:
    with headwater.connect(narrow.url) as bus, bus.follow("home/#"), bus.subscribe("home/#"):
        with pytest.raises(QuotaExceeded) as refused:
            bus.follow("home/#")
        assert str(refused.value) == (
            "QuotaExceeded(429): this session has 2 subscriptions and readings (follow, replay) open, and "
            "subscriptions_per_session_max is 2; close those that nobody reads any more "
            "(`with bus.follow(…) as reading:` does), or raise the setting"
        )
