"""`headwater`, on a machine whose clock is a minute ahead as soon as the file is there that is named first."""

from __future__ import annotations

import os
import sys
import time

from headwater.cli import main
from headwater.clock import SECOND_US, SystemClock

MARK = sys.argv.pop(1)


def now_us(_: SystemClock) -> int:
    return time.time_ns() // 1000 + (60 * SECOND_US if os.path.exists(MARK) else 0)


def read(clock: SystemClock) -> tuple[int, int]:
    return now_us(clock), clock.monotonic_us()


SystemClock.now_us = now_us  # type: ignore[assignment,method-assign]
SystemClock.read = read  # type: ignore[assignment,method-assign]
main()
