"""Messages over HTTP: published as JSON or as they are, read in pages, followed without a gap."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

import headwater
from admin.served import Served


def publish(http: httpx.Client, topic: str, payload: Any, **others: Any) -> dict[str, Any]:
    response = http.post("/v1/messages", json={"topic": topic, "payload": payload, **others})
    assert response.status_code == 201, response.text
    receipt: dict[str, Any] = response.json()
    return receipt


def read(http: httpx.Client, filter: str, **asked: Any) -> dict[str, Any]:
    response = http.get("/v1/messages", params={"filter": filter, **asked})
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    return page


def test_a_message_goes_in_as_json_and_comes_out_whole(http: httpx.Client, served: Served):
    receipt = publish(
        http, "whole/x", "21.5 °C", key="k", headers=[["unit", "C"], ["unit", "K"]], retain=True, ttl_s=3600
    )
    assert (receipt["topic"], receipt["offset"], receipt["duplicate"]) == ("whole/x", 1, False)
    (message,) = read(http, "whole/#")["messages"]
    assert message["payload"] == "21.5 °C"
    assert (message["key"], message["headers"]) == ("k", [["unit", "C"], ["unit", "K"]])
    assert datetime.fromisoformat(message["time"]).tzinfo is not None
    with headwater.connect(served.url) as bus:
        (natively,) = bus.replay("whole/#")
        (retained,) = bus.retained("whole/x").values()
    assert natively.payload == "21.5 °C".encode()
    assert natively.key == b"k"
    assert retained.offset == 1


@pytest.mark.parametrize(
    ("payload", "encoding", "stored"),
    [
        ("text", "text", b"text"),
        ("", "text", b""),
        ({"a": [1, None, "ü"]}, "json", '{"a":[1,null,"ü"]}'.encode()),
        ("a string", "json", b'"a string"'),
        ("AP8=", "base64", b"\x00\xff"),
    ],
)
def test_a_payload_is_text_json_or_base64(payload: Any, encoding: str, stored: bytes, http: httpx.Client):
    offset = publish(http, "encoded/x", payload, encoding=encoding)["offset"]
    (message,) = read(http, "encoded/#", after=offset - 1)["messages"]
    found = message["payload"]
    assert (base64.b64decode(found) if message["encoding"] == "base64" else found.encode()) == stored


def test_json_says_so_in_its_content_type_as_it_does_from_python(http: httpx.Client, served: Served):
    value = {"celsius": 21.5}
    one = {"topic": "typed/x", "payload": value, "encoding": "json"}
    publish(http, "typed/x", value, encoding="json")
    publish(http, "typed/x", value, encoding="json", headers={"content-type": "application/senml+json"})
    publish(http, "typed/x", '{"celsius":21.5}')
    batch = {"messages": [one, {**one, "headers": [["unit", "C"], ["unit", "K"]]}]}
    assert http.post("/v1/messages/batch", json=batch).status_code == 201
    schedule = {**one, "cron": "0 3 * * *"}
    assert dict(http.put("/v1/schedules/typed", json=schedule).json()["headers"]) == {
        "content-type": "application/json"
    }
    with headwater.connect(served.url) as bus:
        bus.publish("typed/x", value)
        bus.unschedule("typed")
        messages = list(bus.replay("typed/#"))
    assert {one.payload for one in messages} == {b'{"celsius":21.5}'}
    said = ("content-type", "application/json")
    assert [one.header_pairs for one in messages] == [
        *((said,), (("content-type", "application/senml+json"),), ()),
        *((said,), (("unit", "C"), ("unit", "K"), said), (said,)),
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"topic": "bad/x", "payload": 5},
        {"topic": "bad/x", "payload": "no base64", "encoding": "base64"},
        {"topic": "bad/x", "payload": "x", "encodings": "text"},
        {"topic": "bad/#", "payload": "x"},
        {"topic": "", "payload": "x"},
        {"payload": "x"},
        {"topic": "bad/x", "payload": "x", "ttl_s": -1},
        {"topic": "bad/x", "payload": "x", "deliver_at": "1066-10-14T00:00:00Z"},
        {"topic": "bad/x", "payload": "x", "sequence": 2**70, "producer": "p"},
        {"topic": "bad/x", "payload": "x", "headers": {"n": 1}},
        [],
    ],
)
def test_what_cannot_be_published_is_refused_with_what_is_wrong(body: Any, http: httpx.Client):
    response = http.post("/v1/messages", json=body)
    assert response.status_code == 422
    assert response.json()["kind"] == "Malformed"
    assert read(http, "bad/#")["messages"] == []


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"filter": "x/#", "since": "yesterday"}, "query.since is no moment with a zone; write 2026-01-31T12:00:00Z"),
        ({"filter": "x/#", "since": "2026-01-31T12:00:00"}, "query.since is no moment with a zone"),
        ({"filter": "x/#", "limit": "0"}, "query.limit: Input should be greater than or equal to 1"),
    ],
)
def test_what_is_wrong_with_a_parameter_is_said(params: dict[str, str], says: str, http: httpx.Client):
    response = http.get("/v1/messages", params=params)
    assert response.status_code == 422
    assert response.json()["detail"].startswith(says)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"payload": "x"}', "body.topic is missing"),
        (
            b'{"topic": "x", "payload": "x", "retian": true}',
            "body.retian: nothing is called so here",
        ),
        (b"{topic", "the body is no JSON: "),
        (b'{"topic": "x", "deliver_at": "soon"}', "body.deliver_at is no moment with a zone"),
    ],
)
def test_what_is_wrong_with_a_body_is_said(body: bytes, says: str, http: httpx.Client):
    response = http.post("/v1/messages", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert response.json()["detail"].startswith(says)


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"topic": "bad/x", "payload": "\\ud800"}', b"[" * 100_000])
def test_what_is_no_json_is_refused(content: bytes, http: httpx.Client):
    response = http.post("/v1/messages", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code in {400, 422}
    assert response.headers["content-type"] == "application/problem+json"


def test_json_that_says_it_is_something_else_is_refused(http: httpx.Client):
    content = json.dumps({"topic": "bad/x", "payload": "x"})
    response = http.post("/v1/messages", content=content, headers={"Content-Type": "text/plain"})
    assert response.status_code == 422


def test_a_body_is_published_as_it_is(http: httpx.Client):
    asked = {"retain": "true", "key": "k", "ttl_s": "60", "header": ["unit:C", "note:a:b"]}
    response = http.post("/v1/topics/raw%2Fdeep%2Fx/messages", params=asked, content=b"\x00\xff")
    assert response.status_code == 201
    assert response.json()["topic"] == "raw/deep/x"
    (message,) = read(http, "raw/#")["messages"]
    assert (message["payload"], message["encoding"]) == ("AP8=", "base64")
    assert message["headers"] == [["unit", "C"], ["note", "a:b"]]
    shown = http.get("/v1/topics/raw%2Fdeep%2Fx").json()
    assert shown["retained"]["payload"] == "AP8="


def test_a_batch_is_stored_together_or_not_at_all(http: httpx.Client):
    messages = [{"topic": f"batch/{n % 3}", "payload": n, "encoding": "json"} for n in range(100)]
    response = http.post("/v1/messages/batch", json={"messages": messages})
    assert [one["offset"] for one in response.json()["receipts"]] == list(range(1, 101))
    wrong = [*messages, {"topic": "batch/+", "payload": ""}]
    assert http.post("/v1/messages/batch", json={"messages": wrong}).status_code == 422
    assert len(read(http, "batch/#", limit=1000)["messages"]) == 100


def test_a_batch_that_some_roots_refuse_says_what_was_stored(http: httpx.Client):
    publish(http, "partly-b/x", "x", producer="p", sequence=7)
    batch = {
        "messages": [{"topic": f"partly-{root}/x", "payload": root} for root in "ab"],
        "producer": "p",
        "sequence": 3,
    }
    response = http.post("/v1/messages/batch", json=batch)
    problem = response.json()
    assert (response.status_code, problem["kind"], problem["retryable"]) == (409, "PartlyStored", False)
    stored, refused = problem["receipts"]
    assert (stored["topic"], stored["offset"], stored["duplicate"], refused) == ("partly-a/x", 1, False, None)
    assert '"partly-b" were not: Conflict(409)' in problem["detail"]


def test_a_producer_that_repeats_itself_is_stored_once(http: httpx.Client):
    first = publish(http, "once/x", "x", producer="p", sequence=7)
    again = publish(http, "once/x", "x", producer="p", sequence=7)
    assert (again["offset"], again["duplicate"]) == (first["offset"], True)


def test_pages_follow_one_another_without_a_gap_within_a_root_and_over_several(http: httpx.Client):
    for n in range(10):
        publish(http, f"page{n % 2}/x", str(n))
    for filter, count in (("page0/#", 5), ("+/x", None)):
        found: list[tuple[str, int]] = []
        after = None
        while True:
            page = read(http, filter, limit=2, **({"after": after} if after else {}))
            found += [(one["topic"], one["offset"]) for one in page["messages"]]
            after = page["next"]
            if page["is_end"]:
                break
        assert len(found) == len(set(found))
        mine = [place for place in found if place[0].startswith("page")]
        assert len(mine) == (count or 10)


def test_a_page_begins_at_a_moment(http: httpx.Client):
    publish(http, "timed/x", "old")
    time = datetime.fromisoformat(publish(http, "timed/x", "new")["time"])
    page = read(http, "timed/#", since=(time - timedelta(microseconds=1)).isoformat())
    assert page["messages"][-1]["payload"] == "new"
    assert read(http, "timed/#", since=datetime(2999, 1, 1, tzinfo=UTC).isoformat())["messages"] == []


@pytest.mark.parametrize(
    "asked",
    [
        {"filter": "#", "after": "5"},
        {"filter": "home/#", "after": "garbage"},
        {"filter": "home/#", "after": "9" * 40},
        {"filter": "home/#", "after": "1", "since": "2026-01-01T00:00:00Z"},
        {"filter": "home/#/x"},
        {"filter": ""},
        {"limit": 0},
        {"limit": 1001},
        {"since": "yesterday"},
        {"since": "2026-01-01T00:00:00"},
    ],
)
def test_a_page_that_cannot_be_is_refused(asked: dict[str, Any], http: httpx.Client):
    response = http.get("/v1/messages", params=asked)
    assert response.status_code == 422, response.text
    assert response.json()["kind"] == "Malformed"


# Following


class Event:
    """A server-sent event."""

    def __init__(self, fields: dict[str, str]) -> None:
        self.id = fields.get("id", "")
        self.kind = fields.get("event", "")
        self.data: dict[str, Any] = json.loads(fields["data"]) if "data" in fields else {}


def events(response: httpx.Response) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield Event(fields)
            fields = {}


def test_a_follower_gets_what_is_new(http: httpx.Client, served: Served):
    publish(http, "fresh/x", "old")
    with served.client() as other, other.stream("GET", "/v1/messages/follow", params={"filter": "fresh/#"}) as stream:
        told = events(stream)
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert next(told).data == {}
        publish(http, "fresh/x", "new")
        event = next(told)
    assert (event.kind, event.data["payload"], event.id) == ("message", "new", "2")


@pytest.mark.parametrize("filter", ["resumed/#", "+/resumed"])
def test_a_follower_that_comes_back_misses_nothing_and_gets_nothing_twice(
    filter: str, http: httpx.Client, served: Served
):
    roots = ("resumed",) if filter == "resumed/#" else ("one", "two", "three")

    def send(n: int) -> None:
        publish(http, f"{roots[n % len(roots)]}/resumed", f"{filter} {n}")

    last = ""
    got: list[str] = []
    for turn in range(4):
        headers = {"Last-Event-ID": last} if last else {}
        with (
            served.client() as other,
            other.stream("GET", "/v1/messages/follow", params={"filter": filter}, headers=headers) as stream,
        ):
            told = events(stream)
            last = next(told).id  # where it begins is told before anything comes
            for n in range(6):
                send(turn * 10 + n)
            for _ in range(3):  # and the connection breaks, with more on its way
                event = next(told)
                got.append(event.data["payload"])
                last = event.id
        for n in range(6, 10):
            send(turn * 10 + n)
    with served.client() as other:
        headers = {"Last-Event-ID": last}
        with other.stream("GET", "/v1/messages/follow", params={"filter": filter}, headers=headers) as stream:
            told = events(stream)
            next(told)
            while len(got) < 40:
                got.append(next(told).data["payload"])
    assert sorted(got) == sorted(f"{filter} {n}" for n in range(40))


def test_a_root_that_appears_while_nobody_follows_is_not_missed(http: httpx.Client, served: Served):
    with (
        served.client() as other,
        other.stream("GET", "/v1/messages/follow", params={"filter": "+/appeared"}) as stream,
    ):
        last = next(events(stream)).id
    publish(http, "newroot/appeared", "here")
    with (
        served.client() as other,
        other.stream(
            "GET", "/v1/messages/follow", params={"filter": "+/appeared"}, headers={"Last-Event-ID": last}
        ) as stream,
    ):
        told = events(stream)
        next(told)
        assert next(told).data["payload"] == "here"


def test_a_follower_of_nonsense_is_refused(http: httpx.Client):
    assert http.get("/v1/messages/follow", params={"filter": "#/x"}).status_code == 422
    assert http.get("/v1/messages/follow", headers={"Last-Event-ID": "nonsense"}).status_code == 422


# What is often mistaken


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("filter=mistaken/", "write it as %23"),  # what curl leaves of filter=mistaken/#
        ("filter=", "write it as %23"),
        ("filter=mistaken/+/x", "write it as %2B"),
        ("filtre=mistaken/x", "did you mean filter?"),
        ("filter=mistaken/x&colour=red", "it has after, filter, limit, since"),
    ],
)
def test_a_query_that_says_something_else_than_was_meant_is_refused(query: str, says: str, http: httpx.Client):
    response = http.get(f"/v1/messages?{query}")
    assert response.status_code == 422
    assert says in response.json()["detail"]


def test_a_hash_that_comes_unescaped_is_refused(served: Served):
    host, port = served.http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(b"GET /v1/messages?filter=mistaken/# HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: line.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 422")
    assert b"write it as %23" in answer


def test_a_topic_that_ends_in_a_slash_or_has_a_space_is_still_read(http: httpx.Client):
    for topic in ("odd/", "odd/a b", "odd/a /b"):
        publish(http, topic, "x")
        assert [message["topic"] for message in read(http, topic)["messages"]] == [topic]


@pytest.mark.parametrize("said", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_json_without_its_content_type_is_told_what_to_send(said: str | None, http: httpx.Client):
    headers = {} if said is None else {"Content-Type": said}
    response = http.post("/v1/messages", content=b'{"topic": "mistaken/x", "payload": "1"}', headers=headers)
    assert response.status_code == 422
    assert "send Content-Type: application/json" in response.json()["detail"]
    assert ("is missing" if said is None else f'says "{said}"') in response.json()["detail"]


def test_a_topic_in_a_path_has_its_slashes_as_they_are_or_encoded(http: httpx.Client):
    for path in ("levels/a/b", "levels%2Fa%2Fb", "levels/a%2Fb"):
        assert http.post(f"/v1/topics/{path}/messages", content=b"1").json()["topic"] == "levels/a/b"
        assert http.get(f"/v1/topics/{path}").json()["topic"] == "levels/a/b"
    assert http.get("/v1/topics/levels/a/b").json()["messages"] == 3
    refused = http.delete("/v1/topics/levels/a")  # a root is one level
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
    assert http.get("/v1/topics/levels/none").status_code == 404
