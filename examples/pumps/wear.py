"""Which pumps wear out: a model that is trained on the lake, and scores the stream.

    headwater pipeline run examples/pumps/wear.py --once --set do=train --set model=var/wear --url … --lake var/lake
    headwater pipeline run examples/pumps/wear.py --set model=var/wear --url … --lake var/lake

Both see readings in the same way: typed columns, and features of them by minutes of the pumps' own time. A minute of
the stream is scored once, when a reading came that is two minutes later; alerts are published once, on `alerts/<pump>`.
"""

from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.sql import functions as f

FEATURES = ["vibration_mean", "vibration_max", "celsius_mean"]
PUMP = "split(topic, '/')[1] as pump"


def features(readings):
    """What a minute of a pump was like."""
    flat = readings.selectExpr(PUMP, "value.at", "value.celsius", "value.vibration").where("at is not null")
    minutes = flat.withWatermark("at", "2 minutes").groupBy("pump", f.window("at", "1 minute").alias("minute"))
    return minutes.agg(
        f.mean("vibration").alias("vibration_mean"),
        f.max("vibration").alias("vibration_max"),
        f.mean("celsius").alias("celsius_mean"),
    )


def train(run):
    """A minute is one of wear if its pump failed within the ten minutes after it."""
    minutes = features(run.read("plant/+/state", typed=True)).alias("minutes")
    faults = run.read("plant/+/fault", typed=True).selectExpr(PUMP, "value.at").alias("faults")
    soon = f.expr(
        "minutes.pump = faults.pump and faults.at >= minutes.minute.end"
        " and faults.at < minutes.minute.end + interval 10 minutes"
    )
    labelled = minutes.join(faults, soon, "left").select(
        "minutes.*", f.expr("double(faults.at is not null)").alias("label")
    )
    steps = [VectorAssembler(inputCols=FEATURES, outputCol="features"), LogisticRegression(regParam=0.01)]
    Pipeline(stages=steps).fit(labelled).write().overwrite().save(run.setting("model"))


def score(run):
    readings = run.stream("plant/+/state", typed=True, startingOffsets=run.setting("since", "latest"))
    scored = PipelineModel.load(run.setting("model")).transform(features(readings))
    risk = f.round(vector_to_array("probability")[1], 3).alias("risk")
    alerts = scored.where("prediction = 1").select(
        f.concat(f.lit("alerts/"), "pump").alias("topic"),
        f.to_json(f.struct("pump", f.col("minute.end").alias("at"), risk)).alias("payload"),
        f.col("pump").alias("key"),
    )
    run.write(alerts, "wear")


def pipeline(run):
    train(run) if run.setting("do", "score") == "train" else score(run)
