"""Request and reply."""

from __future__ import annotations

import json
import threading

import pytest

from bus.flows import WAIT_S, in_threads, some
from headwater import Conflict, NoResponders, TimedOut
from headwater.bus import Bus


def test_a_request_is_answered_by_reply(bus: Bus) -> None:
    service = bus.subscribe("rpc/sum", id="service")

    def serve() -> None:
        (message,) = some(service, 1)
        message.reply(b"%d" % sum(json.loads(message.payload)))
        message.ack()

    serving = threading.Thread(target=serve)
    serving.start()
    reply = bus.request("rpc/sum", b"[1,2]", timeout_s=WAIT_S, headers={"trace": "7"})
    serving.join(WAIT_S)
    assert reply.payload == b"3"


def test_a_live_service_answers_many_requests_at_once(bus: Bus) -> None:
    service = bus.subscribe("rpc/echo")

    def work(number: int) -> None:
        if number == 0:
            for message in some(service, 8):
                message.reply(message.payload.upper())
            return
        assert bus.request("rpc/echo", b"r%d" % number, timeout_s=WAIT_S).payload == b"R%d" % number

    in_threads(9, work)


def test_a_request_that_nobody_answers_times_out(bus: Bus) -> None:
    with bus.subscribe("rpc/#"), pytest.raises(TimedOut, match="nobody answered") as late:
        bus.request("rpc/mute", b"", timeout_s=0.05)
    assert (late.value.code, late.value.retryable) == (504, True)


def test_where_nobody_listens_that_is_said_at_once(bus: Bus) -> None:
    bus.subscribe("other/#")
    with pytest.raises(NoResponders, match='nobody listens on "rpc/nobody"') as refused:
        bus.request("rpc/nobody", b"", timeout_s=WAIT_S)
    assert (refused.value.code, refused.value.retryable) == (503, True)
    bus.publish("rpc/nobody", b"known by now")
    live = bus.subscribe("rpc/+")
    live.close()
    with pytest.raises(NoResponders):
        bus.request("rpc/nobody", b"", timeout_s=WAIT_S)
    assert [one.payload for one in bus.replay("rpc/#")] == [b"known by now"], "what nobody hears is not stored"


def test_a_durable_subscription_is_asked_though_nobody_takes_from_it_yet(bus: Bus) -> None:
    bus.subscribe("rpc/#", id="service").close()
    _, answer = bus.request_soon("rpc/sum", b"?")
    some(bus.subscribe("rpc/#", id="service"), 1)[0].reply(b"!")
    assert answer.result(WAIT_S).payload == b"!"
    bus.unsubscribe("service")
    with pytest.raises(NoResponders):
        bus.request("rpc/sum", b"", timeout_s=WAIT_S)


def test_questions_and_answers_are_stored_in_the_order_in_which_they_were_heard(bus: Bus) -> None:
    live = bus.subscribe("rpc/echo")
    heard: list[bytes] = []

    def serve() -> None:
        for _ in range(10):
            (message,) = some(live, 1)
            heard.append(message.payload)
            if message.payload.startswith(b"?"):
                message.reply(message.payload)

    serving = threading.Thread(target=serve)
    serving.start()
    for number in range(5):
        assert bus.request("rpc/echo", b"?%d" % number, timeout_s=WAIT_S).payload == b"?%d" % number
        bus.publish("rpc/echo", b"%d" % number)
    serving.join(WAIT_S)
    bus.publish("$reply/end", b"")  # behind the answers
    stored = [one.payload for one in bus.replay("rpc/#")]
    assert heard == stored == [word % number for number in range(5) for word in (b"?%d", b"%d")]
    assert [one.payload for one in bus.replay("$reply/embedded")] == [b"?%d" % number for number in range(5)]


def test_with_durable_question_and_answer_are_on_disk_before_they_are_delivered(bus: Bus) -> None:
    live = bus.subscribe("rpc/sum")
    _, answer = bus.request_soon("rpc/sum", b"?", durable=True)
    (question,) = some(live, 1)
    assert [one.offset for one in bus.replay("rpc/#")] == [question.offset]
    receipt = question.reply(b"!")
    assert receipt.offset == answer.result(WAIT_S).offset == bus.ends()["$reply"]
    _, answer = bus.request_soon("rpc/sum", b"?")
    receipt = some(live, 1)[0].reply(b"!")
    assert (receipt.topic, receipt.offset) == ("$reply/embedded", 0)
    assert answer.result(WAIT_S).payload == b"!"


def test_a_durable_question_waits_for_whoever_comes(bus: Bus) -> None:
    with pytest.raises(TimedOut):
        bus.request("rpc/later", b"?", timeout_s=0.05, durable=True)
    assert [one.payload for one in bus.replay("rpc/later")] == [b"?"]


def test_live_and_durable_responders_hear_the_same_question(bus: Bus) -> None:
    live, durable = bus.subscribe("rpc/#"), bus.subscribe("rpc/#", id="audit")
    bus.publish("rpc/sum", b"so that the topic is known")
    _, answer = bus.request_soon("rpc/sum", b"?")
    assert [one.payload for one in some(live, 2)][1] == b"?"
    some(durable, 2)[1].reply(b"!")
    assert answer.result(WAIT_S).payload == b"!"


def test_only_a_request_can_be_answered(bus: Bus) -> None:
    live = bus.subscribe("a/#")
    bus.publish("a/b", b"")
    with pytest.raises(Conflict, match="no request"):
        some(live, 1)[0].reply(b"")
