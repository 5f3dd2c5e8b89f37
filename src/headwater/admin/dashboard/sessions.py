"""Sessions: who is connected, who may come back, what they subscribe to; cut a connection, or end a session."""

from __future__ import annotations

from nicegui import ui

from headwater import units
from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.contents import show_facts
from headwater.admin.dashboard.dialogs import confirm, detail
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel
from headwater.admin.dashboard.listing import BADGE, OPENER, Listing, Row, column, row_button
from headwater.admin.dashboard.names import session_name
from headwater.wire.administration import SessionInfo, SessionSubscription

SHOWN = 200
DISCONNECT = row_button("disconnect", "'link_off'", "'Disconnect'", disabled="!props.row.is_here")
END = row_button("end", "'delete'", "'End session'", color="negative")


class Sessions:
    """The page while it is open."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._found: dict[str, SessionInfo] = {}
        heading("Sessions", "Who is connected, and who may come back to what is kept for them.")
        with panel():
            self._find = frame.find("Find by client, user, address or id", "Find a session", self.update)
            self._note = ui.label().classes("hw-note")
            self._listing = Listing(
                "id",
                Empty("devices", "Nobody is connected.", "headwater sub 'home/#' --url headwater://127.0.0.1:7411"),
                column("client", "Client", session_name, OPENER),
                column("user", "User", lambda one: shown.plain(one.user), who=True, wide=True),
                column("protocol", "Protocol", lambda one: one.protocol or "–", wide=True, word=True),
                column("address", "Address", lambda one: shown.plain(one.address), who=True, wide=True),
                column("state", "State", self._state, BADGE),
                column("in", "In", lambda one: self._rate(one, "in"), number=True, wide=True),
                column("out", "Out", lambda one: self._rate(one, "out"), number=True, wide=True),
                column(
                    "subscriptions",
                    "Filters",
                    lambda one: shown.count(len(one.subscriptions)),
                    number=True,
                    wide=True,
                ),
                column("waiting", "Waiting", lambda one: units.size(one.waiting_bytes), number=True, wide=True),
                column("dropped", "Dropped", lambda one: shown.count(one.dropped), number=True, wide=True),
                column("buttons", ""),
                more=lambda one: {
                    "id": one.id,
                    "is_here": bool(one.connected_us),
                    "tone": "good" if one.connected_us else "quiet",
                },
                on_open=self._open,
                label="Sessions",
            )
            if frame.may("operator"):
                buttons = DISCONNECT + END if frame.may("admin") else DISCONNECT
                self._listing.buttons(buttons, disconnect=self._disconnect, end=self._end)
        frame.every(1.0, self.update)

    async def update(self) -> None:
        everyone: list[SessionInfo] = await self._frame.admin.sessions.list()
        text = (self._find.value or "").strip().lower()
        found = [
            one for one in everyone if text in f"{one.id} {one.client} {one.user} {one.address} {one.host}".lower()
        ]
        found.sort(key=lambda one: (not one.connected_us, -one.waiting_bytes, one.user, one.id))
        self._found = {one.id: one for one in found[:SHOWN]}
        self._listing.show(self._found.values())
        left = len(found) - SHOWN
        self._note.text = (
            f"{shown.count(left)} more are not shown; find them by user, address or id." if left > 0 else ""
        )

    def _state(self, one: SessionInfo) -> str:
        here_s = self._frame.admin.bus.now.timestamp() - one.connected_us / 1e6
        return f"for {shown.span(here_s)}" if one.connected_us else "away"

    def _rate(self, one: SessionInfo, way: str) -> str:
        """How fast its bytes come or go."""
        if not one.connected_us:
            return "–"
        size = one.bytes_in if way == "in" else one.bytes_out
        rate = self._frame.growth.rate(f"session {one.id} {one.connected_us} {way}", size)
        return "–" if rate is None else f"{units.size(rate)}/s"

    async def _disconnect(self, row: Row) -> None:
        said = "Disconnected; the client may come back."
        await self._frame.change("operator", lambda admin: admin.sessions.disconnect(str(row["id"])), said, self.update)

    async def _end(self, row: Row) -> None:
        one = self._found.get(str(row["id"]))
        if one is None:
            return
        name = session_name(one)
        if await confirm(f"End the session of {name}? {_lost_by_end(one)}", "End session"):
            said = f"The session of {name} is ended."
            await self._frame.change("admin", lambda admin: admin.sessions.end(one.id), said, self.update)

    def _open(self, row: Row) -> None:
        one = self._found.get(str(row["id"]))
        if one is None:
            return
        with detail(session_name(one)):
            show_facts(
                ("Session", shown.plain(one.id)),
                ("User", shown.plain(one.user)),
                ("Protocol", one.protocol or "–"),
                ("Process", f"{one.pid} on {shown.plain(one.host)}" if one.pid else "–"),
                ("Address", shown.plain(one.address) or "–"),
                ("Connected", shown.precise(one.connected_us) if one.connected_us else "not now"),
                ("Read", units.size(one.bytes_in)),
                ("Written", units.size(one.bytes_out)),
                ("Dropped", shown.many(one.dropped, "message")),
                ("Kept for", shown.span(one.expire_after_s)),
                *(("Subscribes", _subscribed(sub)) for sub in one.subscriptions),
            )


def _subscribed(sub: SessionSubscription) -> str:
    """What a session subscribes to; the id of a subscription of its own is made of its id and the filter."""
    return shown.plain(f"{sub.filter} ({sub.kind}{f', {sub.id}' if sub.kind == 'named' else ''})")


def _lost_by_end(one: SessionInfo) -> str:
    """What goes with a session."""
    own = sum(sub.kind == "session" for sub in one.subscriptions)
    if not own:
        return "It has no subscriptions of its own, and may come back as a new one."
    return f"{shown.many(own, 'subscription')} of its own, with what waits there, will be gone for good."
