from __future__ import annotations

import socket
from typing import Any

import pytest

from headwater.config import Serving
from headwater.errors import Malformed
from headwater.server.exposure import check_exposure


@pytest.mark.parametrize("host", "127.0.0.1 127.1.2.3 127.1 ::1 0:0:0:0:0:0:0:1 ::ffff:127.0.0.1 localhost".split())
def test_loopback_needs_no_authentication_however_it_is_written(host: str):
    check_exposure(Serving(host=host))
    check_exposure(Serving(host=host, unix_path="/tmp/socket"))


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "0", "10.0.0.1", "192.168.1.1", "fe80::1", "::ffff:10.0.0.1", "2001:db8::1"]
)
def test_other_addresses_are_refused_without_authentication_and_it_says_what_to_do(host: str):
    with pytest.raises(Malformed, match=r"--auth scram.*headwater init.*--host 127\.0\.0\.1"):
        check_exposure(Serving(host=host))
    with pytest.raises(Malformed):
        check_exposure(Serving(host=host, unix_path="/tmp/socket"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1"])
def test_with_authentication_every_address_is_fine(host: str):
    check_exposure(Serving(host=host, auth="scram"))
    check_exposure(Serving(host=host, auth="gatekeeper"))


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_a_name_is_what_all_of_its_addresses_are(monkeypatch: pytest.MonkeyPatch):
    resolve_to(monkeypatch, "127.0.0.1", "::1%lo")
    check_exposure(Serving(host="here"))
    resolve_to(monkeypatch, "127.0.0.1", "10.0.0.1")
    with pytest.raises(Malformed, match=r'"here" \(10\.0\.0\.1\)'):
        check_exposure(Serving(host="here"))
    resolve_to(monkeypatch, "10.0.0.1")
    with pytest.raises(Malformed):
        check_exposure(Serving(host="localhost"))


@pytest.mark.parametrize("host", ["no such name", "a" * 100, "x..y"])
def test_a_name_without_an_address_is_refused(host: str):
    with pytest.raises(Malformed, match="has no address"):
        check_exposure(Serving(host=host))
