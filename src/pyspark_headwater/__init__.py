"""Where Spark looks, by the name of this package, for the format "headwater": no registration needed."""

from headwater.spark.source import HeadwaterSource as DefaultSource

__all__ = ["DefaultSource"]
