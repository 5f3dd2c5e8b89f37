"""The publish form: a message as text, JSON or bytes, checked before it is sent."""

from __future__ import annotations

import json

from nicegui import ui

from headwater.admin.client import Admin
from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.frame import Frame, Work
from headwater.errors import Malformed
from headwater.message import Headers, Receipt

CHARS_MAX = 500_000
"""Of a payload that is typed; longer ones go through the API."""


class PublishForm:
    """What publishes to a topic."""

    def __init__(self, frame: Frame, topic: str, then: Work | None = None) -> None:
        self._frame = frame
        self._then = then
        with ui.column().classes("hw-form"):
            self._topic = ui.input("Topic", value=topic).props("outlined dense")
            self._kind = ui.toggle(["Text", "JSON", "Hex"], value="Text").props("dense no-caps unelevated")
            self._payload = ui.textarea("Payload").props("outlined autogrow input-class=hw-mono")
            with ui.expansion("Retain, key, headers, time to live").props("dense").classes("hw-more"):
                self._retain = ui.checkbox("Retain: new subscribers get it first")
                self._key = ui.input("Key").props("outlined dense")
                self._headers = ui.textarea("Headers, one a line: name: value").props("outlined autogrow")
                self._ttl_s = ui.number("Time to live, seconds", min=0).props("outlined dense")
            for field in (self._topic, self._key, self._ttl_s):
                field.on("keydown.enter", self._publish)
            button = ui.button("Publish", icon="send", on_click=self._publish).props("unelevated no-caps")
            frame.needs("operator", button)
            if not frame.may("operator"):
                ui.label("Publishing takes a token of role operator.").classes("hw-note")

    async def _publish(self) -> None:
        async def doing(admin: Admin) -> str:
            receipt: Receipt = await admin.bus.publish(
                (self._topic.value or "").strip(),
                self._read_payload(),
                retain=bool(self._retain.value),
                key=self._key.value.encode() if self._key.value else None,
                headers=_headers(self._headers.value or ""),
                ttl_s=float(self._ttl_s.value) if self._ttl_s.value else None,
            )
            return f"Published as offset {shown.count(receipt.offset)}."

        await self._frame.do("operator", doing, self._then)

    def _read_payload(self) -> bytes:
        text = self._payload.value or ""
        if len(text) > CHARS_MAX:
            raise Malformed(f"a payload of more than {CHARS_MAX:,} characters is better published with headwater pub")
        if self._kind.value == "Hex":
            try:
                return bytes.fromhex(text)
            except ValueError:
                raise Malformed("this is not hexadecimal; write bytes as 48 65 6c 6c 6f") from None
        if self._kind.value == "JSON":
            try:
                json.loads(text)
            except ValueError as error:
                raise Malformed(f"this is not JSON: {error}") from None
        return text.encode(errors="replace")


def _headers(text: str) -> Headers:
    found = []
    for line in text.splitlines():
        if line.strip():
            name, colon, value = line.partition(":")
            if not colon or not name.strip():
                raise Malformed(f'"{line[:40]}" is no header; write name: value')
            found.append((name.strip(), value.strip()))
    return tuple(found)
