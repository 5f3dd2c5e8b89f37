"""A listing: a table whose rows are sent to the browser only when they change.

Cells are text, whatever is in them. A column that is not needed on a phone is left out there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from nicegui import ui
from nicegui.events import GenericEventArguments

from headwater.admin.dashboard.frame import Empty

Row = dict[str, Any]

OPENER = """
<q-td :props="props"><q-btn flat dense no-caps class="hw-opener" :label="String(props.value)"
  @click.stop="() => $parent.$emit('open', props.row)" /></q-td>
"""
"""A cell that opens its row."""
BAR = """
<q-td :props="props"><div class="hw-bar-cell"><span>{{ props.value }}</span>
  <q-linear-progress :value="props.row.share" size="6px" rounded aria-hidden="true"
    :color="props.row.tone === 'busy' ? 'warning' : 'primary'" /></div></q-td>
"""
"""A number with its share of the largest."""
BADGE = """
<q-td :props="props"><span class="hw-badge" :data-tone="props.row.tone">{{ props.value }}</span></q-td>
"""
"""A word with a tone: good, bad, busy or quiet."""


TYPED = r"""
<q-td :props="props"><template v-for="part in String(props.value).split(/(?<=[\/_,])|(?=:\d)/)"
>{{ part }}<wbr></template></q-td>
"""
"""A topic, a setting or an address, which goes on in the next line between its parts rather than within them."""


SELECTION = {"header-selection": "Select all", "body-selection": "Select"}
"""Where boxes are ticked, and what a screen reader calls them."""


def row_button(event: str, icon: str, label: str, *, color: str = "", disabled: str = "false") -> str:
    """A button for `Listing.buttons`; icon and label may be expressions of Vue, in quotes if they are words."""
    tint = f'color="{color}"' if color else ""
    return (
        f'<q-btn flat dense round {tint} :icon="{icon}" :aria-label="{label}" :disable="{disabled}" '
        f"@click=\"() => $parent.$emit('{event}', props.row)\"><q-tooltip>{{{{ {label} }}}}</q-tooltip></q-btn>"
    )


class Column(NamedTuple):
    """A column: what it shows of something, the template of Vue that draws it if it is not plain text, and its look."""

    value: Callable[[Any], Any] | None
    cell: str
    look: Row
    optional: bool = False


def column(
    name: str,
    label: str,
    value: Callable[[Any], Any] | None = None,
    cell: str = "",
    *,
    number: bool = False,
    wide: bool = False,
    mono: bool = False,
    line: bool = False,
    brief: bool = False,
    who: bool = False,
    word: bool = False,
    optional: bool = False,
) -> Column:
    """A column: `wide`, not on a phone; `mono`, for what is typed; `line`, cut at the end of its line; `brief`, so,
    and leaves room to others; `who`, for a client; `word`, one of a few words; `optional`, not there while no row has
    anything in it."""
    is_time = label.endswith("(UTC)")
    styles = (
        *(
            ("hw-number", number),
            ("hw-wide", wide),
            ("hw-mono", mono),
            ("hw-line", line),
            ("hw-brief", brief),
            ("hw-time", is_time),
        ),
        *(("hw-name", who), ("hw-word", word)),
    )
    look = {
        "name": name,
        "label": label,
        "field": name,
        "align": "right" if number else "left",
        "classes": " ".join(word for word, is_so in styles if is_so),
        "headerClasses": "hw-wide" if wide else "",
    }
    return Column(value, cell or (TYPED if mono and not line and not brief else ""), look, optional)


class Listing:
    """A table and what stands in its place while it is empty."""

    def __init__(
        self,
        key: str,
        empty: Empty,
        *columns: Column,
        more: Callable[[Any], Row] | None = None,
        on_open: Callable[[Row], Any] | None = None,
        selection: bool = False,
        label: str = "",
    ) -> None:
        """`more`: what buttons and templates need of a row, besides its columns."""
        self._empty = empty
        self._values = {column.look["name"]: column.value for column in columns if column.value is not None}
        self._more = more or (lambda _: {})
        self._names = [column.look["name"] for column in columns]
        self._optional = {column.look["name"] for column in columns if column.optional}
        looks = [column.look for column in columns]
        self.table = ui.table(
            columns=looks, rows=[], row_key=key, selection="multiple" if selection else None, pagination=0
        )
        self.table.props("flat dense hide-pagination wrap-cells").classes("hw-table")
        if label:
            self.table.props(f'aria-label="{label}"')
        if on_open is not None:
            opened = on_open
            self.table.on("open", lambda event: opened(event.args))
        if selection:
            for place, name in SELECTION.items():
                self.table.add_slot(place, f'<q-checkbox v-model="props.selected" dense aria-label="{name}" />')
        self.table.visible = False
        for column in columns:
            if column.cell:  # rows come into it as data, never as part of it
                self.table.add_slot(f"body-cell-{column.look['name']}", column.cell)

    def buttons(self, template: str, **handlers: Callable[[Row], Any]) -> None:
        """Buttons at the end of each row: `$parent.$emit('name', props.row)`."""
        self.table.add_slot("body-cell-buttons", f'<q-td :props="props" class="hw-buttons">{template}</q-td>')
        for name, handler in handlers.items():
            self.table.on(name, _handing(handler))

    def show(self, found: Iterable[Any]) -> None:
        """Show these, a row each."""
        rows = [{name: value(one) for name, value in self._values.items()} | self._more(one) for one in found]
        if self.table.rows != rows:
            if self._optional:
                self._show_columns(rows)
            self.table.rows = rows
        if self.table.visible != bool(rows):
            self.table.visible = bool(rows)
        self._empty.show(not rows)

    def _show_columns(self, rows: list[Row]) -> None:
        """Those that have something in some row."""
        there = [name for name in self._names if name not in self._optional or any(row[name] for row in rows)]
        if self.table.props.get("visible-columns") != there:
            self.table.props["visible-columns"] = there
            self.table.update()

    @property
    def selected(self) -> list[Row]:
        """The rows that are ticked."""
        return list(self.table.selected)


def _handing(handler: Callable[[Row], Any]) -> Callable[[GenericEventArguments], Any]:
    return lambda event: handler(event.args)
