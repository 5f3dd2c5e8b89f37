"""`python -m headwater.admin.search`: a search that the process that serves HTTP starts."""

import sys

from headwater.admin.search.process import run

sys.exit(run())
