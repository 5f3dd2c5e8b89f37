"""Tables beside the messages: dead letters, subscriptions, and the states of messages in them.

They are small next to the log and live in the state, so one task reads each as it is at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import headwater
from headwater.arrow.columns import ROWS
from headwater.errors import NotFound
from headwater.spark.options import ReadOptions
from headwater.spark.served import connect
from headwater.spark.source import COLUMNS

Row = dict[str, Any]
SUBSCRIPTION = ("id", "filter", "order", "lag", "in_flight", "retrying", "dead", "consumers", "paused")


class TableReader(DataSourceReader):
    """Reads one of the tables."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with self._open():
            return [InputPartition(self.options.table)]

    def _open(self) -> Any:
        if self.options.data is not None:
            return headwater.open(self.options.data, read_only=True)
        return connect(self.options.url or "")

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        schema = to_arrow_schema(self.schema, timezone="UTC")
        with self._open() as bus:
            held: list[Row] = []
            for row in ROWS_OF[self.options.table](bus):
                held.append(row)
                if len(held) >= ROWS:
                    yield pa.RecordBatch.from_pylist(held, schema)
                    held = []
            if held:
                yield pa.RecordBatch.from_pylist(held, schema)


def _of_each(bus: Any, ask: Callable[[str], list[Any]]) -> Iterator[tuple[str, Any]]:
    """What there is of each subscription, with its id."""
    for info in bus.subscriptions():
        try:
            found = ask(info.id)
        except NotFound:
            continue  # deleted since
        for one in found:
            yield info.id, one


def _dead_letters(bus: Any) -> Iterator[Row]:
    for _, letter in _of_each(bus, bus.dead_letters):
        yield {
            "subscription": letter.subscription,
            "root": letter.topic.partition("/")[0],
            "topic": letter.topic,
            "offset": letter.offset,
            "timestamp": letter.timestamp,
            "key": letter.key,
            "headers": list(dict(letter.headers).items()),
            "payload": letter.payload,
            "attempts": letter.attempts,
            "errors": list(letter.errors),
            "dead_at": letter.dead_at,
        }


def _subscriptions(bus: Any) -> Iterator[Row]:
    for info in bus.subscriptions():
        row: Row = {name: getattr(info, name) for name in SUBSCRIPTION}
        yield {**row, "floors": list(info.floors.items())}


def _message_states(bus: Any) -> Iterator[Row]:
    names = [name for name in COLUMNS["message_states"] if name != "subscription"]
    for subscription, state in _of_each(bus, bus.states):
        row = {name: getattr(state, name) for name in names}
        yield {**row, "subscription": subscription, "errors": list(state.errors)}


ROWS_OF = {"dead_letters": _dead_letters, "subscriptions": _subscriptions, "message_states": _message_states}
