"""`python -m headwater.admin`: the process that serves HTTP for a server that starts it."""

import sys

from headwater.admin.process import run

sys.exit(run())
