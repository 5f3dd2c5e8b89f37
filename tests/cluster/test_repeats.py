"""What a client sends again over another connection, while the node that leads can store nothing: its first try may be
on its way, and what becomes of that is what the client hears."""

from __future__ import annotations

import threading
from pathlib import Path

import headwater
from client.proxy import Proxy
from cluster.nodes import Leader, first
from headwater.config import Connecting
from server.harness import Running
from server.site import until

WAIT_S = 30.0


def test_a_publish_that_was_on_its_way_when_its_connection_was_lost_is_stored_once(tmp_path: Path):
    leader: Leader = first(tmp_path / "n1").lead(1)
    with Running(bus=leader.bus) as running:
        proxy = Proxy(running.server.port)
        try:
            with headwater.connect(proxy.url, Connecting(reconnect_delay_s=0.01, reconnect_delay_s_max=0.05)) as bus:
                assert bus.publish("home/a", b"0").offset == 1
                leader.engine.is_up = False
                under_way = [bus.publish_soon("home/a", b"1"), bus.publish_soon("home/a", b"2")]
                until(lambda: leader.sequencer.is_suspended, "that nothing is stored")
                proxy.cut()
                threading.Event().wait(0.5)  # in which they are sent again, and refused
                assert not any(one.done() for one in under_way)
                leader.engine.is_up = True
                assert [one.result(WAIT_S).offset for one in under_way] == [2, 3]
                assert bus.publish("home/a", b"3").offset == 4
                assert [message.payload for message in bus.replay("home/a")] == [b"0", b"1", b"2", b"3"]
        finally:
            proxy.close()
    leader.close()
