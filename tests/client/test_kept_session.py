"""Sessions that outlive their process: named by their id, or kept in a file."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headwater
import headwater.admin
import headwater.aio
from client.served import Served
from headwater import Connecting, Malformed, NotAllowed, NotFound

WAIT_S = 60.0
WORKER = """
import sys, headwater
url, file = sys.argv[1:]
bus = headwater.connect(url, session=file)
sub = bus.subscribe("jobs/#", kind="session", start="earliest")
while True:
    message = sub.next()
    print(message.payload.decode(), flush=True)
    verb = sys.stdin.readline().strip()
    if verb:
        getattr(message, verb)()
        print("done", flush=True)
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as made:
        yield made


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def work_and_die(url: str, file: Path, answers: list[str]) -> list[str]:
    """Take messages in a process of its own, answer each, and be killed with the last one in hand."""
    command = [sys.executable, "-c", WORKER, url, str(file)]
    heard: list[str] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        for answer in [*answers, ""]:
            heard.append(worker.stdout.readline().strip())
            if answer:
                worker.stdin.write(f"{answer}\n")
                worker.stdin.flush()
                assert worker.stdout.readline() == "done\n"
        worker.kill()
    return heard


def test_a_process_that_was_killed_goes_on_in_its_next_life_with_what_it_had_not_acked(
    served: Served, tmp_path: Path
) -> None:
    file = tmp_path / "var" / "session"
    with headwater.connect(served.url) as bus:
        bus.publish_many([("jobs/a", str(number).encode()) for number in range(4)])
        assert work_and_die(served.url, file, ["ack", "ack"]) == ["0", "1", "2"]
        bus.publish("jobs/a", b"new")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert work_and_die(served.url, file, ["ack"]) == ["2", "3"]
    with headwater.connect(served.url, session=file) as bus:
        assert bus.session == file.read_text().strip()
        sub = bus.subscribe("jobs/#", kind="session")
        assert sub.id == f"{bus.session}:jobs/#"
        got: list[bytes] = []
        while len(got) < 2:
            message = sub.next(timeout_s=WAIT_S)
            assert message is not None
            got.append(message.payload)
            message.ack()
        assert got == [b"3", b"new"]
        assert [one.id for one in bus.subscriptions()] == [sub.id]


def test_a_session_is_taken_over_by_its_id_and_its_named_subscriptions_go_on(served: Served) -> None:
    with headwater.connect(served.url) as bus:
        bus.publish_many([("jobs/a", b"0"), ("jobs/a", b"1")])
        own = bus.subscribe("jobs/#", kind="session", start="earliest")
        named = bus.subscribe("jobs/#", id="named", start="earliest")
        for sub in (own, named):
            message = sub.next(timeout_s=WAIT_S)
            assert message is not None
            message.ack()
        with headwater.connect(served.url, session=bus.session) as again:
            assert again.session == bus.session
            # In another order than before, so that their numbers are others.
            for other in (again.subscribe("jobs/#", id="named"), again.subscribe("jobs/#", kind="session")):
                assert [message.payload for message in other.batch(10, WAIT_S)] == [b"1"]
        with pytest.raises(headwater.Conflict, match="taken this session over"):
            bus.topics()


