"""A join of a topic with a Parquet table: readings, with what is known about their rooms, as a table of their own.

    python -c "import pandas; pandas.DataFrame({'room': ['kitchen', 'hall'], 'floor': [0, 1], 'target': [21.0, 18.0]}).to_parquet('rooms.parquet')"
    headwater pub home/kitchen/temp 23.5
    headwater pipeline run examples/rooms.py --once --set rooms=rooms.parquet --set out=comfort
    python -c "import pandas; print(pandas.read_parquet('comfort'))"

It reads a folder (`--data`) or a server (`--url`). Each run with `--once` adds what was published since the last one.
"""  # noqa: E501  # commands to be copied

from pyspark.sql import functions as f


def pipeline(run):
    rooms = run.spark.read.parquet(run.setting("rooms"))
    readings = run.stream("home/+/temp").select(
        f.split("topic", "/")[1].alias("room"),
        "timestamp",
        f.col("payload").cast("string").try_cast("double").alias("celsius"),
    )
    comfort = readings.join(f.broadcast(rooms), "room").withColumn("off_by", f.col("celsius") - f.col("target"))
    run.write(comfort, "comfort", format="parquet", path=run.setting("out"))
