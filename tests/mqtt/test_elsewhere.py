"""Where clients are told to go on when the node that they are at leads no more."""

from __future__ import annotations

import pytest

from headwater.mqtt.kinds import V4
from headwater.mqtt.packets import Disconnect
from headwater.mqtt.reasons import Reason
from headwater.server.connection import Elsewhere
from mqtt.peer import Served

NEXT = "h2:1883"


def test_a_client_of_version_5_is_told_the_address_of_the_next_node():
    with Served() as served:
        peer = served.mqtt("ann")
        served.server.elsewhere = Elsewhere("h2:7411", NEXT, "h2:8883")
        served.run(served.server.drain())
        said = peer.expect(Disconnect)
        assert said.reason == Reason.USE_ANOTHER_SERVER
        assert said.properties.server_reference == NEXT


@pytest.mark.parametrize("elsewhere", [None, Elsewhere("h2:7411")], ids=["nowhere", "no such door"])
def test_where_no_node_is_known_to_go_to_none_is_named(elsewhere: Elsewhere | None):
    with Served() as served:
        peer = served.mqtt("ann")
        served.server.elsewhere = elsewhere
        served.run(served.server.drain())
        said = peer.expect(Disconnect)
        assert said.reason == Reason.SERVER_SHUTTING_DOWN
        assert said.properties.server_reference is None


def test_a_client_of_version_3_is_told_nothing_as_it_has_no_word_for_it():
    with Served() as served:
        peer = served.mqtt("ann", V4)
        served.server.elsewhere = Elsewhere("h2:7411", NEXT)
        served.run(served.server.drain())
        assert peer.ends() is None
        assert not [one for one in peer.inbox if isinstance(one, Disconnect)]
