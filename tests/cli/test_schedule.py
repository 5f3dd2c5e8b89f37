"""`headwater schedule`, on a folder and at a server."""

from __future__ import annotations

from pathlib import Path

import headwater
from cli.command import here, objects_here
from client.served import Served


def test_a_schedule_is_added_listed_and_removed(tmp_path: Path):
    data = tmp_path / "data"
    said = here(
        *("schedule", "add", "jobs/nightly", "run", "--cron", "0 3 * * *", "--zone", "Europe/Berlin"),
        *("--header", "a=b", "--key", "k", "--data", data),
    ).stdout
    assert "jobs/nightly  next " in said
    (found,) = objects_here("schedule", "list", data=data)
    assert (found["id"], found["cron"], found["payload"], found["headers"]) == (
        "jobs/nightly",
        "0 3 * * *",
        "run",
        [["a", "b"]],
    )
    assert found["last"] is None
    with headwater.open(data):  # beside the owner, too
        assert "Europe/Berlin" in here("schedule", "list", data=data).stdout
    assert "five fields" in here("schedule", "add", "jobs/x", "--cron", "daily", data=data, code=2).stderr
    assert "no schedule" in here("schedule", "remove", "jobs/x", data=data, code=2).stderr
    here("schedule", "remove", "jobs/nightly", data=data)
    assert objects_here("schedule", "list", data=data) == []


def test_the_same_at_a_server(tmp_path: Path):
    with Served(tmp_path / "data") as served:
        at = ("--url", served.url)
        here("schedule", "add", "jobs/nightly", "run", "--cron", "0 3 * * *", *at)
        assert [one.id for one in served.bus.schedules()] == ["jobs/nightly"]
        assert "jobs/nightly" in here("schedule", "list", *at).stdout
        here("schedule", "remove", "jobs/nightly", *at)
        assert served.bus.schedules() == []
