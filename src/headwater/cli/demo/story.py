"""The story of the demo, act by act."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from importlib.util import find_spec

from rich.table import Table
from rich.text import Text

import headwater
from headwater import Closed
from headwater.bus import Bus
from headwater.cli.demo.administration import look_after
from headwater.cli.demo.cluster import lead_and_die
from headwater.cli.demo.house import ROOMS, House, Watcher
from headwater.cli.demo.lake import archive_and_ask
from headwater.cli.demo.served import serve
from headwater.cli.demo.stage import Stage, meter, pairs
from headwater.cli.demo.thermostat import (
    FILTER,
    ID,
    Handled,
    Thermostat,
    parse_kindly,
    parse_strictly,
    picture,
    wait_until,
)
from headwater.cli.demo.writer import CALL, ROOT, message
from headwater.cli.following import pause
from headwater.cli.output import preview, safe, table
from headwater.cli.subs import COLUMNS
from headwater.cli.topics import tree_of
from headwater.store.files import parent

LIMIT_S = 60.0
KILLS = 3


def tell(folder: str, fast: bool, with_spark: bool, picture: str | None, with_cluster: bool = True) -> bool:
    """The whole story; answers whether everything held that has to."""
    stage = Stage()
    start = time.perf_counter()
    with headwater.open(folder) as bus:
        _house(stage, bus, 1.0 if fast else 8.0)
        _thermostat(stage, bus, 0.0 if fast else 0.003)
    _kill(stage, folder, 300 if fast else 60_000)
    with headwater.open(folder) as bus:
        _place(stage, bus)
        _follow(stage, bus, 2000 if fast else 20_000)
    serve(stage, folder, 60 if fast else 400)
    if find_spec("fastapi") is not None:
        look_after(stage, folder, 60 if fast else 300)
    if with_cluster:
        lead_and_die(stage, parent(folder) or ".", 40 if fast else 100)
    with headwater.open(folder) as bus:
        _look_round(stage, bus)
        if with_spark:
            archive_and_ask(stage, bus, folder, picture, 0.0 if fast else 4.0)
    stage.figure("the whole demo", f"{time.perf_counter() - start:.1f} s")
    return stage.end()


def _house(stage: Stage, bus: Bus, seconds: float) -> None:
    stage.act("A house", "18 sensors publish retained values; each is on disk before its publish returns.")
    house = House(bus, 0.02)
    house.start()
    pause(seconds / 4)
    before = dict(house.published)
    with bus.subscribe("home/#") as live:
        watcher = Watcher(live)
        watcher.start()
        with stage.moving(watcher.picture):
            pause(seconds * 3 / 4)
            house.stop()
            watcher.stop()
        dropped = live.dropped
    total = sum(house.published.values())
    stage.check("the live subscriber got the retained value of every sensor first", _is_greeted(watcher, house))
    stage.check(
        f"then everything that was published ({watcher.seen:,} messages), and nothing was dropped",
        dropped == 0 and 0 < watcher.seen <= total and watcher.seen >= total - sum(before.values()) - len(ROOMS) * 3,
    )
    stage.figure("messages of the house", f"{total:,}")


def _is_greeted(watcher: Watcher, house: House) -> bool:
    return watcher.is_retained_first and sorted(watcher.retained) == sorted(house.published)


def _thermostat(stage: Stage, bus: Bus, pace_s: float) -> None:
    stage.act(
        "A thermostat that keeps its place",
        f'The durable subscription "{ID}" works through {FILTER} from the start, in strict order. One consumer works, '
        "one stands by. Now and then the heating does not answer; now and then the cellar says E07.",
    )
    wanted = [m.offset for m in bus.replay(FILTER)]
    broken = [m.offset for m in bus.replay(FILTER) if m.payload == b"E07"]
    handled = Handled()
    first = Thermostat("first", bus, handled, parse_strictly, pace_s)
    second = Thermostat("second", bus, handled, parse_strictly, pace_s)
    active = "first; second stands by"
    good = len(wanted) - len(broken)
    with stage.moving(lambda: picture(bus, handled, good, active)):
        wait_until(lambda: len(handled.offsets) >= good // 2, LIMIT_S)
        first.stop()
        active = "second; first has gone, with messages in its hands"
        arrived = wait_until(lambda: _info_dead(bus) + len(handled.offsets) >= len(wanted), LIMIT_S)
        second.stop()
    expected = [offset for offset in wanted if offset not in set(broken)]
    stage.check(
        f"all {good:,} good values were handled, in order, each once, over {handled.retries:,} failures",
        arrived and handled.offsets == expected,
    )
    stage.check("the second consumer took over where the first had left", min(handled.by.values()) > 0)
    _redrive(stage, bus, broken)
    stage.figure("values that the thermostat handled", f"{good:,}")
    stage.figure("failures that were retried", f"{handled.retries:,}")


def _info_dead(bus: Bus) -> int:
    return next(info.dead for info in bus.subscriptions() if info.id == ID)


def _redrive(stage: Stage, bus: Bus, broken: list[int]) -> None:
    letters = bus.dead_letters(ID)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("dead letter", "topic", "payload", "attempts", "error"):
        table.add_column(name)
    for letter in letters[:3]:
        error = Text(safe(letter.errors[-1]), style="red")
        table.add_row(str(letter.offset), letter.topic, preview(letter.payload), str(letter.attempts), error)
    stage.show(table)
    stage.check(
        f"what nobody understands became dead letters ({len(broken)}), with attempts and errors",
        [letter.offset for letter in letters] == broken and all(letter.errors for letter in letters),
    )
    handled = Handled()
    redriven = bus.redrive(ID)
    third = Thermostat("third", bus, handled, parse_kindly, 0.0)
    wait_until(lambda: len(handled.offsets) >= redriven, LIMIT_S)
    third.stop()
    stage.check(
        "redriven to a thermostat that knows E07, they were handled too, in order",
        handled.offsets == broken and _info_dead(bus) == 0,
    )
    stage.figure("dead letters, redriven and handled", f"{redriven:,}")


def _kill(stage: Stage, folder: str, acked: int) -> None:
    stage.act(
        "kill -9",
        f"Another process publishes as fast as it can, {CALL} a call, and is killed in the middle of it. Three times.",
    )
    worst_ms = 0.0
    promised = 0
    for _ in range(KILLS):
        last = _publish_and_kill(stage, folder, acked)
        start = time.perf_counter()
        with headwater.open(folder) as bus:
            opened_ms = (time.perf_counter() - start) * 1000
            stored = _check_stored(bus)
        worst_ms = max(worst_ms, opened_ms)
        stage.check(
            f"killed: {last:,} messages were acknowledged, {max(stored, 0):,} are there, dense and right; "
            f"opened in {opened_ms:.0f} ms",
            stored >= last > promised,
        )
        promised = last
    stage.figure("acknowledged before kill -9, and there after it", f"{promised:,}")
    stage.figure("longest open after kill -9", f"{worst_ms:.0f} ms")


def _publish_and_kill(stage: Stage, folder: str, wanted: int) -> int:
    """The last offset that the process said was acknowledged."""
    last = calls = 0
    command = [sys.executable, "-m", "headwater.cli.demo.writer", folder]
    with (
        stage.moving(lambda: meter(calls * CALL, wanted)),
        # In a session of its own, as Ctrl-C is for the demo, which ends it.
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as child,  # noqa: S603
    ):
        assert child.stdout is not None
        try:
            for calls, line in enumerate(child.stdout, 1):
                last = int(line.split()[1])
                if calls * CALL >= wanted:
                    break
        finally:
            child.kill()
        # What it had said before it died, and we had not read yet, was promised too.
        for line in child.stdout:
            if line.endswith("\n"):
                last = int(line.split()[1])
    return last


def _check_stored(bus: Bus) -> int:
    """How many messages the killed process left; -1 if one of them is missing or not what was published."""
    offset = 0
    for found in bus.replay(f"{ROOT}/#"):
        offset += 1
        if found.offset != offset or (found.topic, found.payload) != message(offset):
            return -1
    return offset


def _place(stage: Stage, bus: Bus) -> None:
    info = next((info for info in bus.subscriptions() if info.id == ID), None)
    stage.check(
        "the thermostat's place survived all of it: nothing comes again, nothing is left",
        info is not None and info.lag == 0 and info.dead == 0,
    )


def _follow(stage: Stage, bus: Bus, count: int) -> None:
    stage.act(
        "From history to live",
        "follow reads what is stored and goes on with what is published meanwhile: no gap, no repeat, in order.",
    )
    stored = max(info.last_offset for info in bus.topics(f"{ROOT}/#"))
    total = stored + count
    seen = crossed = 0
    is_dense = True
    publisher = threading.Thread(target=_publish_on, args=(bus, stored + 1, total), name="mill", daemon=True)

    def show() -> Table:
        return pairs(
            ("history", meter(min(seen, stored), stored)), ("live", meter(max(0, seen - stored), total - stored))
        )

    start = time.perf_counter()
    with stage.moving(show), bus.follow(f"{ROOT}/#", after=0) as reading:
        publisher.start()
        while seen < total:
            batch = reading.batch(1000, LIMIT_S)
            if not batch:
                break
            for found in batch:
                seen += 1
                is_dense = is_dense and (found.topic, found.payload) == message(seen) and found.offset == seen
            if not crossed and seen > stored:
                crossed = seen
        elapsed = time.perf_counter() - start
        publisher.join()
    stage.check(
        f"{seen:,} messages followed: {stored:,} of history, {seen - stored:,} new ones; none twice, none lost",
        is_dense and seen == total and crossed > 0,
    )
    stage.figure("followed, from history to live", f"{seen:,} ({seen / elapsed:,.0f}/s)")


def _publish_on(bus: Bus, first: int, last: int) -> None:
    for start in range(first, last + 1, CALL):
        try:
            bus.publish_many([message(offset) for offset in range(start, min(start + CALL, last + 1))])
        except Closed:
            return  # the demo was interrupted


def _look_round(stage: Stage, bus: Bus) -> None:
    stage.act("What is in the folder", "As `headwater topics` and `headwater subs` show it.")
    stage.show(tree_of(bus.topics(), None, depth=2))
    stage.show(table(bus.subscriptions(), COLUMNS))
