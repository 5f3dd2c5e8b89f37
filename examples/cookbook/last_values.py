"""Settings that programs follow: retained values are a mapping, and a watch of it misses no change."""

import headwater

with headwater.open("var/last-values") as bus:
    bus.publish("settings/heating/target", "21", retain=True)
    bus.publish("settings/heating/mode", "day", retain=True)

    settings = bus.retained("settings/heating/#")
    print({topic.rpartition("/")[2]: value.text for topic, value in sorted(settings.items())})

    changes = settings.watch()
    bus.publish("settings/heating/mode", "night", retain=True)
    change = changes.next(timeout_s=5)
    print(change.topic, change.text, settings["settings/heating/mode"].text)
    changes.close()
