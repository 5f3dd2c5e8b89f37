"""The command `headwater` from its first moment: Ctrl-C ends it without a traceback while it loads, too."""

from __future__ import annotations

import signal


def main() -> None:
    """Load the command line, and run it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from headwater.cli import main as run

    run()
