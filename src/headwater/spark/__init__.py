"""Topics as tables for Spark: `pip install 'headwater[spark]'`.

    spark = headwater.spark.session()
    spark.read.format("headwater").option("data", "var/data").option("topics", "home/#").load()

The way of a row: `options` says what is asked for; `folder` finds where it lies and `spans` cuts that into partitions;
in each task `pieces` reads batches off the segments and `columns` makes Arrow of them; `source` is what Spark talks to.
"""

from headwater.spark.session import session

__all__ = ["session"]
