"""`headwater demo`: a house, a thermostat that fails, processes that are killed, nothing lost; and Spark over it."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater import Malformed


def demo(
    data: Annotated[
        str | None, typer.Option("--data", metavar="FOLDER", help="A new folder to keep; a temporary one if left out.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="The same with less to look at.")] = False,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="End with Spark over it all, or before it.")] = True,
    cluster: Annotated[
        bool,
        typer.Option("--cluster/--no-cluster", help="Kill the leader of three nodes, where nats-server is there."),
    ] = True,
    plot: Annotated[
        str, typer.Option("--plot", metavar="FILE", help="Where the rollup's picture goes; nowhere if empty.")
    ] = "headwater-demo.png",
) -> None:
    """Show Headwater at work, in less than two minutes. Ends with code 1 if anything that it promises does not hold."""
    from headwater.cli.demo.story import tell
    from headwater.cli.temporary import temporary_folder, temporary_place
    from headwater.store.files import DiskFiles

    if data is not None:
        if DiskFiles().list(data):
            raise Malformed(f'"{data}" is not empty; let the demo have a new folder')
        kept = tell(data, fast, spark, plot or None, cluster)
    else:
        with temporary_folder(temporary_place(), "headwater-demo") as folder:
            kept = tell(f"{folder}/data", fast, spark, plot or None, cluster)
    if not kept:
        raise typer.Exit(1)
