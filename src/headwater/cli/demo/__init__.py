"""`headwater demo`: a house, a thermostat that fails, a process that is killed, and nothing lost."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater import Malformed


def demo(
    data: Annotated[
        str | None, typer.Option("--data", metavar="FOLDER", help="A new folder to keep; a temporary one if left out.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="The same in a few seconds.")] = False,
) -> None:
    """Show Headwater at work, in less than a minute. Ends with code 1 if anything that it promises does not hold."""
    from headwater.cli.demo.story import tell
    from headwater.cli.temporary import temporary_folder, temporary_place
    from headwater.store.files import DiskFiles

    if data is not None:
        if DiskFiles().list(data):
            raise Malformed(f'"{data}" is not empty; let the demo have a new folder')
        kept = tell(data, fast)
    else:
        with temporary_folder(temporary_place(), "headwater-demo") as folder:
            kept = tell(f"{folder}/data", fast)
    if not kept:
        raise typer.Exit(1)
