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


PASSED_ON = 3
"""Of a client that comes to a node which follows: its own connection, the one that goes with it, and where the node
itself serves those who only read the other end of that. There HTTP is passed on, too."""


def fit(loaded: Loaded) -> Loaded:
    """Raise the limit; the settings as they fit within it."""
    serving, is_node = loaded.serving, bool(loaded.clustering.cluster)
    segments, connections = loaded.config.open_files_max, serving.connections_max
    http = serving.http_connections_max if is_node and serving.http else 0
    each = PASSED_ON if is_node else 1
    wanted = segments + each * (connections + http) + OTHERS
    limit = raise_open_files_limit(wanted)
    if limit >= wanted:
        return loaded
    segments = max(1, min(segments, limit // 4))
    room = (limit - segments - min(OTHERS, limit // 4)) // each
    fitting = max(1, min(connections, room * connections // (connections + http)))
    log.warning(
        "open-files-limited",
        limit=limit,
        open_files_max=segments,
        connections_max=fitting,
        advice="raise the hard limit of open files (ulimit -Hn, LimitNOFILE=), or lower these settings",
    )
    serving = msgspec.structs.replace(serving, connections_max=fitting)
    if http:
        serving = msgspec.structs.replace(serving, http_connections_max=max(1, room * http // (connections + http)))
    config = msgspec.structs.replace(loaded.config, open_files_max=segments)
    return msgspec.structs.replace(loaded, config=config, serving=serving)
