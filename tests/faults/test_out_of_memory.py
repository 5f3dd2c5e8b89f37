"""Real processes that may have no more memory: an embedded bus says so to everybody, and the folder is whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import headwater

PATIENCE_S = 120
CHILD = """
import json, resource, sys
import headwater

def told(call):
    try:
        call()
    except headwater.HeadwaterError as error:
        return [type(error).__name__, error.code, str(error)]
    return None

bus = headwater.open(sys.argv[1], config=headwater.Config(message_bytes_max=1 << 28, batch_bytes_max=1 << 28))
assert bus.publish("a/x", b"before", retain=True).offset == 1
sub = bus.subscribe("a/#", id="s", start="earliest")
assert sub.next(timeout_s=5).payload == b"before"
bus.publish_soon("a/x", b"and its thread").result()
payload = bytes(80 << 20)  # more than the allocator has set aside for a thread
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (8 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
soon = bus.publish_soon("a/x", payload)
found = [
    told(lambda: soon.result(60)),
    told(lambda: bus.publish("a/x", b"small")),
    told(lambda: bus.publish_many([("a/x", b"1"), ("b/x", b"2")])),
]
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
found.append(told(lambda: bus.publish("a/x", b"though there is memory again")))
kinds = [event.kind for event in bus.events()]
bus.close()
print(json.dumps([found, kinds]))
"""


def test_an_embedded_bus_without_memory_says_so_to_all_and_its_process_lives(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    done = subprocess.run(
        [sys.executable, "-c", CHILD, folder], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found, kinds = json.loads(done.stdout)
    assert [one[:2] for one in found] == [["Failed", 500]] * 4
    assert all("out of memory" in one[2] and "start it again" in one[2] for one in found)
    assert kinds == ["trouble"]
    with headwater.open(folder) as bus:
        assert [message.payload for message in bus.replay("a/#")] == [b"before", b"and its thread"]
        assert bus.publish("a/x", b"after").offset == 3
