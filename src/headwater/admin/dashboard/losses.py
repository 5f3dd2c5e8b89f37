"""What is lost when messages are purged, or a root is removed: said before it is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nicegui import ui

from headwater.admin.client import Admin
from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.dialogs import confirm, confirm_twice
from headwater.admin.dashboard.frame import Frame
from headwater.admin.dashboard.names import Names
from headwater.message import SubscriptionInfo, TopicInfo
from headwater.topics.name import filters_overlap
from headwater.wire import requests as wire

COUNTED_MAX = 1000
"""Topics whose messages are counted before a purge; of more it is said that there are more."""
NAMED_MAX = 5


class Losses:
    """Buttons that end messages, for administrators."""

    def __init__(self, frame: Frame, filter: str, then: Callable[[], Awaitable[object]]) -> None:
        """Of what a filter matches; of a root, when that is all of it."""
        self._frame = frame
        self._filter = filter
        self._then = then
        purge = ui.button("Purge", icon="delete_sweep", on_click=self._purge)
        buttons = [purge.props("flat dense no-caps color=negative")]
        root, _, rest = filter.partition("/")
        if rest in {"", "#"} and not set("+#") & set(root):
            remove = ui.button("Remove root", icon="delete_forever", on_click=lambda: self._remove(root))
            buttons.append(remove.props("flat dense no-caps color=negative"))
        frame.needs("admin", *buttons)

    async def _purge(self) -> None:
        async def doing(admin: Admin) -> str | None:
            question = f"Purge {shown.plain(self._filter)}? {await self._lost(self._filter)} This cannot be taken back."
            if not await confirm(question, "Purge"):
                return None
            count: int = await admin.ask(wire.Purge(filter=self._filter))
            return f"{shown.many(count, 'topic')} purged."

        await self._frame.do("admin", doing, self._then)

    async def _remove(self, root: str) -> None:
        async def doing(admin: Admin) -> str | None:
            async def remove(force: bool) -> str:
                await admin.ask(wire.RemoveRoot(name=root, force=force))
                return f"{shown.plain(root)} is removed."

            lost = await self._lost(f"{root}/#")
            question = (
                f"Remove the root {shown.plain(root)}? {lost} Its retained values, producers and the places of "
                "subscriptions in it go with it. This cannot be taken back."
            )
            return await confirm_twice(question, "Remove", remove)

        await self._frame.do("admin", doing, self._then)

    async def _lost(self, filter: str) -> str:
        """How many messages of how many topics, and who has not had them all."""
        admin = self._frame.admin
        found: list[TopicInfo] = await admin.ask(wire.Topics(filter=filter, limit=COUNTED_MAX))
        messages = sum(one.messages for one in found)
        more = "at least " if len(found) == COUNTED_MAX else ""
        said = f"{more}{shown.many(messages, 'message')} of {shown.many(len(found), 'topic')} will be gone for good"
        everyone: list[SubscriptionInfo] = await admin.bus.subscriptions()
        behind = [one.id for one in everyone if one.lag and filters_overlap(one.filter, filter)]
        if behind:
            names = Names(admin)
            await names.learn(behind[:NAMED_MAX])
            named = ", ".join(map(names.of, behind[:NAMED_MAX]))
            named += ", …" if len(behind) > NAMED_MAX else ""
            said += f", also for those who are behind: {named}"
        return f"{said[0].upper()}{said[1:]}."
