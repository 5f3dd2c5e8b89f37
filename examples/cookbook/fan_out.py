"""One event, several services: each subscription has a place, a pace and failures of its own."""

import headwater

with headwater.open("var/fan-out") as bus:
    bus.publish_many([("shop/orders", "pears"), ("shop/returns", "plums"), ("shop/orders", "figs")])

    billing = bus.subscribe("shop/orders", id="billing", start="earliest")
    audit = bus.subscribe("shop/#", id="audit", start="earliest")

    messages = billing.batch(10, timeout_s=1)
    billing.ack(messages)
    print("billing", [message.text for message in messages])

    first = audit.next(timeout_s=1)
    first.ack()
    print("audit", first.text)

    bus.publish("shop/orders", "dates")
    for info in bus.subscriptions():
        print(info.id, "has", info.lag, "to do")
    billing.close()
    audit.close()
