"""The frame of every page: navigation, dark mode, who is logged in, and how pages are kept up to date.

A page asks the broker for something only while somebody sees it, at most once a second, and rests for much longer than
the broker took to answer. What goes wrong is shown as the error's own sentence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from nicegui import ui
from nicegui.elements.mixins.disableable_element import DisableableElement

from headwater.admin.api.growth import Growth
from headwater.admin.client import Admin
from headwater.admin.dashboard.door import LOGIN, LOGOUT
from headwater.admin.dashboard.sampler import Sampler
from headwater.admin.dashboard.visits import Visit
from headwater.admin.query.queries import Queries
from headwater.admin.search.searches import Searches
from headwater.errors import HeadwaterError, Unauthenticated
from headwater.wire.administration import Role

REST = 20
"""A page rests for so many times as long as its last answer took."""
TYPED_MS = 250
"""How long somebody has typed nothing before what was typed is looked for."""
LOOK_S = 10.0
"""How often every page is looked at: whether its visitor may still see it."""
LEAVE_S = 0.5
"""How long a page that is to go may take to go by itself."""
NARROW_PX = 900
"""Below this width the navigation is a drawer."""
DARK_COOKIE = "headwater-dark"
DARK = {"on": True, "off": False}
NEXT_DARK: dict[bool | None, tuple[bool | None, str, str]] = {
    None: (True, "dark_mode", "on"),
    True: (False, "light_mode", "off"),
    False: (None, "brightness_auto", "auto"),
}
"""What comes after automatic, dark and light: its value, icon and cookie."""

Work = Callable[[], Awaitable[object]]
Doing = Callable[[Admin], Awaitable[str | None]]
"""Changes something, and says what it did."""
Changing = Callable[[Admin], Awaitable[object]]


class Frame:
    """One open page of the dashboard."""

    def __init__(
        self, admin: Admin, visit: Visit, sampler: Sampler, growth: Growth, searches: Searches, queries: Queries
    ) -> None:
        self.admin = admin
        self.queries = queries
        self.searches = searches
        self.visit = visit
        self.sampler = sampler
        self.growth = growth
        self.is_hidden = False
        """Whether nobody can see it: another tab is in front."""
        self._trouble: ui.label | None = None

    def check_sight(self, filter: str) -> None:
        """NotAllowed (403) if a filter, or topic, matches what the visitor, as last seen, is not shown."""
        self.visit.caller.check_sight(filter)

    # What is seen

    def build(self, places: list[tuple[str, str, str]], here: str, dark: str) -> None:
        """The header and the navigation; `places`: path, label and icon of each page."""
        with ui.context.client.layout:
            drawer = ui.element("q-drawer").props(f"show-if-above side=left width=208 breakpoint={NARROW_PX}")
        drawer.move(target_index=0)  # before the page, for those who go through it by keys
        self._build_head(drawer, dark)
        links: dict[str, ui.element] = {}
        with drawer.classes("hw-drawer"), ui.element("nav").props('aria-label="Pages"').classes("hw-nav"):
            for path, label, icon in places:
                links[path] = _nav_link(path, label, icon)
                links[path].on(
                    "click", js_handler=f"() => {{ if (innerWidth < {NARROW_PX}) getElement({drawer.id}).hide() }}"
                )
            _nav_link("/docs", "HTTP API", "api").props('target="_blank" rel="noopener"').classes("hw-api")
        self._trouble = ui.label().classes("hw-trouble").props('role="status"')
        self._trouble.visible = False
        ui.on("hw-hidden", self._on_hidden)
        ui.timer(LOOK_S, self._look)

        def mark(path: str) -> None:
            for place, link in links.items():
                link.props(f'aria-current="{"page" if place == path.partition("?")[0] else "false"}"')

        mark(here)
        ui.context.client.sub_pages_router.on_path_changed(mark)

    def _build_head(self, drawer: ui.element, dark: str) -> None:
        mode = ui.dark_mode(DARK.get(dark))
        with ui.header(elevated=False).classes("hw-header"):
            menu = ui.button(icon="menu").props('flat round dense aria-label="Pages"').classes("hw-menu")
            menu.on("click", js_handler=f"() => getElement({drawer.id}).toggle()")
            with ui.element("a").props('href="/" aria-label="Headwater: overview"').classes("hw-brand"):
                ui.element("img").props('src="/_headwater/mark.svg" alt="" width="26" height="26"')
                ui.label("Headwater")
            ui.space()
            caller = self.visit.caller
            ui.label(f"{caller.name} · {caller.role}").classes("hw-caller")
            self._dark_button(mode)
            if self.visit.has_token:
                with ui.element("form").props(f'method="post" action="{LOGOUT}"').classes("hw-inline"):
                    ui.button(icon="logout").props('flat round dense type="submit" aria-label="Log out"').tooltip(
                        "Log out"
                    )

    @staticmethod
    def _dark_button(mode: ui.dark_mode) -> None:
        icon = {None: "brightness_auto", True: "dark_mode", False: "light_mode"}[mode.value]
        button = ui.button(icon=icon).props('flat round dense aria-label="Dark mode"')

        def turn() -> None:
            mode.value, icon, word = NEXT_DARK[mode.value]
            button.props(f'icon="{icon}"')
            ui.run_javascript(f'document.cookie = "{DARK_COOKIE}={word}; path=/; max-age=31536000; samesite=lax"')

        button.on_click(turn)
        button.tooltip("Dark mode: automatic, dark, light")

    def _on_hidden(self, event: Any) -> None:
        self.is_hidden = bool(event.args)

    # How it is kept up to date

    def every(self, interval_s: float, work: Work) -> None:
        """Do something now and then, while the page is seen; belongs to the part of the page it is called in."""
        rests_until_s = 0.0

        async def tick() -> None:
            nonlocal rests_until_s
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            if self.is_hidden or begun_s < rests_until_s:
                return
            await self._try(work)
            rests_until_s = begun_s + REST * (loop.time() - begun_s)

        ui.timer(interval_s, tick)

    def find(self, placeholder: str, label: str, work: Work) -> ui.input:
        """A field that says what to show: as somebody types, however long the page rests."""
        field = ui.input(placeholder=placeholder, on_change=lambda: self._try(work))
        return field.props(f'outlined dense clearable debounce={TYPED_MS} aria-label="{label}"')

    async def _look(self) -> None:
        """Whoever is not let in any more loses the page, even one that says that nobody sees it."""
        try:
            await self.visit.look()
        except Unauthenticated:
            await _leave()
        except HeadwaterError:
            return  # the broker is away, and shows nothing to anybody

    async def _try(self, work: Work) -> None:
        try:
            await self.visit.look()
            await work()
        except Unauthenticated:
            await _leave()
        except HeadwaterError as error:
            self._say_trouble(str(error.args[0]))
        else:
            self._say_trouble("")

    def _say_trouble(self, text: str) -> None:
        assert self._trouble is not None
        if self._trouble.text != text:
            self._trouble.text = text
            self._trouble.visible = bool(text)

    # What is done

    def may(self, role: Role) -> bool:
        """Whether the visitor has a role; looked at again where something is done."""
        return self.visit.caller.may(role)

    def needs(self, role: Role, *elements: DisableableElement) -> None:
        """Have these only for those who have a role."""
        if not self.may(role):
            for element in elements:
                element.disable()

    async def do(self, role: Role, doing: Doing, then: Work | None = None) -> bool:
        """Change something for the visitor, and say how it went."""
        try:
            said = await doing(await self.visit.acting(self.admin, role))
        except Unauthenticated:
            await _leave()
            return False
        except HeadwaterError as error:
            say(str(error.args[0]), "negative")
            return False
        if said:
            say(said)
        if then is not None:
            await then()
        return True

    async def change(self, role: Role, doing: Changing, said: str, then: Work | None = None) -> bool:
        """Change something, and say so in these words."""

        async def done(admin: Admin) -> str:
            await doing(admin)
            return said

        return await self.do(role, done, then)


async def _leave() -> None:
    """To the log-in, and back here from there; this page answers no more."""
    client = ui.context.client
    client.run_javascript(f"location.assign('{LOGIN}?next=' + encodeURIComponent(location.pathname + location.search))")
    await asyncio.sleep(LEAVE_S)
    client.remove_all_elements()


def _nav_link(path: str, label: str, icon: str) -> ui.element:
    with ui.element("a").props(f'href="{path}"').classes("hw-nav-link") as link:
        ui.icon(icon).props('aria-hidden="true"')
        ui.label(label)
    return link


def say(text: str, kind: Literal["positive", "negative", "warning", "info"] = "positive") -> None:
    """Tell something for a moment, or, if it went wrong, until it is read; as text, whatever is in it."""
    if kind == "negative":
        ui.notify(text, type=kind, multi_line=True, close_button="Close", timeout=12_000)
    else:
        ui.notify(text, type=kind)


@contextmanager
def telling() -> Iterator[None]:
    """Say what goes wrong in the block, and go on after it."""
    try:
        yield
    except HeadwaterError as error:
        say(str(error.args[0]), "negative")


def heading(title: str, explanation: str) -> ui.row:
    """The head of a page: its title, one sentence, and room for buttons on its right."""
    with ui.element("header").classes("hw-heading"):
        with ui.element("div"):
            ui.label(title).classes("hw-title").props('role="heading" aria-level="1"')
            ui.label(explanation).classes("hw-explanation")
        return ui.row().classes("hw-heading-buttons")


def panel(title: str = "") -> ui.card:
    """A card with a title."""
    card = ui.card().classes("hw-panel").props("flat")
    if title:
        with card:
            ui.label(title).classes("hw-panel-title").props('role="heading" aria-level="2"')
    return card


class Empty:
    """What stands where nothing is yet: what to do about it."""

    def __init__(self, icon: str, text: str, command: str = "") -> None:
        with ui.column().classes("hw-empty") as self._whole:
            ui.icon(icon).props('aria-hidden="true"')
            ui.label(text)
            if command:
                ui.label(command).classes("hw-command")
        self._whole.visible = False

    def show(self, is_empty: bool) -> None:
        if self._whole.visible != is_empty:
            self._whole.visible = is_empty
