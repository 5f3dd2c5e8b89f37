"""How many files and sockets the server may have open: the process's limit is raised to what the settings need.

Where it cannot be raised so far, the settings are cut to what fits and a warning says so: a connection that is one too
many is refused with a reason, rather than that nothing can be opened any more.
"""

from __future__ import annotations

import msgspec

from headwater.server.log import Log
from headwater.settings import Loaded
from headwater.store.descriptors import raise_open_files_limit

OTHERS = 512
"""For the state, listening sockets, channels, the process that serves HTTP, and what is open for a moment."""

log = Log("headwater.server.descriptors")


def fit(loaded: Loaded) -> Loaded:
    """Raise the limit; the settings as they fit within it."""
    segments, connections = loaded.config.open_files_max, loaded.serving.connections_max
    limit = raise_open_files_limit(segments + connections + OTHERS)
    if limit >= segments + connections + OTHERS:
        return loaded
    segments = max(1, min(segments, limit // 4))
    connections = max(1, min(connections, limit - segments - min(OTHERS, limit // 4)))
    log.warning(
        "open-files-limited",
        limit=limit,
        open_files_max=segments,
        connections_max=connections,
        advice="raise the hard limit of open files (ulimit -Hn, LimitNOFILE=), or lower these settings",
    )
    return msgspec.structs.replace(
        loaded,
        config=msgspec.structs.replace(loaded.config, open_files_max=segments),
        serving=msgspec.structs.replace(loaded.serving, connections_max=connections),
    )
