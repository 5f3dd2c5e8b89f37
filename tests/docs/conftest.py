"""Pages that speak of Spark share its session with the tests of Spark."""

from spark.conftest import spark

__all__ = ["spark"]
