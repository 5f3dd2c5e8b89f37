"""What the columns are called that messages have by the schemas of their topics (`values` makes them)."""

from __future__ import annotations

VALUE, MISFIT = "value", "misfit"
