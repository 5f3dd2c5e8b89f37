"""Channels: where messages are pushed to, how that goes; make, change, try, pause and remove them."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from headwater.admin.client import Admin
from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.contents import show_facts
from headwater.admin.dashboard.dialogs import confirm, confirm_twice, dead_letters_of, detail, form, show_once, submit
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel, say
from headwater.admin.dashboard.listing import BADGE, OPENER, Listing, Row, column, row_button
from headwater.admin.dashboard.names import CHANNEL
from headwater.admin.dashboard.past import OF_SUBSCRIPTION, Past
from headwater.wire.administration import ChannelInfo, ChannelTrial

TONES = {"delivering": "good", "idle": "good", "connecting": "busy", "failing": "bad", "paused": "quiet"}
BUTTONS = (
    row_button("try", "'network_check'", "'Test'")
    + row_button("pause", "props.row.paused ? 'play_arrow' : 'pause'", "props.row.paused ? 'Resume' : 'Pause'")
    + row_button("change", "'edit'", "'Change'")
    + row_button("remove", "'delete'", "'Remove'", color="negative")
)


class Channels:
    """The page while it is open."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._found: dict[str, ChannelInfo] = {}
        with heading("Channels", "Where the broker pushes messages to, and how that goes."):
            add = ui.button("New channel", icon="add", on_click=lambda: self._edit(None)).props("unelevated no-caps")
            frame.needs("operator", add)
        with panel():
            self._listing = Listing(
                "id",
                Empty(
                    "outbound",
                    "Nothing is pushed anywhere yet.",
                    "headwater channels add alarms 'home/+/alarm' 127.0.0.1 9000",
                ),
                column("name", "Channel", lambda one: shown.plain(one.name), OPENER),
                column("filter", "Filter", lambda one: shown.plain(one.filter), mono=True, wide=True),
                column("destination", "Destination", _destination, mono=True, wide=True),
                column("state", "State", lambda one: one.state, BADGE),
                column("error", "Last error", lambda one: shown.error(one.error) or "–", wide=True),
                column("delivered", "Delivered", lambda one: shown.count(one.delivered), number=True, wide=True),
                column("lag", "Behind", lambda one: shown.count(one.lag), number=True, wide=True),
                column("dead", "Dead", lambda one: shown.count(one.dead), number=True, wide=True),
                column("buttons", ""),
                more=_more,
                on_open=self._open,
                label="Channels",
            )
            if frame.may("operator"):
                self._listing.buttons(
                    BUTTONS,
                    **{
                        "try": self._try,
                        "pause": self._pause,
                        "change": lambda row: self._edit(self._found.get(str(row["id"]))),
                        "remove": self._remove,
                    },
                )
        frame.every(1.0, self.update)

    async def update(self) -> None:
        found: list[ChannelInfo] = await self._frame.admin.channels.list()
        self._found = {one.id: one for one in found}
        self._listing.show(found)

    async def _try(self, row: Row) -> None:
        async def doing(admin: Admin) -> None:
            trial: ChannelTrial = await admin.channels.test(str(row["id"]))
            took = shown.seconds(trial.took_s)
            say(f"{shown.plain(trial.detail)} ({took})", "positive" if trial.ok else "negative")

        await self._frame.do("operator", doing)

    async def _pause(self, row: Row) -> None:
        one = self._found.get(str(row["id"]))
        if one is not None and not row["paused"]:
            waiting = shown.many(one.lag, "message")
            question = f"Pause {shown.plain(one.name)}? Nothing is lost; {waiting} and what comes wait till it goes on."
            if not await confirm(question, "Pause"):
                return
        said = "It goes on." if row["paused"] else "Paused: nothing is pushed."
        await self._frame.change(
            "operator",
            lambda admin: admin.channels.change(str(row["id"]), paused=not row["paused"]),
            said,
            self.update,
        )

    async def _remove(self, row: Row) -> None:
        one = self._found.get(str(row["id"]))
        if one is None:
            return

        async def doing(admin: Admin) -> str | None:
            async def remove(force: bool) -> str:
                await admin.channels.remove(one.id, force=force)
                return f"{shown.plain(one.name)} is removed."

            lost = f"{shown.many(one.lag, 'message')} that wait and {shown.many(one.dead, 'dead letter')}"
            question = f"Remove channel {shown.plain(one.name)}, its place, {lost}? This cannot be taken back."
            return await confirm_twice(question, "Remove", remove)

        await self._frame.do("operator", doing, self.update)

    def _edit(self, one: ChannelInfo | None) -> None:
        """Make a channel, or change one."""
        with form("New channel" if one is None else "Change channel") as dialog:
            fields = _Fields(one)

            async def doing(admin: Admin) -> str:
                if one is not None:
                    await admin.channels.change(one.id, **fields.changes())
                    return "Changed."
                made: list[ChannelInfo] = await admin.channels.add(**fields.spec())
                if made[0].secret:
                    show_once(f"What {shown.plain(made[0].name)} signs with", made[0].secret)
                return f"{shown.plain(made[0].name)} is there."

            submit(
                dialog, "Create" if one is None else "Change", lambda: self._frame.do("operator", doing, self.update)
            )

    def _open(self, row: Row) -> None:
        one = self._found.get(str(row["id"]))
        if one is None:
            return
        with detail(one.name, "hw-wide-dialog") as dialog:
            show_facts(
                ("Id", shown.plain(one.id)),
                ("Filter", shown.plain(one.filter)),
                ("Destination", _destination(one)),
                ("Address", shown.plain(one.address) or "–"),
                ("Owner", shown.plain(one.owner) or "administrators"),
                ("Since", shown.precise(one.created_us)),
                ("At once", shown.many(one.batch_messages_max, "message")),
                ("State", one.state),
                ("Last error", shown.plain(one.error) or "none"),
                ("Retrying", shown.count(one.retrying)),
                ("Dead letters", shown.count(one.dead)),
            )
            with ui.row().classes("hw-toolbar"):
                dead_letters_of(CHANNEL + one.id, dialog)
            Past(self._frame, "subscription", CHANNEL + one.id, OF_SUBSCRIPTION)


