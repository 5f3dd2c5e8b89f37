"""An attacker who may subscribe, and no more, forges messages into the durable subscription of somebody else: it takes
from it, gives up on a message, mends the dead letter, and has it handed out again."""

from __future__ import annotations

import msgspec
import pytest

from headwater.message import FROM, DeadLetter
from headwater.wire import requests
from server.harness import Running, code


@pytest.fixture
def running():
    with Running(auth="scram") as running:
        running.client("worker", allow=["subscribe orders/#"])
        running.client("eve", allow=["subscribe orders/#"])
        running.client("boss", allow=["subscribe orders/#", "publish orders/a"])
        running.client("root", allow=["subscribe orders/#"], admin=True)
        yield running


def dead_letter(running: Running, payload: bytes = b"pay 1") -> DeadLetter:
    """A letter of the worker's subscription, which eve brought about."""
    eve = running.peer("eve")
    eve.subscribe(1, "orders/#", kind="named", id="work")
    running.bus.publish("orders/a", payload)
    (got,) = eve.take(1, 1)
    eve.ask(requests.Reject(number=1, lease=got.lease, offset=got.offset, error="bad"))
    (letter,) = eve.ask(requests.DeadLetters(id="work"))
    assert isinstance(letter, DeadLetter)
    eve.close()
    running.until(lambda: running.bus.core.dispatcher.info(running.bus.core.durables.row("work")).in_flight == 0)
    return letter


def mend(letter: DeadLetter, **changes: object) -> requests.Mend:
    return requests.Mend(id="work", write="w", letters=(msgspec.structs.replace(letter, **changes),), part="")


def test_who_may_not_publish_to_a_letters_topic_neither_mends_nor_redrives_it(running: Running):
    letter = dead_letter(running)
    eve, worker = running.peer("eve"), running.peer("worker")
    for request in (
        mend(letter, payload=b"pay 1000000"),
        mend(letter),
        requests.RedriveMended(id="work", write="w", parts=("",)),
        requests.Redrive(id="work"),
        requests.Redrive(id="work", offsets=(letter.offset,)),
    ):
        if isinstance(request, requests.RedriveMended):
            assert eve.ask(request) == 0  # it has mended nothing
            continue
        with code(403, "eve", "publish", "orders/a"):
            eve.ask(request)
    worker.subscribe(1, "orders/#", kind="named", id="work")
    worker.quiet()
    assert [one.payload for one in running.bus.dead_letters("work")] == [b"pay 1"]


@pytest.mark.parametrize("user", ["boss", "root"])
def test_who_may_publish_there_and_an_administrator_do(running: Running, user: str):
    letter = dead_letter(running)
    peer, worker = running.peer(user), running.peer("worker")
    peer.ask(mend(letter, payload=b"pay 2"))
    assert peer.ask(requests.RedriveMended(id="work", write="w", parts=("",))) == 1
    worker.subscribe(1, "orders/#", kind="named", id="work")
    (got,) = worker.take(1, 1)
    assert got.payload == b"pay 2"
    worker.ask(requests.Reject(number=1, lease=got.lease, offset=got.offset, error="bad"))
    assert peer.ask(requests.Redrive(id="work")) == 1
    assert worker.payloads(1, 1) == [b"pay 2"]


def test_what_was_mended_is_not_redriven_once_the_right_is_gone(running: Running):
    letter = dead_letter(running)
    boss = running.peer("boss")
    boss.ask(mend(letter, payload=b"pay 2"))
    running.bus.acl.remove("boss", "publish", "orders/a")
    with code(403, "boss"):
        boss.ask(requests.RedriveMended(id="work", write="w", parts=("",)))
    assert [one.payload for one in running.bus.dead_letters("work")] == [b"pay 1"]


def test_a_mended_letter_asks_for_no_answer_where_its_mender_could_not_publish(running: Running):
    letter = dead_letter(running)
    boss, root = running.peer("boss"), running.peer("root")
    with code(403, "doors/front"):
        boss.ask(mend(letter, header_pairs=(("reply-to", "doors/front"),)))
    for peer in (boss, root):
        with code(422, FROM):
            peer.ask(mend(letter, header_pairs=((FROM, "worker/x"),)))


def test_letters_can_still_be_looked_at_and_dropped_by_who_may_subscribe(running: Running):
    letter = dead_letter(running)
    eve = running.peer("eve")
    assert eve.ask(requests.DropDeadLetters(id="work", offsets=(letter.offset,))) == 1
