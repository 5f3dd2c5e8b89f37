"""The command line; `headwater --help` is its reference. One module a command group."""

from __future__ import annotations


def main() -> None:
    """The command `headwater`."""
    from headwater.cli.app import app

    app(prog_name="headwater")
