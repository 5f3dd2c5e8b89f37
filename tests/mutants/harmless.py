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
    (
        "store/segment.py:Index.extend",
        "swap",
        "self.offsets.extend(first_offsets); self.positions.extend(positions)",
    ): "readers look up durable offsets alone, which stand in entries before these",
    (
        "store/body.py:_names",
        "skip-check",
        "if known is not None and len(known) == count: return known",
    ): "a cache: the names are decoded from the same bytes again",
    (
        "store/stream.py:DiskStream.start_segment",
        "swap",
        "self.segments.append(segment); self.on_segment(base)",
    ): "a list in memory, and a line that is not synced and refuses nothing: a kill between them leaves the same",
    (
        "store/recovery.py:Recovery._cut",
        "swap",
        "file.truncate(position); self._pool.written(segment.log_path)",
    ): "noting a file syncs older ones at most, never this one, which recovery syncs at its end",
    (
        "topics/name.py:_compile_pluses.test",
        "off-by-one",
        "len(levels) > count",
    ): "only asked where the two are not equal",
    (
        "topics/name.py:_utf8_bytes",
        "skip-check",
        "if name.isascii(): return len(name)",
    ): "a shortcut: as UTF-8 it has as many bytes",
    (
        "log/roots.py:Roots.foresee",
        "swap",
        "self._check_new([part.root]); self._check_first(part)",
    ): "two checks that only refuse; where both do, either sentence is right",
    (
        "log/roots.py:Roots._commit_group",
        "swap",
        "self._note_refusals(item); item.finish(item.outcome())",
    ): "what was refused is read where the next group is admitted: in this same role, after both",
    (
        "log/root.py:Root._count",
        "off-by-one",
        "count >= RUN_TOPICS_MIN",
    ): "from how many topics on a run is remembered, to count it faster when it comes again",
    (
        "log/root.py:Root._count",
        "skip-check",
        "if again is not None: return",
    ): "a shortcut: counted topic by topic the sums are the same",
    (
        "delivery/live.py:Live._overflow",
        "swap",
        "self._batches.popleft(); self._forget(batch, count)",
    ): "two changes under one lock",
    (
        "delivery/live.py:Live.end",
        "swap",
        "self._batches.clear(); self._changed.notify_all()",
    ): "who is woken goes on when the lock is free, which is after both",
    (
        "delivery/supply.py:Supply.pending_roughly",
        "skip-check",
        (
            "if is_everything_of(self._filter, root.name) and (not root.purges): "
            "return (root.stream.durable - max(position, root.stream.first_offset) + 1 - len(ahead), 0)"
        ),
    ): "an estimate: where everything matches, a walk comes to the same, but for messages whose ttl has ended",
    (
        "mqtt/overlap.py:Overlaps.on_lost",
        "drop-call",
        "self._ends.clear()",
    ): "places that every live message of a later connection lies behind, so that they change nothing there",
    (
        "mqtt/connection.py:MqttConnection.on_greeted",
        "swap",
        "self._greeter.on_greeted(self); self.send(answer)",
    ): "the first takes it off the list of those whose greeting may time out, and both are in one turn of the loop",
}
"""By place, kind and what stands there."""
