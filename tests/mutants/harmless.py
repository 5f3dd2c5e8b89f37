"""Faults that nobody could tell from the outside, each with the reason; they are not drawn."""

from __future__ import annotations

NOT_JUDGED: dict[str, str] = {
    "store/memory_files.py": "the disk of a bus in memory: there is nothing to sync, and no crash to survive",
}
"""Modules that promise nothing of what is judged here."""

HARMLESS: dict[tuple[str, str, str], str] = {
    (
        "store/snapshots.py:take",
        "swap",
        "files.remove_tree(taking); files.remove_tree(making)",
    ): "what a snapshot left that a crash cut short: two folders, removed in either order",
    (
        "log/group_commit.py:GroupCommit._gather",
        "invert",
        "min(len(self._pending) + answered, self._items_max)",
    ): "for how many it waits, a millisecond at most",
    (
        "store/segment.py:Index.add",
        "swap",
        "self.positions.append(position); self.times.append(time_us)",
    ): "two columns of one entry, which nobody sees before both are there",
    (
        "store/body.py:Body.places_of",
        "skip-check",
        "if not names: return []",
    ): "a shortcut: what follows finds nothing, too",
    (
        "log/root.py:Root.foresee",
        "off-by-one",
        "self.topic_count + len(topics) > self._config.topics_per_root_max",
    ): "when to look closely; what is found there decides",
    (
        "log/retained.py:Retained.admit",
        "off-by-one",
        "size + sum(sizes.values()) > config.retained_bytes_per_root_max",
    ): "when to look closely; what is found there decides",
    (
        "log/showing.py:_Singles.add",
        "swap",
        "self.topics.append(early.topic); self._payloads.append(early.payload)",
    ): "columns of one message, read once all of them are there",
    (
        "log/showing.py:_Singles.add",
        "swap",
        "self._payloads.append(early.payload); self._times.append(early.time_us)",
    ): "columns of one message, read once all of them are there",
    (
        "delivery/durables.py:Durables.create",
        "swap",
        "check_filter(filter, self._config); check_start(filter, start)",
    ): "two checks that only refuse; where both do, either sentence is right",
    (
        "delivery/ledger.py:Ledger.deliver_again",
        "swap",
        "self.waiting.take(lane, offsets); lease.offsets.extend(offsets)",
    ): "if the first refuses, the lease is dropped by who made it",
    (
        "delivery/timers.py:Timers.close",
        "swap",
        "self._due.clear(); self._heap.clear()",
    ): "two collections that are emptied under one lock",
    (
        "mqtt/sending.py:Sending._send",
        "swap",
        "numbers.append(number); again.append(is_again)",
    ): "two lists that are read once both are whole",
}
"""By place, kind and what stands there."""
