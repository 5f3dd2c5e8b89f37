"""An attacker with a token of a low role, or behind a proxy on the server's machine, asks over HTTP for what is for
administrators: the audit, what is not published yet, answers to others; and what services on loopback say."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import headwater
from admin.served import Served, serving
from headwater.admin.dashboard.visits import VISITS_PER_CLIENT_MAX

SECRET_TEXT = b"the-balance-is-42"
CLOSED = ["$sys/audit", "$sys/#", "$sys/+", "$staged", "$staged/#", "$delayed/#", "$reply/#", "$reply/embedded"]


class Guarded:
    """A server, and a client with a token of each role."""

    def __init__(self, served: Served, tokens: dict[str, str]) -> None:
        self.served = served
        self.clients = {role: served.client(token) for role, token in tokens.items()}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data = tmp_path_factory.mktemp("guarded") / "data"
    with headwater.open(data) as bus:
        bus.clients.add("ann")
        tokens = {role: bus.tokens.add("ann", role).token for role in ("reader", "operator", "admin")}
        bus.publish("home/x", b"1")
        bus.publish("$reply/embedded", b"an answer")
        bus.stage("p", 1, [("home/x", b"not yet")])
        bus.durables.create("audited", "$sys/audit", start="earliest", max_attempts=1)
        bus.durables.create("answered", "$reply/#", start="earliest", max_attempts=1)
        bus.durables.create("home", "home/#", start="earliest", max_attempts=1)
        for id, filter in (("audited", "$sys/audit"), ("answered", "$reply/#"), ("home", "home/#")):
            with bus.subscribe(filter, id=id) as sub:
                sub.batch(1, 5)[0].reject("no")
    with serving(data, "--auth", "scram") as served:
        served.read_http()
        guarded = Guarded(served, tokens)
        yield guarded
        for client in guarded.clients.values():
            client.close()


@pytest.mark.parametrize("filter", CLOSED)
@pytest.mark.parametrize("role", ["reader", "operator"])
def test_what_is_for_administrators_is_not_read_with_another_token(guarded: Guarded, role: str, filter: str):
    http = guarded.clients[role]
    for path in ("/v1/messages", "/v1/messages/follow", "/v1/messages/search"):
        answer = http.get(path, params={"filter": filter})
        assert (answer.status_code, answer.json()["kind"]) == (403, "NotAllowed")
        assert role in answer.json()["detail"]


@pytest.mark.parametrize("role", ["reader", "operator"])
def test_nor_by_way_of_dead_letters_and_values(guarded: Guarded, role: str):
    http = guarded.clients[role]
    assert http.get("/v1/subscriptions/audited/dead-letters").status_code == 403
    assert http.get("/v1/subscriptions/audited/dead-letters/%24sys/1").status_code == 403
    assert http.get("/v1/topics/%24sys%2Faudit").status_code == 403
    assert http.get("/v1/topics", params={"parent": "$reply", "values": True}).status_code == 403


@pytest.mark.parametrize("role", ["reader", "operator"])
def test_nor_by_way_of_what_is_published_about_dead_letters(guarded: Guarded, role: str):
    found = guarded.clients[role].get("/v1/messages", params={"filter": "$dead/#"}).json()["messages"]
    assert [one["topic"] for one in found] == ["$dead/home"]


def test_nor_has_an_operator_it_pushed_or_kept_for_later(guarded: Guarded):
    http = guarded.clients["operator"]
    channel = {"name": "x", "filter": "$sys/audit", "destination_host": "127.0.0.1", "destination_port": 9}
    assert http.post("/v1/channels", json=channel).status_code == 403
    assert http.post("/v1/subscriptions", json={"id": "mine", "filter": "$staged/#"}).status_code == 403
    assert http.get("/v1/channels").json() == {"channels": []}


def test_an_administrator_and_who_asks_for_less_are_answered(guarded: Guarded):
    for role in ("reader", "admin"):
        found = guarded.clients[role].get("/v1/messages", params={"filter": "#"}).json()["messages"]
        assert [one["topic"] for one in found] == ["home/x"]
    found = guarded.clients["admin"].get("/v1/messages", params={"filter": "$sys/audit"}).json()["messages"]
    assert "client-added" in found[0]["payload"]
    assert guarded.clients["admin"].get("/v1/subscriptions/audited/dead-letters").status_code == 200


# Services on loopback


@contextmanager
def service(answer: bytes) -> Iterator[int]:
    """Something on loopback that answers whoever connects, until it is told to end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listening.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(4096)
                    peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("kind", ["http", "tcp"])
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n" % len(SECRET_TEXT) + SECRET_TEXT,
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(SECRET_TEXT) + SECRET_TEXT,
        b"-ERR " + SECRET_TEXT + b"\r\n",
    ],
    ids=["500", "200", "no-http"],
)
def test_what_a_service_on_loopback_says_is_not_shown_to_who_names_it(guarded: Guarded, kind: str, answer: bytes):
    http = guarded.clients["operator"]
    with service(answer) as port:
        made = http.post(
            "/v1/channels",
            json={
                "name": "x",
                "filter": "home/#",
                "kind": kind,
                "start": "earliest",
                "destination_host": "127.0.0.1",
                "destination_port": port,
                "options": {"max_attempts": 1},
            },
        ).json()
        tried = http.post(f"/v1/channels/{made['id']}/test").text
        shown = http.get(f"/v1/channels/{made['id']}").text
        letters = http.get(f"/v1/subscriptions/channel%3A{made['id']}/dead-letters").text
        http.delete(f"/v1/channels/{made['id']}", params={"force": True})
    for text in (tried, shown, letters):
        assert SECRET_TEXT.decode() not in text
        assert SECRET_TEXT[:8].decode() not in text


