"""Who is let in over HTTP, and as what: tokens, roles, loopback, other sites' pages."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import headwater
from admin.routes import ROUTES
from admin.served import Served, serving
from headwater.admin.gate import ROLES, WRONG_PER_MINUTE_MAX

SAFE = {"get"}


class Guarded:
    """A server that asks everybody who they are, and a token of each role."""

    def __init__(self, served: Served, tokens: dict[str, str]) -> None:
        self.served = served
        self.nobody = served.client()
        self.clients = {role: served.client(token) for role, token in tokens.items()}
        self.reader, self.admin = self.clients["reader"], self.clients["admin"]

    def get(self, token: str) -> httpx.Response:
        return self.nobody.get("/v1/me", headers={"Authorization": f"Bearer {token}"})


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data = tmp_path_factory.mktemp("guarded") / "data"
    with headwater.open(data) as bus:
        bus.clients.add("ann")
        tokens: dict[str, str] = {role: bus.tokens.add("ann", role).token for role in ROLES}
    with serving(data, "--auth", "scram", "--http-host", "0.0.0.0") as served:
        served.http = served.read_url().replace("0.0.0.0", "127.0.0.1")
        guarded = Guarded(served, tokens)
        yield guarded
        for client in (guarded.nobody, *guarded.clients.values()):
            client.close()


def asked(client: httpx.Client, method: str, path: str) -> httpx.Response:
    """Ask with nothing in hand: whoever may ask is told what is missing, and the others that they may not."""
    filled = path.replace("{offset}", "1").replace("{id}", "none").replace("{name}", "none").replace("{root}", "none")
    with client.stream(method, filled.replace("{topic}", "none"), content=b"{") as response:
        if "text/event-stream" not in response.headers["content-type"]:
            response.read()
        return response


def problem(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = json.loads(response.content)
    assert told["status"] == response.status_code
    assert told["type"] == f"urn:headwater:error:{told['kind']}"
    assert told["detail"]
    return told


@pytest.mark.parametrize(("method", "path", "role"), ROUTES)
def test_a_route_is_for_those_of_its_role_and_above(method: str, path: str, role: str, guarded: Guarded):
    for other in ROLES:
        response = asked(guarded.clients[other], method, path)
        if ROLES.index(other) < ROLES.index(role):
            assert response.status_code == 403, (other, response.text)
            assert problem(response)["kind"] == "NotAllowed"
        else:
            assert response.status_code not in {401, 403}, (other, response.text)
    response = asked(guarded.nobody, method, path)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert "headwater tokens add" in problem(response)["detail"]


def test_every_route_that_changes_something_refuses_a_reader():
    changing = [(method, path, role) for method, path, role in ROUTES if method not in SAFE]
    assert len(changing) > 20
    assert [route for route in changing if route[2] == "reader"] == []


def test_health_needs_no_token_and_tells_strangers_no_details(guarded: Guarded):
    assert guarded.nobody.get("/healthz").json() == {"ok": True}
    checks = guarded.nobody.get("/readyz").json()["checks"]
    assert {"disk", "streams", "state"} <= {check["name"] for check in checks}
    assert {check["detail"] for check in checks} == {None}
    assert None not in {check["detail"] for check in guarded.reader.get("/readyz").json()["checks"]}


def test_tokens_that_can_be_read_on_their_way_are_warned_of(guarded: Guarded):
    assert "host=0.0.0.0" in guarded.served.wait_for("plain-text")


def test_strangers_learn_nothing_of_what_there_is(guarded: Guarded):
    for path in ("/v1/nothing", "/v1/topics/none", "/v1"):
        assert guarded.nobody.get(path).status_code in {401, 404}
    assert guarded.nobody.post("/v1/messages", json={"wrong": 1}).status_code == 401


def test_a_token_that_is_removed_opens_nothing_any_more(guarded: Guarded):
    made = guarded.admin.post("/v1/tokens", json={"client": "ann", "role": "reader"}).json()
    assert guarded.get(made["token"]).json() == {"name": "ann", "role": "reader"}
    assert made["token"] not in guarded.admin.get("/v1/tokens").text
    assert guarded.admin.delete(f"/v1/tokens/{made['id']}").status_code == 204
    assert guarded.get(made["token"]).status_code == 401
    assert guarded.admin.delete(f"/v1/tokens/{made['id']}").status_code == 404


def test_the_audit_names_whose_token_it_was(guarded: Guarded):
    rule = {"user": "ann", "action": "publish", "filter": "audited/#"}
    assert guarded.admin.post("/v1/rules", json=rule).status_code == 201
    found = guarded.admin.get("/v1/messages", params={"filter": "$sys/audit", "limit": 1000}).json()["messages"]
    (told,) = (json.loads(one["payload"]) for one in found if "audited/#" in one["payload"])
    assert (told["who"], told["via"]) == ("ann", "$admin")


def test_a_client_that_is_removed_takes_its_tokens_along(guarded: Guarded):
    assert guarded.admin.post("/v1/clients", json={"name": "gone"}).status_code == 201
    token = guarded.admin.post("/v1/tokens", json={"client": "gone", "role": "admin"}).json()["token"]
    assert guarded.get(token).status_code == 200
    assert guarded.admin.delete("/v1/clients/gone").status_code == 204
    assert guarded.get(token).status_code == 401


def test_wrong_tokens_are_refused_and_then_not_listened_to_but_right_ones_are(guarded: Guarded):
    assert guarded.reader.get("/v1/me").status_code == 200
    responses = [guarded.get(f"hwt_wrong_{number}") for number in range(WRONG_PER_MINUTE_MAX + 5)]
    codes = [problem(response)["status"] for response in responses]
    assert codes[0] == 401
    assert set(codes) == {401, 429}  # now and then one is listened to again, if all of it takes long
    assert int(responses[codes.index(429)].headers["retry-after"]) >= 1
    assert guarded.reader.get("/v1/me").status_code == 200


@pytest.mark.parametrize("said", ["Basic eDp5", "Bearer", "hwt", "bearer \N{SNOWMAN}"])
def test_what_is_no_token_is_none(said: str, guarded: Guarded):
    response = guarded.nobody.get("/v1/me", headers={b"Authorization": said.encode()})
    assert response.status_code in {401, 429}


# A server that asks nobody on its own machine


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7480", "127.0.0.1.evil.example", "", "[", "::1"])
def test_an_open_server_is_asked_by_names_of_loopback_alone(host: str, http: httpx.Client):
    response = http.get("/v1/topics", headers={"Host": host})
    assert response.status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:7480"])
def test_any_name_of_loopback_will_do(host: str, http: httpx.Client):
    assert http.get("/v1/topics", headers={"Host": host}).status_code == 200


def test_a_proxy_on_this_machine_speaks_for_others_who_need_a_token(http: httpx.Client):
    for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP"):
        assert http.get("/v1/topics", headers={name: "10.0.0.1"}).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_site_changes_nothing(headers: dict[str, str], http: httpx.Client):
    before = http.get("/v1/messages", params={"filter": "csrf/#"}).json()
    response = http.post("/v1/topics/csrf/messages", content=b"x", headers=headers)
    assert response.status_code == 403
    assert "another site" in problem(response)["detail"]
    assert http.get("/v1/messages", params={"filter": "csrf/#"}).json() == before


def test_a_page_of_this_server_may_change_things(served: Served, http: httpx.Client):
    for headers in ({"Origin": served.http}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {}):
        assert http.post("/v1/topics/ours/messages", content=b"x", headers=headers).status_code == 201


def test_a_websocket_of_another_site_is_refused(served: Served):
    host, port = served.http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as peer:
        peer.sendall(
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            b"Origin: http://evil.example\r\n\r\n"
        )
        assert b" 403 " in peer.recv(4096).split(b"\r\n")[0]


def test_no_other_site_may_read_or_frame_it(http: httpx.Client):
    for path in ("/v1/topics", "/docs", "/nothing", "/healthz"):
        headers = http.get(path, headers={"Origin": "http://evil.example"}).headers
        assert "access-control-allow-origin" not in headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["referrer-policy"] in {"no-referrer", "same-origin"}


def test_the_log_in_page_says_the_commands_that_work_and_where_the_data_is_to_this_machine_alone(guarded: Guarded):
    found = re.search(r"headwater init --data (/\S+/data)<", guarded.nobody.get("/login").text)
    assert found
    away = guarded.nobody.get("/login", headers={"X-Forwarded-For": "192.0.2.7"}).text
    assert "<code>headwater init</code>" in away
    assert found[1] not in away
