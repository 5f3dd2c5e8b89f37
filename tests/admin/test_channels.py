"""Channels over HTTP: made, tried, paused, removed, with a receiver that is there."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import headwater
from admin.served import Served


def made(http: httpx.Client, **others: Any) -> dict[str, Any]:
    body = {"name": "alarms", "filter": "pushed/#", "destination_host": "127.0.0.1", "destination_port": 9, **others}
    response = http.post("/v1/channels", json=body)
    assert response.status_code == 201, response.text
    channel: dict[str, Any] = response.json()
    return channel


def test_a_channel_is_made_tried_delivers_and_is_removed(http: httpx.Client, served: Served):
    with headwater.receive(port=0) as receiver, headwater.connect(served.url) as bus:
        channel = made(http, id="tcp", destination_port=receiver.port)
        assert http.post("/v1/channels/tcp/test").json()["ok"] is True
        bus.publish("pushed/x", b"1")
        message = receiver.next(timeout_s=30)
        assert message is not None
        assert message.payload == b"1"
        message.ack()
        assert http.get("/v1/channels/tcp").json()["filter"] == channel["filter"]
        paused = http.patch("/v1/channels/tcp", json={"paused": True, "name": "other"}).json()
        assert (paused["name"], paused["state"]) == ("other", "paused")
        bus.publish("pushed/x", b"2")
        refused = http.delete("/v1/channels/tcp")
        assert refused.status_code == 409
        assert "force" in refused.json()["detail"]
        assert http.delete("/v1/channels/tcp", params={"force": "true"}).status_code == 204
        assert http.get("/v1/channels/tcp").status_code == 404


def test_a_secret_is_told_once_and_an_id_that_is_there_is_a_conflict_that_shows_it(http: httpx.Client):
    channel = made(http, id="hook", kind="http", path="/in")
    secret = channel["secret"]
    assert secret
    assert secret not in http.get("/v1/channels").text
    again = http.post("/v1/channels", json={**_spec(channel), "id": "hook"})
    assert again.status_code == 409
    assert again.json()["existing"]["path"] == "/in"
    assert secret not in again.text
    assert http.post("/v1/channels/hook/test").json()["ok"] is False
    assert http.delete("/v1/channels/hook", params={"force": "true"}).status_code == 204


def _spec(channel: dict[str, Any]) -> dict[str, Any]:
    return {name: channel[name] for name in ("name", "filter", "destination_host", "destination_port", "kind")}


@pytest.mark.parametrize(
    "others",
    [
        {"destination_host": "10.0.0.1"},
        {"destination_port": 0},
        {"destination_port": 70_000},
        {"kind": "udp"},
        {"filter": "#/x"},
        {"path": "/in"},
        {"options": {"order": "sideways"}},
    ],
)
def test_one_that_cannot_be_is_refused(others: dict[str, Any], http: httpx.Client):
    body = {"name": "bad", "filter": "bad/#", "destination_host": "127.0.0.1", "destination_port": 9, **others}
    assert http.post("/v1/channels", json=body).status_code in {403, 422}
    assert "bad" not in {one["name"] for one in http.get("/v1/channels").json()["channels"]}


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/test")])
def test_what_is_not_there_is_not_found(method: str, path: str, http: httpx.Client):
    body = {"name": "x"} if method == "PATCH" else None
    assert http.request(method, f"/v1/channels/none{path}", json=body).status_code == 404
