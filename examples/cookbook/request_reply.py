"""Ask and answer: a service hears questions on a topic, and each answer finds who asked."""

from threading import Thread

import headwater

with headwater.open("var/request-reply") as bus:
    questions = bus.subscribe("rpc/sum")

    def serve():
        for question in questions:
            question.reply(sum(question.json()))

    Thread(target=serve, daemon=True).start()
    print(bus.request("rpc/sum", [1, 2, 3], timeout_s=5).json())
    try:
        bus.request("rpc/product", [1, 2, 3])
    except headwater.NoResponders as error:
        print(error)
    questions.close()
