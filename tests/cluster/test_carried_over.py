"""What clients of every kind left with a leader, they find with the next: one node is killed under all of them.

Each test looks at one thing; what was there before the kill is made once.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import httpx
import pytest

import headwater
from cluster.conftest import runs_nats
from cluster.rig import PATIENCE_S, Rig, retried
from headwater.admin import Admin

LEASE_S = 1.5
EPOCH = 7

pytestmark = [
    pytest.mark.xdist_group("nats"),
    pytest.mark.skipif(
        shutil.which("mosquitto_sub") is None, reason="no mosquitto_sub; on Debian: apt-get install mosquitto-clients"
    ),
]


class Left:
    """A cluster whose leader was killed, and what was left with it before."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.first = rig.leader()
        self.near, self.far = (place for place in range(3) if place != self.first)
        """Nodes that follow: clients come by them."""
        self.receiver = headwater.receive(port=0)
        self._make()
        rig.kill_node(self.first)
        self.mortal.kill()
        self.mortal.wait()
        self.second = rig.leader()

    def _make(self) -> None:
        bus = self.rig.bus
        # An MQTT client that is away, and has messages of each kind to come.
        self.mosquitto("sub", self.near, "-c", "-i", "keeper", "-q", 2, "-t", "carry/mqtt/#", "-E")
        self.mosquitto(
            "sub", self.near, "-V", 5, "-x", 600, "-c", "-i", "sharer", "-q", 1, "-t", "$share/g/carry/shared", "-E"
        )
        for number in range(5):
            self.mosquitto("pub", self.far, "-q", 2, "-t", "carry/mqtt/a", "-m", number)
            self.mosquitto("pub", self.far, "-q", 1, "-t", "carry/shared", "-m", number)
        self.mosquitto("pub", self.near, "-q", 1, "-r", "-t", "carry/kept", "-m", "retained")
        # One that is there, by a node that follows, and has a will.
        will = ("--will-topic", "carry/will", "--will-payload", "gone", "--will-qos", 1)
        self.mortal = self.begun("sub", self.near, "-i", "mortal", "-q", 1, "-t", "carry/mortal", *will)
        # One that stays, through all of it.
        self.stays = self.begun("sub", self.near, "-V", 5, "-x", 600, "-c", "-i", "stays", "-q", 1, "-t", "carry/stays")
        for name in ("mortal", "stays"):
            self.rig.wait(name, partial(self._is_there, name))
        bus.publish("carry/stays", b"before")
        bus.publish("carry/later", b"due", deliver_at=bus.now + timedelta(seconds=4))
        bus.schedule("carry/nightly", b"n", cron="0 3 * * *", id="nightly")
        Admin(bus).channels.add("pushed", "carry/pushed", "127.0.0.1", self.receiver.port, start="earliest")
        for number in range(3):
            bus.publish("carry/pushed", b"%d" % number)
        self.first_pushed = self.receiver.next(timeout_s=PATIENCE_S)
        bus.stage("sink", EPOCH, [("carry/staged", b"%d" % number) for number in range(3)])

    def _is_there(self, client: str) -> bool:
        return any(
            one.client == client and one.address and one.subscriptions for one in Admin(self.rig.bus).sessions.list()
        )

    def port(self, place: int) -> int:
        return self.rig.mqtt_ports[place]

    def begun(self, program: str, place: int, *arguments: object) -> subprocess.Popen[str]:
        command = [f"mosquitto_{program}", "-h", "127.0.0.1", "-p", self.port(place), *arguments]
        return subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)

    def mosquitto(self, program: str, place: int, *arguments: object) -> str:
        """What it prints."""
        until = time.monotonic() + PATIENCE_S
        while True:
            with self.begun(program, place, *arguments) as process:
                said, _ = process.communicate(timeout=PATIENCE_S)
            if process.returncode == 0:
                return said
            assert time.monotonic() < until, (program, arguments, process.returncode)

    def stored(self, filter: str) -> list[bytes]:
        return [message.payload for message in self.rig.bus.replay(filter)]

    def close(self) -> None:
        for process in (self.mortal, self.stays):
            process.kill()
            process.communicate()
        self.receiver.close()


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    runs_nats()
    with Rig(tmp_path_factory.mktemp("rig"), lease_s=LEASE_S) as rig:
        made = Left(rig)
        try:
            yield made
        finally:
            made.close()


