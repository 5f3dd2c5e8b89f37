"""The command line; `headwater --help` is its reference. One module a command group."""

from __future__ import annotations

import sys


def main() -> None:
    """The command `headwater`."""
    from headwater.cli.app import app_for

    app_for(sys.argv[1:])(prog_name="headwater")
