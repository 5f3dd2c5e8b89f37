"""What a message has in it: facts by name, and its payload as folded JSON, text or bytes."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import ui
from nicegui.element import Element

from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.dialogs import copy
from headwater.message import Headers

OPEN_DEPTH = 2
"""Levels of JSON that are open at first."""


class JsonView(Element, component="static/json.js"):
    """JSON whose objects and arrays fold."""

    def __init__(self, nodes: shown.Node) -> None:
        super().__init__()
        self._props["root"] = nodes
        self._props["depth"] = OPEN_DEPTH


def key_and_headers(key: bytes | None, headers: Headers) -> list[tuple[str, str]]:
    """The facts of a message that not every message has."""
    facts = [] if key is None else [("Key", shown.preview(key))]
    return facts + [(f"Header {shown.plain(name)}", shown.plain(value)) for name, value in headers]


def show_facts(*facts: tuple[str, str]) -> None:
    """Names and values, below one another."""
    with ui.element("dl").classes("hw-facts"):
        for name, value in facts:
            with ui.element("dt"):
                ui.label(name)
            with ui.element("dd"):
                ui.label(value)


def show_payload(payload: bytes) -> None:
    """A payload, in the way that says most, and the others to choose."""
    found = shown.decoded(payload)
    ways = {"JSON": found.json, "Text": found.text, "Hex": found.hex}
    there: Sequence[str] = [way for way, text in ways.items() if text is not None]
    with ui.row().classes("hw-toolbar"):
        choice = ui.toggle(list(there), value=found.best).props("dense no-caps unelevated")
        ui.space()
        ui.button(icon="content_copy", on_click=lambda: copy(ways[str(choice.value)] or "")).props(
            'flat round dense aria-label="Copy"'
        )
    nodes = shown.nodes(payload) if found.json is not None else None
    folded = None if nodes is None else JsonView(nodes).classes("hw-pre")
    text = ui.label().classes("hw-pre").props('tabindex="0"')

    def show(way: str) -> None:
        if folded is not None:
            folded.visible = way == "JSON"
        text.visible = folded is None or way != "JSON"
        text.set_text((ways[way] or "") if payload else "(no bytes)")

    choice.on_value_change(lambda event: show(str(event.value)))
    show(found.best)
