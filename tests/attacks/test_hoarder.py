"""A hoarder: a client with every right that makes as much as it can, until there is nothing left for the others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import headwater
from headwater.client.bus import Bus
from headwater.config import Config
from headwater.errors import QuotaExceeded
from mqtt.peer import Served
from server.harness import SECRET

LIMITS = Config(
    roots_max=20,
    roots_per_client_max=5,
    topics_per_root_max=40,
    topics_per_client_max=10,
    subscriptions_max=20,
    subscriptions_per_client_max=5,
    delayed_max=20,
    delayed_per_client_max=5,
    stage_bytes_per_client_max=20_000,
)


class House:
    """A server, and two clients of it who may do everything."""

    def __init__(self, folder: Path, auth: str) -> None:
        self.folder, self.auth = folder, auth
        self.served: Served

    def __enter__(self) -> House:
        self.served = Served(self.folder, LIMITS, auth=self.auth, sessions_per_client_max=3)
        self.served.__enter__()
        if self.auth == "scram" and self.served.bus.clients.get("hoarder") is None:
            for name in ("hoarder", "other"):
                self.served.client(name, ("publish #", "subscribe #", "create #"), admin=True)
        return self

    def __exit__(self, *error: object) -> None:
        self.served.__exit__(*error)

    def connect(self, name: str) -> Bus:
        secret = f":{SECRET.replace(' ', '%20')}" if self.auth == "scram" else ""
        place = self.served.server.url.partition("://")[2].rpartition("@")[2]
        return headwater.connect(f"headwater://{name}{secret}@{place}")


@pytest.fixture(params=["none", "scram"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    with House(tmp_path / "data", request.param) as made:
        yield made


def again(house: House) -> House:
    """After a restart."""
    house.served.__exit__(None, None, None)
    return house.__enter__()


def test_roots_are_shared_and_one_that_is_removed_is_given_back(house: House) -> None:
    for life in range(2):
        with house.connect("hoarder") as hoarder, house.connect("other") as other:
            if not life:
                for count in range(LIMITS.roots_per_client_max):
                    hoarder.publish(f"hoard{count}/x", b"")
            with pytest.raises(QuotaExceeded, match=r"hoarder.*roots_per_client_max"):
                hoarder.publish("more/x", b"")
            hoarder.publish("hoard0/y", b"")
            other.publish(f"other{life}/x", b"")
        again(house)
    with house.connect("hoarder") as hoarder:
        house.served.bus.remove_root("hoard0")
        hoarder.publish("more/x", b"")


def test_topics_are_shared(house: House) -> None:
    with house.connect("other") as other, house.connect("hoarder") as hoarder:
        other.publish("home/first", b"")
        for count in range(LIMITS.topics_per_client_max):
            hoarder.publish(f"home/{count}", b"")
        with pytest.raises(QuotaExceeded, match=r"hoarder.*topics_per_client_max"):
            hoarder.publish("home/more", b"")
        hoarder.publish("home/0", b"again")
        other.publish("home/second", b"")
    house.served.bus.core.roots.commit.run(house.served.bus.core.roots.checkpoints.make)
    again(house)
    with house.connect("hoarder") as hoarder, house.connect("other") as other:
        with pytest.raises(QuotaExceeded, match=r"hoarder.*topics_per_client_max"):
            hoarder.publish("home/more", b"")
        other.publish("home/third", b"")
        house.served.bus.purge("home/#")
        hoarder.publish("home/more", b"")


def test_durable_subscriptions_are_shared(house: House) -> None:
    for life in range(2):
        with house.connect("hoarder") as hoarder, house.connect("other") as other:
            if not life:
                for count in range(LIMITS.subscriptions_per_client_max):
                    hoarder.subscribe("#", id=f"hoard{count}").close()
            with pytest.raises(QuotaExceeded, match=r"hoarder.*subscriptions_per_client_max"):
                hoarder.subscribe("#", id="more")
            hoarder.subscribe("#", id="hoard0").close()  # what is there is taken from as before
            other.subscribe("#", id=f"other{life}").close()
            if life:
                hoarder.unsubscribe("hoard0")
                hoarder.subscribe("#", id="more").close()
        again(house)


def test_delayed_messages_are_shared(house: House) -> None:
    for life in range(2):
        with house.connect("hoarder") as hoarder, house.connect("other") as other:
            late = hoarder.now + timedelta(hours=1)
            if not life:
                for _ in range(LIMITS.delayed_per_client_max):
                    hoarder.publish("home/x", b"", deliver_at=late)
            with pytest.raises(QuotaExceeded, match=r"hoarder.*delayed_per_client_max"):
                hoarder.publish("home/x", b"", deliver_at=late)
            other.publish("home/x", b"", deliver_at=late)
        again(house)


def test_a_delayed_message_that_was_delivered_gives_its_place_back(house: House) -> None:
    with house.connect("hoarder") as hoarder, hoarder.subscribe("home/#") as reader:
        for _ in range(3 * LIMITS.delayed_per_client_max):
            hoarder.publish("home/x", b"", deliver_at=hoarder.now + timedelta(milliseconds=1))
            assert reader.next(timeout_s=60) is not None


def test_staged_bytes_are_shared(house: House) -> None:
    for life in range(2):
        with house.connect("hoarder") as hoarder, house.connect("other") as other:
            if not life:
                hoarder.stage("p", 1, [("home/x", b"x" * 15_000)])
            with pytest.raises(QuotaExceeded, match=r"hoarder.*stage_bytes_per_client_max"):
                hoarder.stage("q", 1, [("home/x", b"x" * 15_000)])
            other.stage("r", life, [("home/x", b"x" * 5_000)])
            if life:
                hoarder.drop_stage("p", 1)
                hoarder.stage("q", 1, [("home/x", b"x" * 15_000)])
        again(house)


def test_sessions_are_shared(house: House) -> None:
    peers = [house.served.peer("hoarder") for _ in range(3)]
    with pytest.raises(QuotaExceeded, match=r"hoarder.*sessions_per_client_max"):
        house.served.peer("hoarder")
    house.served.peer("other")
    assert peers


def test_a_service_has_thousands_of_durable_subscriptions_in_one_session(tmp_path: Path) -> None:
    with Served(":memory:") as served, headwater.connect(served.server.url) as bus:
        consumers = [bus.subscribe(f"device/{count}/#", id=f"service/{count}") for count in range(1100)]
        bus.publish("device/1099/x", b"1")
        message = consumers[-1].next(timeout_s=60)
        assert message is not None
        assert message.payload == b"1"


def test_topics_that_staged_messages_make_are_shared(house: House) -> None:
    with house.connect("hoarder") as hoarder, house.connect("other") as other:
        other.publish("home/first", b"")
        many = [(f"home/{count}", b"") for count in range(LIMITS.topics_per_client_max)]
        hoarder.stage("p", 1, many)
        hoarder.stage("p", 2, [("home/more", b"")])
        hoarder.commit_stage("p", 1)
        with pytest.raises(QuotaExceeded, match=r"hoarder.*topics_per_client_max"):
            hoarder.commit_stage("p", 2)
        other.publish("home/second", b"")
