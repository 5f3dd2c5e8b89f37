"""`headwater top`: a server live in the terminal, with its rates, who is behind and who is slow."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwater.admin.client import Admin, connect
from headwater.cli.following import pause
from headwater.cli.options import At, owner_url, served_by_owner, without_secret
from headwater.cli.output import console, counted, emit, iso, named, number, safe
from headwater.clock import to_datetime
from headwater.counts import COUNTERS
from headwater.server.watch.rates import Rates
from headwater.units import size
from headwater.wire.administration import Figures

LOCAL = "headwater://127.0.0.1:7411"
FIRST_S = 0.75
"""How soon the second look comes, from which there are rates."""
EVERY_S_MIN = 0.75
"""The server's figures are not collected more often."""
ROWS_MAX = 10


def top(
    at: At,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=EVERY_S_MIN, help="How often to look.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and end.")] = False,
) -> None:
    """Watch a server: rates, latencies, lags, slow consumers, roots. q or Ctrl-C ends it.

    Without --url or HEADWATER_URL it is the server that owns the folder, or else one on this machine, at the usual
    port. It takes the right admin.

    With --json: an object for each look (time, url, rates: per second since the look before, commit_s and loop_lag_s:
    p50 and p99, counters, gauges, roots, subscriptions, slow).
    """
    admin, where = _server(at)
    with admin:
        try:
            if at.json:
                _print(admin, where, every, once)
            elif once:
                *_, last = islice(_looks(admin, every, _wait), 2)
                console().print(shown(*last, where))
            else:
                _watch(admin, where, every)
        except KeyboardInterrupt:
            return


def _server(at: At) -> tuple[Admin, str]:
    """The server to watch, and its address."""
    bus = served_by_owner(at.data) if at.url is None else None
    if bus is not None:
        return Admin(bus), owner_url(at.data)
    return connect(at.url or LOCAL), at.url or LOCAL


def _looks(admin: Admin, every_s: float, wait: Callable[[float], bool]) -> Iterator[tuple[Figures, Rates]]:
    """The figures again and again, with the rates since the look before, until a wait says that it is enough."""
    before: Figures = admin.metrics()
    yield before, Rates(None, before)
    pause_s = min(FIRST_S, every_s)
    while not wait(pause_s):
        now: Figures = admin.metrics()
        yield now, Rates(before, now)
        before, pause_s = now, every_s


def _wait(seconds: float) -> bool:
    pause(seconds)
    return False


def _print(admin: Admin, url: str, every_s: float, once: bool) -> None:
    for figures, rates in islice(_looks(admin, every_s, _wait), 1, 2 if once else None):
        emit(object_of(rates, figures, url))
        sys.stdout.flush()


def object_of(rates: Rates, figures: Figures, url: str) -> dict[str, Any]:
    """A look for machines."""
    found: dict[str, Any] = {
        "time": iso(to_datetime(figures.time_us)),
        "url": without_secret(url),
        "rates": {name: rates.per_s(name) for name in COUNTERS},
    }
    for name in figures.histograms:
        found[f"{name}_s"] = {"p50": rates.quantile_s(name, 0.5), "p99": rates.quantile_s(name, 0.99)}
    for name in ("counters", "gauges", "roots", "subscriptions", "slow"):
        found[name] = msgspec.to_builtins(getattr(figures, name))
    return found


# For people


def _watch(admin: Admin, url: str, every_s: float) -> None:
    from rich.live import Live

    with _keys() as keys, Live(console=console(), screen=console().is_terminal, auto_refresh=False) as live:
        for figures, rates in _looks(admin, every_s, keys.is_quit):
            live.update(shown(figures, rates, url), refresh=True)


