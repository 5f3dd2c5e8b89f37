"""The process of the demo that is killed: it publishes as fast as it can, and says what was acknowledged.

`python -m headwater.cli.demo.writer FOLDER` prints the first and the last offset of each `publish_many` after it has
returned. The payload of a message is its offset, so that whoever reads it back can tell that it is the right one.
"""

from __future__ import annotations

import os
import sys

import headwater

ROOT = "mill"
LINES = 8
CALL = 200


def message(offset: int) -> tuple[str, bytes]:
    """The message that stands at an offset."""
    return f"{ROOT}/line{offset % LINES}/speed", b"%d" % offset


def main(folder: str) -> None:
    """Publish until killed."""
    bus = headwater.open(folder)
    offset = 1 + max((info.last_offset for info in bus.topics(f"{ROOT}/#")), default=0)
    while True:
        receipts = bus.publish_many([message(number) for number in range(offset, offset + CALL)])
        print(receipts[0].offset, receipts[-1].offset, flush=True)
        offset += CALL


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except BrokenPipeError:  # the demo is gone
        os._exit(1)
