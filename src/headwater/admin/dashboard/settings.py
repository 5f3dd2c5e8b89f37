"""Settings: how the server is set up, and where each setting comes from."""

from __future__ import annotations

from typing import Any

import msgspec
from nicegui import ui

from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel
from headwater.admin.dashboard.listing import BADGE, Listing, column
from headwater.units import is_size
from headwater.wire.administration import Setting

DEFAULT = "default"
UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


class Settings:
    """The page while it is open."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        heading("Settings", "How the server is set up, and where each setting comes from.")
        with panel():
            with ui.row().classes("hw-toolbar"):
                self._find = frame.find("Find by name", "Find a setting", self.update)
                self._changed = ui.switch("Only those that were set").props("dense")
            self._listing = Listing(
                "name",
                Empty("tune", "No setting is called so, or none was set."),
                column("name", "Setting", lambda one: one.name, mono=True),
                column("value", "Value", lambda one: written(one.name, one.value), mono=True),
                column("default", "Default", lambda one: written(one.name, one.default), mono=True, wide=True),
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


def written(name: str, value: Any) -> str:
    """A value as a settings file may have it, bytes in the largest unit that divides them."""
    if value is None:
        return "–"
    if is_size(name.rpartition(".")[2]) and isinstance(value, int):
        unit, size = next((one for one in UNITS if value and value % one[1] == 0), ("", 1))
        return f"{value // size}{unit}"
    return shown.plain(value if isinstance(value, str) and value else msgspec.json.encode(value).decode())
