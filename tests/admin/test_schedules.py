"""Schedules over HTTP."""

from __future__ import annotations

import httpx

NIGHTLY = {"topic": "jobs/nightly", "payload": {"n": 1}, "encoding": "json", "cron": "0 3 * * *"}


def test_a_schedule_is_put_listed_and_deleted(http: httpx.Client):
    made = http.put("/v1/schedules/a%2Fb", json={**NIGHTLY, "headers": {"x": "y"}, "zone": "Europe/Berlin"})
    assert made.status_code == 200, made.text
    shown = made.json()
    assert (shown["id"], shown["payload"], shown["encoding"], shown["headers"]) == (
        "a/b",
        '{"n":1}',
        "text",
        [["x", "y"], ["content-type", "application/json"]],
    )
    assert (shown["last"], shown["client"]) == (None, "local")
    assert http.put("/v1/schedules/c", json=NIGHTLY).status_code == 200
    page = http.get("/v1/schedules", params={"limit": 1}).json()
    assert ([one["id"] for one in page["schedules"]], page["next"]) == (["a/b"], "a/b")
    page = http.get("/v1/schedules", params={"after": "a/b"}).json()
    assert ([one["id"] for one in page["schedules"]], page["next"]) == (["c"], None)
    for name in ("a%2Fb", "c"):
        assert http.delete(f"/v1/schedules/{name}").status_code == 204
    assert http.delete("/v1/schedules/c").status_code == 404
    assert http.get("/v1/schedules").json()["schedules"] == []


def test_a_page_that_ends_early_as_its_payloads_are_large_says_where_the_next_begins(http: httpx.Client):
    names = [f"large{number:02}" for number in range(20)]
    for name in names:
        answer = http.put(f"/v1/schedules/{name}", json={**NIGHTLY, "payload": "x" * 60_000, "encoding": "text"})
        assert answer.status_code == 200, answer.text
    found: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = http.get("/v1/schedules", params=after).json()
        found += [one["id"] for one in page["schedules"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert found == names
    for name in names:
        assert http.delete(f"/v1/schedules/{name}").status_code == 204


def test_a_line_that_makes_no_sense_is_a_problem(http: httpx.Client):
    answer = http.put("/v1/schedules/x", json={**NIGHTLY, "cron": "daily"})
    assert answer.status_code == 422
    assert "five fields" in answer.text
