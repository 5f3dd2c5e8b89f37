"""A notebook: cells begin with `# %%`, as VS Code, Spyder, PyCharm and `jupytext --to ipynb mend.py` have them."""

# %% [markdown]
# # Alerts that the desk gave up on
# What the handler of `desk` failed at waits as dead letters. They are a table, and what is written back is handed to
# the desk again, and to nobody else.

# %%
import os

from pyspark.sql import functions as f

import headwater.spark

url = os.environ["HEADWATER_URL"]
spark = headwater.spark.session("mend")
dead = (
    spark.read.format("headwater")
    .option("url", url)
    .option("table", "dead_letters")
    .load()
    .where("subscription = 'desk'")
)

# %% [markdown]
# Why did they die? All of them for one reason: the desk has no building for the pump.

# %%
dead.groupBy("topic", f.substring_index(f.col("errors")[0], "\n", 1).alias("error")).count().show(truncate=False)

# %% [markdown]
# Say where the pump stands, in the alert itself.

# %%
alert = f.from_json(f.col("payload").cast("string"), "pump string, at string, risk double")
places = spark.createDataFrame([("pump5", "north")], "pump string, building string")
with_place = dead.withColumn("alert", alert).join(places, f.col("alert.pump") == places.pump)
mended = with_place.withColumn("payload", f.to_json(f.struct("alert.*", "building"))).select(*dead.columns)
mended.select("topic", "payload").show(3, truncate=False)

# %% [markdown]
# Hand them to the desk again: all of them, or none; and once, however often this cell is run.

# %%
mended.write.format("headwater").option("url", url).option("mode", "redrive").option("writeId", "places-1").mode(
    "append"
).save()
