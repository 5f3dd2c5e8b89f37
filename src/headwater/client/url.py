"""Addresses of servers: what `headwater.connect` takes.

    headwater://name:secret@host:7411                       plain
    headwater://name:secret@n1:7411,n2,n3                   nodes of a cluster: whichever answers first, then the next
    headwater://name:secret@n1,n2,n3?read=any               to read alone, at whichever of them
    headwaters://name:secret@host:7411?ca=ca.pem            TLS; with &cert=client.pem&key=client.key a certificate
    headwater+unix://name:secret@/run/headwater.sock        a Unix socket; name and secret may be left out everywhere

In names and secrets, characters such as : / @ are written as %3A %2F %40. A secret never shows: not in an error, not
in a repr.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

import msgspec

from headwater.errors import Malformed

PORT = 7411
SCHEMES = ("headwater", "headwaters", "headwater+unix")
PLACES_MAX = 32
"""Nodes that an address names."""
TLS_OPTIONS = ("ca", "cert", "key", "verify")
READS = ("leader", "any")
"""Where what is read comes from."""
Token = str | Callable[[], str | Awaitable[str]]
"""A token of an issuer, or what gives a fresh one whenever the client connects."""
EXAMPLE = "write it as headwater://name:secret@host:7411"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server is, and who comes."""

    host: str = "127.0.0.1"
    port: int = PORT
    others: tuple[tuple[str, int], ...] = ()
    """Hosts and ports of further nodes of the same cluster."""
    path: str = ""
    """Of a Unix socket."""
    user: str = ""
    secret: str = ""
    tls: bool = False
    ca: str = ""
    """A PEM file with the authority that the server's certificate is checked against; empty: the system's."""
    cert: str = ""
    key: str = ""
    verify: bool = True
    token: Token | None = None
    """In place of a secret."""
    reads_any: bool = False
    """Whether it only reads, and any node of a cluster may serve it."""

    @property
    def is_unix(self) -> bool:
        """Whether it is a socket in the file system."""
        return bool(self.path)

    def __str__(self) -> str:
        """The address as it may be shown."""
        user = f"{self.user}@" if self.user else ""
        if self.is_unix:
            return f"headwater+unix://{user}{self.path}"
        places = ",".join(place_text(*place) for place in ((self.host, self.port), *self.others))
        return f"headwater{'s' if self.tls else ''}://{user}{places}"

    def at(self, host: str, port: int) -> Address:
        """The same, at one place."""
        return msgspec.structs.replace(self, host=host, port=port, others=())

    @property
    def places(self) -> tuple[Address, ...]:
        """Each of its places by itself."""
        if not self.others:
            return (self,)
        return tuple(self.at(*place) for place in ((self.host, self.port), *self.others))

    @property
    def bare(self) -> str:
        """The address without who comes."""
        return str(msgspec.structs.replace(self, user=""))

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("url", str(self))]


def place_text(host: str, port: int) -> str:
    """A host and a port, as they are written."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(url: str | Address, token: Token | None = None) -> Address:
    """The address that a URL states, for a client that shows a token; Malformed (422) shows neither it nor a secret."""
    address = parse_url(url) if isinstance(url, str) else url
    if token is None:
        return address
    if not (isinstance(token, str) and token) and not callable(token):
        raise Malformed(f"a token is a str, or a function that gives one, not {type(token).__name__}")
    if address.secret:
        raise Malformed("the server's address has a secret, and there is a token; leave one of them out")
    return msgspec.structs.replace(address, token=token)


def parse_url(url: str) -> Address:
    """The address that a URL states; Malformed (422), which never shows the secret."""
    if not isinstance(url, str):
        raise Malformed(f"a server's address is a str, not {type(url).__name__}; {EXAMPLE}")
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        shown = f'begins with "{scheme}://"' if separator and scheme.isprintable() else "has no scheme"
        folder = "" if separator else "; a folder is opened in this process, by headwater.open"
        raise Malformed(f"the server's address {shown}; it begins with one of {known}: {EXAMPLE}{folder}")
    try:
        parts = urlsplit(url)
        places = _places(parts.netloc.rpartition("@")[2])
    except ValueError:
        # Its text may contain what stands between : and @, which may be a secret with an @ or / of its own.
        raise Malformed(
            f"the server's host or port cannot be read; {EXAMPLE}, with : / @ in a secret as %3A %2F %40"
        ) from None
    if parts.fragment or "#" in url:
        raise Malformed("the server's address has a #; in a secret it is written as %23")
    user, secret = _decoded("name", parts.username or ""), _decoded("secret", parts.password or "")
    if secret and not user:
        raise Malformed(f"the server's address has a secret without a name; {EXAMPLE}")
    options = _options(parts.query, scheme)
    reads = options.pop("read", "leader")
    if reads not in READS:
        raise Malformed(f"read={reads[:40]} is unknown; use read={' or read='.join(READS)}")
    if scheme == "headwater+unix":
        path = _decoded("path", parts.path)
        if not path.startswith("/") or places or len(path) < 2:
            raise Malformed("a Unix socket is stated by its whole path: headwater+unix:///run/headwater.sock")
        return Address(host="", path=path, user=user, secret=secret)
    if not all(host for host, _ in places) or not places:
        raise Malformed(f"the server's address has no host; {EXAMPLE}")
    if parts.path not in ("", "/"):
        raise Malformed(
            f"the server's address goes on after its port; leave that out ({EXAMPLE}), and write / in a secret as %2F"
        )
    if not all(port for _, port in places):
        raise Malformed("the server's port is 0; use 1 to 65535")
    if len(places) > PLACES_MAX or len(set(places)) < len(places):
        raise Malformed(f"the server's address names {len(places)} places; name each once, and at most {PLACES_MAX}")
    verify, tls = _truth(options.pop("verify", "yes")), scheme == "headwaters"
    (host, port), *others = places
    address = Address(host=host, port=port, others=tuple(others), user=user, secret=secret, tls=tls, verify=verify)
    address = msgspec.structs.replace(address, reads_any=reads == "any")
    return msgspec.structs.replace(address, **options)


def _places(text: str) -> list[tuple[str, int]]:
    """The hosts and ports of a list; ValueError if one cannot be read."""
    found = []
    for one in text.split(",") if text else ():
        parts = urlsplit(f"//{one}")
        found.append((parts.hostname or "", PORT if parts.port is None else parts.port))
    return found


def _options(query: str, scheme: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise Malformed(
            "the part after ? cannot be read; write it as ?ca=ca.pem&cert=client.pem&key=client.key"
        ) from None
    options = dict(pairs)
    if len(options) != len(pairs):
        raise Malformed("the part after ? says something twice; say it once")
    for name in options:
        if name not in (*TLS_OPTIONS, "read"):
            raise Malformed(f"the part after ? has {name[:40]!r}; use {', '.join(TLS_OPTIONS)} or read")
    if options.keys() - {"read"} and scheme != "headwaters":
        raise Malformed(f"{', '.join(options.keys() - {'read'})} is for TLS; begin the address with headwaters://")
    if "key" in options and "cert" not in options:
        raise Malformed("key= goes with cert=, the certificate that it belongs to")
    return options


def _truth(text: str) -> bool:
    if text.lower() not in ("yes", "no", "true", "false", "1", "0"):
        raise Malformed("verify= is yes or no")
    return text.lower() in ("yes", "true", "1")


def _decoded(what: str, text: str) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise Malformed(f"the {what} in the server's address is not UTF-8 once its % are decoded") from None
