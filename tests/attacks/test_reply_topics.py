"""An attacker without any rule writes to `$reply/…`, as much as it likes, and has those who answer its requests write
where only they may."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

import headwater
from headwater.message import FROM
from headwater.mqtt.reasons import Reason
from headwater.wire import administration, requests
from mqtt.peer import Served
from server.harness import SECRET, Running, code

KIB = 1024


@pytest.fixture
def running():
    with Running(auth="scram", reply_bytes_per_minute_max=64 * KIB) as running:
        running.client("eve")
        running.client("asks", allow=["publish rpc/#", "create rpc/#"])
        yield running


def test_a_topic_below_reply_that_is_no_sessions_is_closed(running: Running):
    eve = running.peer("eve")
    for topic in ("$reply/x", "$reply", f"$reply/{eve.session}/more", "$reply/embedded"):
        with code(403, "eve"):
            eve.publish(topic)
        with code(403, "eve"):
            eve.ask(requests.Delay(topic=topic, payload=b"", deliver_at_us=0))
    assert running.bus.topics("$reply/#") == []


def test_a_session_that_is_over_has_no_reply_topic_any_more(running: Running):
    asks, eve = running.peer("asks", expire_after_s=0.0), running.peer("eve")
    eve.publish(f"$reply/{asks.session}")
    asks.close()
    running.until(lambda: not running.server.sessions.has(asks.session))
    with code(403, "waits"):
        eve.publish(f"$reply/{asks.session}")


def test_nothing_is_retained_below_reply(running: Running):
    eve = running.peer("eve")
    with code(403, "retain"):
        eve.publish(f"$reply/{eve.session}", retain=[True])
    assert running.bus.retained("$reply/#") == {}


def test_a_client_without_a_rule_fills_no_disk_with_answers(running: Running):
    eve = running.peer("eve")
    topic, stored = f"$reply/{eve.session}", 0
    with code(429, "reply_bytes_per_minute_max"):
        for _ in range(1000):
            eve.publish(topic, bytes(4 * KIB))
            stored += 1
    assert 10 <= stored <= 16
    other = running.peer("eve")  # another session of hers is no other purse
    with code(429):
        other.publish(f"$reply/{other.session}", bytes(4 * KIB))


def test_a_client_without_a_rule_keeps_nothing_below_reply_once_it_is_gone(running: Running):
    """One named subscription would hold the answers of everybody, and a hundred thousand are all that there may be."""
    eve = running.peer("eve")
    topic = f"$reply/{eve.session}"
    with code(403):
        eve.subscribe(1, topic, kind="named", id="pins")
    with code(403):
        eve.ask(administration.CreateSubscription(id="pins", filter=topic))
    for number, kind in enumerate(("live", "session", "follow"), 1):
        eve.subscribe(number, topic, kind=kind)
    eve.publish(topic, b"mine")
    assert eve.payloads(2, 1) == [b"mine"]
    assert running.bus.config.retention_of("$reply").hard_age_s == 86_400


def test_a_service_with_a_rule_answers_as_much_as_it_likes(running: Running):
    running.client("service", allow=["publish $reply/#"])
    service, asks = running.peer("service"), running.peer("asks")
    for _ in range(20):
        service.publish(f"$reply/{asks.session}", bytes(8 * KIB))


def test_nothing_is_staged_for_a_reply_topic(running: Running):
    eve = running.peer("eve")
    with headwater.connect(url(running, "eve")) as bus, code(403):
        bus.stage("p", 1, [(f"$reply/{eve.session}", b"x")])


# Whoever answers


def url(running: Running, user: str) -> str:
    return f"headwater://{user}:{quote(SECRET)}@127.0.0.1:{running.server.port}"


def test_a_request_names_no_topic_for_its_answer_that_its_sender_may_not_publish_to(running: Running):
    running.client("service", allow=["subscribe rpc/#", "publish doors/#", "create doors/#"])
    asks = running.peer("asks")
    headers: Any = [(("reply-to", "doors/front"),)]
    with code(403, "asks", "doors/front"):
        asks.publish("rpc/open", headers=headers)
    with code(403, "doors/front"):
        asks.ask(requests.Delay(topic="rpc/open", payload=b"", deliver_at_us=0, headers=headers[0]))
    with headwater.connect(url(running, "asks")) as bus, code(403, "doors/front"):
        bus.stage("p", 1, [headwater.Outgoing("rpc/open", b"", headers={"reply-to": "doors/front"})])
    assert running.bus.topics("#") == []


def test_where_both_may_publish_a_request_is_answered(running: Running):
    running.client("service", allow=["subscribe rpc/#", "publish rpc/answers", "create rpc/#"])
    with headwater.connect(url(running, "service")) as service, headwater.connect(url(running, "asks")) as asks:
        with service.subscribe("rpc/sum") as sub:
            asks.publish("rpc/sum", b"1+1", headers={"reply-to": "rpc/answers"})
            next(iter(sub)).reply(b"2")
        assert [one.payload for one in running.bus.replay("rpc/answers")] == [b"2"]


def test_a_request_of_the_usual_kind_is_answered_without_a_rule(running: Running):
    running.client("service", allow=["subscribe rpc/#"])
    asks = headwater.connect(url(running, "asks"))
    with asks, headwater.connect(url(running, "service")) as service, service.subscribe("rpc/sum") as sub:
        pairs, answer = asks.request_soon("rpc/sum", b"1+1")
        next(iter(sub)).reply(b"2")
        assert answer.result(30).payload == b"2"
        assert dict(pairs)["reply-to"].startswith("$reply/")


def test_the_process_that_serves_is_answered_too(running: Running):
    running.client("service", allow=["subscribe rpc/#"])
    with headwater.connect(url(running, "service")) as service, service.subscribe("rpc/sum") as sub:
        _, answer = running.bus.request_soon("rpc/sum", b"1+1")
        next(iter(sub)).reply(b"2")
        assert answer.result(30).payload == b"2"


def test_the_response_topic_of_an_mqtt_client_is_answered_where_that_is_safe_and_seen_by_mqtt_in_any_case():
    with Served(auth="scram") as served:
        served.client("asks", allow=["publish rpc/#", "create rpc/#", "subscribe answers/#"])
        served.client("service", allow=["subscribe rpc/#", "publish answers/#", "create answers/#"])
        asks = served.mqtt("a", user="asks")
        with headwater.connect(url(served, "service")) as service, service.subscribe("rpc/sum") as sub:
            listens = served.mqtt("b", user="service")
            listens.subscribe("rpc/#")
            assert asks.publish("rpc/sum", b"1", 1, response_topic="answers/asks").reason == 0
            message = next(iter(sub))
            assert dict(message.headers) == {"mqtt-response-topic": "answers/asks"}
            with code(409):
                message.reply(b"opened")  # it is no request to a native client
            assert listens.got().properties.response_topic == "answers/asks"  # which answers as itself, or not
            listens.publish("answers/asks", b"2", 1)
            served.rules("asks", allow=["publish answers/asks"])
            asks.publish("rpc/sum", b"2", 1, response_topic="answers/asks")
            next(iter(sub)).reply(b"3")
        assert [one.payload for one in served.bus.replay("answers/asks")] == [b"2", b"3"]


def test_the_reply_topic_that_the_server_offers_mqtt_clients_works():
    with Served(auth="scram") as served:
        served.client("asks", allow=["publish rpc/#", "create rpc/#"])
        served.client("service", allow=["subscribe rpc/#"])
        asks = served.mqtt("a", user="asks", request_response_information=1)
        topic = asks.connack.properties.response_information
        assert topic is not None
        asks.subscribe(topic)
        with headwater.connect(url(served, "service")) as service, service.subscribe("rpc/sum") as sub:
            asks.publish("rpc/sum", b"1", 1, response_topic=topic)
            next(iter(sub)).reply(b"2")
            assert asks.got().payload == b"2"
        served.client("eve")
        eve = served.mqtt("e", user="eve", request_response_information=1)
        assert eve.subscribe(f"$share/g/{eve.connack.properties.response_information}") == (Reason.NOT_AUTHORIZED,)
        assert eve.publish("$reply/nobody", b"x", 1).reason == Reason.NOT_AUTHORIZED


# Whose message it is


@pytest.mark.parametrize("auth", ["scram", "none"])
def test_no_native_publisher_says_whose_message_it_is(auth: Any):
    """MQTT clients that do not want their own messages would not be sent what somebody marked as theirs."""
    with Running(auth=auth) as running:
        running.client("asks", allow=["publish rpc/#", "create rpc/#"])
        asks = running.peer("asks")
        headers: Any = [((FROM, "ann/phone"),)]
        with code(422, FROM):
            asks.publish("rpc/x", headers=headers)
        with code(422, FROM):
            asks.ask(requests.Delay(topic="rpc/x", payload=b"", deliver_at_us=0, headers=headers[0]))
        with headwater.connect(url(running, "asks") if auth == "scram" else running.server.url) as bus:
            bus.publish("rpc/x", b"a payload may say headwater-from", headers={"about": FROM})
            bus.publish("rpc/y", b"", headers={FROM: "ann/phone", "unit": "C"})  # as who passes a message on
            bus.stage("p", 1, [headwater.Outgoing("rpc/z", b"", headers={FROM: "ann/phone"})])
            bus.commit_stage("p", 1)
        assert [one.header_pairs for one in running.bus.replay("rpc/#")] == [(("about", FROM),), (("unit", "C"),), ()]
