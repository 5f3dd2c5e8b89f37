"""By what people know subscriptions and consumers: the name of a channel, the id of an MQTT client, a machine and its
process."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headwater.admin.client import Admin
from headwater.admin.dashboard import formatting as shown
from headwater.errors import HeadwaterError
from headwater.message import ConsumerInfo
from headwater.wire.administration import ChannelInfo, SessionInfo

CHANNEL = "channel:"
"""How the ids of the subscriptions of channels begin."""
SESSION = re.compile(r"([0-9a-f]{32})(?::(.*))?", re.DOTALL)
"""The id of a session, and that of one of its subscriptions: with the filter behind it."""
ASKED_MAX = 20
"""Sessions that are asked for at a time; the others have their names a moment later."""
KEPT_MAX = 10_000
SHORT = 8
"""Digits that tell a session from others, where it is known by nothing else."""


class Names:
    """What subscriptions and sessions are called, as far as it was asked for: that of a session never changes."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._sessions: dict[str, str] = {}
        self._channels: dict[str, str] = {}

    async def learn(self, ids: Iterable[str]) -> None:
        """Ask for the names of these subscriptions or sessions, if they have any besides their ids."""
        ids = list(ids)
        if any(one.startswith(CHANNEL) for one in ids):
            channels: list[ChannelInfo] = await self._admin.channels.list()
            self._channels = {CHANNEL + one.id: f"channel {one.name}" for one in channels}
        if len(self._sessions) > KEPT_MAX:
            self._sessions.clear()
        sessions = dict.fromkeys(found[1] for one in ids if (found := SESSION.fullmatch(one)) is not None)
        for session in [one for one in sessions if one not in self._sessions][:ASKED_MAX]:
            self._sessions[session] = await self._ask(session)

    async def _ask(self, id: str) -> str:
        try:
            found: list[SessionInfo] = await self._admin.sessions.show(id)
        except HeadwaterError:  # it is gone, or not for this visitor
            found = []
        return session_name(found[0]) if found else f"session {id[:SHORT]}…"

    def of(self, id: str) -> str:
        """What this one is called; its id, if that is not known."""
        session = SESSION.fullmatch(id)
        if session is None or session[1] not in self._sessions:
            return shown.plain(self._channels.get(id, id))
        name = self._sessions[session[1]]
        return name if session[2] is None else shown.plain(f"{name}: {session[2]}")


def session_name(one: SessionInfo) -> str:
    """By which people know it: the id that its MQTT client chose, or its machine and process, or its session."""
    if one.pid:
        return shown.plain(f"{one.host}:{one.pid}")
    return shown.plain(one.client) or one.id


def consumer_name(one: ConsumerInfo) -> str:
    """Who takes from a subscription."""
    process = f" pid {one.pid}" if one.pid else ""
    return shown.plain(f"{one.user or 'somebody'} at {one.host or 'an unknown host'}{process}")
