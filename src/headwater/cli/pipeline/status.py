"""`headwater pipeline status`: how the pipelines are that the server runs."""

from __future__ import annotations

from msgspec.structs import asdict

from headwater.admin.client import Admin
from headwater.cli.options import At
from headwater.cli.output import Columns, clock_time, console, emit, safe, say, table
from headwater.clock import to_datetime
from headwater.errors import Malformed
from headwater.wire.administration import Job


def status(at: At) -> None:
    """List the pipelines of the settings [pipelines] that the server runs: state, lag, last error.

    With --json: an object for each (name, command, state, since_us, restarts, rows, worked_us, lag, error).
    """
    bus = at.server()
    if bus is None:
        raise Malformed("no server runs on this folder, and pipelines are run by one; start it, or name it with --url")
    with Admin(bus) as admin:
        found: list[Job] = admin.jobs()
    if at.json:
        for job in found:
            emit(asdict(job))
    elif found:
        console().print(table(found, COLUMNS))
    else:
        say('the server runs no pipelines; in its settings, below [pipelines]: archive = "archive --every 30s"')


COLUMNS: Columns[Job] = {
    "pipeline": lambda job: safe(job.name),
    "state": lambda job: job.state,
    "since": lambda job: clock_time(to_datetime(job.since_us)),
    ">restarts": lambda job: f"{job.restarts:,}",
    ">rows": lambda job: f"{job.rows:,}",
    ">lag": lambda job: "" if job.lag is None else f"{job.lag:,}",
    "command": lambda job: safe(job.command),
    "last error": lambda job: safe(job.error),
}
