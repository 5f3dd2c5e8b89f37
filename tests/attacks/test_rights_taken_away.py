"""A client whose right was taken away, or who was removed, acts on: with what it has prepared for later, with a
connection that it still has, or as the next client of its name, which finds what it left."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

import headwater
from headwater import releases
from headwater.client.bus import Bus
from headwater.log import delays
from headwater.mqtt.kinds import V4, V5
from headwater.mqtt.packets import Will
from headwater.mqtt.properties import NONE
from headwater.mqtt.reasons import Reason
from headwater.wire import administration, requests
from mqtt.peer import Served
from server.harness import SECRET, Running, code

WRITES = ["publish home/#", "create home/#"]
ANOTHER = "another secret of a test"
HOURLY = "0 * * * *"


@pytest.fixture
def running():
    with Running(auth="scram") as running:
        running.client("ann", allow=WRITES).client("root", admin=True)
        yield running


def connect(running: Running, secret: str = SECRET) -> Bus:
    return headwater.connect(f"headwater://ann:{quote(secret)}@127.0.0.1:{running.server.port}")


def payloads(running: Running, filter: str = "home/#") -> list[bytes]:
    return [one.payload for one in running.bus.replay(filter)]


# What was staged


@pytest.mark.parametrize("action", ["publish", "create"])
def test_an_epoch_is_not_committed_without_the_right_to_publish_it(running: Running, action: str):
    with connect(running) as bus:
        bus.stage("p", 1, [("home/x", b"1")])
        running.bus.acl.remove("ann", action, "home/#")  # type: ignore[arg-type]
        with code(403, "ann", "home/x"):
            bus.commit_stage("p", 1)
        assert payloads(running) == []
        running.rules("ann", allow=WRITES)
        assert bus.commit_stage("p", 1) == {"home": (1, 1)}
    assert payloads(running) == [b"1"]


def test_what_is_visible_already_is_answered_again_whatever_the_rules(running: Running):
    with connect(running) as bus:
        bus.stage("p", 1, [("home/x", b"1")])
        gave = bus.commit_stage("p", 1)
        running.bus.acl.remove("ann", "publish", "home/#")
        assert bus.commit_stage("p", 1) == gave


def test_the_next_client_of_a_name_commits_nothing_of_the_one_before(running: Running):
    with connect(running) as bus:
        bus.stage("p", 1, [("home/x", b"of the one that was removed")])
    running.bus.clients.remove("ann")
    running.bus.clients.add("ann", SECRET)
    with connect(running) as bus:
        with code(404, "staged"):
            bus.commit_stage("p", 1)
        bus.stage("p", 1, [("home/x", b"of the new one")])
        bus.commit_stage("p", 1)
    assert payloads(running) == [b"of the new one"]


# What is delayed


def delay(running: Running, seconds: float, topic: str = "home/x") -> None:
    due_us = running.bus.core.clock.now_us() + round(seconds * 1e6)
    running.peer("ann").ask(requests.Delay(topic=topic, payload=b"later", deliver_at_us=due_us))


def released(running: Running) -> None:
    """Wait until nothing is delayed any more."""
    end = time.monotonic() + 60
    while delays.earliest(running.bus.core.state) is not None:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_delayed_message_is_not_published_without_the_right_to_when_it_is_due(running: Running):
    for topic in ("home/x", "home/y"):
        delay(running, 0.3, topic)
    running.rules("ann", deny=["publish home/x"])
    released(running)
    assert [(one.topic, one.header_pairs) for one in running.bus.replay("home/#")] == [("home/y", ())]
    assert any("dropped" in event.text and "home/x" in event.text for event in running.bus.events())


def test_a_delayed_message_of_a_client_that_was_removed_is_not_published(running: Running):
    delay(running, 0.3)
    running.bus.clients.remove("ann")
    running.bus.clients.add("ann", SECRET)
    released(running)
    assert payloads(running) == []


def test_a_delayed_message_waits_while_no_rule_counts(running: Running, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(releases, "AGAIN_US", 50_000)
    running.bus.acl.closed = "rules may be lost"
    delay_us = running.bus.core.clock.now_us() + 100_000
    running.peer("ann").ask(requests.Delay(topic="home/x", payload=b"later", deliver_at_us=delay_us))
    time.sleep(0.3)
    assert payloads(running) == []
    running.bus.acl.closed = None
    released(running)
    assert payloads(running) == [b"later"]


def test_a_delayed_message_is_not_published_by_who_opens_the_folder_later(tmp_path: Path):
    with Running(tmp_path, auth="scram") as running:
        running.client("ann", allow=WRITES)
        delay(running, 3600)
        delay(running, 0.2, "home/y")
        running.rules("ann", deny=["publish home/y"])
        running.until(lambda: len(list(delays.waiting(running.bus.core.state))) == 1)
    with headwater.open(tmp_path) as bus:
        assert bus.topics("#") == []


# What is scheduled


def test_the_next_client_of_a_name_neither_sees_nor_changes_schedules_of_the_one_before(running: Running):
    with connect(running) as bus:
        bus.schedule("home/x", b"of the one that was removed", cron=HOURLY)
    running.bus.clients.remove("ann")
    running.bus.clients.add("ann", SECRET)
    with connect(running) as bus:
        assert bus.schedules() == []
        with code(404):
            bus.unschedule("home/x")
        with code(409, "another id"):
            bus.schedule("home/x", b"of the next", cron=HOURLY)
        made = bus.schedule("home/x", b"of the next", cron=HOURLY, id="next")
        assert bus.schedules() == [made]
    assert [one.payload for one in running.bus.schedules()] == [b"of the one that was removed", b"of the next"]


# Sessions and connections


def test_a_connection_ends_when_its_client_has_another_secret(running: Running):
    ann = running.peer("ann")
    ann.subscribe(1, f"$reply/{ann.session}")
    running.peer("root").ask(administration.RotateClient(name="ann", secret=ANOTHER))
    said = ann.ends()
    assert said is not None
    assert (said.code, "secret" in str(said)) == (403, True)
    again = running.connect()
    again.shake("ann", ANOTHER)
    assert again.register(ann.session).resumed  # it is the same client


def test_who_gives_itself_another_secret_is_told_it_before_it_has_to_leave(running: Running):
    root = running.peer("root")
    drawn = root.ask(administration.RotateClient(name="root")).secret
    said = root.ends()
    assert said is not None
    assert said.code == 403
    running.connect().shake("root", drawn)


def test_who_has_shown_the_old_secret_and_has_no_session_yet_gets_none(running: Running):
    late = running.connect()
    late.shake("ann", SECRET)
    running.bus.clients.rotate("ann", ANOTHER)
    with code(403, "secret"):
        late.register()


def test_the_session_of_a_client_that_was_removed_is_not_the_next_ones(running: Running):
    ann = running.peer("ann")
    session = ann.session
    ann.close()
    running.bus.clients.remove("ann")
    running.until(lambda: not running.server.sessions.has(session))
    running.bus.clients.add("ann", SECRET)
    with code(404):
        running.peer("ann", session=session)


@pytest.mark.parametrize("version", [V4, V5])
def test_the_mqtt_session_of_a_client_that_was_removed_is_not_the_next_ones(version: int):
    with Served(auth="scram") as served:
        served.client("ann", allow=["subscribe home/#"])
        first = served.kept("phone", version, user="ann")
        first.subscribe("home/#", qos=1)
        first.leave()
        served.bus.clients.remove("ann")
        served.bus.clients.add("ann", SECRET)
        served.bus.publish("home/x", b"for the one that was removed")
        second = served.kept("phone", version, user="ann")
        assert not second.connack.session_present
        second.quiet()


def test_nor_if_it_was_removed_while_no_server_ran(tmp_path: Path):
    with Served(tmp_path, auth="scram") as served:
        served.client("ann", allow=["subscribe home/#"])
        served.kept("phone", user="ann").subscribe("home/#", qos=1)
        session = served.peer("ann", expire_after_s=3600.0).session
    with headwater.open(tmp_path) as bus:
        bus.clients.remove("ann")
        bus.clients.add("ann", SECRET)
        bus.publish("home/x", b"for the one that was removed")
    with Served(tmp_path, auth="scram") as served:
        assert not served.kept("phone", user="ann").connack.session_present
        with code(404):
            served.peer("ann", session=session)


@pytest.mark.parametrize("version", [V4, V5])
def test_an_mqtt_connection_ends_when_its_client_has_another_secret(version: int):
    with Served(auth="scram") as served:
        served.client("ann", allow=["subscribe home/#"])
        old = served.kept("phone", version, user="ann")
        old.subscribe("home/#", qos=1)
        served.bus.clients.rotate("ann", ANOTHER)
        assert old.ends() in (None, Reason.NOT_AUTHORIZED)
        again = served.line(version)
        options = {"session_expiry_interval": 60} if version == V5 else {}
        connack = again.connect("phone", clean_start=False, user_name="ann", password=ANOTHER.encode(), **options)
        assert connack.session_present  # it is the same client


def test_the_will_of_a_client_that_was_removed_is_not_published():
    with Served(auth="scram") as served:
        served.client("ann", allow=WRITES).client("bob", allow=WRITES)
        for user in ("ann", "bob"):
            will = Will(f"home/{user}", b"gone", 1, False, NONE)
            served.mqtt("phone", user=user, will=will)
        served.bus.clients.remove("ann")
        served.until(lambda: served.mqtt_session("phone", "ann") is None)
        served.until(lambda: len(served.protocol.wills) == 1)
        assert payloads(served) == []


def test_a_session_from_before_clients_were_told_apart_is_taken_up_by_its_client(tmp_path: Path):
    with Served(tmp_path, auth="scram") as served:
        served.client("ann", allow=["subscribe home/#"])
        session = served.kept("phone", user="ann")
        session.subscribe("home/#", qos=1)
        session.leave()
        row = served.mqtt_session("phone", "ann").row
        served.mqtt_session("phone", "ann").row = msgspec.structs.replace(row, owner_id="")
        assert served.kept("phone", user="ann").connack.session_present
        assert served.mqtt_session("phone", "ann").row.owner_id == row.owner_id != ""
