"""Where clients find the bus that a command works on, for the lines that say how to use what it made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from headwater.admin import Admin
from headwater.cli.options import At, is_served
from headwater.client.url import parse_url
from headwater.config import Serving
from headwater.errors import HeadwaterError
from headwater.server.tls import own_authority
from headwater.settings import load
from headwater.store.files import DiskFiles
from headwater.store.owner import owner_of

ANY = ("", "0.0.0.0", "::")  # noqa: S104  (nothing listens here)
"""Hosts that are every address of a machine: its own commands take loopback."""
PORT = "PORT"
"""Stands for the port of a server that is yet to be started, and chooses it then."""


class Addresses(NamedTuple):
    """Of one server."""

    native: str
    http: str
    ca: str = ""
    """What its certificate is checked against, if its authority is its own."""

    def of(self, name: str, secret: str) -> str:
        """The URL for a client, who has a name and a secret."""
        scheme, _, rest = self.native.partition("://")
        ca = f"?ca={quote(self.ca)}" if self.ca else ""
        return f"{scheme}://{quote(name, safe='')}:{secret}@{rest}{ca}"

    def curl(self, token: str, path: str) -> str:
        """A command that asks the API."""
        ca = f"--cacert {self.ca} " if self.ca and self.http.startswith("https") else ""
        return f"curl {ca}-H 'Authorization: Bearer {token}' {self.http}/v1/{path}"


def addresses(at: At, bus: Any, config: str | None = None) -> Addresses:
    """Those of the server that is asked; those that a server would have which is started here, with the
    settings of a file, if none is.

    It raises nothing: what it is told beside, a secret perhaps, is shown once.
    """
    if at.url is not None:
        said = parse_url(at.url)
        stated = _stated(_settings(lambda: {one.name: one.value for one in Admin(bus).config()}), said.host)
        # Whoever asks by a socket is on the server's machine, where its files are.
        return stated if said.is_unix else stated._replace(native=said.bare, ca=said.ca)
    owner = owner_of(DiskFiles(), at.data) if is_served(bus) else None
    if owner is not None:
        return Addresses(_near(owner.url), _near(owner.http), owner.ca)
    return _stated(_settings(lambda: msgspec.structs.asdict(load(environment=os.environ, path=config).serving)))


def is_known(url: str) -> bool:
    """Whether a URL has its port."""
    return f":{PORT}" not in url


def hint(url: str) -> str:
    """What is to be said behind it."""
    return "" if is_known(url) else f"  ({PORT} is chosen at the start: headwater serve shows it)"


def _settings(ask: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    try:
        return ask()
    except HeadwaterError:  # whoever starts a server here is told, and who may not look at its settings need not be
        return msgspec.structs.asdict(Serving())


def _stated(settings: Mapping[str, Any], host: str = "") -> Addresses:
    """As settings have it, for who reaches the server by a host."""
    certificate = settings["tls_certificate"]
    s = "s" if certificate else ""
    native = f"headwater{s}://{_host(host or settings['host'])}:{settings['port'] or PORT}"
    http = f"http{s}://{_host(host or settings['http_host'] or settings['host'])}:{settings['http_port'] or PORT}"
    return Addresses(native, http, own_authority(certificate))


def _host(host: str) -> str:
    near = "127.0.0.1" if host in ANY else host
    return f"[{near}]" if ":" in near else near


def _near(url: str) -> str:
    """A server's own address, as commands on its machine say it."""
    scheme, _, place = url.partition("://")
    host, _, port = place.rpartition(":")
    return f"{scheme}://{_host(host.strip('[]'))}:{port}" if url else ""
