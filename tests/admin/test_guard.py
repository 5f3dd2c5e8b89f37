"""Bodies, connections and followers that are too large, too slow or too many; and a broker that is away."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from admin.served import Served, serving
from headwater.admin.api.app import make_app
from headwater.admin.client import Admin
from headwater.admin.http_protocol import HttpProtocol
from headwater.config import Config
from headwater.errors import Disconnected, TimedOut
from headwater.serving.outside import Outside
from server.site import until

BODY_BYTES_MAX = 100_000
FOLLOWERS_MAX = 2
CONNECTIONS_MAX = 20
PATIENCE_S = 60


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(
        tmp_path_factory.mktemp("small") / "data",
        HEADWATER_HTTP_BODY_BYTES_MAX=str(BODY_BYTES_MAX),
        HEADWATER_HTTP_BODY_S="1.5",
        HEADWATER_HTTP_FOLLOWERS_MAX=str(FOLLOWERS_MAX),
        HEADWATER_HTTP_CONNECTIONS_MAX=str(CONNECTIONS_MAX),
    ) as served:
        served.read_http()
        yield served


def connected(served: Served) -> socket.socket:
    host, port = served.http.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def said(peer: socket.socket) -> bytes:
    """Everything until the server closes."""
    found = b""
    while more := peer.recv(65536):
        found += more
    return found


def test_a_body_of_the_limit_is_taken_and_one_byte_more_is_not(http: httpx.Client):
    path = "/v1/topics/size/messages"
    assert http.post(path, content=b"x" * BODY_BYTES_MAX).status_code == 201
    response = http.post(path, content=b"x" * (BODY_BYTES_MAX + 1))
    assert response.status_code == 413
    assert response.json()["kind"] == "TooLarge"


@pytest.mark.parametrize("path", ["/v1/topics/size/messages", "/v1/messages"])
def test_a_body_that_does_not_say_how_long_it_is_is_counted(path: str, http: httpx.Client):
    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * (BODY_BYTES_MAX // 10)

    response = http.post(path, content=chunks(), headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", [b"/v1/topics/slow/messages", b"/v1/messages"])
def test_a_body_that_does_not_come_is_not_waited_for(path: bytes, served: Served):
    with connected(served) as peer:
        peer.sendall(
            b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
            % path
        )
        answer = said(peer)
    assert b" 408 " in answer.split(b"\r\n")[0]
    assert b"application/problem+json" in answer


def test_a_head_without_end_is_refused(served: Served):
    with connected(served) as peer:
        try:
            peer.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 200_000)
            answer = said(peer)
        except ConnectionResetError:  # it was closed with some of that unread
            return
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_one_follower_too_many_is_refused_until_another_leaves(served: Served, http: httpx.Client):
    lines: list[Iterator[str]] = []
    with ExitStack() as stack:
        for _ in range(FOLLOWERS_MAX):
            client = stack.enter_context(served.client())
            stream = stack.enter_context(client.stream("GET", "/v1/messages/follow"))
            lines.append(stream.iter_lines())
            next(lines[-1])
        response = http.get("/v1/messages/follow")
        assert response.status_code == 429
        assert response.json()["retryable"] is True
        assert response.headers["retry-after"]

    def is_let_in() -> bool:
        with http.stream("GET", "/v1/messages/follow") as stream:
            return stream.status_code == 200

    until(is_let_in, "that the places of those who left are free")


def test_one_connection_too_many_is_told_to_come_back(served: Served):
    with ExitStack() as stack:
        peers = [stack.enter_context(connected(served)) for _ in range(CONNECTIONS_MAX + 5)]
        answer = said(peers[-1])
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"http_connections_max" in answer

    def is_answered() -> bool:
        with connected(served) as peer:
            peer.sendall(b"GET /healthz HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            return b" 200 " in said(peer)

    until(is_answered, "that the places of those who left are free")


# A broker that is away, or an API that is wrong


class _Bus:
    """Fails at whatever it is asked."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.config = Config()

    async def ask(self, _: object) -> Any:
        raise self._error


def get(error: Exception, path: str) -> httpx.Response:
    async def run() -> httpx.Response:
        app = make_app(Admin(_Bus(error)), Outside(url="", is_open=True))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(path)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "status"), [(Disconnected("the broker is away"), 503), (TimedOut("it does not answer"), 504)]
)
def test_a_broker_that_is_away_is_a_problem_to_retry(error: Exception, status: int):
    response = get(error, "/v1/rules")
    assert response.status_code == status
    assert response.json()["retryable"] is True
    assert response.headers["retry-after"] == "1"
    assert response.json()["kind"] == type(error).__name__


def test_what_nobody_thought_of_is_a_problem_that_tells_no_secrets():
    response = get(KeyError("a secret"), "/v1/rules")
    assert response.status_code == 500
    assert response.json()["kind"] == "Failed"
    assert "secret" not in response.text


def test_a_connection_that_says_nothing_is_closed_and_so_is_one_that_never_finishes_its_head():
    closed: list[bytes] = []

    async def run() -> None:
        import uvicorn

        class Hasty(HttpProtocol):
            head_s = 0.2

        config = uvicorn.Config(
            make_app(Admin(_Bus(KeyError())), Outside(url="")),
            http=Hasty,
            log_config=None,
            lifespan="off",
            timeout_keep_alive=1,
        )
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as door:
            serving = asyncio.create_task(server.serve([door]))
            for sent in (b"", b"GET / HTTP/1.1\r\n", b"GET /docs HTTP/1.1\r\nHost: x\r\n\r\nGET /"):
                reader, writer = await asyncio.open_connection(*door.getsockname())
                writer.write(sent)
                async with asyncio.timeout(PATIENCE_S):
                    closed.append(await reader.read())
                writer.close()
            server.should_exit = True
            await serving

    asyncio.run(run())
    assert [answer.startswith(b"HTTP/1.1 200") for answer in closed] == [False, False, True]
