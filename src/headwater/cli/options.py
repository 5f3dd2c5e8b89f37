"""Options that many commands share, and how offsets and moments are written."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast
from urllib.parse import quote

import typer

import headwater
from headwater.cli.help import Command, Group, paragraphs
from headwater.cli.output import remark
from headwater.clock import SystemClock, to_datetime
from headwater.delivery.start import Start
from headwater.errors import Conflict, Disconnected, Malformed, NotFound, Owned
from headwater.settings import folder_of_settings

if TYPE_CHECKING:
    from headwater.bus import Bus

DATA = "headwater-data"


def _option(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=text, show_default=False)


DATA_TEXT = f"The folder that holds the data ({DATA} if nothing is said). Or set HEADWATER_DATA."
URL_TEXT = "A server instead of a folder: headwater://name:secret@host:7411. Or set HEADWATER_URL."
LAKE_TEXT = "The lake of the folder: what is archived there is read too. Or set HEADWATER_LAKE."
Data = Annotated[str | None, _option("--data", "FOLDER", DATA_TEXT)]
Url = Annotated[str | None, _option("--url", "URL", URL_TEXT)]
Lake = Annotated[str | None, _option("--lake", "DIR", LAKE_TEXT)]
Json = Annotated[bool, typer.Option("--json", help="For machines: JSON, one object a line.")]
Hex = Annotated[bool, typer.Option("--hex", help="Show payloads in hexadecimal, also those that are text.")]
Raw = Annotated[bool, typer.Option("--raw", help="Write payloads only, byte for byte, each followed by a newline.")]

RELATIVE = re.compile(r"([+-]?)(\d+(?:\.\d+)?)(ms|s|m|h|d)")
UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class At(NamedTuple):
    """Where a command works, on a folder or at a server, and whether it answers in JSON.

    A command that has a parameter `at: At` has the options --data, --url and --json in its place (`CommandGroup`).
    """

    data: str
    url: str | None
    json: bool = False

    @property
    def is_served(self) -> bool:
        """Whether it is a server that was named."""
        return self.url is not None

    def own(self, *, make: bool = False) -> Bus:
        """The bus on a folder, to change it; or that of a server: the one that is named, or else owns the folder.

        With `make` a folder that is missing is made."""
        if self.url is not None:
            return connect(self.url)
        if not make:
            self._check_there()
        try:
            return headwater.open(self.data)
        except Owned:
            bus = served_by_owner(self.data)
            if bus is None:
                self._check_no_node()
                raise
            return bus

    def _check_no_node(self) -> None:
        """Conflict if the folder is that of a node that follows, which takes nothing itself."""
        from headwater.store.files import DiskFiles
        from headwater.store.folder import cluster_of

        name = cluster_of(DiskFiles(), self.data)
        if name:
            raise Conflict(
                f'"{self.data}" is the folder of a node of cluster "{name}" that does not lead; say --url '
                "headwater://… of any node, or --data on the machine of the one that leads: headwater cluster leader"
            )

    def look(self, lake: str | None = None) -> Bus:
        """The bus on a folder, to look at it, also while another process owns it; or that of a server."""
        if self.url is None:
            self._check_there()
            return headwater.open(self.data, read_only=True, lake=lake)
        if lake is not None:
            raise Malformed("--lake is for a folder; a server that has a lake reads it by itself (serve --lake)")
        return connect(self.url)

    def server(self) -> Bus | None:
        """The bus of the server that is named, or else owns the folder; None if no server does."""
        return connect(self.url) if self.url is not None else served_by_owner(self.data)

    def watch(self) -> Bus:
        """The bus to look at what a server alone knows; without one, what the folder has of it."""
        return self.server() or self.look()

    def _check_there(self) -> None:
        if not Path(self.data).exists():
            raise NotFound(
                f'there is no folder "{self.data}"; name another with --data, or a server with --url. headwater init '
                "makes one, and so does the first headwater pub"
            )

    def folder(self, what: str) -> str:
        """The folder, for a command that needs the files themselves."""
        if self.url is not None:
            raise Malformed(f"{what}; on the server's machine, say --data FOLDER instead of --url")
        return self.data


def place(data: str | None, url: str | None, json: bool = False) -> At:
    """What was said, by flags or else by the environment; saying both is Malformed."""
    if data is not None and url is not None:
        raise Malformed("--data is a folder, --url a server; give one of them")
    if data is None and url is None:
        data, url = os.environ.get("HEADWATER_DATA") or None, os.environ.get("HEADWATER_URL") or None
        if data is not None and url is not None:
            raise Malformed("HEADWATER_DATA and HEADWATER_URL are both set; unset one, or say --data or --url")
    if data is not None and "://" in data:
        raise Malformed("--data, or HEADWATER_DATA, is a folder, and that is the address of a server; say --url")
    return At(data or (folder_of_settings(os.environ) if url is None else "") or DATA, url, json)


def placed(command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer is to see it: with options instead of `at`, if it has that."""
    parameters = dict(inspect.signature(command, eval_str=True).parameters)
    if parameters.pop("at", None) is None:
        return command

    @wraps(command)
    def run(data: str | None, url: str | None, json: bool, **others: Any) -> None:
        command(at=place(data, url, json), **others)

    for name, kind, default in (("data", Data, None), ("url", Url, None), ("json", Json, False)):
        parameters[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
    run.__annotations__ = {name: one.annotation for name, one in parameters.items()}
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]  # inspect looks for it
    return run