def test_what_a_session_kept_goes_with_it_and_a_file_then_begins_anew(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "session"
    with headwater.connect(served.url, session=file) as bus:
        bus.subscribe("jobs/#", kind="session")
        first = bus.session
    with headwater.admin.connect(served.url) as admin:
        assert [one.id for one in admin.bus.subscriptions()] == [f"{first}:jobs/#"]
        admin.sessions.end(first or "")
        with pytest.raises(NotFound, match=f'write "./{first}"'):
            headwater.connect(served.url, session=first)
        with headwater.connect(served.url, session=str(file)) as bus:
            assert bus.session != first
            assert file.read_text() == f"{bus.session}\n"
        assert admin.bus.subscriptions() == []


@pytest.mark.parametrize("where", ["of the subscription", "of the session", "nowhere"])
def test_dead_letters_come_first_where_that_is_asked_for(where: str, served: Served, tmp_path: Path) -> None:
    file = tmp_path / "session"
    with headwater.connect(served.url) as bus:
        bus.publish_many([("jobs/a", str(number).encode()) for number in range(5)])
        assert work_and_die(served.url, file, ["reject", "ack", "reject"]) == ["0", "1", "2", "3"]
        bus.publish("jobs/a", b"new")
    of_all, of_one = ("keep", "redrive") if where == "of the subscription" else ("redrive", None)
    expected = [b"0", b"2", b"3", b"4", b"new"]
    if where == "nowhere":
        of_all, of_one, expected = "keep", None, expected[2:]
    with headwater.connect(served.url, session=file, on_resume=of_all) as bus:  # type: ignore[arg-type]  # one of them
        sub = bus.subscribe("jobs/#", kind="session", on_resume=of_one)  # type: ignore[call-overload]  # the same
        for payload in expected:
            message = sub.next(timeout_s=WAIT_S)
            assert message is not None
            assert message.payload == payload
            assert dict(message.headers).get("headwater-dead-offset") == {b"0": "1", b"2": "3"}.get(payload)
            message.ack()
        assert [letter.payload for letter in bus.dead_letters(sub.id)] == ([b"0", b"2"] if where == "nowhere" else [])


def test_with_asyncio_too(served: Served, tmp_path: Path) -> None:
    async def life(*expected: bytes) -> str | None:
        async with headwater.aio.connect(served.url, session=tmp_path / "session") as bus:
            sub = await bus.subscribe("jobs/#", kind="session", start="earliest")
            for payload in expected:
                message = await sub.next(timeout_s=WAIT_S)
                assert message is not None
                assert message.payload == payload
                await message.ack()
            return bus.session

    with headwater.connect(served.url) as bus:
        bus.publish_many([("jobs/a", b"0"), ("jobs/a", b"1")])
    assert asyncio.run(life(b"0")) == asyncio.run(life(b"1"))


def test_the_session_of_another_client_is_refused_and_its_file_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "session"
    with Served(tmp_path / "data", auth="scram") as served:
        for name in ("ann", "ben"):
            served.bus.clients.add(name, "secret")
        host = served.url.partition("://")[2]
        with headwater.connect(f"headwater://ann:secret@{host}", session=file) as bus:
            hers = bus.session
            ann = served.bus.clients.get("ann")
            assert ann is not None
            assert bus.client_id == ann.id
        for given in (file, hers):
            with pytest.raises(NotAllowed, match="belongs to another client"):
                headwater.connect(f"headwater://ben:secret@{host}", session=given)
        assert file.read_text() == f"{hers}\n"


@pytest.mark.parametrize("auth", ["none", "gatekeeper"])
def test_each_client_has_an_id_of_its_own(auth: str, tmp_path: Path) -> None:
    with Served(tmp_path / "data", auth=auth) as served:
        url = served.url.replace("://", "://ann@")
        with headwater.connect(url) as one, headwater.connect(url) as other:
            assert len({one.client_id, other.client_id, "ann"}) == 3
            assert str(one.client_id).startswith("ann-")


def test_a_connection_that_is_lost_comes_back_to_its_session(served: Served, tmp_path: Path) -> None:
    fast = Connecting(reconnect_delay_s=0.01, reconnect_delay_s_max=0.1)
    with headwater.connect(served.url, fast, session=tmp_path / "session") as bus:
        sub, first = bus.subscribe("jobs/#", kind="session", start="earliest"), bus.session
        served.stop()
        served.start()
        bus.publish("jobs/a", b"x")
        message = sub.next(timeout_s=WAIT_S)
        assert message is not None
        message.ack()
        assert bus.session == first


def test_what_is_no_session_is_told_and_nothing_is_changed(served: Served, tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="on_resume is 'no'"):
        headwater.connect(served.url, on_resume="no")  # type: ignore[arg-type]  # that is what is tried
    for given, words in ((3, "the path of a file"), ("", "the path of a file"), (tmp_path, "cannot be read")):
        with pytest.raises(Malformed, match=words):
            headwater.connect(served.url, session=given)  # type: ignore[arg-type]  # that is what is tried
    other = tmp_path / "notes.txt"
    other.write_text("buy milk\nand bread\n")
    with pytest.raises(Malformed, match="keeps no session"):
        headwater.connect(served.url, session=other)
    assert other.read_text() == "buy milk\nand bread\n"
    with pytest.raises(Malformed, match="cannot be kept"):
        headwater.connect(served.url, session=other / "below")


def test_kinds_that_contradict_the_id_are_told(served: Served) -> None:
    with headwater.connect(served.url) as bus, headwater.open(":memory:") as embedded:
        for one in (bus, embedded):
            with pytest.raises(Malformed, match='kind is "session", and there is the id'):
                one.subscribe("a/#", id="s", kind="session")  # type: ignore[call-overload]
            with pytest.raises(Malformed, match='kind is "named", and there is no id'):
                one.subscribe("a/#", kind="named")  # type: ignore[call-overload]
            with pytest.raises(Malformed, match="kind is 'ever'"):
                one.subscribe("a/#", kind="ever")  # type: ignore[call-overload]  # that is what is tried
        assert embedded.client_id is None


def test_letters_of_a_session_that_was_reclaimed_are_its_users_to_read(tmp_path: Path) -> None:
    with Served(tmp_path / "data", auth="scram") as served:
        for name in ("ann", "ben"):
            served.bus.clients.add(name, "secret")
            served.bus.acl.allow(name, "subscribe", "#")
        host = served.url.partition("://")[2]
        served.bus.publish("jobs/a", b"0")
        expiring = Connecting(session_expire_after_s=0.0)
        with headwater.connect(f"headwater://ann:secret@{host}", expiring, session=tmp_path / "session") as bus:
            sub = bus.subscribe("jobs/#", kind="session", start="earliest")
            message = sub.next(timeout_s=WAIT_S)
            assert message is not None
            message.reject("bad")
        with headwater.connect(f"headwater://ann:secret@{host}") as bus:
            wait_for(lambda: not served.bus.subscriptions())
            (event,) = (event for event in served.bus.events() if event.kind == "dead-kept")
            assert sub.id in event.text
            assert [letter.payload for letter in bus.dead_letters(sub.id)] == [b"0"]
            with headwater.connect(f"headwater://ben:secret@{host}") as other, pytest.raises(headwater.HeadwaterError):
                other.dead_letters(sub.id)
            assert bus.drop_dead_letters(sub.id) == 1
