"""Topics as tables for Spark: `pip install 'headwater[spark]'`.

    spark = headwater.spark.session()
    spark.read.format("headwater").option("data", "var/data").option("topics", "home/#").load()
    headwater.spark.table(spark, "home/#", data="var/data", lake="var/lake")

The way of a row: `options` says what is asked for; `folder` finds where it lies and `spans` cuts that into partitions;
in each task `pieces` reads batches off the segments and `columns` makes Arrow of them; `source` is what Spark talks to.
What is archived is in a lake (`headwater.lake`); `crossing` puts it before the log, `history` makes one table of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.spark.session import session

if TYPE_CHECKING:
    from headwater.spark.history import table

__all__ = ["session", "table"]


def __getattr__(name: str) -> Any:
    if name == "table":  # it needs pyiceberg, which a source of the log alone does not
        from headwater.spark.history import table

        return table
    raise AttributeError(name)
