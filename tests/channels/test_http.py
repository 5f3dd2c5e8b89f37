from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.wire import administration
from server.harness import PATIENCE_S, Running, code
from server.site import OK, Posted, Site, free_port, status, until

SOON: dict[str, Any] = {"channel_retry_s": 0.01, "channel_retry_s_max": 0.05}
AGAIN: dict[str, Any] = {"retry_delay_s": 0.01, "retry_delay_s_max": 0.02}
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def running() -> Iterator[Running]:
    with Running(**SOON) as made:
        yield made


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as made:
        yield made


def add(running: Running, port: int, **others: Any) -> administration.ChannelInfo:
    given = {"id": "a", "secret": SECRET, "options": AGAIN, **others}
    (made,) = running.bus.channels.add("hook", "home/#", "127.0.0.1", port, "http", **given)
    return made


def info(running: Running) -> administration.ChannelInfo:
    (found,) = running.bus.channels.list("a")
    return found


def publish(running: Running, *payloads: bytes) -> None:
    running.bus.publish_many([("home/x", payload) for payload in payloads])


def delivered(running: Running, count: int) -> None:
    until(lambda: info(running).delivered == count and info(running).lag == 0)


def letters(running: Running) -> list[headwater.DeadLetter]:
    """Dead letters, once they are stored."""
    found: list[headwater.DeadLetter] = until(lambda: running.bus.dead_letters("channel:a"))
    return found


# Delivering


def test_one_message_is_an_event_in_binary_mode_signed_with_the_secret(running: Running, site: Site):
    add(running, site.port, path="/in?x=1")
    running.bus.publish("home/küche/temp", b"21.5\x00", key=b"k", headers={"content-type": "text/plain", "unit": "°C"})
    (sent,) = running.bus.replay("home/#")
    delivered(running, 1)
    (posted,) = site.posted
    assert posted.path == "/in?x=1"
    assert posted.body == b"21.5\x00"
    assert posted.is_signed_with(SECRET)
    assert abs(int(posted.headers["webhook-timestamp"]) - time.time()) < 60
    assert posted.headers["host"] == f"127.0.0.1:{site.port}"
    named = {name: value for name, value in posted.headers.items() if name.startswith(("ce-", "content-type"))}
    assert named == {
        "content-type": "text/plain",
        "ce-specversion": "1.0",
        "ce-id": "home/1",
        "ce-source": f"/headwater/{running.bus.id}",
        "ce-type": "headwater.message",
        "ce-time": sent.timestamp.isoformat().replace("+00:00", "Z"),
        "ce-subject": "home/k%C3%BCche/temp",
        "ce-headwateroffset": "1",
        "ce-headwaterkey": "aw==",
        "ce-headwaterheaders": "[[%22content-type%22,%22text/plain%22],[%22unit%22,%22%C2%B0C%22]]",
    }


def test_the_lines_of_the_documentation_verify_a_request_and_nothing_else(running: Running, site: Site):
    page = (Path(__file__).parents[2] / "docs" / "guide" / "channels.md").read_text(encoding="utf-8")
    (block,) = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def verify" in text]
    names: dict[str, Any] = {}
    exec(block, names)
    verify = names["verify"]
    add(running, site.port)
    publish(running, b"1")
    delivered(running, 1)
    (posted,) = site.posted
    verify(SECRET, posted.headers, posted.body)
    for headers, body in (
        (posted.headers, b"2"),
        ({**posted.headers, "webhook-timestamp": "1"}, posted.body),
        ({**posted.headers, "webhook-id": "msg_other"}, posted.body),
        ({**posted.headers, "webhook-signature": "v1,AAAA"}, posted.body),
    ):
        with pytest.raises(PermissionError):
            verify(SECRET, headers, body)


