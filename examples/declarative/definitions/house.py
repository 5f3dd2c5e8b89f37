"""A streaming table of readings, a view over it, and alerts that go back to topics."""

import os

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

URL = os.environ.get("HEADWATER_URL", "headwater://127.0.0.1:7411")
spark = SparkSession.active()


@dp.table(comment="Every reading, as it was published")
def readings():
    messages = spark.readStream.format("headwater").option("url", URL).option("topics", "home/+/temp").load()
    celsius = f.col("payload").cast("string").try_cast("double").alias("celsius")
    return messages.select("topic", "offset", "timestamp", celsius)


@dp.materialized_view(comment="The hottest reading of each topic")
def hottest():
    return (
        spark.read.table("readings")
        .groupBy("topic")
        .agg(f.count("*").alias("readings"), f.max("celsius").alias("celsius"))
    )


dp.create_sink("alerts", "headwater", {"url": URL})


@dp.append_flow(target="alerts")
def heat():
    hot = spark.readStream.table("readings").where("celsius > 30")
    payload = f.to_json(f.struct("celsius", "offset")).alias("payload")
    return hot.select(f.concat(f.lit("alerts/"), "topic").alias("topic"), payload)
