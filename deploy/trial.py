"""What an installed Headwater is tried with: import, publish, subscribe, the command, and a server."""

import re
import subprocess
import sys
from pathlib import Path

import headwater

COMMAND = Path(sys.executable).with_name("headwater")
LIMIT_S = 60


def main() -> None:
    """Try it; AssertionError if it does not do what it should."""
    assert "site-packages" in headwater.__file__, headwater.__file__
    with headwater.open("data") as bus, bus.subscribe("home/#", id="trial", start="earliest") as subscription:
        assert bus.publish("home/kitchen/temp", b"21.5").offset == 1
        message = subscription.next(timeout_s=LIMIT_S)
        assert message is not None
        assert message.payload == b"21.5"
        message.ack()
    said = subprocess.run([COMMAND, "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    assert headwater.__version__ in said, said
    serve()
    print(f"headwater {headwater.__version__} installs, imports, publishes and serves")


def serve() -> None:
    """A server on ports of its own, and a client of it."""
    arguments = ["serve", "--data", "served", "--port", "0", "--mqtt-port", "0", "--no-http"]
    with subprocess.Popen([COMMAND, *arguments], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            found = re.search(r"headwater://\S+", line)
            assert found is not None, line
            with headwater.connect(found[0]) as bus:
                assert bus.publish("home/hall/temp", b"19.0").offset == 1
        finally:
            server.terminate()
            assert server.wait(LIMIT_S) == 0


if __name__ == "__main__":
    main()
