"""What else a broker shows over HTTP: topics, sessions, clients, rules, pipelines, settings."""

from __future__ import annotations

import os
from datetime import datetime

import httpx
import pytest

import headwater
from admin.served import Served


def test_the_topic_tree_is_walked_level_by_level(http: httpx.Client, served: Served):
    with headwater.connect(served.url) as bus:
        bus.publish_many([(f"tree/{n:03}/x", b"1") for n in range(25)])
        bus.publish("tree/000/x", b"kept", retain=True)
    roots = {one["name"]: one for one in http.get("/v1/topics").json()["levels"]}
    assert (roots["tree"]["topics"], roots["tree"]["messages"]) == (25, 26)
    names: list[str] = []
    after = None
    while True:
        asked = {"parent": "tree", "limit": "10", **({"after": after} if after else {})}
        page = http.get("/v1/topics", params=asked).json()
        names += [one["name"] for one in page["levels"]]
        after = page["next"]
        if after is None:
            break
    assert names == [f"{n:03}" for n in range(25)]
    (leaf,) = http.get("/v1/topics", params={"parent": "tree/000", "values": "true"}).json()["levels"]
    assert (leaf["path"], leaf["is_topic"], leaf["value"]["payload"]) == ("tree/000/x", True, "kept")
    assert http.get("/v1/topics", params={"values": "true", "limit": "1000"}).status_code == 422


def test_a_root_is_removed_and_not_from_under_subscriptions_unless_forced(http: httpx.Client, served: Served):
    with headwater.connect(served.url) as bus:
        bus.publish("removed/x", b"1")
        bus.subscribe("removed/#", id="needs it").close()
        refused = http.delete("/v1/topics/removed")
        assert refused.status_code == 409
        assert "needs it" in refused.text
        assert http.delete("/v1/topics/removed", params={"force": True}).status_code == 204
        assert http.delete("/v1/topics/removed").status_code == 404
        assert bus.topics("removed/#") == []
        bus.unsubscribe("needs it")


def test_a_purge_removes_what_a_filter_matches(http: httpx.Client, served: Served):
    with headwater.connect(served.url) as bus:
        bus.publish("purged/x", b"1")
    assert http.post("/v1/topics/purge", json={"filter": "purged/#"}).json() == {"topics": 1}
    assert http.get("/v1/messages", params={"filter": "purged/#"}).json()["messages"] == []


def test_a_session_is_shown_and_disconnected(http: httpx.Client, served: Served):
    with headwater.connect(served.url) as bus, bus.subscribe("seen/#"):
        (session,) = (
            one
            for one in http.get("/v1/sessions").json()["sessions"]
            if any(subscription["filter"] == "seen/#" for subscription in one["subscriptions"])
        )
        assert session["connected"]
        assert (session["protocol"], session["pid"]) == ("Headwater", os.getpid())
        assert session["bytes_in"] > 0 < session["bytes_out"]
        path = f"/v1/sessions/{session['id']}"
        assert http.get(path).json()["user"] == session["user"]
        assert http.post(f"{path}/disconnect").status_code == 204
        bus.publish("seen/x", b"it came back")
        assert http.delete(path).status_code == 204
        assert http.get(path).status_code == 404


def test_sessions_are_shown_page_by_page(http: httpx.Client, served: Served):
    buses = [headwater.connect(served.url) for _ in range(5)]
    try:
        whole = [one["id"] for one in http.get("/v1/sessions", params={"limit": "1000"}).json()["sessions"]]
        assert {bus.session for bus in buses} <= set(whole)
        found: list[str] = []
        sizes: list[int] = []
        after: str | None = None
        while True:
            page = http.get("/v1/sessions", params={"limit": "2", **({"after": after} if after else {})}).json()
            found += [one["id"] for one in page["sessions"]]
            sizes.append(len(page["sessions"]))
            after = page["next"]
            if after is None:
                break
        assert found == whole == sorted(whole)
        assert set(sizes[:-1]) == {2}
    finally:
        for bus in buses:
            bus.close()


def test_a_client_is_let_in_with_a_secret_that_is_told_once(http: httpx.Client):
    made = http.post("/v1/clients", json={"name": "sensor-7"})
    assert made.status_code == 201
    secret = made.json()["secret"]
    assert secret not in http.get("/v1/clients").text
    again = http.post("/v1/clients", json={"name": "sensor-7"})
    assert again.status_code == 409
    assert again.json()["existing"]["name"] == "sensor-7"
    assert secret not in again.text
    rotated = http.post("/v1/clients/sensor-7/rotate").json()["secret"]
    assert rotated != secret
    assert (
        http.post("/v1/clients/sensor-7/rotate", json={"secret": "given by hand"}).json()["secret"] == "given by hand"
    )
    assert http.delete("/v1/clients/sensor-7").status_code == 204
    assert http.post("/v1/clients", json={"name": "a/b"}).status_code == 422


def test_rules_are_granted_forbidden_and_taken_back(http: httpx.Client):
    rule = {"user": "ann", "action": "publish", "filter": "home/#"}
    assert http.post("/v1/rules", json=rule).json() == {**rule, "allow": True}
    assert http.post("/v1/rules", json={**rule, "allow": False}).status_code == 201
    assert {**rule, "allow": False} in http.get("/v1/rules").json()["rules"]
    assert http.delete("/v1/rules", params=rule).status_code == 204
    assert http.delete("/v1/rules", params=rule).status_code == 404
    assert http.post("/v1/rules", json={**rule, "action": "fly"}).status_code == 422


def test_settings_pipelines_and_events_are_shown(http: httpx.Client, served: Served):
    settings = {one["name"]: one for one in http.get("/v1/config").json()["settings"]}
    assert settings["http_port"]["value"] == 0
    assert settings["http_port"]["source"] == "HEADWATER_HTTP_PORT"
    with headwater.connect(served.url) as bus:
        bus.publish("archived/x", b"1")
    roots = {one["root"]: one for one in http.get("/v1/pipelines").json()["pipelines"]}
    assert (roots["archived"]["archived"], roots["archived"]["end"]) == (0, 2)
    assert http.get("/v1/pipelines/jobs").json() == {"jobs": []}
    assert "events" in http.get("/v1/events").json()


def test_figures_are_told_to_prometheus_and_as_json(http: httpx.Client, served: Served):
    with headwater.connect(served.url) as bus:
        bus.publish("counted/x", b"1")
    told = http.get("/metrics")
    assert told.headers["content-type"].startswith("text/plain")
    assert "# TYPE headwater_" in told.text
    assert 'root="counted"' in told.text
    figures = http.get("/v1/figures").json()
    assert figures["time_us"] > figures["started_us"]
    assert datetime.fromisoformat(figures["time"]).timestamp() == pytest.approx(figures["time_us"] / 1e6)
    assert figures["time"] > figures["started"]
    assert "counted" in {one["root"] for one in figures["roots"]}


@pytest.mark.parametrize(
    ("path", "allowed"), [("/v1/topics", "GET"), ("/v1/channels/x%2Fy", "DELETE, GET, PATCH"), ("/healthz", "GET")]
)
def test_a_method_that_is_not_for_a_path_is_a_problem_too(path: str, allowed: str, http: httpx.Client):
    response = http.put(path)
    assert response.status_code == 405
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["allow"] == allowed
