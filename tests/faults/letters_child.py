"""A process to be killed: it gives up on every message, and says how many that are by now.

python -m faults.letters_child FOLDER
"""

from __future__ import annotations

import os
import sys

import headwater

AT_ONCE = 20


def main() -> None:
    with headwater.open(sys.argv[1]) as bus:
        sub = bus.subscribe("a/#", id="s", start="earliest", order="none")
        count = 0
        while True:
            bus.publish_many([("a/x", b"x")] * AT_ONCE)
            for message in sub.batch(AT_ONCE, 60):
                message.reject("no")
                count += 1
            os.write(1, b"%d\n" % count)


if __name__ == "__main__":
    main()
