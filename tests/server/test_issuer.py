"""The keys of an issuer: fetched, kept, fetched again, and never more often than they may be."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.access.oauthbearer import message
from headwater.config import Serving
from headwater.errors import Malformed, TimedOut, Unauthenticated
from headwater.serving.composition import server_of
from headwater.wire.frame import Kind, pack
from headwater.wire.handshake import Hello
from headwater.wire.requests import encode
from server.harness import Running
from server.issuing import Issuing, SigningKey, key_set


@pytest.fixture
def key() -> SigningKey:
    return SigningKey("one")


@pytest.fixture
def issuing(key: SigningKey) -> Iterator[Issuing]:
    with Issuing(key) as issuing:
        yield issuing


def running(issuing: Issuing, **settings: Any) -> Running:
    return Running(**{**issuing.settings, "guess_delay_s_max": 0.0, **settings})


def log_in(server: Running, token: str) -> str:
    """Who the server takes somebody for."""
    with server.connect() as peer:
        peer.hello(mechanism="oauthbearer", first=message(token))
        return peer.respond().user


def test_the_keys_are_fetched_once_for_many_tokens(issuing: Issuing, key: SigningKey):
    with running(issuing) as server:
        for user in ("ann", "bob", "cay"):
            assert log_in(server, key.token(user)) == user
        assert issuing.asked == 1


def test_keys_of_a_file_do_as_well(issuing: Issuing, key: SigningKey, tmp_path: Path):
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(key))
    with running(issuing, jwt_keys=str(path), jwt_refresh_s_min=0.0) as server:
        assert log_in(server, key.token()) == "ann"
        other = SigningKey("two")
        path.write_bytes(key_set(other))
        assert log_in(server, other.token()) == "ann"
        with pytest.raises(Unauthenticated):
            log_in(server, key.token())
        path.write_bytes(b"half of i")
        with pytest.raises(TimedOut):
            log_in(server, SigningKey("three").token())
        assert log_in(server, other.token()) == "ann"
    assert issuing.asked == 0


def test_a_rotated_key_is_found_when_a_token_names_it(issuing: Issuing, key: SigningKey):
    with running(issuing, jwt_refresh_s_min=0.0) as server:
        assert log_in(server, key.token()) == "ann"
        other = SigningKey("two")
        issuing.rotate(key, other)
        assert log_in(server, other.token()) == "ann"
        issuing.rotate(other)
        server.call(server.server.reload)  # as SIGHUP does
        with pytest.raises(Unauthenticated, match='"one"'):
            server.until(lambda: len(server.server.issuer._keys) == 1)  # type: ignore[union-attr]
            log_in(server, key.token())
        assert log_in(server, other.token()) == "ann"


def test_a_flood_of_unknown_keys_does_not_reach_the_issuer(issuing: Issuing, key: SigningKey):
    with running(issuing) as server:
        assert log_in(server, key.token()) == "ann"
        for place in range(30):
            with pytest.raises(Unauthenticated, match="which the issuer does not have"):
                log_in(server, SigningKey(f"made-up-{place}").token())
        assert issuing.asked == 1
        assert log_in(server, key.token()) == "ann"


def test_those_who_come_at_once_share_one_fetch(issuing: Issuing, key: SigningKey):
    with running(issuing, jwt_refresh_s_min=0.0, jwt_fetch_s=60.0) as server:
        assert log_in(server, key.token()) == "ann"
        other = SigningKey("two")
        issuing.rotate(key, other)
        issuing.may_answer.clear()
        peers = [server.connect() for _ in range(5)]
        for peer in peers:
            peer.send(pack(Kind.HELLO, 0, encode(Hello(mechanism="oauthbearer", first=message(other.token())))))
        server.until(lambda: len(server.server.issuer._waiting) == 5)  # type: ignore[union-attr]
        assert log_in(server, key.token()) == "ann"  # whose key is known does not wait
        issuing.may_answer.set()
        for peer in peers:
            peer.frame(Kind.CHALLENGE)
        assert issuing.asked == 2


def test_a_fetch_that_fails_keeps_the_keys_and_says_so(
    issuing: Issuing, key: SigningKey, caplog: pytest.LogCaptureFixture
):
    with running(issuing, jwt_refresh_s_min=0.0) as server, caplog.at_level(logging.INFO, "headwater.server.issuer"):
        assert log_in(server, key.token()) == "ann"
        good = issuing.body
        for status, body in ((500, good), (302, good), (200, b"<html>"), (200, b'{"keys": []}'), (200, b" " * 300_000)):
            issuing.status, issuing.body = status, body
            with pytest.raises(TimedOut):
                log_in(server, SigningKey("two").token())
            assert log_in(server, key.token()) == "ann"
        said = [record for record in caplog.records if record.getMessage() == "jwks-kept"]
        assert len(said) == 5
        assert all(record.fields["kept"] == 1 for record in said)  # type: ignore[attr-defined]
        assert "500" in said[0].fields["reason"]  # type: ignore[attr-defined]


def test_an_issuer_that_says_nothing_is_given_up(issuing: Issuing, key: SigningKey):
    with running(issuing, jwt_refresh_s_min=0.0, jwt_fetch_s=0.2) as server:
        assert log_in(server, key.token()) == "ann"
        issuing.may_answer.clear()
        with pytest.raises(TimedOut):
            log_in(server, SigningKey("two").token())
        assert log_in(server, key.token()) == "ann"


def test_an_issuer_that_drips_is_given_up(key: SigningKey):
    stop = threading.Event()

    def drip(door: socket.socket) -> None:
        line, _ = door.accept()
        with line:
            line.sendall(b"HTTP/1.1 200 OK\r\n")
            try:
                while not stop.wait(0.02):
                    line.sendall(b"X-A: b\r\n"[:1])
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=drip, args=(door,))
        thread.start()
        settings: dict[str, Any] = {"auth": "jwt", "jwt_issuer": "i", "jwt_audience": ("a",), "jwt_fetch_s": 0.2}
        with (
            Running(**settings, jwt_keys=f"http://127.0.0.1:{door.getsockname()[1]}/", guess_delay_s_max=0.0) as server,
            pytest.raises(TimedOut),
        ):
            log_in(server, key.token())
        stop.set()
        thread.join()


def test_a_server_starts_without_its_issuer_and_finds_it_later(issuing: Issuing, key: SigningKey):
    issuing.status = 503
    with running(issuing, jwt_refresh_s_min=0.0) as server:
        with pytest.raises(TimedOut):
            log_in(server, key.token())
        issuing.status = 200
        assert log_in(server, key.token()) == "ann"


def test_the_keys_are_fetched_from_time_to_time(issuing: Issuing, key: SigningKey):
    with running(issuing, jwt_refresh_s=1.0) as server:
        server.until(lambda: issuing.asked >= 3, "a third fetch")
        assert log_in(server, key.token()) == "ann"


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"keys": []}'])
def test_a_file_that_is_wrong_is_told_before_anything_is_served(tmp_path: Path, content: bytes | None):
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_bytes(content)
    serving = Serving(auth="jwt", jwt_issuer="i", jwt_audience=("a",), jwt_keys=str(path))
    with headwater.open(":memory:") as bus, pytest.raises(Malformed, match="jwt_keys"):
        server_of(bus.core, serving)


def test_a_server_that_ends_does_not_wait_for_a_silent_issuer(issuing: Issuing, key: SigningKey):
    issuing.may_answer.clear()
    with running(issuing, jwt_fetch_s=3600.0) as server:
        server.until(lambda: issuing.asked, "the first fetch")
