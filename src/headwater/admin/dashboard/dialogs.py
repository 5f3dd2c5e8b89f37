"""Dialogs: something in detail, something to fill in, a question before what cannot be taken back, a secret."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

from nicegui import ui

from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.frame import say
from headwater.errors import Conflict

BUTTONS = "hw-dialog-buttons"


def _top() -> ui.element:
    """Where dialogs stand: not within what opened them, which may go first."""
    return ui.context.client.content


def _named(dialog: ui.dialog, title: str) -> None:
    """What a screen reader calls it."""
    dialog.props["aria-label"] = shown.plain(title)


@contextmanager
def detail(title: str, size: str = "hw-message") -> Iterator[ui.dialog]:
    """One thing in detail, under its name, which is shown as text."""
    with _top(), ui.dialog(value=True) as dialog, ui.card().classes(f"hw-dialog {size}"):
        _named(dialog, title)
        with ui.row().classes("hw-message-head"):
            ui.label(shown.plain(title)).classes("hw-topic hw-grow").props('role="heading" aria-level="2"')
            ui.button(icon="close", on_click=dialog.close).props('flat round dense aria-label="Close"')
        yield dialog
    dialog.on("hide", dialog.delete)


def dead_letters_of(subscription: str, dialog: ui.dialog) -> None:
    """A button from the detail of a subscription to its dead letters."""

    def go() -> None:
        dialog.close()
        ui.navigate.to(f"/dead-letters?id={quote(subscription, safe='')}")

    ui.button("Dead letters", icon="report", on_click=go).props("flat dense no-caps")


@contextmanager
def form(title: str) -> Iterator[ui.dialog]:
    """Something to fill in; `submit` ends it."""
    with _top(), ui.dialog(value=True) as dialog, ui.card().classes("hw-dialog"):
        _named(dialog, title)
        ui.label(title).classes("hw-panel-title").props('role="heading" aria-level="2"')
        yield dialog
    dialog.on("hide", dialog.delete)


ENTER = "(event) => event.target.matches('input:not([role=combobox])') && emit()"
"""In a field; in a choice, Enter opens it."""


def submit(dialog: ui.dialog, verb: str, work: Callable[[], Awaitable[bool]]) -> None:
    """The buttons of a form, which Enter in a field ends, too; what went right closes it."""

    async def done() -> None:
        if await work():
            dialog.close()

    with ui.row().classes(BUTTONS):
        ui.button("Cancel", on_click=dialog.close).props("flat no-caps")
        ui.button(verb, on_click=done).props("unelevated no-caps")
    dialog.on("keydown.enter", done, js_handler=ENTER)


async def confirm(question: str, verb: str) -> bool:
    """Ask before something that cannot be taken back."""
    with _top(), ui.dialog() as dialog, ui.card().classes("hw-dialog"):
        _named(dialog, question)
        ui.label(question).classes("hw-question")
        with ui.row().classes(BUTTONS):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat no-caps autofocus")
            ui.button(verb, on_click=lambda: dialog.submit(True)).props("unelevated no-caps color=negative")
    answer = await dialog
    if dialog.client.is_deleted:
        return False  # whoever was asked is gone
    dialog.delete()
    return bool(answer)


async def confirm_twice(question: str, verb: str, doing: Callable[[bool], Awaitable[str]]) -> str | None:
    """Ask, and do it; where that is refused as something is in use, ask again with the reason, and do it by force."""
    if not await confirm(question, verb):
        return None
    try:
        return await doing(False)
    except Conflict as error:
        if not await confirm(str(error.args[0]), f"{verb} anyway"):
            return None
        return await doing(True)


def show_once(title: str, secret: str) -> None:
    """A secret that is told this once."""
    with _top(), ui.dialog(value=True).props("persistent") as dialog, ui.card().classes("hw-dialog"):
        _named(dialog, title)
        ui.label(title).classes("hw-panel-title").props('role="heading" aria-level="2"')
        ui.label("It is shown this once; keep it now.").classes("hw-note")
        ui.label(secret).classes("hw-pre hw-secret").props('tabindex="0"')
        with ui.row().classes(BUTTONS):
            ui.button("Copy", icon="content_copy", on_click=lambda: copy(secret)).props("flat no-caps")
            ui.button("Done", on_click=dialog.close).props("unelevated no-caps")
    dialog.on("hide", dialog.delete)


def copy(text: str) -> None:
    """Put text where it can be pasted from."""
    ui.clipboard.write(text)
    say("Copied.")