# A proxy on the same machine


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("open") / "data", HEADWATER_MQTT="true", HEADWATER_MQTT_PORT="0") as served:
        served.http = served.read_url()
        while not served.http.startswith("http"):
            served.http = served.read_url()
        yield served


@pytest.mark.parametrize(
    "headers",
    [
        {"Via": "1.1 varnish"},
        {"Forwarded": "for=203.0.113.9"},
        {"X-Forwarded-For": "203.0.113.9"},
        {"X-Forwarded-Proto": "https"},
        {"X-Real-IP": "203.0.113.9"},
        {"CF-Connecting-IP": "203.0.113.9"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_who_comes_through_a_proxy_on_this_machine_is_no_administrator(open_to_all: Served, headers: dict[str, str]):
    with open_to_all.client() as http:
        assert http.get("/v1/me").json()["role"] == "admin"
        answer = http.get("/v1/me", headers=headers)
        assert answer.status_code == 401
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Protocol": "mqtt",
        }
        assert http.get("/mqtt", headers={**upgrade, **headers}).status_code == 403


def test_a_reader_that_follows_again_and_again_leaves_room_for_others(tmp_path: Path):
    with headwater.open(tmp_path / "data") as bus:
        tokens = []
        for name in ("ann", "bob"):
            bus.clients.add(name)
            tokens.append(bus.tokens.add(name, "reader").token)
    limits = ("--set", "http_followers_max=4", "--set", "http_followers_per_client_max=2")
    with serving(tmp_path / "data", "--auth", "scram", *limits) as served, ExitStack() as stack:
        served.read_http()
        told: list[Any] = []  # which would end if it were let go
        ann, bob = (stack.enter_context(closing(served.client(token))) for token in tokens)

        def follow(client: Any) -> Any:
            answer = stack.enter_context(client.stream("GET", "/v1/messages/follow", params={"filter": "home/#"}))
            told.append(answer.iter_raw())
            next(told[-1], b"")
            return answer

        assert [follow(ann).status_code for _ in range(3)] == [200, 200, 429]
        assert [follow(bob).status_code for _ in range(3)] == [200, 200, 429]


def test_a_reader_that_logs_in_again_and_again_logs_nobody_else_out(tmp_path: Path):
    with headwater.open(tmp_path / "data") as bus:
        tokens = []
        for name in ("ann", "bob"):
            bus.clients.add(name)
            tokens.append(bus.tokens.add(name, "reader").token)
    with serving(tmp_path / "data", "--auth", "scram") as served:
        served.read_http()

        def log_in(token: str) -> Any:
            browser = served.client()
            assert browser.post("/login", data={"token": token}).status_code == 303
            return browser

        def is_in(browser: Any) -> bool:
            return bool(browser.get("/").status_code == 200)

        bob, *anns = (log_in(token) for token in (tokens[1], *[tokens[0]] * (VISITS_PER_CLIENT_MAX + 1)))
        assert (is_in(bob), is_in(anns[0]), is_in(anns[1]), is_in(anns[-1])) == (True, False, True, True)
        for browser in (bob, *anns):
            browser.close()
