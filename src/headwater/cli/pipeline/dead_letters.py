"""`headwater pipeline dead-letters`: what subscriptions gave up on, in groups that tell what to mend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from headwater.cli.options import At
from headwater.cli.output import (
    Columns,
    clock_time,
    console,
    counted,
    emit,
    iso,
    named,
    payload_object,
    preview,
    remark,
    safe,
    say,
    table,
)
from headwater.cli.pipeline import Master, SparkLogs, check_source, running, source_of

if TYPE_CHECKING:
    from headwater.spark.pipelines.dead_letters import Group


def dead_letters(
    at: At,
    subscription: Annotated[
        str | None, typer.Argument(help="Of this subscription; all if left out.", show_default=False)
    ] = None,
    examples: Annotated[int, typer.Option("--examples", min=0, max=100, help="Letters of each group to show.")] = 3,
    groups: Annotated[int, typer.Option("--groups", min=1, help="Groups to show, the largest first.")] = 100,
    master: Master = None,
    spark_logs: SparkLogs = False,
) -> None:
    """Group dead letters by subscription, error and topic, with counts, times and examples.

    The error of a letter is its last one. To hand them back when you have mended them, see `headwater dead redrive`, or
    write them with option("mode", "redrive") from Spark.

    With --json: an object for each group (subscription, error, topic, letters, attempts, first, last, examples: offset,
    and payload or payload_base64, up to 1 KiB of it).
    """
    check_source(at)
    with running(master, spark_logs, "headwater dead-letters") as spark:
        from headwater.spark.pipelines.dead_letters import grouped

        found = grouped(spark, source_of(at), subscription=subscription, examples=examples, groups_max=groups)
    if at.json:
        for group in found.groups:
            emit(_object(group))
        return
    if not found.groups:
        say("there are no dead letters" + (f" of {safe(subscription)}" if subscription is not None else ""))
        return
    console().print(table(found.groups, COLUMNS))
    if found.groups_in_all > len(found.groups):
        remark(f"{found.groups_in_all - len(found.groups):,} smaller groups are not shown; --groups shows more")
    say((f"{counted(found.letters_in_all, 'dead letter')} in {counted(found.groups_in_all, 'group')}", "dim"))


COLUMNS: Columns[Group] = {
    "subscription": lambda group: named(group.subscription),
    "topic": lambda group: safe(group.topic),
    ">letters": lambda group: f"{group.letters:,}",
    ">attempts": lambda group: str(group.attempts),
    "first": lambda group: clock_time(group.first),
    "last": lambda group: clock_time(group.last),
    "error": lambda group: Text(safe(group.error), style="red"),
    "examples": lambda group: "\n".join(f"{one.offset}: {preview(one.payload)}" for one in group.examples),
}


def _object(group: Group) -> dict[str, Any]:
    return {
        "subscription": group.subscription,
        "error": group.error,
        "topic": group.topic,
        "letters": group.letters,
        "attempts": group.attempts,
        "first": iso(group.first),
        "last": iso(group.last),
        "examples": [{"offset": one.offset, **payload_object(one.payload)} for one in group.examples],
    }
