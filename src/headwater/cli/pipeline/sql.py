"""`headwater pipeline sql` and `serve`: Spark SQL in which topics are tables, cold or kept warm."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.following import pause
from headwater.cli.options import At
from headwater.cli.output import tell
from headwater.cli.pipeline import Master, SparkLogs, check_source, running
from headwater.errors import Failed, Malformed

if TYPE_CHECKING:
    import pyarrow

Lake = Annotated[str | None, typer.Option("--lake", metavar="DIR", help="The lake: what is archived is read there.")]
Tables = Annotated[
    str | None, typer.Option("--tables", metavar="DIR", help="Keep tables and views that you CREATE here.")
]
WARM = "HEADWATER_SPARK"
HOUR_S = 3600.0


def sql(
    at: At,
    execute: Annotated[
        str | None, typer.Option("-e", "--execute", metavar="QUERY", help="Ask this, show what is answered, and end.")
    ] = None,
    warm: Annotated[
        str | None,
        typer.Option("--warm", metavar="ADDRESS", help=f"What `headwater pipeline serve` printed. Or set {WARM}."),
    ] = None,
    lake: Lake = None,
    tables: Tables = None,
    master: Master = None,
    spark_logs: SparkLogs = False,
) -> None:
    """A shell of Spark SQL in which each root is a table: SHOW TABLES; SELECT topic, count(*) FROM home GROUP BY topic;

    So is each filter, in backticks: FROM `home/+/temp`. INSERT INTO publishes, where there is a --url. These tables
    are those of the catalog hw; what you CREATE belongs in spark_catalog.default, and is gone with the shell without
    --tables.

    With -e, one query is answered, in a second by a session that is kept warm. With --json: an object for each row.
    """
    from headwater.arrow.result import Result
    from headwater.cli.sql import show

    warm = warm or os.environ.get(WARM)
    if execute is not None and warm is not None:
        from headwater.spark import warm as warm_sessions

        show(Result(warm_sessions.ask(warm, execute)), at.json)
        return
    _check_installed()
    check_source(at)
    place = _place(at)
    if execute is not None:
        show(Result(_answer(place, execute, lake, tables, master, spark_logs)), at.json)
        return
    if at.json:
        raise Malformed("--json is for one query; say it with -e")
    from headwater.spark import shell

    command, environment = shell.command(place, lake=lake, tables=tables, master=master, logs=spark_logs)
    sys.stdout.flush()
    os.execve(command[0], command, environment)  # noqa: S606  # signals and the terminal are the shell's then


def serve(
    at: At,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Of loopback; 0: one that is free.")] = 15002,
    lake: Lake = None,
    tables: Tables = None,
    master: Master = None,
    spark_logs: SparkLogs = False,
) -> None:
    """Keep a Spark session warm until Ctrl-C: `headwater pipeline sql -e` and notebooks ask it, and wait for no start.

    Its address is printed once it can be asked. It listens on loopback alone, and the address has the token that lets
    in: whoever knows it may run code here, as this user. SPARK_CONNECT_AUTHENTICATE_TOKEN states the token.

    With --json: one object (address).
    """
    _check_installed()
    check_source(at)
    from headwater.spark import warm

    conf = {**warm.conf_of_sql(_place(at), lake, tables), **warm.conf_of_server(port)}
    with running(master, spark_logs, "headwater serve", conf) as spark:
        address = warm.begin(spark)
        tell(at.json, {"address": address}, f"export {WARM}='{address}'")
        sys.stdout.flush()
        while True:
            pause(HOUR_S)


def _check_installed() -> None:
    """That there is a Spark for which there is a jar of ours: tables are in it."""
    if find_spec("pyspark") is None:
        raise Malformed("pipelines need Spark: pip install 'headwater[spark]'")
    from headwater.spark import jar

    if jar.find() is None:
        raise Failed(
            "tables are in Headwater's jar, and there is none for this Spark; in a checkout, `make jvm` builds it"
        )


def _place(at: At) -> dict[str, str]:
    return {"url": at.url} if at.url is not None else {"data": str(Path(at.data).absolute())}


def _answer(
    place: dict[str, str], query: str, lake: str | None, tables: str | None, master: str | None, logs: bool
) -> pyarrow.Table:
    from headwater.spark.warm import answer, conf_of_sql

    with running(master, logs, "headwater sql", conf_of_sql(place, lake, tables)) as spark:
        return answer(spark, query)
