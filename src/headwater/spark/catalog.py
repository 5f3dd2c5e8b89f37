"""The topics of a bus as tables of a catalog of Spark's: what `spark.sql.catalog.NAME` asks, through the planner.

| name                         | table                                                         |
|------------------------------|---------------------------------------------------------------|
| NAME.home                    | the messages of a root: `home/#`                              |
| NAME.`home/+/temp`           | those that a filter matches, whether there are any            |
| NAME.state.dead_letters, …   | what the broker knows of subscriptions: the option "table"    |

Its options are those of a read, but for those that its tables say themselves. Without `data` and `url` the environment
says where the bus is, as it does to the command line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing

import msgspec

from headwater.config import Config
from headwater.errors import Malformed
from headwater.spark.options import MESSAGES, OF_ANY_TABLE, TABLES, given_options, read_options
from headwater.spark.reading import open_log
from headwater.spark.source import HeadwaterSource
from headwater.spark.topics import EVERYTHING, Topics
from headwater.topics.name import check_filter, is_wild

STATE = "state"
"""The namespace of what is no message."""
OF_STATE = tuple(name for name in TABLES if name != MESSAGES)
OF_ENVIRONMENT = {"url": "HEADWATER_URL", "data": "HEADWATER_DATA"}
SAID_BY_TABLES = ("topics", "table")

Given = Mapping[str, str]


class Table(msgspec.Struct, frozen=True):
    """What a table is."""

    options: dict[str, str]
    schema: str
    """As DDL, or JSON."""


def tables(given: Given, namespace: str) -> list[str]:
    """The tables of a namespace; the first is the one without a name."""
    if namespace == STATE:
        return list(OF_STATE)
    with closing(open_log(read_options(_options(given)))) as log:
        return [extent.root for extent in log.extents(EVERYTHING)]


def table(given: Given, namespace: str, name: str) -> Table | None:
    """A table, if it is there."""
    options = _options(given)
    if namespace == STATE:
        if name not in OF_STATE:
            return None
        options = {said: value for said, value in options.items() if said in OF_ANY_TABLE} | {"table": name}
    elif namespace:
        return None
    elif is_wild(name) or "/" in name:
        check_filter(name, Config())
        options["topics"] = Topics((name,)).option
    else:
        wanted = Topics((f"{name}/#",))
        options["topics"] = wanted.option
        with closing(open_log(read_options(options))) as log:
            if not log.extents(wanted):
                return None
    found = HeadwaterSource(options).schema()
    return Table(options, found if isinstance(found, str) else found.json())


def _options(given: Given) -> dict[str, str]:
    options = given_options(given, (), ())
    for name in SAID_BY_TABLES:
        if name in options:
            raise Malformed(f'a catalog has no option "{name}": each of its tables says that itself')
    if not options.keys() & OF_ENVIRONMENT.keys():
        found = {name: os.environ[said] for name, said in OF_ENVIRONMENT.items() if os.environ.get(said)}
        options |= dict(list(found.items())[:1])
    return options