class CommandGroup(typer.Typer):
    """A group of commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": Group, **settings})

    def command(self, *names: Any, **settings: Any) -> Callable[[Any], Any]:
        """Add a command, which may have `at`."""

        def add(command: Any) -> Any:
            given = {"cls": Command, "help": paragraphs(command.__doc__), **settings}
            return super(CommandGroup, self).command(*names, **given)(placed(command))

        return add


def lake_of(lake: str | None, url: str | None) -> str | None:
    """The lake that was named, by the flag or, for a folder, by the environment."""
    return lake if lake is not None or url is not None else os.environ.get("HEADWATER_LAKE") or None


def connect(url: str) -> Bus:
    """The bus of a server: another class with the same methods."""
    return cast("Bus", headwater.connect(url))


def is_served(bus: Bus) -> bool:
    """Whether it is the bus of a server."""
    from headwater.bus import Bus

    return not isinstance(bus, Bus)


def owner_url(folder: str) -> str:
    """The address of the socket by which a folder's own server lets its user in."""
    from headwater.store.owner import socket_of

    return "headwater+unix://" + quote(socket_of(folder))


def served_by_owner(folder: str) -> Bus | None:
    """The bus of the server that owns a folder, as its administrator; None if no server does."""
    from headwater.store.files import DiskFiles
    from headwater.store.owner import owner_of

    owner = owner_of(DiskFiles(), folder)
    if owner is None:
        return None
    try:
        bus = connect(owner_url(folder))
    except Disconnected:  # it was killed
        return None
    remark(f'"{folder}" is served by process {owner.pid}: this goes through it, as its administrator')
    return bus


def without_secret(url: str) -> str:
    """A URL as it may be shown."""
    return re.sub(r"(://[^:@/\s]*):\S*@", r"\1:***@", url)


def moment(text: str, *, ago: bool = False) -> datetime:
    """A moment: 2026-01-31T12:00[+01:00], or 90s, 5m, 2h, 1d from now (with `ago`, before now)."""
    relative = RELATIVE.fullmatch(text.strip())
    if relative:
        sign, number, unit = relative.groups()
        seconds = float(number) * UNITS_S[unit]
        if sign == "-" or (ago and not sign):
            seconds = -seconds
        try:
            return to_datetime(SystemClock().now_us()) + timedelta(seconds=seconds)
        except OverflowError:
            raise Malformed(f'"{text}" lies outside of the calendar') from None
    try:
        given = datetime.fromisoformat(text.strip())
        return given.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Malformed(
            f'"{text}" is no moment; write 2026-01-31T12:00, with a zone if it is not the local one, or 90s, 5m, 2h, 1d'
        ) from None


def start(text: str) -> Start:
    """Where a subscription begins: earliest, latest, an offset, or a moment."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isdecimal():
        return int(text)
    try:
        return moment(text, ago=True)
    except Malformed:
        raise Malformed(
            f'"{text}" is no place to start; write earliest, latest, an offset such as 1200, or a moment: '
            "2026-01-31T12:00, or 90s, 5m, 2h, 1d ago"
        ) from None


def after(given: list[str]) -> int | dict[str, int] | None:
    """Where a replay begins: an offset, or one for each of several roots, as in home=1200."""
    if not given:
        return None
    if len(given) == 1 and given[0].isdecimal():
        return int(given[0])
    places = {}
    for text in given:
        root, equals, offset = text.rpartition("=")
        if not equals or not offset.isdecimal():
            raise Malformed(f'--after "{text}" is no offset; write --after 1200, or --after home=1200 for each root')
        places[root] = int(offset)
    return places
