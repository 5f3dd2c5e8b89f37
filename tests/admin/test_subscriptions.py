"""Subscriptions and dead letters over HTTP, as an operator meets them when a consumer breaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

import headwater
from admin.served import Served
from headwater.client.bus import Bus

ODD = "team/a:b c?%2F#ü"
"""An id with everything in it that means something in a URL."""


@pytest.fixture(scope="module")
def bus(served: Served) -> Iterator[Bus]:
    with headwater.connect(served.url) as bus:
        yield bus


def at(id: str, *rest: object) -> str:
    return "/".join(("/v1/subscriptions", quote(id, safe=""), *map(str, rest)))


def made(http: httpx.Client, id: str, filter: str, **others: Any) -> dict[str, Any]:
    response = http.post("/v1/subscriptions", json={"id": id, "filter": filter, **others})
    assert response.status_code == 201, response.text
    shown: dict[str, Any] = response.json()
    return shown


def test_a_subscription_is_made_shown_moved_paused_and_deleted(http: httpx.Client, bus: Bus):
    for n in range(10):
        bus.publish("way/x", b"%d" % n)
    stated = {"max_in_flight": 5, "order": "none", "max_deliveries": None, "on_gap": None}
    shown = made(http, ODD, "way/#", start="earliest", options=stated)
    assert (shown["id"], shown["lag"], shown["order"]) == (ODD, 10, "none")
    assert shown["options"]["max_in_flight"] == 5
    assert (shown["options"]["max_deliveries"], shown["options"]["on_gap"]) == (0, "raise")  # no limit; left out
    assert http.get(at(ODD)).json()["filter"] == "way/#"
    assert http.post(at(ODD, "seek"), json={"to": 8}).status_code == 204
    assert http.get(at(ODD)).json()["lag"] == 3
    assert http.post(at(ODD, "seek"), json={"to": {"way": 5}}).status_code == 204
    assert http.get(at(ODD)).json()["lag"] == 6
    assert http.post(at(ODD, "pause")).status_code == 204
    assert http.get(at(ODD)).json()["paused"] is True
    assert http.post(at(ODD, "resume")).status_code == 204
    assert http.get(at(ODD)).json()["paused"] is False
    assert http.delete(at(ODD)).status_code == 204
    assert http.get(at(ODD)).status_code == 404


def test_the_same_again_is_no_conflict_and_another_one_is_which_shows_what_is_there(http: httpx.Client):
    made(http, "twice", "twice/#")
    made(http, "twice", "twice/#")
    response = http.post("/v1/subscriptions", json={"id": "twice", "filter": "other/#"})
    assert response.status_code == 409
    assert response.json()["kind"] == "Conflict"
    assert response.json()["existing"]["filter"] == "twice/#"


@pytest.mark.parametrize(
    "body",
    [
        {"id": "", "filter": "x/#"},
        {"id": "bad", "filter": "#/x"},
        {"id": "bad", "filter": "x/#", "start": "soon"},
        {"id": "bad", "filter": "x/#", "start": -1},
        {"id": "bad", "filter": "x/#", "options": {"max_in_flite": 1}},
        {"id": "bad", "filter": "x/#", "options": {"max_in_flight": 0}},
        {"id": "bad", "filter": "x/#", "options": {"max_in_flight": 2**31}},
        {"id": "x" * 2000, "filter": "x/#"},
    ],
)
def test_one_that_cannot_be_is_refused(body: dict[str, Any], http: httpx.Client):
    assert http.post("/v1/subscriptions", json=body).status_code == 422
    assert http.get(at("bad")).status_code == 404


def test_one_that_somebody_takes_from_is_deleted_by_force_alone(http: httpx.Client, bus: Bus):
    with bus.subscribe("used/#", id="used"):
        assert http.get(at("used")).json()["consumers"] == 1
        assert len(http.get(at("used")).json()["sessions"]) == 1
        response = http.delete(at("used"))
        assert response.status_code == 409
        assert "force" in response.json()["detail"]
        assert http.delete(at("used"), params={"force": "true"}).status_code == 204


def test_subscriptions_are_listed_in_pages(http: httpx.Client):
    ids = [f"listed-{n:02}" for n in range(7)]
    for id in ids:
        made(http, id, "listed/#")
    found: list[str] = []
    after: str | None = "listed-"
    while after is not None and after < "listed-99":
        page = http.get("/v1/subscriptions", params={"after": after, "limit": 3}).json()
        found += [one["id"] for one in page["subscriptions"]]
        after = page["next"]
    assert [id for id in found if id.startswith("listed-")] == ids


def taken(consumer: Any, count: int) -> list[headwater.Message]:
    """So many messages, in however many pieces they come."""
    found: list[headwater.Message] = []
    while len(found) < count:
        more = consumer.batch(count - len(found), timeout_s=60)
        assert more
        found += more
    return found


def test_a_broken_consumer_is_seen_and_its_dead_letters_are_redriven_or_dropped(http: httpx.Client, bus: Bus):
    for n in range(5):
        bus.publish("broken/x", b"%d" % n, headers={"n": str(n)})
    with bus.subscribe("broken/#", id="broken", start="earliest", max_attempts=5, order="none") as consumer:
        messages = taken(consumer, 5)
        messages[0].nack("no luck", delay_s=3600)
        for message in messages[1:]:
            message.reject("broken for good")
        states = http.get(at("broken", "states")).json()["states"]
        assert (states[0]["root"], states[0]["offset"], states[0]["state"]) == ("broken", 1, "retry")
        assert (states[0]["errors"], states[0]["error"]) == (["no luck"], "no luck")
        assert (states[0]["topic"], states[0]["attempts"], states[0]["deliveries"]) == ("broken/x", 1, 0)
        assert states[0]["since"] < states[0]["retry_at"]
        assert states[0]["consumer"] == states[1]["consumer"] is not None
        assert [one["state"] for one in states[1:]] == ["dead"] * 4

        first = http.get(at("broken", "dead-letters"), params={"limit": 3}).json()
        rest = http.get(at("broken", "dead-letters"), params={"limit": 3, "after": first["next"]}).json()
        letters = first["dead_letters"] + rest["dead_letters"]
        assert [one["offset"] for one in letters] == [2, 3, 4, 5]
        assert rest["next"] is None
        assert letters[0]["errors"] == ["broken for good"]

        letter = http.get(at("broken", "dead-letters", "broken", 3)).json()
        assert (letter["payload"], letter["headers"]) == ("2", [["n", "2"]])
        assert http.get(at("broken", "dead-letters", "broken", 99)).status_code == 404

        assert http.post(at("broken", "dead-letters", "broken", 2, "redrive")).status_code == 204
        assert http.post(at("broken", "dead-letters", "broken", 2, "redrive")).status_code == 404
        assert http.delete(at("broken", "dead-letters", "broken", 3)).status_code == 204
        assert http.delete(at("broken", "dead-letters", "broken", 3)).status_code == 404
        body = {"places": [{"root": "broken", "offset": 4}]}
        assert http.post(at("broken", "dead-letters", "redrive"), json=body).json() == {"count": 1}
        again = taken(consumer, 2)
        assert {message.payload for message in again} == {b"1", b"3"}
        consumer.ack(again)
        assert http.delete(at("broken", "dead-letters")).status_code == 422
        assert http.delete(at("broken", "dead-letters"), params={"all": "true"}).json() == {"count": 1}
        assert http.get(at("broken", "dead-letters")).json() == {"dead_letters": [], "next": None}
        assert http.post(at("broken", "dead-letters", "redrive")).json() == {"count": 0}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", at("none")),
        ("GET", at("none", "states")),
        ("POST", at("none", "pause")),
        ("POST", at("none", "resume")),
        ("DELETE", at("none")),
        ("GET", at("none", "dead-letters")),
        ("POST", at("none", "dead-letters", "redrive")),
        ("DELETE", at("none", "dead-letters") + "?all=true"),
        ("DELETE", at("none", "dead-letters", "r", 1)),
        ("GET", "/v1/sessions/none"),
        ("POST", "/v1/sessions/none/disconnect"),
        ("DELETE", "/v1/sessions/none"),
        ("GET", "/v1/clients/none"),
        ("DELETE", "/v1/clients/none"),
        ("POST", "/v1/clients/none/rotate"),
        ("DELETE", "/v1/tokens/none"),
        ("DELETE", "/v1/rules?user=none&action=publish&filter=x"),
        ("GET", "/v1/topics/none"),
        ("GET", "/v1/nothing"),
    ],
)
def test_what_is_not_there_is_not_found(method: str, path: str, http: httpx.Client):
    response = http.request(method, path)
    assert response.status_code == 404, response.text
    assert response.json()["kind"] == "NotFound"
    assert "bus." not in response.json()["detail"]  # whoever asks over HTTP has no Python


def test_what_is_not_there_is_listed_by_a_request(http: httpx.Client):
    said = http.delete(at("none")).json()["detail"]
    assert said == 'there is no subscription "none"; GET /v1/subscriptions lists those that are'
