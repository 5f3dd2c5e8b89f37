"""Schemas of a served bus: who may make them, who sees them, and who is told what of a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

import pytest

import headwater
import headwater.aio
from headwater import Conflict, Malformed, NotAllowed, NotFound, Outgoing, PartlyStored, SchemaMismatch
from headwater.client.bus import Bus as ServedBus
from headwater.config import Config, Connecting
from headwater.wire import administration
from server.harness import SECRET, Running

GOOD, BAD = b'{"celsius": 1}', b'{"celsius": "warm"}'
WHERE = r'schema of "home/\+/temp": at \$\.celsius'


@dataclass
class Reading:
    celsius: float


@pytest.fixture
def running() -> Iterator[Running]:
    with Running(config=Config(message_bytes_max=4 << 20), auth="scram", keepalive_s=86_400.0) as running:
        running.client(
            "ann", allow=("publish home/#", "create home/#", "subscribe home/#", "publish garden/#", "create #")
        )
        running.client("eve", allow=("publish home/mine/#", "create home/#"))
        running.client("root", admin=True)
        running.rules("root", allow=("publish #", "create #", "subscribe #"))
        running.bus.schema("home/+/temp", Reading)
        yield running


def url_of(running: Running, name: str) -> str:
    return running.server.url.replace("://", f"://{name}:{quote(SECRET)}@")


def connected(running: Running, name: str, settings: Connecting | None = None) -> ServedBus:
    return headwater.connect(url_of(running, name), settings)


def test_administrators_make_and_remove_schemas_and_who_may_subscribe_sees_them(running: Running):
    with connected(running, "root") as root, connected(running, "ann") as ann, connected(running, "eve") as eve:
        made = root.schema("garden/#", Reading)
        assert root.schema("garden/#", Reading) == made
        assert [one.filter for one in root.schemas()] == ["garden/#", "home/+/temp"]
        assert [one.filter for one in root.schemas(limit=1, after="garden/#")] == ["home/+/temp"]
        assert [one.filter for one in ann.schemas()] == ["home/+/temp"]
        assert eve.schemas() == []
        for work in (lambda: ann.schema("x/#", Reading), lambda: ann.remove_schema("home/+/temp")):
            with pytest.raises(NotAllowed, match="look after schemas"):
                work()
        with pytest.raises(Malformed, match="pattern"):
            root.schema("x/#", {"type": "string", "pattern": "x"})
        with pytest.raises(Malformed, match="give a dataclass"):
            root.schema("x/#", 3)
        running.bus.publish("x/y", b"")
        with pytest.raises(Conflict, match='message 1 of "x/y"'):
            root.schema("x/#", Reading)
        root.schema("x/#", Reading, check="none")
        root.remove_schema("x/#")
        with pytest.raises(NotFound):
            root.remove_schema("x/#")
        told = [one.json() for one in running.bus.replay("$sys/audit")]
        assert (told[-1]["what"], told[-1]["who"], told[-1]["target"]) == ("schema-removed", "root", "x/#")


def test_the_server_checks_what_a_client_says_is_a_schema(running: Running):
    peer = running.peer("root")
    for text in (
        "{",
        '{"type": "string", "pattern": "x"}',
        "[" * 10_000,
        '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}',
    ):
        with pytest.raises(Malformed):
            peer.ask(administration.SetSchema(filter="x/#", schema=text))
    assert [one.filter for one in peer.ask(administration.ListSchemas())] == ["home/+/temp"]


def test_threads_and_asyncio_are_refused_at_each_of_their_doors(running: Running):
    with connected(running, "ann") as ann:
        assert ann.publish("home/a/temp", Reading(1)).offset == 1
        with pytest.raises(SchemaMismatch, match=WHERE) as caught:
            ann.publish("home/a/temp", BAD)
        assert caught.value.code == 422
        with pytest.raises(SchemaMismatch, match=WHERE):
            ann.publish_many([("home/a/temp", GOOD), Outgoing("home/a/temp", BAD, key=b"k")])
        with pytest.raises(PartlyStored) as partly:
            ann.publish_many([("home/a/temp", BAD), ("garden/x", b"1")])
        assert [receipt and receipt.topic for receipt in partly.value.receipts] == [None, "garden/x"]
        with pytest.raises(SchemaMismatch, match=WHERE):
            ann.publish("home/a/temp", BAD, deliver_at=ann.now)
        with pytest.raises(SchemaMismatch, match=WHERE):
            ann.schedule("home/a/temp", BAD, cron="0 * * * *")
        with pytest.raises(SchemaMismatch, match=WHERE):
            ann.stage("p", 1, [("home/a/temp", BAD)])
        with pytest.raises(SchemaMismatch, match="it is empty"):
            ann.publish("home/a/temp", b"")
        ann.publish("home/a/temp", b"", retain=True)
        with pytest.raises(SchemaMismatch, match=WHERE):  # so long that a thread looks at it
            ann.publish_many([("home/a/temp", BAD), ("home/x", bytes(1 << 20))])

    async def asynchronous() -> None:
        async with headwater.aio.connect(url_of(running, "root")) as root:
            with pytest.raises(SchemaMismatch, match=WHERE):
                await root.publish("home/a/temp", BAD)
            await root.schema("garden/#", Reading, check="none")
            assert len(await root.schemas()) == 2
            await root.remove_schema("garden/#")

    asyncio.run(asynchronous())
    assert running.bus.ends()["home"] == 2


def test_one_that_is_refused_costs_no_other_its_place(running: Running):
    with connected(running, "ann") as ann:
        futures = [ann.publish_soon("home/a/temp", BAD if place % 10 == 3 else GOOD) for place in range(100)]
        errors = [future.exception(60) for future in futures]
        assert [place for place, error in enumerate(errors) if error is not None] == list(range(3, 100, 10))
        assert {type(error) for error in errors if error is not None} == {SchemaMismatch}
        assert [future.result().offset for future, error in zip(futures, errors, strict=True) if error is None] == list(
            range(1, 91)
        )
        for place in range(100):
            ann.send("home/a/temp", BAD if place % 10 == 3 else GOOD)
        ann.publish("home/end", b"")
        running.until(lambda: running.bus.ends()["home"] == 181, "storing the others")
        running.until(lambda: running.server.sessions.counts.unstored == 10, "counting what was refused")


def test_who_may_not_publish_to_a_topic_learns_nothing_of_its_schema(running: Running):
    peer = running.peer("eve")
    long = bytes(1 << 20)  # a thread looks at what is so long
    for topics, payloads in (("home/a/temp", BAD), (["home/a/temp", "home/mine/x"], [BAD, long])):
        with pytest.raises(NotAllowed) as caught:
            peer.publish(topics, payloads)
        assert "celsius" not in str(caught.value)
    with pytest.raises(SchemaMismatch):
        running.peer("ann").publish("home/a/temp", BAD)
