"""The report of a what-if: one HTML page with a picture, that needs nothing from elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from headwater.clock import SECOND_US, to_datetime
from headwater.work.comparison import CHANGES, Comparison, Outcome, Trial

COLUMNS = 60
"""Of the picture: each is a stretch of time."""
ROWS_MAX = 500
"""Messages that a page lists; the others are counted."""
WIDTH, HEIGHT, MIDDLE = 900, 240, 120
ENDS = ("acked", "retry", "dead", "waiting")
STYLE = """
:root { color-scheme: light dark; --acked: #2a9d6f; --retry: #d69a22; --dead: #c8403c; --waiting: #8a94a0; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .3em .6em; vertical-align: top; }
th { border-bottom: 2px solid #8886; } td { border-bottom: 1px solid #8883; overflow-wrap: anywhere; }
code { font-size: .92em; } .n { text-align: right; } .big { font-size: 1.6em; font-weight: 600; }
.facts { display: flex; flex-wrap: wrap; gap: 2em; } .dim { opacity: .7; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
.acked { fill: var(--acked); color: var(--acked); } .retry { fill: var(--retry); color: var(--retry); }
.dead { fill: var(--dead); color: var(--dead); } .waiting { fill: var(--waiting); color: var(--waiting); }
"""


def page(found: Comparison) -> str:
    """The whole page."""
    other = "what happened" if found.against is None else f"<code>{escape(found.against)}</code>"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>What if: {escape(found.subscription)}</title><style>{STYLE}</style></head><body>
<h1>What if <code>{escape(found.handler)}</code> had <code>{escape(found.subscription)}</code></h1>
<p>{found.messages:,} messages of <code>{escape(found.filter)}</code>, {_span(found.trials)}, compared with {other}.</p>
<div class="facts">{_facts(found)}</div>
<h2>In time</h2>{_picture(found)}
<h2>From what to what</h2>{_table(("before → with the new code", "messages"), _ends(found))}
<h2>What would be different</h2>{_changed(found)}{_notes(found)}
</body></html>
"""


def _facts(found: Comparison) -> str:
    facts = [(f"{found.counts[change]:,}", text) for change, text in CHANGES.items()]
    facts += [(f"{found.took_us(share) / 1000:,.2f} ms", text) for share, text in ((0.5, "p50"), (0.99, "p99"))]
    return "".join(f'<div><span class="big">{count}</span><br>{text}</div>' for count, text in facts)


# The picture: stretches of time, with what the new code does above the line and what was before it below


def _picture(found: Comparison) -> str:
    if not found.trials:
        return "<p>There were no messages.</p>"
    times = [trial.time_us for trial in found.trials]
    first, last = min(times), max(times)
    width_us = (last - first) // COLUMNS + 1
    above: list[Counter[str]] = [Counter() for _ in range(COLUMNS)]
    below: list[Counter[str]] = [Counter() for _ in range(COLUMNS)]
    for trial in found.trials:
        place = (trial.time_us - first) // width_us
        above[place][trial.after.end] += 1
        below[place][trial.before.end] += 1
    most = max(column.total() for column in above)
    scale = (MIDDLE - 20) / most
    step = WIDTH / COLUMNS
    bars = [_bar(column, place * step, step, scale, upwards=True) for place, column in enumerate(above)]
    bars += [_bar(column, place * step, step, scale, upwards=False) for place, column in enumerate(below)]
    other = "before" if found.against is None else "with the other code"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 20}" role="img" aria-label="Messages in time, by what became of them">'
        f'{"".join(bars)}<line x1="0" x2="{WIDTH}" y1="{MIDDLE}" y2="{MIDDLE}" stroke="currentColor"/>'
        f'<text x="4" y="14">with the new code</text><text x="4" y="{HEIGHT - 4}">{other}</text>'
        f'<text x="0" y="{HEIGHT + 16}">{_time(first)}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT + 16}" text-anchor="end">{_time(last)}</text></svg><p>{_legend(most)}</p>'
    )


def _bar(column: Counter[str], x: float, width: float, scale: float, *, upwards: bool) -> str:
    parts, y = [], float(MIDDLE)
    for end in ENDS:
        height = column[end] * scale
        if height:
            top = y - height if upwards else y
            parts.append(
                f'<rect class="{end}" x="{x:.1f}" y="{top:.1f}" width="{width - 1:.1f}" height="{height:.1f}">'
                f"<title>{column[end]:,} {end}</title></rect>"
            )
            y += -height if upwards else height
    return "".join(parts)


def _legend(most: int) -> str:
    words = " ".join(f'<span class="{end}">■</span> {end}' for end in ENDS)
    return f'{words} <span class="dim">· the highest bar is {most:,} messages</span>'


# Tables


def _ends(found: Comparison) -> list[list[str]]:
    return [[escape(what), f"{count:,}"] for what, count in found.ends.items()]


def _changed(found: Comparison) -> str:
    changed = found.changed
    if not changed:
        return "<p>Nothing.</p>"
    rows = [
        [
            ", ".join(CHANGES[change] for change in trial.changes),
            f"<code>{escape(trial.topic)}</code> {trial.offset}",
            _time(trial.time_us),
            _outcome(trial.before),
            _outcome(trial.after),
        ]
        for trial in changed[:ROWS_MAX]
    ]
    more = f"<p>And {len(changed) - ROWS_MAX:,} more.</p>" if len(changed) > ROWS_MAX else ""
    return _table(("", "message", "time", "before", "with the new code"), rows) + more


def _outcome(outcome: Outcome) -> str:
    parts = [f'<span class="{outcome.end}">■</span> {outcome.end}']
    if outcome.attempts is not None and outcome.attempts > 1:
        parts.append(f"{outcome.attempts} attempts")
    if outcome.took_us is not None:
        parts.append(f"{outcome.took_us / 1000:,.2f} ms")
    text = ", ".join(parts)
    if outcome.error:
        text += f"<br><code>{escape(outcome.error.splitlines()[0])}</code>"
    for one in outcome.published or ():
        payload = escape(one.payload.decode(errors="replace"))
        text += f'<br><span class="dim">{one.verb}</span> <code>{escape(one.topic)} {payload}</code>'
    return text


def _notes(found: Comparison) -> str:
    notes = [*found.notes]
    if found.is_cut:
        notes.append(f"There are more messages; the first {found.messages:,} were tried.")
    return "<h2>Notes</h2>" + "".join(f"<p>{escape(note)}</p>" for note in notes) if notes else ""


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _span(trials: Sequence[Trial]) -> str:
    if not trials:
        return "none of them in this time"
    times = [trial.time_us for trial in trials]
    return f"from {_time(min(times))} to {_time(max(times))}"


def _time(time_us: int) -> str:
    return to_datetime(time_us // SECOND_US * SECOND_US).strftime("%Y-%m-%d %H:%M:%S UTC")
