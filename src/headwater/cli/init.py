"""`headwater init`: a folder, settings, and the first who may do everything."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

import msgspec
import typer

from headwater.access.name import check_name
from headwater.cli.addresses import Addresses, addresses, hint, is_known
from headwater.cli.certificate import make_certificate
from headwater.cli.options import At, is_served
from headwater.cli.output import emit, remark, safe, say
from headwater.cli.tokens import tokens_of
from headwater.errors import Conflict, Malformed
from headwater.server.exposure import addresses as addresses_of
from headwater.server.exposure import is_loopback
from headwater.settings import FILE, load
from headwater.store.files import DiskFiles

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
RIGHTS = ("admin", "publish", "subscribe", "create", "channel")
"""No action includes another: the first client has them all, and may take some back."""


class Made(NamedTuple):
    """The first administrator."""

    name: str
    secret: str
    token: str


def init(
    at: At,
    admin: Annotated[str, typer.Option("--admin", metavar="NAME", help="Who may do everything.")] = "admin",
    tls: Annotated[bool, typer.Option("--tls", help="Make a certificate, too, so that the server speaks TLS.")] = False,
    host: Annotated[
        str, typer.Option("--host", help="Where the server is to listen; 0.0.0.0: wherever this machine is reached.")
    ] = "",
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="HOST",
            help="With --tls: a name or address by which clients reach this machine. May be repeated.",
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="The settings file, instead of ./headwater.toml.")
    ] = None,
) -> None:
    """Make a folder to serve: the first administrator with a secret and a token, a settings file, a certificate.

    The settings ask clients who they are (auth = "scram"). Settings and certificates that are there stay as they are.
    While a server has the folder, the administrator is added through it, and nothing else is made.

    With --json: an object with data, settings, certificate, admin, secret, token, url, http (null: a port that is 0
    in the settings is chosen at the start).
    """
    at.folder("init is for the folder's user")
    files: list[str] | None
    admin = check_name(admin)
    if name and not tls:
        raise Malformed("--name is about the certificate; say --tls, too")
    path = config or os.environ.get("HEADWATER_CONFIG") or FILE
    with at.own(make=True) as bus:
        _check_first(bus)
        if is_served(bus):
            if tls or host or config:
                raise Conflict(
                    "a server has the folder, and its settings are read when it starts; end it, then init again, or "
                    "leave out --tls, --host and --config to add the administrator alone"
                )
            files = None
        else:
            files = _make_settings(path, at.data, host, [*(name or ())] if tls else None)
            load(environment=os.environ, path=path)  # so that what is wrong is said before a secret is shown
        made = _make_admin(bus, admin)
        where = addresses(at, bus, path)
    if at.json:
        _emit(at, path, made, where)
    else:
        _show(at, path, files, made, where)


def _check_first(bus: Any) -> None:
    """Conflict if there is an administrator: who adds another knows what is there."""
    rights = {rule.user for rule in bus.acl.list() if rule.action == "admin" and rule.allow}
    found = [client.name for client in bus.clients.list() if client.name in rights or "*" in rights]
    if found:
        named = safe(found[0])
        raise Conflict(
            f'there is an administrator already, "{named}"; another secret for it: headwater clients rotate {named}; '
            f"a token: headwater tokens add {named} --role admin; another one: headwater clients add NAME, then "
            "headwater acl allow NAME admin"
        )


def _make_admin(bus: Any, name: str) -> Made:
    for action in RIGHTS:
        bus.acl.allow(name, action, "#")
    client = bus.clients.add(name)
    return Made(client.name, client.secret, tokens_of(bus).add(client.name, "admin").token)


# Settings and the certificate


def _make_settings(path: str, data: str, host: str, names: list[str] | None) -> list[str]:
    """What was made: the settings file, unless there is one, and with names a certificate beside it."""
    files = DiskFiles()
    if files.exists(path):
        _check_settings(path, host, names is not None)
        return []
    files.make_folder(str(Path(path).absolute().parent))
    settings = {"data": str(Path(data).absolute()), "auth": "scram", **({"host": host} if host else {})}
    made = []
    if names is not None:
        certificate, key = (str(Path(path).absolute().with_name(f"headwater.{kind}")) for kind in ("crt", "key"))
        if not (files.exists(certificate) and files.exists(key)):
            until = make_certificate(certificate, key, [*names, *_names_of(host)])
            remark(f"the certificate is good until {until:%Y-%m-%d}; put another in its place by then")
            made = [certificate, key]
        settings |= {"tls_certificate": certificate, "tls_key": key}
    lines = [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in settings.items()]
    head = "# What differs from the defaults; headwater serve --print-config shows every setting."
    files.write(path, "\n".join([head, *lines, ""]).encode())
    return [path, *made]


def _check_settings(path: str, host: str, tls: bool) -> None:
    """A file that is there says how it is served: it is told what it lacks, and not changed."""
    serving = load(environment=os.environ, path=path).serving
    if not serving.methods:
        remark(f'{path} has auth = "none": whoever is on this machine may do everything; auth = "scram" asks for names')
    if tls and not serving.tls_certificate:
        raise Conflict(
            f"{path} is there, and names no certificate; put tls_certificate and tls_key into it, or move it away and "
            "init again"
        )
    if host and serving.host != host:
        raise Conflict(f'{path} is there, and has host = "{serving.host}"; change it there, or leave out --host')


def _names_of(host: str) -> list[str]:
    """How this machine is reached: its own name, and loopback, which its own commands take."""
    found = [] if not host or host in LOCAL_NAMES else [socket.gethostname()]
    if host and host not in ("0.0.0.0", "::"):  # noqa: S104  (nothing listens here)
        found += [one for one in addresses_of(host) if not is_loopback(one)]
    return [*LOCAL_NAMES, *found]


# What is said


def _emit(at: At, path: str, made: Made, where: Addresses) -> None:
    url = where.of(made.name, quote(made.secret, safe=""))
    emit(
        {
            "data": at.data,
            "settings": path if DiskFiles().exists(path) else None,
            "certificate": where.ca or None,
            "admin": made.name,
            "secret": made.secret,
            "token": made.token,
            "url": url if is_known(url) else None,
            "http": where.http if is_known(where.http) else None,
        }
    )


def _show(at: At, path: str, files: list[str] | None, made: Made, where: Addresses) -> None:
    if files is not None:
        say(("made: ", "bold"), safe(", ".join([at.data, *files])))
    say(("administrator: ", "bold"), (safe(made.name), "cyan"), "  (what is below is shown this once: keep it now)")
    say("secret: ", (made.secret, "bold"))
    say("token:  ", (made.token, "bold"), f"  (for {where.http}, the dashboard and the API)", hint(where.http))
    if files is not None:
        say("start it:   headwater serve", "" if path == FILE else f" --config {safe(path)}")
    url = where.of(made.name, quote(made.secret, safe=""))
    say(f"use it:     headwater pub home/kitchen/temp 21.5 --url '{url}'", hint(url))
