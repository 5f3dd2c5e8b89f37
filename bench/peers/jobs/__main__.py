"""One of them, in a process of its own: `python -m bench.peers.jobs LIBRARY fill|work WHERE JOBS`.

WHERE is a broker's URL, or a folder.
"""

from __future__ import annotations

import importlib
import json
import sys


def main(library: str, verb: str, where: str, jobs: str) -> None:
    said = getattr(importlib.import_module(f"bench.peers.jobs.with_{library}"), verb)(where, int(jobs))
    if said is not None:
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
