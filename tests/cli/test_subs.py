from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import headwater
from cli.command import here, objects, objects_here, one_sentence, run
from client.served import Served
from headwater import ConsumerInfo, SubscriptionInfo
from headwater.cli.subs import taken_by


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


def test_one_is_shown_with_what_became_of_its_messages_also_beside_the_owner(data: Path):
    with headwater.open(data) as bus, bus.subscribe("home/#", id="slow") as sub:
        first = sub.batch(3, 1)[0]
        first.nack("line one\nline two", delay_s=600)
        bus.subscribe("home/#", id="other", order="none", start="earliest").batch(2, 1)[1].reject("never")
        (beside,) = objects("subs", "list", data=data)[-1:]
        assert "in_flight" not in beside
        (found,) = objects("subs", "show", "slow", data=data)
        (state,) = found["states"]
        assert (state["topic"], state["offset"], state["state"], state["attempts"]) == ("home/a", 3, "retry", 1)
        assert state["errors"] == ["line one\nline two"]
        assert state["since"] < state["retry_at"]
        assert "retry_at_us" not in state
        shown = run("subs", "show", "slow", data=data).stdout
        assert "line one" in shown
        assert "line two" not in shown
        (other,) = objects("subs", "show", "other", data=data)
        (dead,) = other["states"]
        assert (dead["state"], dead["errors"], "retry_at" in dead) == ("dead", ["never"], False)
    refused = here("subs", "show", "none", data=data, code=2)
    assert "NotFound(404)" in refused.stderr


def test_they_are_listed_by_a_command_too(data: Path):
    assert objects_here("subs", "list", data=data) == objects_here("subs", data=data)


@pytest.mark.parametrize("given", [("--data", "elsewhere"), ("--url", "headwater://127.0.0.1:1"), ("--json",)])
def test_what_is_said_before_a_command_is_not_passed_over(data: Path, given: tuple[str, ...]):
    said = run("subs", *given, "list", code=2).stderr
    assert one_sentence(said)
    assert "behind list: headwater subs list … --data FOLDER" in said


def test_a_subscription_is_paused_resumed_sought_and_deleted(data: Path):
    run("subs", "pause", "slow", data=data)
    assert objects_here("subs", data=data)[0]["paused"]
    assert "paused" in here("subs", data=data).stdout
    here("subs", "resume", "slow", data=data)
    assert not objects_here("subs", data=data)[0]["paused"]
    assert objects_here("subs", "seek", "slow", "earliest", data=data) == [
        {"id": "slow", "done": "goes on from earliest"}
    ]
    assert objects_here("subs", data=data)[0]["lag"] == 5
    here("subs", "seek", "slow", 5, data=data)
    assert objects_here("subs", data=data)[0]["lag"] == 1
    here("subs", "delete", "slow", data=data)
    assert objects_here("subs", data=data) == []


def test_one_is_created_before_anybody_takes_from_it(data: Path):
    for _ in range(2):
        here("subs", "create", "new", "home/#", "--start", "earliest", "--order", "none", "--data", data)
    (found,) = [one for one in objects_here("subs", "--data", data) if one["id"] == "new"]
    assert (found["filter"], found["order"], found["lag"]) == ("home/#", "none", 5)
    refused = here("subs", "create", "new", "home/a", "--data", data, code=2).stderr
    assert "Conflict(409)" in refused
    assert "home/#" in refused


def test_the_same_at_a_server_under_those_who_take(data: Path):
    with Served(data) as served, headwater.connect(served.url) as bus:
        at = ("--url", served.url)
        here("subs", "create", "new", "home/#", "--max-attempts", 2, *at)
        taker = bus.subscribe("home/#", id="new")
        here("subs", "seek", "new", "earliest", *at)
        assert len(taker.batch(5, 10)) == 5
        (shown,) = objects_here("subs", "show", "new", *at)
        assert (shown["in_flight"], shown["consumers"]) == (5, 1)
        assert {(one["topic"], one["state"]) for one in shown["states"]} == {("home/a", "in_flight")}
        here("subs", "pause", "new", *at)
        assert served.bus.durables.row("new").paused
        here("subs", "resume", "new", *at)
        assert not served.bus.durables.row("new").paused
        assert one_sentence(here("subs", "delete", "new", *at, code=2).stderr)
        here("subs", "delete", "new", "--force", *at)
        with pytest.raises(headwater.Closed):
            taker.batch(1, 10)
    assert [one["id"] for one in objects_here("subs", "--data", data)] == ["slow"]


@pytest.mark.parametrize(
    "wrong",
    [
        ("pause", "none"),
        ("delete", "none"),
        ("seek", "slow", "nowhere"),
        ("seek", "none", "latest"),
        ("create", "slow", "home/x"),
        ("create", "new", "home/#/x"),
        ("create", "new", "home/#", "--order", "random"),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(data: Path, wrong: tuple[str, ...]):
    assert one_sentence(here("subs", *wrong, "--data", data, code=2).stderr)
    assert [found["id"] for found in objects_here("subs", "--data", data)] == ["slow"]


def test_who_takes_is_told_in_a_few_words() -> None:
    one, other = ConsumerInfo("pump-3", 812, "ann", "s1"), ConsumerInfo("10.0.0.7")
    info = SubscriptionInfo("s", "a/#", "none", 0, 0, 0, 0, 0, False, {})
    assert taken_by(info) == ""
    assert taken_by(msgspec.structs.replace(info, consumers=1, active=(other,))) == "10.0.0.7"
    assert taken_by(msgspec.structs.replace(info, consumers=2, active=(one, other))) == "pump-3 pid 812 and 1 more"
    told = msgspec.structs.replace(info, consumers=2, active=(one,), standing_by=(other,))
    assert taken_by(told) == "pump-3 pid 812; 1 stand by"
