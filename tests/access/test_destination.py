from __future__ import annotations

import socket
from typing import Any

import pytest

from headwater.access.destination import Destinations
from headwater.errors import HeadwaterError, Malformed, NotAllowed


def named(monkeypatch: pytest.MonkeyPatch, **addresses: str) -> list[str]:
    """A resolver of its own; the names that were looked up."""
    asked: list[str] = []

    def look_up(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        found = addresses.get(host.rstrip(".").lower().replace(".", "_"), "10.9.9.9")
        return [(0, 0, 0, "", (address, 0)) for address in found.split()]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost"])
def test_loopback_is_all_that_may_be_pushed_to_unless_told(host: str):
    assert Destinations().resolve(host, 80)


@pytest.mark.parametrize(
    "host",
    ["10.0.0.1", "169.254.169.254", "0.0.0.0", "8.8.8.8", "::", "fe80::1", "::ffff:10.0.0.1", "::ffff:169.254.169.254"],
)
def test_everything_else_is_refused(host: str):
    with pytest.raises(NotAllowed, match="channel_hosts"):
        Destinations().resolve(host, 80)


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1"])
def test_loopback_that_is_written_otherwise_is_loopback_or_nothing(host: str):
    try:
        assert Destinations().resolve(host, 80) == ("127.0.0.1",)
    except Malformed:
        pass  # a system that does not know such writing


@pytest.mark.parametrize("host", ["0xa9fea9fe", "169.254.43518", "2852039166"])
def test_a_special_address_that_is_written_otherwise_is_refused(host: str):
    with pytest.raises(HeadwaterError):
        Destinations().resolve(host, 80)


def test_a_name_on_the_list_stands_for_its_addresses_in_whatever_case(monkeypatch: pytest.MonkeyPatch):
    named(monkeypatch, collector_internal="10.1.2.3")
    assert Destinations(["collector.internal"]).resolve("Collector.Internal.", 80) == ("10.1.2.3",)
    with pytest.raises(NotAllowed):
        Destinations(["collector.internal"]).resolve("other.internal", 80)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "::1", "fe80::1", "0.0.0.0", "224.0.0.1", "240.0.0.1"]
)
def test_a_name_on_the_list_never_stands_for_a_special_address(monkeypatch: pytest.MonkeyPatch, address: str):
    named(monkeypatch, collector_internal=address)
    with pytest.raises(NotAllowed):
        Destinations(["collector.internal"]).resolve("collector.internal", 80)


def test_one_bad_address_of_a_name_is_enough_to_refuse_it(monkeypatch: pytest.MonkeyPatch):
    named(monkeypatch, two_internal="10.0.0.1 169.254.169.254")
    with pytest.raises(NotAllowed, match="169"):
        Destinations(["10.0.0.0/8"]).resolve("two.internal", 80)


def test_a_name_is_looked_up_once_and_ipv4_comes_first(monkeypatch: pytest.MonkeyPatch):
    asked = named(monkeypatch, both_internal="fd00::1 10.0.0.1 ::ffff:10.0.0.1")
    assert Destinations(["10.0.0.0/8", "fd00::/8"]).resolve("both.internal", 80) == ("10.0.0.1", "fd00::1")
    assert asked == ["both.internal"]


@pytest.mark.parametrize(
    "host", ["", " ", "a b", "user@host", "http://x", "a/b", "host\n", "x" * 300, "-x", "fe80::1%eth0 "]
)
def test_what_cannot_be_a_host_is_malformed(host: str):
    with pytest.raises(Malformed):
        Destinations(["0.0.0.0/0", "::/0"]).resolve(host, 80)


@pytest.mark.parametrize("port", [0, -1, 65_536, 1 << 31])
def test_a_port_is_from_1_to_65535(port: int):
    with pytest.raises(Malformed, match="65535"):
        Destinations().resolve("127.0.0.1", port)


def test_a_name_without_an_address_is_malformed(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(Malformed, match="no address"):
        Destinations(["10.0.0.0/8"]).resolve("no.such", 80)


@pytest.mark.parametrize("entry", ["10.0.0.1/8", "http://x", "", "a b", "300.1.1.1", "*.internal"])
def test_a_list_that_cannot_be_is_refused(entry: str):
    with pytest.raises(Malformed, match="channel_hosts"):
        Destinations([entry])
