"""Addresses of servers."""

from __future__ import annotations

import pytest

from headwater import Malformed
from headwater.client.url import PORT, Address, parse_url

SECRET = "hush/h@sh:%"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("headwater://h", Address(host="h")),
        ("headwater://h/", Address(host="h")),
        ("headwater://h:1", Address(host="h", port=1)),
        ("headwater://[::1]:5", Address(host="::1", port=5)),
        ("headwater://n@h", Address(host="h", user="n")),
        ("headwater://n:s@h:9", Address(host="h", port=9, user="n", secret="s")),
        ("headwater://n%40x:hush%2Fh%40sh%3A%25@h", Address(host="h", user="n@x", secret=SECRET)),
        ("headwater://n%C3%A9:s@h", Address(host="h", user="né", secret="s")),
        ("headwaters://h", Address(host="h", tls=True)),
        ("headwater://a,b", Address(host="a", others=(("b", 7411),))),
        (
            "headwaters://n:s@a:1,[::2]:3,c?ca=x",
            Address(host="a", port=1, others=(("::2", 3), ("c", 7411)), user="n", secret="s", tls=True, ca="x"),
        ),
        (
            "headwaters://h?ca=/a%20b.pem&cert=c.pem&key=k.pem",
            Address(host="h", tls=True, ca="/a b.pem", cert="c.pem", key="k.pem"),
        ),
        ("headwaters://h?verify=no", Address(host="h", tls=True, verify=False)),
        ("headwater+unix:///run/hw.sock", Address(host="", path="/run/hw.sock")),
        ("headwater+unix://n:s@/run/hw.sock", Address(host="", path="/run/hw.sock", user="n", secret="s")),
    ],
)
def test_an_address_is_read_as_it_is_written(url: str, address: Address) -> None:
    assert parse_url(url) == address


def test_the_port_is_the_native_one_unless_stated() -> None:
    assert parse_url("headwater://h").port == PORT == 7411


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("h:7411", "headwater://name:secret@host:7411"),
        ("http://h", "headwaters://"),
        ("var/data", "opened in this process, by headwater.open"),
        ("headwater://", "no host"),
        ("headwater://h:0", "1 to 65535"),
        ("headwater://h:99999", "%3A %2F %40"),
        ("headwater://h:x", "%3A %2F %40"),
        ("headwater://h/path", "%2F"),
        ("headwater://a,", "no host"),
        ("headwater://a,,b", "no host"),
        ("headwater://a,b:0", "1 to 65535"),
        ("headwater://a:x,b", "%3A %2F %40"),
        ("headwater://a,a:7411", "each once"),
        ("headwater://" + ",".join(f"n{number}" for number in range(33)), "at most 32"),
        ("headwater://:s@h", "without a name"),
        ("headwater://n:s@h?ca=x", "headwaters://"),
        ("headwaters://h?cb=x", "ca, cert, key"),
        ("headwaters://h?ca", "?ca=ca.pem"),
        ("headwaters://h?ca=1&ca=2", "twice"),
        ("headwaters://h?key=k", "cert="),
        ("headwaters://h?verify=perhaps", "yes or no"),
        ("headwater://n:s@h#x", "%23"),
        ("headwater+unix://run/x", "headwater+unix:///run"),
        ("headwater+unix://", "whole path"),
        ("headwater://%ff:s@h", "UTF-8"),
    ],
)
def test_what_is_wrong_with_an_address_is_told_with_what_to_write(url: str, advice: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse_url(url)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"headwater://me:{SECRET}@h:7411",
        f"headwater://me:{SECRET}@h:x",
        f"http://me:{SECRET}@h",
        f"headwater://me:{SECRET}@h/x",
        f"headwater://me:{SECRET}@h?x=y",
        f"headwater://:{SECRET}@h",
        f"headwater+unix://me:{SECRET}@h/x",
        f"headwater://me:{SECRET}#@h",
    ],
)
def test_a_secret_never_shows_in_an_error(url: str) -> None:
    try:
        parse_url(url)
    except Malformed as error:
        assert "hush" not in str(error)
        assert error.__cause__ is None
        assert error.__suppress_context__ or error.__context__ is None


def test_a_secret_never_shows_in_an_address() -> None:
    address = parse_url("headwater://me:hush@h")
    assert "hush" not in f"{address} {address!r} {[address]}"
    assert str(address) == "headwater://me@h:7411"


def test_an_address_is_a_str() -> None:
    with pytest.raises(Malformed, match="not bytes"):
        parse_url(b"headwater://h")  # type: ignore[arg-type]
