"""Topics: the tree with its rates; of the one that is selected its retained value, its messages, a publish form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from nicegui import ui
from nicegui.events import GenericEventArguments

from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.contents import show_payload
from headwater.admin.dashboard.finder import Finder
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel, telling
from headwater.admin.dashboard.losses import Losses
from headwater.admin.dashboard.messages import Messages
from headwater.admin.dashboard.past import OF_ROOT, Past, TopicRate
from headwater.admin.dashboard.publish import PublishForm
from headwater.admin.dashboard.tree import Tree, TreeView

REFRESH_S = 2.0
FIRST = "headwater pub home/kitchen/temp 21.5"


class Topics:
    """The page while it is open."""

    def __init__(self, frame: Frame, topic: str = "") -> None:
        """`topic`: the one to begin with."""
        self._frame = frame
        self._tree = Tree(frame.admin, frame.growth)
        self._selected = topic
        self._is_loaded = False
        heading("Topics", "Every topic, what it keeps, and what is published there.")
        with ui.element("div").classes("hw-split"):
            with panel().classes("hw-tree-panel"):
                self._search = ui.input(placeholder="Find: home/kit… or home/#", on_change=self._find)
                self._search.props('outlined dense clearable debounce=250 aria-label="Find a topic, or type a filter"')
                self._search.on("keydown.enter", self._go, js_handler="(event) => emit(event.target.value)")
                self._finder = Finder(frame.admin, self._select)
                self._view = TreeView(self._on)
                self._empty = Empty("account_tree", "Nothing was published yet.", FIRST)
            self._detail = ui.element("div").classes("hw-detail")
        frame.every(REFRESH_S, self._refresh)

    async def _refresh(self) -> None:
        if self._is_loaded:
            await self._tree.refresh()
        else:
            await self._tree.reveal(self._selected)
            self._is_loaded = True
            self._show_detail()  # what it shows depends on what the tree knows
        self._show_tree()

    def _show_tree(self) -> None:
        rows = self._tree.rows(self._selected)
        self._view.show(rows)
        self._empty.show(not rows and not self._search.value)

    async def _find(self) -> None:
        text = (self._search.value or "").strip()
        if set("+#") & set(text):
            return
        with telling():
            await self._tree.search(text)
            self._show_tree()
            await self._finder.show(text)

    def _go(self, event: GenericEventArguments) -> None:
        """A filter, or a topic by its whole name, is shown with its messages."""
        text = str(event.args).strip()
        if text:
            self._select(text)

    async def _on(self, verb: str, path: str) -> None:
        with telling():
            if verb == "select":
                self._select(path)
            elif verb == "more":
                await self._tree.more(path)
            elif path in {row["path"] for row in self._tree.rows("") if row.get("open")}:
                self._tree.close(path)
            else:
                await self._tree.open(path)
        self._show_tree()

    def _select(self, topic: str) -> None:
        if topic != self._selected:
            self._selected = topic
            ui.navigate.history.replace(f"/topics?topic={quote(topic, safe='')}")
            self._show_detail()
        self._show_tree()

    def _show_detail(self) -> None:
        self._detail.clear()
        with self._detail:
            if not self._selected:
                with panel("Publish"):
                    PublishForm(self._frame, "", self._refresh)
                return
            with telling():
                _Detail(self._frame, self._selected, self._tree, self._refresh)


class _Detail:
    """What is shown of one topic, or of what a filter matches."""

    def __init__(self, frame: Frame, topic: str, tree: Tree, then: Callable[[], Awaitable[object]]) -> None:
        """`then` is done when messages were removed."""
        self._frame = frame
        level = tree.level(topic)
        is_filter = bool(set("+#") & set(topic))
        # Where nothing was published to the very path, what is below it is meant.
        self._topic = topic
        wanted = topic if is_filter or level is None or level.is_topic else f"{topic}/#"
        everything = topic if is_filter else f"{topic}/#"
        with panel():
            with ui.row().classes("hw-message-head"):
                ui.label(shown.plain(topic)).classes("hw-topic").props('role="heading" aria-level="2"')
                if level is not None:
                    said = f"{shown.many(level.messages, 'message')} in {shown.many(level.topics, 'topic')}"
                    ui.label(said).classes("hw-note")
                ui.space()
                searched = f"/search?filter={quote(everything, safe='')}"
                search = ui.button("Search", icon="search", on_click=lambda: ui.navigate.to(searched))
                search.props("flat dense no-caps")
                Losses(frame, everything, then)
            with ui.tabs().props("dense no-caps align=left") as tabs:
                messages = ui.tab("messages", "Messages")
                below = ui.tab("below", "All below") if level is not None and level.is_topic else None
                publish = ui.tab("publish", "Publish")
                history = None if is_filter else ui.tab("history", "Over time")
            with ui.tab_panels(tabs, value=messages).props("keep-alive").classes("hw-tab-panels"):
                with ui.tab_panel(messages):
                    if not is_filter:
                        self._retained = ui.column().classes("hw-retained")
                        frame.every(REFRESH_S, self._show_retained)
                    Messages(frame, wanted)
                if below is not None:
                    with ui.tab_panel(below) as place:
                        tabs.on_value_change(lambda event: self._show_below(event.value, place))
                with ui.tab_panel(publish):
                    PublishForm(frame, "" if is_filter else topic)
                if history is not None:
                    with ui.tab_panel(history) as over_time:
                        tabs.on_value_change(lambda event: self._show_history(event.value, over_time))
        self._kept: bytes | None = None

    def _show_history(self, tab: str, place: ui.tab_panel) -> None:
        """Once somebody wants to see it."""
        if tab == "history" and not list(place):
            with place:
                TopicRate(self._frame, self._topic)
                root = self._topic.partition("/")[0]
                ui.label(f"All of {shown.plain(root)}").classes("hw-panel-title")
                Past(self._frame, "root", root, OF_ROOT)

    def _show_below(self, tab: str, place: ui.tab_panel) -> None:
        """Once somebody wants to see it."""
        if tab == "below" and not list(place):
            with place:
                Messages(self._frame, f"{self._topic}/#")

    async def _show_retained(self) -> None:
        self._frame.check_sight(self._topic)
        found = (await self._frame.admin.bus.retained(self._topic)).get(self._topic)
        kept = found.payload if found is not None else None
        if kept == self._kept:
            return
        self._kept = kept
        self._retained.clear()
        if found is not None:
            with self._retained:
                ui.label(f"Retained since {shown.moment(found.time_us)} UTC").classes("hw-note")
                show_payload(found.payload)
