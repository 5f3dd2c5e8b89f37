"""A reminder: a message that is due later waits on disk, and so does one that comes again and again."""

from datetime import timedelta

import headwater

with headwater.open("var/reminder") as bus:
    sub = bus.subscribe("reminders/#", id="bell")
    bus.publish("reminders/tea", "it is ready", deliver_at=bus.now + timedelta(seconds=0.2))
    print(sub.next(timeout_s=0))  # not yet
    reminder = sub.next(timeout_s=10)
    print(reminder.text)
    reminder.ack()

    nightly = bus.schedule("reminders/backup", "is it done?", cron="0 3 * * *", zone="Europe/Berlin")
    print(nightly.id, nightly.cron, nightly.next_at > bus.now)