def test_several_messages_are_a_batch_of_events_in_order(running: Running, site: Site):
    add(running, site.port)
    running.bus.channels.change("a", paused=True)
    publish(running, *(b"%d" % number for number in range(250)))
    running.bus.channels.change("a", paused=False)
    delivered(running, 250)
    assert [len(posted.events) for posted in site.posted] == [100, 100, 50]
    assert site.payloads == [b"%d" % number for number in range(250)]
    assert all(posted.is_signed_with(SECRET) for posted in site.posted)
    first = json.loads(site.posted[0].body)[0]
    assert (first["id"], first["subject"], first["headwateroffset"]) == ("home/1", "home/x", "1")
    assert len({posted.headers["webhook-id"] for posted in site.posted}) == 3


def test_a_batch_holds_no_more_bytes_than_it_may(site: Site):
    with Running(**SOON, channel_batch_bytes_max=10_000) as running:
        add(running, site.port)
        running.bus.channels.change("a", paused=True)
        publish(running, *[bytes(4000)] * 5, bytes(50_000), b"last")
        running.bus.channels.change("a", paused=False)
        delivered(running, 7)
    assert site.payloads == [*[bytes(4000)] * 5, bytes(50_000), b"last"]
    assert max(len(posted.body) for posted in site.posted if len(posted.events) > 1) < 20_000


def test_a_secret_is_drawn_and_shown_once_and_can_be_changed(running: Running, site: Site):
    made = add(running, site.port, secret=None)
    assert made.secret is not None
    assert made.secret.startswith("whsec_")
    assert info(running).secret is None
    assert made.secret not in repr(running.bus.channels.rows())
    publish(running, b"1")
    delivered(running, 1)
    changed = running.bus.channels.change("a", secret="")
    assert changed.secret not in (None, made.secret)
    publish(running, b"2")
    delivered(running, 2)
    assert [posted.is_signed_with(made.secret) for posted in site.posted] == [True, False]
    assert site.posted[1].is_signed_with(changed.secret or "")


def test_the_connection_is_kept_and_one_that_was_closed_meanwhile_is_no_failure(running: Running, site: Site):
    add(running, site.port, options={"max_attempts": 1})
    for number in range(3):
        publish(running, b"%d" % number)
        delivered(running, number + 1)
    assert len(site.connections) == 1
    site.connections[0].shutdown(2)
    publish(running, b"3")
    delivered(running, 4)
    assert (len(site.connections), info(running).dead) == (2, 0)


# Refusals


def test_a_refused_message_is_tried_again_and_then_dead(running: Running, site: Site):
    site.answer = lambda posted: status(500, body=b"bad\x1b[31m day") if b"poison" in posted.payloads else OK
    add(running, site.port, options={"max_attempts": 2, **AGAIN})
    publish(running, b"poison")
    until(lambda: info(running).dead == 1)
    publish(running, b"1")
    delivered(running, 1)
    assert site.payloads == [b"poison", b"poison", b"1"]
    assert site.posted[1].headers["ce-headwaterattempt"] == "2"
    (dead,) = letters(running)
    assert dead.errors[-1].endswith("answered 500")
    assert info(running).error == ""


def test_only_the_message_that_is_to_blame_dies_of_a_batch_that_is_refused(running: Running, site: Site):
    site.answer = lambda posted: status(422) if b"poison" in posted.payloads else OK
    add(running, site.port, options={"max_attempts": 1})
    running.bus.channels.change("a", paused=True)
    sent = [b"%d" % number for number in range(30)]
    publish(running, *sent[:17], b"poison", *sent[17:])
    running.bus.channels.change("a", paused=False)
    until(lambda: info(running).lag == 0)
    assert [letter.payload for letter in letters(running)] == [b"poison"]
    taken = [payload for posted in site.posted if b"poison" not in posted.payloads for payload in posted.payloads]
    assert taken == sent


def test_order_is_kept_while_a_message_is_tried_again(running: Running, site: Site):
    left = [2]

    def twice(posted: Posted) -> bytes:
        if b"1" in posted.payloads and left[0]:
            left[0] -= 1
            return status(503)
        return OK

    site.answer = twice
    add(running, site.port, batch_messages_max=1)
    publish(running, b"0", b"1", b"2", b"3")
    delivered(running, 4)
    assert site.payloads == [b"0", b"1", b"1", b"1", b"2", b"3"]


