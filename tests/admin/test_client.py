"""The admin client against a served bus: the same methods for threads and for asyncio."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
import headwater.admin
import headwater.aio
from client.served import Served
from headwater.admin import Admin
from headwater.audit import TOPIC
from headwater.errors import Conflict, NotAllowed, NotFound, Unauthenticated
from headwater.native.protocol import NativeProtocol

SECRET = "a secret of a test"
Drive = Callable[[Callable[[Admin], Any]], Any]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, auth="scram", scram_iterations=4096) as served:
        for name in ("root", "ann"):
            served.bus.clients.add(name, SECRET)
            served.bus.acl.allow(name, "subscribe", "#")
        served.bus.acl.allow("root", "admin", "#")
        served.bus.publish_many([("home/x", b"1"), ("home/x", b"2")])
        yield served


def url(served: Served, name: str = "root") -> str:
    return served.url.replace("://", f"://{name}:{SECRET.replace(' ', '%20')}@")


@pytest.fixture(params=["threads", "asyncio"])
def ask(request: pytest.FixtureRequest, served: Served) -> Iterator[Drive]:
    """Calls a method of the admin client, and waits if it has to be awaited."""
    if request.param == "threads":
        with headwater.admin.connect(url(served)) as admin:
            yield lambda work: work(admin)
        return
    with asyncio.Runner() as runner:
        bus = runner.run(_connect(url(served)))

        async def wait(work: Callable[[Admin], Any]) -> Any:
            return await work(Admin(bus))

        yield lambda work: runner.run(wait(work))
        runner.run(bus.close())


async def _connect(address: str) -> Any:
    return await headwater.aio.connect(address)


def test_tokens(ask: Drive, served: Served):
    made = ask(lambda admin: admin.tokens.add("ann", "reader"))
    assert ask(lambda admin: admin.tokens.check(made.token)).client == "ann"
    assert [info.id for info in ask(lambda admin: admin.tokens.list())] == [made.id]
    ask(lambda admin: admin.tokens.remove(made.id))
    with pytest.raises(Unauthenticated):
        ask(lambda admin: admin.tokens.check(made.token))


def test_clients_and_rules(ask: Drive, served: Served):
    assert ask(lambda admin: admin.clients.add("eve")).secret
    ask(lambda admin: admin.acl.allow("eve", "publish", "home/#"))
    assert "eve" in [info.name for info in ask(lambda admin: admin.clients.list())]
    assert "eve" in [rule.user for rule in ask(lambda admin: admin.acl.list())]
    ask(lambda admin: admin.clients.remove("eve"))


def test_sessions(ask: Drive, served: Served):
    with headwater.connect(url(served, "ann")) as bus:
        _live = bus.subscribe("home/#")  # one that is forgotten is gone
        (session,) = [info.id for info in ask(lambda admin: admin.sessions.list()) if info.user == "ann"]
        (shown,) = ask(lambda admin: admin.sessions.show(session))
        assert [part.filter for part in shown.subscriptions] == ["home/#"]
        ask(lambda admin: admin.sessions.disconnect(session))
        assert bus.topics()  # it comes back by itself
        ask(lambda admin: admin.sessions.end(session))
        with pytest.raises(NotFound):
            ask(lambda admin: admin.sessions.show(session))
        assert bus.topics()  # in another session


def test_subscriptions(ask: Drive, served: Served):
    ask(lambda admin: admin.subscriptions.create("s", "home/#", start="earliest", max_attempts=2))
    shown = ask(lambda admin: admin.subscriptions.show("s"))
    assert (shown.info.lag, shown.options["max_attempts"], shown.sessions) == (2, 2, ())
    ask(lambda admin: admin.subscriptions.seek("s", {"home": 2}))
    assert ask(lambda admin: admin.subscriptions.show("s")).info.lag == 1
    ask(lambda admin: admin.subscriptions.seek("s", served.bus.now))
    assert ask(lambda admin: admin.subscriptions.show("s")).info.lag == 0
    ask(lambda admin: admin.subscriptions.pause("s"))
    assert ask(lambda admin: admin.subscriptions.show("s")).info.paused
    ask(lambda admin: admin.subscriptions.resume("s"))
    with headwater.connect(url(served, "ann")) as bus, bus.subscribe("home/#", id="s") as consumer:
        with pytest.raises(Conflict):
            ask(lambda admin: admin.subscriptions.delete("s"))
        ask(lambda admin: admin.subscriptions.delete("s", force=True))
        with pytest.raises(headwater.Closed):
            consumer.batch(1, 10)
    assert served.bus.subscriptions() == []


def test_it_speaks_for_others_in_the_audit_and_its_bus_is_a_bus(ask: Drive, served: Served):
    ask(lambda admin: admin.acting_for("bob").clients.add("eve"))
    entry = [json.loads(message.payload) for message in served.bus.replay(TOPIC)][-1]
    assert (entry["what"], entry["who"], entry["via"]) == ("client-added", "bob", "root")
    assert ask(lambda admin: admin.bus.ends())["home"] == 2


def test_the_process_beside_the_server_may_do_everything_and_names_whom_it_speaks_for(served: Served, tmp_path: Path):
    async def open_door() -> asyncio.Server:
        server = served.server
        return await server.open_door(server.extension(NativeProtocol).inner_connection, str(tmp_path / "door"))

    door = asyncio.run_coroutine_threadsafe(open_door(), served._loop).result(60)
    try:
        with headwater.admin.connect(f"headwater+unix://{tmp_path / 'door'}") as admin:
            acting = admin.acting_for("bob")
            acting.subscriptions.create("s", "$sys/#", start="earliest")
            acting.clients.add("eve")
            token = acting.tokens.add("eve", "admin")
            assert admin.tokens.check(token.token).client == "eve"
            assert "$admin" in {info.user for info in admin.sessions.list()}
            assert admin.subscriptions.show("s").info.lag > 0
            admin.bus.publish("home/x", b"3")
            with pytest.raises(NotAllowed):
                admin.bus.publish(TOPIC, b"{}")
            read = [json.loads(message.payload) for message in admin.bus.replay(TOPIC)]
            assert [(one["what"], one["who"], one["via"]) for one in read[-3:]] == [
                ("subscription-created", "bob", "$admin"),
                ("client-added", "bob", "$admin"),
                ("token-added", "bob", "$admin"),
            ]
    finally:
        served._loop.call_soon_threadsafe(door.close)


def test_who_is_no_administrator_is_told_so(served: Served):
    with headwater.admin.connect(url(served, "ann")) as admin:
        assert [info.user for info in admin.sessions.list()] == ["ann"]
        for refused in (
            admin.tokens.list,
            lambda: admin.clients.add("eve"),
            lambda: admin.sessions.end("none"),
            lambda: admin.acting_for("root").subscriptions.create("s", "home/#"),
        ):
            with pytest.raises(NotAllowed):
                refused()
        admin.subscriptions.create("s", "home/#")