def test_an_mqtt_session_that_was_away_gets_what_it_has_yet_to_get_once(left: Left):
    more = ("-c", "-i", "keeper", "-q", 2, "-t", "carry/mqtt/#", "-C", 6)
    left.mosquitto("pub", left.far, "-q", 2, "-t", "carry/mqtt/a", "-m", "after")
    assert left.mosquitto("sub", left.far, *more).split() == ["0", "1", "2", "3", "4", "after"]
    assert left.stored("carry/mqtt/#") == [b"0", b"1", b"2", b"3", b"4", b"after"]


def test_an_mqtt_client_that_stays_goes_on_by_the_same_node(left: Left):
    for _ in range(3):
        left.rig.bus.publish("carry/stays", b"after")
    assert left.stays.stdout is not None
    found = [left.stays.stdout.readline().strip() for _ in range(4)]
    assert found == ["before", "after", "after", "after"]


def test_a_shared_subscription_goes_on(left: Left):
    filter = ("-t", "$share/g/carry/shared")
    said = left.mosquitto("sub", left.near, "-V", 5, "-x", 600, "-c", "-i", "sharer", "-q", 1, *filter, "-C", 5)
    assert said.split() == ["0", "1", "2", "3", "4"]


def test_what_was_retained_is(left: Left):
    assert left.mosquitto("sub", left.far, "-t", "carry/kept", "-C", 1).strip() == "retained"
    assert left.rig.bus.retained("carry/kept")["carry/kept"].payload == b"retained"


def test_a_will_is_published_once(left: Left):
    left.rig.wait("the will", lambda: len(left.stored("carry/will")) or None)
    left.rig.bus.publish("carry/will", b"nothing more")
    assert left.stored("carry/will") == [b"gone", b"nothing more"]


def test_a_delayed_message_comes_once(left: Left):
    left.rig.wait("the delayed message", lambda: len(left.stored("carry/later")) or None)
    assert left.stored("carry/later") == [b"due"]


def test_a_recurring_message_is_still_to_come(left: Left):
    (found,) = left.rig.bus.schedules()
    assert (found.id, found.topic, found.cron) == ("nightly", "carry/nightly", "0 3 * * *")


def test_a_staged_epoch_is_committed_once(left: Left):
    first, last = left.rig.bus.commit_stage("sink", EPOCH)["carry"]
    assert last - first == 2
    retried(lambda: left.rig.bus.commit_stage("sink", EPOCH))
    assert left.stored("carry/staged") == [b"0", b"1", b"2"]


def test_a_channel_goes_on_pushing(left: Left):
    left.rig.bus.publish("carry/pushed", b"after")
    assert left.first_pushed is not None
    seen = [left.first_pushed.payload]
    while b"after" not in seen:
        message = left.receiver.next(timeout_s=PATIENCE_S)
        assert message is not None, seen
        seen.append(message.payload)
        message.ack()
    assert list(dict.fromkeys(seen)) == [b"0", b"1", b"2", b"after"]


def test_http_and_the_dashboard_are_served_by_a_node_that_follows(left: Left):
    place = next(place for place in (left.near, left.far) if place != left.second)
    where = f"http://127.0.0.1:{left.rig.http_ports[place]}"

    def publish() -> bool:
        try:
            return httpx.post(
                f"{where}/v1/messages", json={"topic": "carry/http", "payload": "x"}, timeout=30
            ).is_success
        except httpx.HTTPError:
            return False

    left.rig.wait("HTTP", lambda: publish() or None)
    assert left.stored("carry/http") == [b"x"]
    assert httpx.get(f"{where}/readyz", timeout=30).json()["role"] == "following"
    assert "Cluster" in httpx.get(f"{where}/cluster", timeout=30, follow_redirects=True).text
