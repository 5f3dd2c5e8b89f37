"""The finder: topics with a text at any level, as somebody types it."""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui

from headwater.admin.client import Admin
from headwater.admin.dashboard import formatting as shown
from headwater.message import TopicInfo
from headwater.wire import requests as wire

CHARS_MIN = 2
SHOWN = 30
PAGE = 1000
LOOKED_MAX = 50_000
"""Topics that are looked at for a text; beyond it a filter finds more."""


async def find(admin: Admin, text: str, most: int = SHOWN) -> tuple[list[str], bool]:
    """Topics with a text in them that do not begin with it, which the tree shows; and whether all were looked at."""
    wanted, found, after, looked = text.lower(), list[str](), "", 0
    while looked < LOOKED_MAX:
        page: list[TopicInfo] = await admin.ask(wire.Topics(after=after, limit=PAGE))
        found += [one.topic for one in page if wanted in one.topic.lower() and not one.topic.startswith(text)]
        if len(page) < PAGE:
            return found[:most], len(found) <= most
        if len(found) >= most:
            break
        after, looked = page[-1].topic, looked + len(page)
    return found[:most], False


class Finder:
    """What is shown below the tree."""

    def __init__(self, admin: Admin, select: Callable[[str], None]) -> None:
        self._admin = admin
        self._select = select
        self._text = ""
        self._place = ui.column().classes("hw-found")

    async def show(self, text: str) -> None:
        """What has this text in it."""
        self._text = text
        is_wanted = len(text) >= CHARS_MIN and not set("+#") & set(text)
        found, is_all = await find(self._admin, text) if is_wanted else ([], True)
        if text != self._text:
            return  # somebody typed on
        self._place.clear()
        with self._place:
            if found:
                ui.label("At other levels").classes("hw-note")
            for topic in found:
                button = ui.button(shown.plain(topic), on_click=lambda topic=topic: self._select(topic))
                button.props("flat dense no-caps align=left").classes("hw-opener hw-mono")
            if found and not is_all:
                ui.label("There may be more; a filter finds them: home/+/temp.").classes("hw-note")
