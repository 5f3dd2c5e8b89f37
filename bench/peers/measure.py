"""Measures rows: every contender at every point, by turns, so that what the machine does meanwhile meets them all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench.peers import libraries
from bench.peers.brokers import Broker, Fleet, import_path, interpreter
from bench.peers.generator import Generator, Refused
from bench.peers.results import Cell, Point, Result
from bench.peers.rows import ROWS, At, Contender, Row, named
from headwater.cli.bench.served.cores import placed

KIB = 1024
LOAD_AXES = ("bytes", "publishers", "topics", "subscribers")
SINK_BYTES = (64, 400, 4096)
START_S_MAX = 60.0
FILL_S_MAX = 90.0
WARM_CONNECTIONS = 50
JOBS_S, JOBS_MIN, JOBS_S_MAX = 0.6, 10, 60.0
"""A contender does as many jobs as it says when each figure of throughput is to take so long; and at least so many."""
BENCHES = Path(__file__).parents[1]
SPARK_LINE = re.compile(r"(?P<name>folder, all columns|aggregate over (files|history)) +(?P<rate>[\d,]+) rows/s")
SPARK_NAMES = {"folder, all columns": "log", "aggregate over history": "history", "aggregate over files": "parquet"}


@dataclass(frozen=True)
class Size:
    """How much is done: for each figure, and of each kind."""

    rounds: int = 3
    seconds: float = 0.6
    trips: int = 4000
    durable_trips: int = 600
    stored: tuple[int, ...] = (1_000_000, 10_000_000)
    connections: int = 2000
    subscriptions: tuple[int, ...] = (1000, 100_000, 1_000_000)
    is_quick: bool = False


QUICK = Size(3, 0.3, 1000, 200, (200_000,), 500, (1000, 100_000), True)


@dataclass
class Tally:
    """A cell in the making."""

    who: str
    values: list[float] = field(default_factory=list)
    tails: list[float] = field(default_factory=list)
    generator_shares: list[float] = field(default_factory=list)
    broker_shares: list[float] = field(default_factory=list)
    problem: str = ""

    def cell(self) -> Cell:
        return Cell(self.who, self.values, self.tails, self.generator_shares, self.broker_shares, self.problem)


class Measuring:
    """One run: the brokers, the generator, and how much of everything."""

    def __init__(
        self, fleet: Fleet, generator: Generator, size: Size, headwater: str, say: Callable[[str], None]
    ) -> None:
        self._fleet = fleet
        self._generator = generator
        self._size = size
        self._headwater = headwater
        self._say = say

    def generator_alone(self) -> list[Point]:
        """How fast the generator goes when nobody thinks at the other end."""
        found = []
        for size in SINK_BYTES:
            self._say(f"generator against a sink, {size} bytes")
            tally = Tally("sink")
            for _ in range(self._size.rounds):
                said = self._generator.run("sink", "publish", 0, {"bytes": size, "seconds": self._size.seconds})
                tally.values.append(said["rate"])
                tally.generator_shares.append(said["cpu_share"])
            found.append(Point({"bytes": size}, [tally.cell()]))
        return found

    def rows(self, wanted: list[str]) -> Iterator[Result]:
        """Each as soon as it is measured."""
        done: set[str] = set()
        for key in wanted:
            if key in done:
                continue
            for found in self._measured(ROWS[key], wanted):
                done.add(found.row)
                yield found
            self._fleet.clear()

    def _measured(self, row: Row, wanted: list[str]) -> Iterator[Result]:
        if row.work:
            yield self._result(row, [self._loaded(row, at) for at in self._points(row)])
        elif row.key in ("replay", "start"):
            replays, starts = self._stored()
            both = (("replay", replays), ("start", starts))
            yield from (self._result(ROWS[key], points) for key, points in both if key in wanted)
        elif row.key == "idle":
            yield self._result(row, [self._idle(row)])
        elif row.key in ("look-up", "look-up-memory"):
            speeds, sizes = self._look_ups()
            both = (("look-up", speeds), ("look-up-memory", sizes))
            yield from (self._result(ROWS[key], points) for key, points in both if key in wanted)
        elif row.key == "workers":
            yield self._result(row, [self._workers(row)])
        elif row.key == "spark":
            yield self._result(row, [self._spark()])

    def _result(self, row: Row, points: list[Point]) -> Result:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        return Result(row.key, points, at, self._size.rounds, self._size.is_quick, is_compiled(self._headwater))

    def _points(self, row: Row) -> list[At]:
        return list(row.points[: row.quick_points] if self._size.is_quick else row.points)

    def _there(self, row: Row) -> list[Contender]:
        return [one for one in row.contenders if self._fleet.has(one.setting) and self._has_library(one)]

    def _has_library(self, one: Contender) -> bool:
        return one.is_headwater or "library" not in one.options or libraries.is_there(str(one.options["library"]))

    # Work of the load generator

    def _loaded(self, row: Row, at: At) -> Point:
        tallies = {one.key: Tally(one.key) for one in self._there(row)}
        for turn in range(self._size.rounds):
            for one in self._there(row):
                self._say(f"{row.title}, {named(at)}: {one.title}, round {turn + 1}")
                with self._problems(tallies[one.key]), self._fleet.alone(one.setting) as broker:
                    self._load(row, at, one, broker, tallies[one.key])
        self._fleet.clear()
        return Point(dict(at), [tally.cell() for tally in tallies.values()])

    def _load(self, row: Row, at: At, one: Contender, broker: Broker, tally: Tally) -> None:
        options = {**row.options, **self._amount(row), **one.options}
        options.update({axis: value for axis, value in at.items() if axis in LOAD_AXES})
        before_s = broker.process.cpu_s
        with on_cores(at, broker):
            said = self._generator.run(one.protocol, row.work, broker.port(one.protocol), options)
        tally.values.append(said[row.figure])
        tally.generator_shares.append(said["cpu_share"])
        tally.broker_shares.append((broker.process.cpu_s - before_s) / max(said["seconds"], 0.001))
        if row.figure == "p50_us":
            tally.tails.append(said["p99_us"])

    def _amount(self, row: Row) -> Mapping[str, float]:
        if row.figure != "p50_us":
            return {"seconds": self._size.seconds}
        return {"rounds": self._size.durable_trips if "durable" in row.work else self._size.trips}

    @contextmanager
    def _problems(self, tally: Tally) -> Iterator[None]:
        """One that cannot do the work does not keep the others from it."""
        try:
            yield
        except (Refused, RuntimeError) as error:
            tally.problem = str(error)
            self._say(f"{tally.who}: {error}")

    # What is stored

    def _stored(self) -> tuple[list[Point], list[Point]]:
        """Replays of the first amount; starts with each."""
        there = self._there(ROWS["start"])
        kept = {one.key: 0 for one in there}
        rates: dict[str, float] = {}
        replays: list[Point] = []
        starts: list[Point] = []
        for stored in self._size.stored:
            rounds = 1 if starts else self._size.rounds  # what is large is slow to start for some
            replayed, started = ({one.key: Tally(one.key) for one in there} for _ in range(2))
            for one in there:
                self._say(f"{one.title}: to {stored:,} stored")
                with self._problems(started[one.key]), self._fleet.alone(one.setting) as broker:
                    more = stored - kept[one.key]
                    if kept[one.key] and more / rates[one.key] > FILL_S_MAX:
                        raise Refused(f"left out: it would take {more / rates[one.key]:.0f} s to store that much")
                    rates[one.key] = self._keep(one, broker, more, kept[one.key])
                    kept[one.key] = stored
            for turn in range(rounds):
                for one in (one for one in there if not started[one.key].problem):
                    self._say(f"{one.title}: {stored:,} stored, round {turn + 1}")
                    with self._problems(started[one.key]), self._fleet.alone(one.setting) as broker:
                        if not starts:
                            self._replay(one, broker, kept[one.key], replayed[one.key])
                        started[one.key].values.append(self._start_s(one, broker, kept[one.key]))
                        kept[one.key] += 1
            if not starts:
                replays.append(Point({"stored": stored}, [tally.cell() for tally in replayed.values()]))
            starts.append(Point({"stored": stored}, [tally.cell() for tally in started.values()]))
        return replays, starts

    def _keep(self, one: Contender, broker: Broker, count: int, first: int) -> float:
        """Store so many more, numbered from there on; how many a second that were."""
        options = {"count": count, "first": first, "bytes": 400, "batch": min(count, 1000), "in-flight": 20_000}
        return self._generator.run(one.protocol, "fill", broker.port(one.protocol), options)["rate"]

    def _replay(self, one: Contender, broker: Broker, stored: int, tally: Tally) -> None:
        before_s = broker.process.cpu_s
        options = {"count": stored, "bytes": 400}
        said = self._generator.run(one.protocol, "replay", broker.port(one.protocol), options)
        tally.values.append(said["rate"])
        tally.generator_shares.append(said["cpu_share"])
        tally.broker_shares.append((broker.process.cpu_s - before_s) / max(said["seconds"], 0.001))

    def _start_s(self, one: Contender, broker: Broker, stored: int) -> float:
        """Seconds from the start of the process to the ack of one more message after what is stored."""
        broker.process.kill()
        begun = time.perf_counter()
        broker.start()
        while True:
            try:
                self._keep(one, broker, 1, stored)
            except Refused as error:
                if time.perf_counter() - begun > START_S_MAX or not broker.process.is_running:
                    raise Refused(f"did not come back within {START_S_MAX:g} s: {error}") from None
                time.sleep(0.002)
            else:
                return time.perf_counter() - begun

    # Connections that do nothing

    def _idle(self, row: Row) -> Point:
        count = self._size.connections
        tallies = {one.key: Tally(one.key) for one in self._there(row)}
        for turn in range(self._size.rounds):
            for one in self._there(row):
                self._say(f"{row.title}: {one.title}, round {turn + 1}")
                with self._problems(tallies[one.key]), self._fleet.alone(one.setting) as broker:
                    port = broker.port(one.protocol)
                    with self._generator.idle(one.protocol, port, {**one.options, "subscribers": WARM_CONNECTIONS}):
                        pass
                    before = broker.process.resident_bytes
                    with self._generator.idle(one.protocol, port, {**one.options, "subscribers": count}):
                        after = broker.process.resident_bytes
                tallies[one.key].values.append((after - before) / count / KIB)
                self._fleet.clear()  # what was free before would be used again
        return Point({"connections": count}, [tally.cell() for tally in tallies.values()])

    # Filters

    def _look_ups(self) -> tuple[list[Point], list[Point]]:
        """As `headwater bench match` measures them, in the Headwater that is measured."""
        speeds, sizes = [], []
        for count in self._size.subscriptions:
            self._say(f"filter look-ups, {count:,} subscriptions")
            figures = self._matched(count)
            at: dict[str, float | str] = {"subscriptions": count}
            keys = ("warm", "cold", "warm-changing", "cold-changing", "plain", "wildcard")
            cells = [Cell(key, [figure["value"]]) for key, figure in zip(keys, figures, strict=True)]
            speeds.append(Point(at, cells[:4]))
            sizes.append(Point(at, cells[4:]))
        return speeds, sizes

    def _matched(self, count: int) -> list[dict[str, float]]:
        options = ("--subscriptions", str(count), "--seconds", str(self._size.seconds), "--json")
        said = asked(self._headwater, "-m", "headwater", "bench", "match", *options)
        found: list[dict[str, float]] = json.loads(said)["figures"]
        return found

    # Workers

    def _workers(self, row: Row) -> Point:
        """Jobs are put there, and then done by a process of their library's, which times itself."""
        tallies = {one.key: Tally(one.key) for one in self._there(row)}
        for turn in range(self._size.rounds):
            for one in self._there(row):
                self._say(f"{row.title}: {one.title}, round {turn + 1}")
                with self._problems(tallies[one.key]), self._fleet.alone(one.setting) as broker:
                    self._do_jobs(one, broker, tallies[one.key])
        return Point(dict(row.points[0]), [tally.cell() for tally in tallies.values()])

    def _do_jobs(self, one: Contender, broker: Broker, tally: Tally) -> None:
        jobs = max(JOBS_MIN, round(float(one.options["jobs"]) * self._size.seconds / JOBS_S))
        python = self._headwater if one.is_headwater else sys.executable
        command = (interpreter(python), "-m", "bench.peers.jobs", str(one.options["library"]))
        where = where_jobs_are(one, broker)
        # Bytecode and the folder to import from are as they are for a broker of ours; the bench is beside them.
        path = os.pathsep.join((*import_path(python).values(), str(BENCHES.parent)))
        environment = {**os.environ, "PYTHONPATH": path}
        said = ""
        for verb in ("fill", "work"):
            done = subprocess.run(
                [*command, verb, where, str(jobs)],
                env=environment,
                cwd=broker.folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=JOBS_S_MAX,
            )
            if done.returncode:
                raise Refused((done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1])
            said = done.stdout
        tally.values.append(json.loads(said.splitlines()[-1])["rate"])

    # Spark

    def _spark(self) -> Point:
        """As the benches of Spark measure it: warm, medians of their own."""
        stored = self._size.stored[0]
        tallies = {one.key: Tally(one.key) for one in ROWS["spark"].contenders}
        for script, name in (("spark.py", "the log"), ("spark_archive.py", "history")):
            self._say(f"Spark reads {name}")
            for key, rate in self._said_of_rows(script, stored):
                tallies[key].values.append(rate)
        return Point({"stored": stored}, [tally.cell() for tally in tallies.values()])

    def _said_of_rows(self, script: str, rows: int) -> Iterator[tuple[str, float]]:
        said = asked(self._headwater, str(BENCHES / script), "--rows", str(rows), "--runs", str(self._size.rounds + 1))
        for line in said.splitlines():
            found = SPARK_LINE.match(line)
            if found:
                yield SPARK_NAMES[found["name"]], float(found["rate"].replace(",", ""))


def where_jobs_are(one: Contender, broker: Broker) -> str:
    """The URL of their broker, or the folder."""
    match one.protocol:
        case "":
            return str(broker.folder / "embedded")
        case "native":
            return f"headwater://127.0.0.1:{broker.port('native')}"
        case protocol:
            database = f"/{one.options['database']}" if "database" in one.options else ""
            return f"{protocol}://127.0.0.1:{broker.port(protocol)}{database}"


@contextmanager
def on_cores(at: At, broker: Broker) -> Iterator[None]:
    """Where the point says so, the generator and the broker have a core each, or share one."""
    place = at.get("place")
    if place is None:
        yield
        return
    with placed(str(place), *broker.process.ids):
        yield


def is_compiled(headwater: str) -> bool:
    """Whether the Headwater that is measured has compiled modules."""
    return asked(headwater, "-c", "import headwater.compiled as it; print(it.is_compiled())").strip() == "True"


def asked(headwater: str, *arguments: str) -> str:
    """What the Python that is measured answers."""
    command = [interpreter(headwater), *arguments]
    environment = {**os.environ, **import_path(headwater)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
