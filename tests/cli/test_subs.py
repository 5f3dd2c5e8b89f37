from __future__ import annotations

from pathlib import Path

import pytest

import headwater
from cli.command import objects, one_sentence, run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([("home/a", b"%d" % number) for number in range(5)])
        with bus.subscribe("home/#", id="slow", start="earliest") as sub:
            sub.ack(sub.batch(2, 1))
    return tmp_path / "data"


def test_subscriptions_are_listed_with_their_lag_also_beside_the_owner(data: Path):
    with headwater.open(data):
        (found,) = objects("subs", data=data)
        assert (found["id"], found["filter"], found["lag"], found["floors"]) == ("slow", "home/#", 3, {"home": 2})
        assert "slow" in run("subs", data=data).stdout


def test_a_subscription_is_paused_resumed_sought_and_deleted(data: Path):
    run("subs", "pause", "slow", data=data)
    assert objects("subs", data=data)[0]["paused"]
    assert "paused" in run("subs", data=data).stdout
    run("subs", "resume", "slow", data=data)
    assert not objects("subs", data=data)[0]["paused"]
    assert objects("subs", "seek", "slow", "earliest", data=data) == [{"id": "slow", "done": "goes on from earliest"}]
    assert objects("subs", data=data)[0]["lag"] == 5
    run("subs", "seek", "slow", 5, data=data)
    assert objects("subs", data=data)[0]["lag"] == 1
    run("subs", "delete", "slow", data=data)
    assert objects("subs", data=data) == []


@pytest.mark.parametrize("wrong", [("pause", "none"), ("delete", "none"), ("seek", "slow", "nowhere")])
def test_wrong_input_is_refused_in_one_sentence(data: Path, wrong: tuple[str, ...]):
    assert one_sentence(run("subs", *wrong, data=data, code=2).stderr)
    assert [found["id"] for found in objects("subs", data=data)] == ["slow"]
