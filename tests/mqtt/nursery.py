"""Starts `headwater` again and again, quickly: a process that has loaded it all, and forks.

Each line on stdin is a command's words, with tabs between them; the new process's id is printed before what it prints.
"""

from __future__ import annotations

import os
import sys

import headwater.cli.serve
import headwater.server.process
import rocksdict  # noqa: F401  # loaded here, for all of them
from headwater.cli import main

while line := sys.stdin.readline():
    child = os.fork()
    if not child:
        sys.argv = ["headwater", *line.rstrip("\n").split("\t")]
        print(os.getpid(), flush=True)
        main()
        os._exit(0)
    os.waitpid(child, 0)  # a folder belongs to one process: this one has to be gone before the next
