"""Schemas over HTTP."""

from __future__ import annotations

import httpx

READING = {"type": "object", "properties": {"celsius": {"type": "number"}}, "required": ["celsius"]}
TEMP = "/v1/schemas/schemes%2F%2B%2Ftemp"


def test_a_schema_is_put_listed_and_deleted_and_refuses_what_does_not_fit(http: httpx.Client):
    made = http.put(TEMP, json={"schema": READING})
    assert made.status_code == 200, made.text
    assert (made.json()["filter"], made.json()["schema"]) == ("schemes/+/temp", READING)
    assert http.put("/v1/schemas/schemes%2Fx", json={"schema": {"type": "null"}, "check": "none"}).status_code == 200
    page = http.get("/v1/schemas", params={"limit": 1}).json()
    assert ([one["filter"] for one in page["schemas"]], page["next"]) == (["schemes/+/temp"], "schemes/+/temp")
    page = http.get("/v1/schemas", params={"after": "schemes/+/temp"}).json()
    assert ([one["filter"] for one in page["schemas"]], page["next"]) == (["schemes/x"], None)
    message = {"topic": "schemes/a/temp", "payload": {"celsius": "warm"}, "encoding": "json"}
    refused = http.post("/v1/messages", json=message)
    assert refused.status_code == 422
    assert "at $.celsius" in refused.text
    refused = http.post("/v1/messages/batch", json={"messages": [message]})
    assert refused.status_code == 422
    assert http.post("/v1/messages", json={**message, "payload": {"celsius": 1}}).status_code == 201
    contradicting = http.put("/v1/schemas/schemes%2F%23", json={"schema": {"type": "null"}})
    assert contradicting.status_code == 409
    assert "schemes/a/temp" in contradicting.text
    for name in (TEMP, "/v1/schemas/schemes%2Fx"):
        assert http.delete(name).status_code == 204
    assert http.delete(TEMP).status_code == 404
    assert http.get("/v1/schemas").json()["schemas"] == []


def test_what_cannot_be_checked_is_a_problem(http: httpx.Client):
    for schema in ({"type": "string", "pattern": "x"}, {"type": "strin"}):
        answer = http.put(TEMP, json={"schema": schema})
        assert answer.status_code == 422
    assert http.put(TEMP, json={"schema": True}).status_code == 422
    assert http.put(TEMP, json={"schema": READING, "check": "some"}).status_code == 422
    assert http.put("/v1/schemas/%24sys%2F%23", json={"schema": READING}).status_code == 422
