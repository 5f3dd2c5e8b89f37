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
        "log/gathering.py:Gathering.wait",
        "invert",
        "min(pending + answered, items_max)",
    ): "for how many it waits, a millisecond at most",
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
        "mqtt/overlap.py:Overlaps.on_lost",
        "drop-call",
        "self._ends.clear()",
    ): "places that every live message of a later connection lies behind, so that they change nothing there",
    (
        "store/streams.py:Streams.recover",
        "swap",
        "self._files.sync_folder(f'{self._folder}/streams'); self._files.remove_tree(f'{self._folder}/{RENAMED}')",
    ): "what a rename left that a crash cut short is an empty folder, made again whichever of its names is durable",
    (
        "delivery/bookkeeping.py:Books.store",
        "skip-check",
        "if not changes: return None",
    ): "a shortcut: rows that are none are not written",
    (
        "delivery/waiting.py:Waiting._revive",
        "drop-call",
        "self._ready.pop(chain, None)",
    ): "a chain in which nothing waits is passed over, and forgotten, by the next offer",
    (
        "mqtt/reasons.py:VersionRefused.__init__",
        "drop-call",
        "Malformed.__init__(self, sentence, level)",
    ): "an exception keeps what it was made of, whether or not its base is told",
    (
        "mqtt/connection.py:MqttConnection.on_greeted",
        "swap",
        "self.send(answer); self.release()",
    ): "what is read from then on comes in a later turn of the loop",
    (
        "mqtt/sending.py:Sending._deliver_alike_to_all",
        "off-by-one",
        "longest_bytes > connection.bytes_max",
    ): "else it goes the way of all others, which asks the same",
}
"""By place, kind and what stands there."""
