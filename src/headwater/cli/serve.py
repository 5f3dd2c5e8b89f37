"""`headwater serve`: the bus of a folder, for clients on the network."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from headwater.cli.options import Json
from headwater.cli.output import emit
from headwater.clock import SystemClock, to_datetime
from headwater.errors import Malformed, Owned
from headwater.settings import flag, known, load


def serve(
    context: typer.Context,
    data: Annotated[
        str | None, typer.Option("--data", metavar="FOLDER", help="The folder that holds the data.")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Where to listen; beyond loopback only with --auth.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="The native port; 0 for one that is free.")] = None,
    unix_path: Annotated[
        str | None, typer.Option("--unix", metavar="PATH", help="A Unix socket to listen on as well.")
    ] = None,
    mqtt_host: Annotated[
        str | None, typer.Option("--mqtt-host", help="Where MQTT clients connect; default: as --host.")
    ] = None,
    mqtt_port: Annotated[int | None, typer.Option("--mqtt-port", help="Their port; 0 for one that is free.")] = None,
    mqtt: Annotated[
        bool | None, typer.Option("--mqtt/--no-mqtt", help="Serve MQTT clients, 3.1.1 and 5.", show_default=False)
    ] = None,
    http_host: Annotated[
        str | None, typer.Option("--http-host", help="Where the API and the dashboard listen; default: as --host.")
    ] = None,
    http_port: Annotated[int | None, typer.Option("--http-port", help="Their port; 0 for one that is free.")] = None,
    http: Annotated[
        bool | None, typer.Option("--http/--no-http", help="Serve the API and the dashboard.", show_default=False)
    ] = None,
    auth: Annotated[
        str | None, typer.Option("--auth", help="none, or some of scram,certificate,gatekeeper,jwt.")
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option("--tls-certificate", metavar="FILE", help="PEM; with --tls-key the port speaks TLS.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="PEM, without a passphrase.")] = None,
    tls_client_ca: Annotated[
        str | None, typer.Option("--tls-client-ca", metavar="FILE", help="PEM; whose clients' certificates count.")
    ] = None,
    lake: Annotated[
        str | None,
        typer.Option("--lake", metavar="DIR", help="The lake of this bus; replays reach back to what is archived."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="URLS", help="NATS servers: nats://h1:4222,h2,h3. Be a node of a cluster."),
    ] = None,
    bus: Annotated[str | None, typer.Option("--bus", metavar="NAME", help="Which bus it is a node of.")] = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="What it is called among the nodes.")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option("--advertise", metavar="HOST:PORT", help="Where other nodes find it.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting: segment_bytes=64MiB. May be repeated."),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="Instead of HEADWATER_CONFIG or ./headwater.toml.")
    ] = None,
    log_json: Annotated[
        bool | None, typer.Option("--log-json/--log-text", help="Log one JSON object a line.", show_default=False)
    ] = None,
    log_level: Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show every setting, and where it came from, and end.")
    ] = False,
    json: Json = False,
) -> None:
    """Serve a folder to clients, at headwater://127.0.0.1:7411 if nothing else is said.

    Settings come from headwater.toml, then HEADWATER_*, then flags. When it is ready it prints one line with its URL;
    logs go to stderr. SIGTERM or Ctrl-C: it takes no more connections, finishes what is under way, tells its clients
    and ends with code 0; a second one ends it at once. SIGHUP: it reads certificates, clients and rules anew.

    With --print-config --json: an object for each setting (setting, value, default, source, from, description).
    """
    named = {name: value for name, value in context.params.items() if name in known()}
    loaded = load(_flags(named, set_ or []), os.environ, config)
    if print_config:
        from headwater.cli.print_config import show

        show(loaded, json)
        return
    if json:
        raise Malformed("--json is about --print-config; for logs as JSON use --log-json")
    from headwater.serving.process import run
    from headwater.store.files import DiskFiles
    from headwater.store.owner import owner_of
    from headwater.store.permissions import close_by_default

    close_by_default()
    try:
        code = run(loaded, lambda url: _announce(url, loaded.process.log_json))
    except Owned:
        owner = owner_of(DiskFiles(), loaded.data)
        if owner is None:
            raise
        raise Owned(
            f'"{loaded.data}" is served already, by process {owner.pid} at {owner.url}; stop that one, or serve '
            "another folder with --data"
        ) from None
    raise typer.Exit(code)


def _flags(named: Mapping[str, object], others: list[str]) -> dict[str, tuple[str, object]]:
    flags: dict[str, tuple[str, object]] = {
        name: ("--" + name.removesuffix("_path").replace("_", "-"), value)
        for name, value in named.items()
        if value is not None
    }
    for text in others:
        name, given = flag(text)
        if name in flags:
            raise Malformed(f"setting {name} is given twice, as {flags[name][0]} and as {given[0]}; leave one out")
        flags[name] = given
    return flags


def _announce(url: str, as_json: bool) -> None:
    """A line on stdout for each door."""
    if as_json:
        time = to_datetime(SystemClock().now_us()).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        event = next((event for event in ("http", "mqtt") if url.startswith(event)), "ready")
        emit({"time": time, "level": "info", "event": event, "url": url, "pid": os.getpid()})
    else:
        what = {"http": "the dashboard and the API are", "mqtt": "MQTT clients connect"}
        print(f"{what.get(url[:4], 'headwater is ready')} at {url}")
    sys.stdout.flush()
