"""Request and reply."""

from __future__ import annotations

import json
import threading

import pytest

from bus.flows import WAIT_S, in_threads, some
from headwater import Bus, Conflict, TimedOut


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
    with pytest.raises(TimedOut, match="nobody answered") as late:
        bus.request("rpc/nobody", b"", timeout_s=0.05)
    assert (late.value.code, late.value.retryable) == (504, True)


def test_only_a_request_can_be_answered(bus: Bus) -> None:
    live = bus.subscribe("a/#")
    bus.publish("a/b", b"")
    with pytest.raises(Conflict, match="no request"):
        some(live, 1)[0].reply(b"")
