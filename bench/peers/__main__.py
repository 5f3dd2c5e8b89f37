"""Headwater beside Redis, NATS JetStream, RabbitMQ and Mosquitto: `make bench-peers`, or `python -m bench.peers`.

The same work for all, from one load generator, by turns, on this machine; see docs/contribute/benchmarks.md, which a
whole run writes anew. What people wrote there about what limits Headwater stays.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from bench.peers import brokers, libraries, machine
from bench.peers.brokers import PEERS, Fleet
from bench.peers.generator import Generator
from bench.peers.goals import verdicts
from bench.peers.measure import QUICK, Measuring, Size
from bench.peers.page import PAGE, json_of, merged, read_report, write_page
from bench.peers.results import Report
from bench.peers.rows import ROWS
from bench.peers.tables import show_result, show_verdicts
from headwater.cli.bench.served.broker import raise_files_max

DOCS = Path(__file__).parents[2] / "docs" / "contribute"


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument(
        "--quick", action="store_true", help="about 2 minutes rather than 10: fewer points, less stored"
    )
    parser.add_argument("--only", action="append", choices=list(ROWS), metavar="ROW", help=f"one of {', '.join(ROWS)}")
    parser.add_argument(
        "--peers", help=f"only these, with commas between: {', '.join(PEERS)}; none for Headwater alone"
    )
    parser.add_argument("--headwater", default=sys.executable, help="the Python, or the folder to import, that serves")
    parser.add_argument("--nats-server", default="", help="where it is, if not on the PATH or beside this Python")
    parser.add_argument("--rounds", type=int, help="at each point (3)")
    parser.add_argument("--seconds", type=float, help="for each figure of throughput (0.6; quick 0.3)")
    parser.add_argument("--data", help="where the temporary folders are made: on the disk that is measured")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    parser.add_argument("--page", type=Path, help="the folder of benchmarks.md, to write what was measured into it; "
                        "a whole run writes docs")  # fmt: skip
    return parser.parse_args(given)


def programs_of(given: argparse.Namespace) -> tuple[dict[str, str], dict[str, str]]:
    """Where each peer that is wanted is, and how the others are installed."""
    wanted = (
        list(PEERS) if given.peers is None else [name for name in given.peers.split(",") if name not in ("", "none")]
    )
    unknown = set(wanted) - set(PEERS)
    if unknown:
        raise SystemExit(f"there is no peer {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    found, missing = {"headwater": given.headwater}, {}
    for name in wanted:
        program = brokers.program_of(PEERS[name], given.nats_server if name == "nats" else "")
        if program is None:
            missing[name] = PEERS[name].install
        else:
            found[name] = program
    return found, missing | libraries.missing(found)


def size_of(given: argparse.Namespace) -> Size:
    size = QUICK if given.quick else Size()
    changed = {name: value for name in ("rounds", "seconds") if (value := getattr(given, name)) is not None}
    return Size(**{**vars(size), **changed})


def run(given: argparse.Namespace, console: Console) -> Report:
    programs, missing = programs_of(given)
    for name, install in missing.items():
        console.print(f"{name} is not installed, so it is left out; to have it: {install}", style="yellow")
    wanted = given.only or [key for key in ROWS if key != "spark" or (not given.quick and machine.has_spark())]
    raise_files_max()
    with tempfile.TemporaryDirectory(prefix="headwater-load-") as folder:
        generator = Generator.built(Path(folder))
        with Fleet(programs, given.data) as fleet, console.status("measuring") as status:
            measuring = Measuring(fleet, generator, size_of(given), given.headwater, status.update)
            alone = measuring.generator_alone()
            results = []
            for result in measuring.rows(wanted):
                show_result(console, result)
                results.append(result)
    judged = [verdict for result in results for verdict in verdicts(result)]
    return Report(machine.description(), machine.versions(programs), missing, alone, results, judged)


def main() -> None:
    given = arguments(sys.argv[1:])
    console = Console(width=None if sys.stdout.isatty() else 220)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that brokers are ended as on Ctrl-C
    try:
        report = run(given, console)
    except KeyboardInterrupt:
        raise SystemExit("interrupted; all brokers are ended, and nothing was written") from None
    show_verdicts(console, report.verdicts)
    if given.json:
        given.json.write_bytes(json_of(report))
    is_whole = not (given.quick or given.only or given.peers is not None)
    page = given.page or (DOCS if is_whole else None)
    if page is not None:
        write_page(page, merged(None if is_whole else read_report(page), report))
        console.print(f"written: {page / PAGE}")


if __name__ == "__main__":
    main()
