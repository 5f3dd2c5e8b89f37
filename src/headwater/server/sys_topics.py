"""The topics of `$sys`, on which the broker tells about itself.

Nobody else publishes there: the desk where every publish is checked refuses it (403). Wildcards do not match them, so
whoever wants them names `$sys`, and with authentication on needs a rule that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from headwater.bus import Bus
from headwater.message import Outgoing
from headwater.outgoing import SYS

__all__ = ["SYS", "publish_own"]


def publish_own(bus: Bus, messages: Sequence[Outgoing]) -> Future[object]:
    """Publish on topics of `$sys`, from any thread; the future is done once they are on disk."""
    inside = bus.inside
    item = inside.desk.own(messages)
    item.future = future = Future[object]()
    inside.roots.commit.submit(item)
    return future
