"""Sensor alerts: readings above a limit, from topics to topics.

    headwater serve &
    headwater pipeline run examples/alerts.py --url headwater://127.0.0.1:7411 --set limit=30 &
    headwater pub home/kitchen/temp '{"celsius": 31.5}' --url headwater://127.0.0.1:7411
    headwater sub 'alerts/#' --url headwater://127.0.0.1:7411

Each alert is published once, however often the pipeline is stopped, killed and started again.
"""

from pyspark.sql import functions as f


def pipeline(run):
    limit = float(run.setting("limit", "30"))
    celsius = f.get_json_object(f.col("payload").cast("string"), "$.celsius").try_cast("double")
    readings = run.stream("home/+/temp").withColumn("celsius", celsius)  # null if it is no number
    alerts = readings.where(f.col("celsius") > limit).select(
        f.concat(f.lit("alerts/"), "topic").alias("topic"),
        f.to_json(f.struct("celsius", "timestamp", "offset")).alias("payload"),
        "key",
    )
    run.write(alerts, "alerts")