def test_410_pauses_the_channel(running: Running, site: Site):
    site.answer = lambda _: status(410)
    add(running, site.port)
    publish(running, b"1")
    until(lambda: info(running).state == "paused")
    assert "410" in info(running).error
    assert (info(running).lag, info(running).dead, len(site.posted)) == (1, 0, 1)
    site.answer = lambda _: OK
    running.bus.channels.change("a", paused=False)
    delivered(running, 1)


@pytest.mark.parametrize("code_of", [429, 503])
@pytest.mark.parametrize("says", ["0", "date"])
def test_who_wants_to_be_left_alone_is_and_no_attempt_is_counted(running: Running, site: Site, code_of: int, says: str):
    later = "0" if says == "0" else formatdate(usegmt=True)
    site.answer = lambda _: status(code_of, f"retry-after: {later}") if len(site.posted) < 4 else OK
    add(running, site.port, options={"max_attempts": 1})
    publish(running, b"1")
    delivered(running, 1)
    assert (len(site.posted), info(running).dead) == (4, 0)


def test_a_long_retry_after_is_waited_for(running: Running, site: Site):
    site.answer = lambda _: status(429, "retry-after: 3600")
    add(running, site.port)
    publish(running, b"1")
    until(lambda: "again after 3600 s" in info(running).error)
    time.sleep(0.1)
    assert len(site.posted) == 1
    assert info(running).state == "failing"


def test_a_redirect_is_not_followed(running: Running, site: Site):
    with Site() as elsewhere:
        site.answer = lambda _: status(307, f"location: http://127.0.0.1:{elsewhere.port}/")
        add(running, site.port, options={"max_attempts": 1, **AGAIN})
        publish(running, b"1")
        until(lambda: info(running).dead == 1)
        assert elsewhere.posted == []
    (dead,) = letters(running)
    assert dead.errors[-1].endswith("answered 307, a redirect, which is not followed")


def never(_: Posted) -> bytes | None:
    time.sleep(0.4)
    return OK


