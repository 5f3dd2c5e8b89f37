"""`python -m headwater.admin.query`: a query that the process that serves HTTP starts."""

import sys

from headwater.admin.query.process import run

sys.exit(run())
