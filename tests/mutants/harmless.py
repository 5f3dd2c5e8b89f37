"""Faults that nobody could tell from the outside, each with the reason; they are not drawn."""

from __future__ import annotations

NOT_JUDGED: dict[str, str] = {
    "store/memory_files.py": "the disk of a bus in memory: there is nothing to sync, and no crash to survive",
}
"""Modules that promise nothing of what is judged here."""

HARMLESS: dict[tuple[str, str, str], str] = {}
"""By place, kind and what stands there."""
