"""`headwater demo`: a house, a thermostat that fails, a process that is killed, and nothing lost."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    data: Annotated[
        str | None, typer.Option("--data", metavar="FOLDER", help="A new folder to keep; a temporary one if left out.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="The same in a few seconds.")] = False,
) -> None:
    """Show Headwater at work, in less than a minute. Ends with code 1 if anything that it promises does not hold."""
    from headwater.cli.demo.story import tell
    from headwater.cli.temporary import temporary_folder, temporary_place

    if data is not None:
        kept = tell(data, fast)
    else:
        with temporary_folder(temporary_place(), "headwater-demo") as folder:
            kept = tell(f"{folder}/data", fast)
    if not kept:
        raise typer.Exit(1)
