"""Starts `headwater` again and again, quickly: a process that has loaded it all, and forks.

Each line on stdin is a command's words, with tabs between them; the new process's id is printed before what it prints.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from headwater.cli import main

for name in ("rocksdict", "headwater.cli.serve", "headwater.serving.process"):
    import_module(name)

while line := sys.stdin.readline():
    child = os.fork()
    if not child:
        sys.argv = ["headwater", *line.rstrip("\n").split("\t")]
        sys.stdout.write(f"{os.getpid()}\n")
        sys.stdout.flush()
        main()
        os._exit(0)
    os.waitpid(child, 0)  # a folder belongs to one process: this one has to be gone before the next