ENDLESS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"400\r\n" + bytes(1024) + b"\r\n"
LIARS: list[tuple[str, Callable[[Posted], bytes | None]]] = [
    ("no answer in time", never),
    ("closes", lambda _: None),
    ("no HTTP", lambda _: b"\x00\x01\x02 what?\r\n\r\n"),
    ("half an answer", lambda _: b"HTTP/1.1 20"),
    ("headers without end", lambda _: b"HTTP/1.1 200 OK\r\n" + b"x-y: z\r\n" * 10_000),
    ("a promise of more than comes", lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\nshort"),
    ("two lengths", lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx"),
    ("one 100 Continue after another", lambda _: b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000),
    ("an end that never comes", lambda _: ENDLESS),
    ("status 99999", lambda _: b"HTTP/1.1 99999 OK\r\n\r\n"),
]


@pytest.mark.parametrize("answer", [answer for _, answer in LIARS], ids=[name for name, _ in LIARS])
def test_an_answer_that_is_none_is_a_refusal(site: Site, answer: Callable[[Posted], bytes | None]):
    with Running(**SOON, channel_answer_bytes_max=4096) as running:
        site.answer = answer
        add(running, site.port, options={"max_attempts": 2, "ack_timeout_s": 0.3, **AGAIN})
        publish(running, b"1")
        until(lambda: info(running).dead == 1)
        assert letters(running)[0].errors[-1]
        site.answer = lambda _: OK
        for _ in range(5):  # a good answer, too, may take too long where the machine is busy
            publish(running, b"2")
            until(lambda: info(running).lag == 0)
            if info(running).delivered:
                break
        assert info(running).delivered == 1


def test_of_an_answer_that_does_not_end_the_status_counts_and_the_rest_is_not_read(site: Site):
    with Running(**SOON, channel_answer_bytes_max=4096) as running:
        site.answer = lambda _: ENDLESS + (b"400\r\n" + bytes(1024) + b"\r\n") * 1000
        add(running, site.port)
        publish(running, b"1")
        delivered(running, 1)


def test_a_destination_that_is_down_costs_no_attempts(running: Running):
    with free_port() as port:
        add(running, port, options={"max_attempts": 1})
        publish(running, b"1", b"2")
        until(lambda: "cannot be reached" in info(running).error)
        with Site(port=port) as site:
            delivered(running, 2)
            assert site.payloads == [b"1", b"2"]
    assert info(running).dead == 0


# Looking after


def test_a_destination_is_tried_out_with_a_signed_event_of_a_type_of_its_own(running: Running, site: Site):
    add(running, site.port)
    assert running.bus.channels.test("a").ok
    (posted,) = site.posted
    assert posted.is_signed_with(SECRET)
    assert posted.headers["ce-type"] == "headwater.test"
    site.answer = lambda _: status(404)
    trial = running.bus.channels.test("a")
    assert (trial.ok, "answered 404" in trial.detail) == (False, True)
    assert info(running).delivered == 0


def test_a_channel_is_changed_and_removed_while_its_destination_hangs(running: Running, site: Site):
    hanging = threading.Event()
    site.answer = lambda _: OK * hanging.wait(PATIENCE_S)
    add(running, site.port)
    publish(running, b"1")
    until(lambda: info(running).state == "delivering")
    with Site() as other:
        running.bus.channels.change("a", destination_port=other.port)
        delivered(running, 1)
        assert other.payloads == [b"1"]
    running.bus.channels.remove("a")
    hanging.set()


def test_a_seek_while_a_request_is_under_way_is_heeded(running: Running, site: Site):
    hanging = threading.Event()
    site.answer = lambda _: OK * hanging.wait(PATIENCE_S)
    publish(running, b"0")
    add(running, site.port)
    publish(running, b"1")
    until(lambda: len(site.posted) == 1)
    core = running.bus.core
    core.dispatcher.use("channel:a", lambda one: core.durables.move(one, "earliest"))
    hanging.set()
    until(lambda: info(running).lag == 0)
    assert site.payloads == [b"1", b"0", b"1"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret": "secret"},
        {"secret": "whsec_"},
        {"secret": "whsec_" + base64.b64encode(bytes(8)).decode()},
        {"path": "in"},
        {"path": "/a b"},
        {"path": "/a\r\nx-evil: 1"},
        {"path": "/#x"},
        {"path": "/" + "x" * 3000},
        {"batch_messages_max": 100_000},
    ],
)
def test_what_cannot_be_of_an_http_channel_is_refused(running: Running, wrong: dict[str, Any]):
    with code(422):
        add(running, 80, **wrong)
    assert running.bus.channels.list() == []


def test_a_messages_own_words_never_become_headers_of_the_request(running: Running, site: Site):
    add(running, site.port, batch_messages_max=1)
    running.bus.publish("home/x", b"1", headers={"content-type": "text/plain\r\nx-evil: 1", "a\r\nb": "\r\n\r\n"})
    running.bus.publish("home/\x07\u2028%0d%0a", b"2")
    delivered(running, 2)
    assert site.posted[0].headers["content-type"] == "application/octet-stream"
    assert not any("evil" in name for posted in site.posted for name in posted.headers)
    assert site.posted[1].headers["ce-subject"] == "home/%07%E2%80%A8%250d%250a"


def test_a_gap_does_not_stop_a_channel(site: Site):
    rule = headwater.Retention(hard_bytes=1)
    with Running(config=headwater.Config(segment_bytes=64 * 1024, retention=rule, retention_interval_s=1)) as running:
        add(running, site.port)
        running.bus.channels.change("a", paused=True)
        for number in range(40):
            publish(running, b"%d" % number + bytes(8000))
        until(lambda: next(iter(running.bus.replay("home/#"))).offset > 1)
        running.bus.channels.change("a", paused=False)
        until(lambda: info(running).lag == 0)
        assert site.payloads[-1].startswith(b"39")
        assert len(site.payloads) < 40
