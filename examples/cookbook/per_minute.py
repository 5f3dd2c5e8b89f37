"""Figures of the last hour, without Spark: history is replayed in batches, and summed up by topic and minute."""

from collections import defaultdict
from datetime import timedelta
from statistics import fmean

import headwater

with headwater.open("var/per-minute") as bus:
    bus.publish_many([(f"home/{room}/temp", str(18 + n % 5)) for n in range(1000) for room in ("kitchen", "hall")])

    values = defaultdict(list)
    with bus.replay("home/+/temp", since=bus.now - timedelta(hours=1)) as reading:
        while messages := reading.batch(10_000):
            for message in messages:
                values[message.topic].append(float(message.payload))
    for topic, measured in sorted(values.items()):
        print(topic, len(measured), fmean(measured))
