"""Settings: how the server is set up, and where each setting comes from."""

from __future__ import annotations

from typing import Any

import msgspec
from nicegui import ui

from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel
from headwater.admin.dashboard.listing import BADGE, Listing, column
from headwater.wire.administration import Setting

DEFAULT = "default"


class Settings:
    """The page while it is open."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        heading("Settings", "How the server is set up, and where each setting comes from.")
        with panel():
            with ui.row().classes("hw-toolbar"):
                self._find = ui.input(placeholder="Find by name").props(
                    'outlined dense clearable aria-label="Find a setting"'
                )
                self._changed = ui.switch("Only those that were set").props("dense")
            self._listing = Listing(
                "name",
                Empty("tune", "No setting is called so, or none was set."),
                column("name", "Setting", lambda one: one.name, mono=True),
                column("value", "Value", lambda one: _written(one.value), mono=True),
                column("default", "Default", lambda one: _written(one.default), mono=True, wide=True),
                column("source", "From", lambda one: shown.plain(one.source), BADGE),
                more=lambda one: {"tone": "quiet" if one.source == DEFAULT else "good"},
                label="Settings",
            )
        frame.every(1.0, self.update)

    async def update(self) -> None:
        everything: list[Setting] = await self._frame.admin.config()
        text = (self._find.value or "").strip().lower()
        self._listing.show(
            one
            for one in everything
            if text in one.name.lower() and not (self._changed.value and one.source == DEFAULT)
        )


def _written(value: Any) -> str:
    """A value as a settings file has it; nothing where there is none."""
    if value is None:
        return "–"
    return shown.plain(value if isinstance(value, str) and value else msgspec.json.encode(value).decode())
