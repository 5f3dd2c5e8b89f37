"""Who gives up on everything that it gets: its dead letters, and what it mends of them, leave room for the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater.client.bus import Bus
from headwater.config import Config
from headwater.errors import QuotaExceeded
from mqtt.peer import Served
from server.harness import SECRET

LETTERS = 3
LIMITS = Config(
    dead_letters_per_client_max=LETTERS,
    dead_letter_bytes_per_client_max=1000,
    mended_per_client_max=2,
    mended_bytes_per_client_max=1000,
    retry_delay_s=0.01,
    retry_delay_s_max=0.01,
)


class House:
    """A server, and clients of it who may do everything."""

    def __init__(self, folder: Path, auth: str) -> None:
        self.folder, self.auth = folder, auth
        self.served: Served

    def __enter__(self) -> House:
        self.served = Served(self.folder, LIMITS, auth=self.auth)
        self.served.__enter__()
        if self.auth == "scram" and self.served.bus.clients.get("hog") is None:
            for name in ("hog", "other"):
                self.served.client(name, ("publish #", "subscribe #", "create #"), admin=True)
        return self

    def __exit__(self, *error: object) -> None:
        self.served.__exit__(*error)

    def connect(self, name: str) -> Bus:
        secret = f":{SECRET.replace(' ', '%20')}" if self.auth == "scram" else ""
        place = self.served.server.url.partition("://")[2].rpartition("@")[2]
        return headwater.connect(f"headwater://{name}{secret}@{place}")

    def told(self) -> int:
        return sum(event.kind == "dead-full" for event in self.served.bus.events())


@pytest.fixture(params=["none", "scram"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    with House(tmp_path / "data", request.param) as made:
        yield made


def reject(bus: Bus, id: str, payloads: list[bytes]) -> None:
    """Publish these, and give up on each; what cannot die may come again before the next."""
    topic, rejected = f"home/{id}", set[int]()
    with bus.subscribe(topic, id=id, order="none") as reader:
        for payload in payloads:
            offset = bus.publish(topic, payload).offset
            while offset not in rejected:
                message = reader.next(timeout_s=60)
                assert message is not None
                message.reject("no")
                rejected.add(message.offset)


def test_at_its_share_nothing_dies_and_nothing_is_lost(house: House):
    with house.connect("hog") as hog, house.connect("other") as other:
        reject(hog, "first", [b"1", b"2"])
        reject(hog, "second", [b"3", b"4", b"5"])
        assert len(hog.dead_letters("first")) == 2
        assert [letter.payload for letter in hog.dead_letters("second")] == [b"3"]
        assert house.told() == 1
        reject(other, "others", [b"x"] * LETTERS)  # who has a share of its own
        assert len(other.dead_letters("others")) == LETTERS

        assert hog.dead_letters("first")[0].payload == b"1"
        hog.drop_dead_letters("first")
        with hog.subscribe("home/second", id="second", order="none") as reader:
            again = {
                message.payload: message
                for message in (reader.next(timeout_s=60), reader.next(timeout_s=60))
                if message
            }
            again[b"4"].reject("no")
            again[b"5"].ack()
        assert [letter.payload for letter in hog.dead_letters("second")] == [b"3", b"4"]


def test_what_fails_for_the_last_time_is_tried_again_in_order(house: House):
    with house.connect("hog") as hog:
        reject(hog, "first", [b""] * LETTERS)
        with hog.subscribe("home/strict", id="strict", max_attempts=1) as reader:
            for payload in (b"1", b"2"):
                hog.publish("home/strict", payload)
            for attempt in (1, 2, 3):
                message = reader.next(timeout_s=60)
                assert message is not None
                assert (message.payload, message.attempt) == (b"1", attempt)
                message.nack("not yet")
            hog.drop_dead_letters("first")
            message = reader.next(timeout_s=60)
            assert message is not None
            message.nack("no")
            message = reader.next(timeout_s=60)
            assert message is not None
            assert message.payload == b"2"
            message.ack()
        assert [letter.payload for letter in hog.dead_letters("strict")] == [b"1"]


def test_large_letters_count_by_their_bytes(house: House):
    with house.connect("hog") as hog, house.connect("other") as other:
        reject(hog, "first", [bytes(700), bytes(700)])
        assert len(hog.dead_letters("first")) == 1
        reject(other, "second", [bytes(700)])
        assert len(other.dead_letters("second")) == 1


def test_letters_that_are_redriven_count_until_they_are_done(house: House):
    with house.connect("hog") as hog:
        reject(hog, "first", [b""] * LETTERS)
        assert hog.redrive("first") == LETTERS
        reject(hog, "second", [b""])
        assert hog.dead_letters("second") == []
        with hog.subscribe("home/first", id="first") as reader:
            for _ in range(LETTERS - 1):
                message = reader.next(timeout_s=60)
                assert message is not None
                message.ack()
            message = reader.next(timeout_s=60)
            assert message is not None
            message.reject("still no")  # in the place that it has
        assert len(hog.dead_letters("first")) == 1
        reject(hog, "third", [b""] * LETTERS)
        assert len(hog.dead_letters("third")) == LETTERS - 1


def test_letters_are_counted_again_after_a_restart_and_given_back_with_their_subscription(house: House):
    with house.connect("hog") as hog:
        reject(hog, "first", [b""] * LETTERS)
    house.served.__exit__(None, None, None)
    with house, house.connect("hog") as hog:
        house.served.bus.core.dispatcher.count_dead()
        reject(hog, "second", [b""])
        assert hog.dead_letters("second") == []
        hog.unsubscribe("first")
        reject(hog, "third", [b""])
        assert len(hog.dead_letters("third")) == 1


def test_mended_letters_are_shared(house: House):
    with house.connect("hog") as hog, house.connect("other") as other:
        reject(hog, "first", [b""] * LETTERS)
        letters = [letter.mend(payload=b"better") for letter in hog.dead_letters("first")]
        hog.mend("first", "a write", letters[:2])
        hog.mend("first", "a write", letters[:2])  # which is no more than it was
        with pytest.raises(QuotaExceeded, match=r"hog.*mended_per_client_max"):
            hog.mend("first", "another", letters[2:])
        other.mend("first", "of another", letters[2:])
        with pytest.raises(QuotaExceeded, match=r"other.*mended_bytes_per_client_max"):
            other.mend("first", "of another", [letters[0].mend(payload=bytes(2000))])
        hog.drop_mended("first", "a write")
        hog.mend("first", "another", letters[2:])
        assert hog.redrive_mended("first", "another") == 1
    house.served.bus.core.mending.expire()
    with house.connect("hog") as hog:
        hog.mend("first", "last", letters[:2])
        house.served.bus.core.mending.expire()
        with pytest.raises(QuotaExceeded, match=r"hog.*mended_per_client_max"):
            hog.mend("first", "one more", letters[:1])