class _Keys:
    """What is typed, where somebody can type."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def is_quit(self, seconds: float) -> bool:
        """Wait for so long; whether q was typed meanwhile."""
        if self._descriptor is None:
            pause(seconds)
            return False
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        typed = os.read(self._descriptor, 64).lower() if ready else b"-"
        return b"q" in typed or not typed


@contextmanager
def _keys() -> Iterator[_Keys]:
    """Take single keys from the terminal, if there is one, and leave it as it was."""
    if not sys.stdin.isatty():
        yield _Keys(None)
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield _Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def shown(figures: Figures, rates: Rates, url: str) -> RenderableType:
    """A look for people."""
    parts: list[RenderableType] = [_head(figures, url), "", _flow(rates), ""]
    parts.append(_subscriptions(figures))
    if figures.slow:
        parts += ["", _slow(figures)]
    parts += ["", _roots(figures, rates)]
    return Group(*parts)


def _head(figures: Figures, url: str) -> Text:
    up_s = int(figures.gauges["uptime_seconds"])
    days, hours, minutes = up_s // 86_400, up_s // 3600 % 24, up_s // 60 % 60
    up = f"{days} d {hours} h" if days else f"{hours} h {minutes} min" if hours else f"{minutes} min {up_s % 60} s"
    gauges = figures.gauges
    return Text.assemble(
        ("headwater  ", "bold"),
        (safe(without_secret(url)), "cyan"),
        (f"  up {up}  ", "dim"),
        f"{counted(int(gauges['connections']), 'connection')}  {counted(int(gauges['sessions']), 'session')}  "
        f"{gauges['subscriptions_durable']:,.0f} durable  {gauges['subscriptions_live']:,.0f} live  ",
        (f"{size(gauges['disk_free_bytes'])} free", "dim"),
    )


def _flow(rates: Rates) -> Table:
    table = _table(("", "messages/s", "bytes/s", "   ", "", "p50", "p99", "   ", "", "/s"), left=("", "   "))
    waits = [("commit", "commit"), ("loop lag", "loop_lag")]
    others = [("acked", "acks"), ("retried", "retries"), ("dead", "dead_letters")]
    flows = [("in", "messages_in", "bytes_in"), ("out", "messages_out", "bytes_out")]
    for place, (said, counter) in enumerate(others):
        flow = flows[place] if place < len(flows) else None
        wait = waits[place] if place < len(waits) else None
        table.add_row(
            *((flow[0], f"{rates.per_s(flow[1]):,.0f}", size(rates.per_s(flow[2]))) if flow else ("", "", "")),
            "",
            *((wait[0], _took(rates, wait[1], 0.5), _took(rates, wait[1], 0.99)) if wait else ("", "", "")),
            "",
            said,
            f"{rates.per_s(counter):,.0f}",
        )
    return table


def _took(rates: Rates, name: str, share: float) -> str:
    seconds = rates.quantile_s(name, share)
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _subscriptions(figures: Figures) -> Table:
    gauges = figures.gauges
    lag = f"lag {gauges['lag']:,.0f}"
    table = _table((f"subscription ({lag} in all)", "lag", "in flight", "retrying", "dead", "consumers"))
    for one in figures.subscriptions[:ROWS_MAX]:
        table.add_row(
            named(one.id),
            number(one.lag, "yellow"),
            number(one.in_flight),
            number(one.retrying, "yellow"),
            number(one.dead, "red"),
            number(one.consumers) if one.consumers else Text("0", style="yellow"),
        )
    _tell_of_more(table, gauges["subscriptions_durable"])
    return table


def _slow(figures: Figures) -> Table:
    table = _table(("slow consumer", "user", "waiting", "dropped"), left=("slow consumer", "user"))
    for one in figures.slow[:ROWS_MAX]:
        waiting = Text(size(one.waiting_bytes), style="yellow")
        table.add_row(named(one.session), Text(safe(one.user)), waiting, number(one.dropped, "red"))
    _tell_of_more(table, len(figures.slow))
    return table


def _roots(figures: Figures, rates: Rates) -> Table:
    table = _table(("root", "messages/s", "first", "end", "size", "topics"))
    for one in figures.roots[:ROWS_MAX]:
        table.add_row(
            named(one.root),
            f"{rates.of_root_per_s(one.root):,.0f}",
            f"{one.first:,}",
            f"{one.end:,}",
            size(one.bytes),
            f"{one.topics:,}",
        )
    _tell_of_more(table, max(figures.gauges["roots"], len(figures.roots)))
    return table


def _table(names: tuple[str, ...], left: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(names):
        is_left = place == 0 or name in left
        table.add_column(name, justify="left" if is_left else "right", overflow="ellipsis", no_wrap=True)
    return table


def _tell_of_more(table: Table, count: float) -> None:
    if count > table.row_count:
        table.add_row(Text(f"… {count - table.row_count:,.0f} more", style="dim"))
