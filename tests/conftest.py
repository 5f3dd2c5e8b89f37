"""What holds for every test."""

from __future__ import annotations

import os

# Servers that tests start serve no HTTP and no MQTT, unless the test is about that: it would be a process, and ports,
# for each.
os.environ.setdefault("HEADWATER_HTTP", "false")
os.environ.setdefault("HEADWATER_MQTT", "false")
