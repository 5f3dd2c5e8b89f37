"""Topics that are about one subscription: `$dead/<id>` has its dead letters, `$sys/states/<id>` what became of its
messages.

Whoever may look after a subscription may read them, without a rule of their own (`server.broker`). So none of it is
there for the next subscription of that id, which may be about other topics: it is purged when that is made.
"""

from __future__ import annotations

from urllib.parse import unquote

from headwater.config import Config
from headwater.log.root import LETTERS, SYS
from headwater.topics.name import is_wild, level_of

STATES = f"{SYS}/states"
ABOUT = (LETTERS, STATES)
"""What they begin with."""


def own_topic(about: str, id: str, config: Config) -> str:
    """The topic that tells this about a subscription: its id is one level of it."""
    return f"{about}/{level_of(id, config.topic_bytes_max - len(about) - 1)}"


def subscription_of(filter: str, config: Config) -> str | None:
    """The id of the subscription that a filter is about; None if it is about none, or several, or too long to tell."""
    about, _, level = filter.rpartition("/")
    if about not in ABOUT or is_wild(filter):
        return None
    name = unquote(level)
    return name if own_topic(about, name, config) == filter else None