class _Fields:
    """What a channel is to be."""

    def __init__(self, one: ChannelInfo | None) -> None:
        self._name = ui.input("Name", value=one.name if one else "").props("outlined dense autofocus")
        self._filter = ui.input("Filter", value=one.filter if one else "", placeholder="home/+/alarm")
        self._filter.props("outlined dense")
        self._kind = ui.select(
            {"tcp": "tcp: a receiver of Headwater's", "http": "http: a web hook"},
            value=one.kind if one else "tcp",
            label="Kind",
        ).props("outlined dense")
        self._host = ui.input("Destination host", value=one.destination_host if one else "127.0.0.1")
        self._host.props("outlined dense")
        self._port = ui.number("Destination port", value=one.destination_port if one else None, min=1, max=65535)
        self._port.props("outlined dense")
        self._path = ui.input("Path", value=one.path if one else "/").props("outlined dense")
        self._path.bind_visibility_from(self._kind, "value", value="http")
        self._start = ui.select(
            {"latest": "from now on", "earliest": "from the beginning"}, value="latest", label="Start"
        )
        self._start.props("outlined dense")
        if one is not None:
            self._filter.disable()
            self._kind.disable()
            self._start.visible = False

    def spec(self) -> dict[str, Any]:
        """A new one."""
        spec: dict[str, Any] = {
            "name": self._name.value or "",
            "filter": self._filter.value or "",
            "kind": self._kind.value,
            "destination_host": self._host.value or "",
            "destination_port": int(self._port.value or 0),
            "start": self._start.value,
        }
        return spec | ({"path": self._path.value or "/"} if self._kind.value == "http" else {})

    def changes(self) -> dict[str, Any]:
        """What can be changed of one that is there."""
        spec = self.spec()
        return {name: spec[name] for name in ("name", "destination_host", "destination_port", "path") if name in spec}


def _destination(one: ChannelInfo) -> str:
    place = f"{one.destination_host}:{one.destination_port}"
    return shown.plain(f"{one.kind}://{place}{one.path}" if one.kind == "http" else f"{one.kind}://{place}")


def _more(one: ChannelInfo) -> Row:
    return {"id": one.id, "tone": TONES.get(one.state, "quiet"), "paused": one.state == "paused"}
