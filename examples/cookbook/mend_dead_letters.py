"""Mend what failed: dead letters are changed and handed to their subscription again, and to no other."""

import headwater

with headwater.open("var/mend-dead-letters") as bus:
    bus.publish_many([("home/kitchen/temp", "21.5"), ("home/hall/temp", "19,0"), ("home/attic/temp", "broken")])
    with bus.subscribe("home/+/temp", id="thermostat", start="earliest", order="none", max_attempts=1) as sub:
        for message in sub.batch(10, timeout_s=1):
            try:
                float(message.text)
                message.ack()
            except ValueError as error:
                message.nack(error)

    letters = bus.dead_letters("thermostat")
    print([letter.topic for letter in letters])

    mended = [letter.mend(payload=letter.payload.replace(b",", b".")) for letter in letters if b"," in letter.payload]
    bus.redrive("thermostat", mended=mended)
    bus.drop_dead_letters("thermostat")  # the others
    with bus.subscribe("home/+/temp", id="thermostat") as sub:
        message = sub.next(timeout_s=5)
        print(message.topic, float(message.text), message.attempt)
        message.ack()
