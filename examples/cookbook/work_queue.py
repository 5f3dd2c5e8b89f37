"""A work queue: eight workers share the jobs, what fails is tried again, and what always fails is set aside."""

import headwater

bus = headwater.open("var/work-queue")
failed_once = set()


@bus.handler("jobs/resize", id="resizer", start="earliest", order="none", workers=8, max_attempts=3, retry_delay_s=0.01)
def resize(message):
    name = message.text
    if name.endswith(".exe"):
        raise headwater.Reject(f"{name} is no picture")  # no second attempt
    if name not in failed_once:
        failed_once.add(name)
        raise OSError("the disk is busy")  # tried again, after a delay that grows
    done.append(name)
    if len(done) == 3:
        bus.stop()


done: list[str] = []
bus.publish_many([("jobs/resize", name) for name in ("virus.exe", "cat.png", "dog.png", "sea.png")])
bus.run()
print(sorted(done))
print([(letter.payload, letter.errors[-1]) for letter in bus.dead_letters("resizer")])
bus.close()
