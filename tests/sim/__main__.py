"""Play seeds of the served system: `cd tests && python -m sim 7`, `python -m sim 0-999`, `python -m sim 7 --trace`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator

from sim.play import play
from sim.shrink import report
from sim.story import draw


def say(line: str) -> None:
    """For people."""
    sys.stdout.write(f"{line}\n")


def spread(texts: list[str]) -> Iterator[int]:
    """The seeds that were asked for."""
    for text in texts:
        first, _, last = text.partition("-")
        yield from range(int(first), int(last or first) + 1)


def main() -> int:
    """Play, and say what came of it."""
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("seeds", nargs="+", help="seeds, or spans of them: 7, 0-999")
    parser.add_argument("--trace", action="store_true", help="show everything that happens")
    parser.add_argument("--table", action="store_true", help="show what was reached")
    parser.add_argument("--digest", action="store_true", help="show a digest of what happened, and no more")
    parser.add_argument("--shrink", action="store_true", help="make those that fail short")
    parser.add_argument("--first", action="store_true", help="stop at the first that fails")
    asked = parser.parse_args()
    reached: Counter[str] = Counter()
    bad, played, began_s = [], 0, time.process_time()
    for seed in spread(asked.seeds):
        ending = play(draw(seed), shows=asked.trace)
        reached += ending.reached
        played += 1
        if asked.digest:
            say(f"{seed} {ending.digest}")
        if not ending.is_good:
            bad.append(seed)
            told = "; ".join(ending.violations[:3])[:1500]
            say(f"seed {seed}: {report(draw(seed), ending) if asked.shrink else told}")
            if asked.first:
                break
    if asked.digest:
        return 1 if bad else 0
    spent_s = time.process_time() - began_s
    say(f"{played} seeds, {len(bad)} bad {bad[:20]}, {spent_s / played * 1000:.0f} ms each")
    if asked.table:
        for what, times in sorted(reached.items()):
            say(f"{times:8}  {what}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
