"""The command line; `headwater --help` is its reference. One module a command group."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """The command `headwater`."""
    # Ctrl-C while modules are loaded, or let go of, ends it without a word: there is nobody to say it yet, or any more.
    is_heard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from typer.main import get_command

    from headwater.cli.app import app_for
    from headwater.cli.lean import leave_out

    leave_out(sys.argv[1:])
    command = get_command(app_for(sys.argv[1:]))
    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        command(prog_name="headwater")
    finally:
        if is_heard:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
