"""What if: reports of new code that was tried on recorded messages, as they were published to a topic.

    headwater what-if house.heating:better --id thermostat --json > report.jsonl
    headwater pub what-if/thermostat --file report.jsonl

The code runs where its author does that, never in the server; here is shown what came of it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from nicegui import ui

from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.contents import show_facts
from headwater.admin.dashboard.dialogs import detail
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel
from headwater.admin.dashboard.listing import BADGE, OPENER, Listing, Row, column
from headwater.admin.dashboard.overview import Tile
from headwater.admin.dashboard.pager import Pager
from headwater.message import Envelope
from headwater.work.comparison import CHANGES

TOPIC = "what-if/#"
EVERY_S = 5.0
SHOWN_MAX = 500
"""Messages of a report that are listed; the others are counted."""
COMMAND = (
    "headwater what-if house.heating:better --id thermostat --json > report.jsonl; "
    "headwater pub what-if/thermostat --file report.jsonl"
)
NOTHING = "No report was published yet. Try new code, and publish what came of it:"


class Summary(msgspec.Struct):
    """The last line of a report."""

    subscription: str
    handler: str
    messages: int
    counts: dict[str, int]
    ends: dict[str, int]
    filter: str = ""
    against: str | None = None
    took_us_p50: float = 0
    took_us_p99: float = 0
    notes: list[str] = []


class Outcome(msgspec.Struct):
    """How it went with a message, before or with the new code."""

    end: str
    attempts: int | None = None
    error: str | None = None


class Trial(msgspec.Struct):
    """A message with which something else would happen."""

    topic: str
    offset: int
    changes: list[str]
    before: Outcome
    after: Outcome


class Report(msgspec.Struct):
    """What a message has in it, and where it is."""

    offset: int
    time_us: int
    summary: Summary
    trials: list[Trial]

    @property
    def fails(self) -> int:
        """Messages that would newly fail."""
        return self.summary.counts.get("fails", 0)


_summary = msgspec.json.Decoder(Summary).decode
_trial = msgspec.json.Decoder(Trial).decode


def report_of(message: Envelope) -> Report | None:
    """The report that a message is; None if it is none."""
    lines = message.payload.strip().split(b"\n")
    try:
        trials = [_trial(line) for line in lines[:-1][:SHOWN_MAX]]
        return Report(message.offset, message.time_us, _summary(lines[-1]), trials)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class WhatIf:
    """The page while it is open."""

    def __init__(self, frame: Frame) -> None:
        self._pager = Pager(frame.admin.bus, TOPIC, frame.check_sight)
        self._found: dict[int, Report] = {}
        heading(
            "What if", "What new code would have done with recorded messages, by the reports published below what-if/."
        )
        with panel():
            self._note = ui.label().classes("hw-note")
            self._listing = Listing(
                "offset",
                Empty("science", NOTHING, COMMAND),
                column("time", "Published (UTC)", lambda one: shown.moment(one.time_us), OPENER),
                column("subscription", "Subscription", lambda one: shown.plain(one.summary.subscription)),
                column("handler", "New code", lambda one: shown.plain(one.summary.handler), mono=True, wide=True),
                column("messages", "Messages", lambda one: shown.count(one.summary.messages), number=True, wide=True),
                column("fails", "Would fail", lambda one: shown.count(one.fails), BADGE),
                column("others", "Otherwise different", _others, wide=True),
                more=lambda one: {"offset": one.offset, "tone": "bad" if one.fails else "good"},
                on_open=self._open,
                label="Reports",
            )
        frame.every(EVERY_S, self.update)

    async def update(self) -> None:
        """Show the newest reports."""
        page = await self._pager.newest()
        reports = [report for report in map(report_of, page.messages) if report is not None]
        self._found = {one.offset: one for one in reports}
        self._listing.show(reports)
        left = len(page.messages) - len(reports)
        self._note.text = f"{shown.many(left, 'message')} there is no report." if left else ""

    def _open(self, row: Row) -> None:
        one = self._found.get(int(row["offset"]))
        if one is not None:
            show_report(one)


def show_report(one: Report) -> None:
    """A report, in full."""
    summary = one.summary
    with detail(f"What if {summary.handler} had {summary.subscription}", "hw-wide-dialog"):
        with ui.element("div").classes("hw-tiles"):
            for change, said in CHANGES.items():
                Tile(shown.plain(said)).show(shown.count(summary.counts.get(change, 0)), " ")
        against = "what happened" if summary.against is None else shown.plain(summary.against)
        took = (shown.seconds(took_us / 1e6) for took_us in (summary.took_us_p50, summary.took_us_p99))
        show_facts(
            ("Messages", f"{shown.count(summary.messages)} of {shown.plain(summary.filter)}, against {against}"),
            ("Took", "p50 {}, p99 {}".format(*took)),
            *((shown.plain(way), shown.many(count, "message")) for way, count in summary.ends.items()),
            *(("Note", shown.plain(note)) for note in summary.notes),
        )
        ui.label("What would be different").classes("hw-panel-title")
        Listing(
            "place",
            Empty("done_all", "Nothing: it would do the same with each."),
            column("topic", "Topic", lambda trial: shown.plain(trial.topic), mono=True),
            column("offset", "Offset", lambda trial: shown.count(trial.offset), number=True),
            column("changes", "Change", lambda trial: ", ".join(map(_said, trial.changes))),
            column("before", "Before", lambda trial: _outcome(trial.before), wide=True),
            column("after", "After", lambda trial: _outcome(trial.after)),
            more=lambda trial: {"place": f"{trial.topic} {trial.offset}"},
            label="Messages with which something else would happen",
        ).show(one.trials)


def _said(change: str) -> str:
    known: dict[Any, str] = dict(CHANGES)
    return known.get(change, shown.plain(change))


def _outcome(outcome: Outcome) -> str:
    tried = f", {outcome.attempts} attempts" if (outcome.attempts or 1) > 1 else ""
    error = f": {outcome.error.partition(chr(10))[0]}" if outcome.error else ""
    return shown.plain(f"{outcome.end}{tried}{error}")


def _others(one: Report) -> str:
    counts = one.summary.counts.items()
    return ", ".join(f"{count} {shown.plain(change)}" for change, count in counts if count and change != "fails") or "–"
