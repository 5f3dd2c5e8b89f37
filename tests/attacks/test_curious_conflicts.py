"""An attacker asks for ids that others use, to be told in the refusal what they subscribe to."""

from __future__ import annotations

from typing import Any

import headwater
from headwater.wire import administration, requests
from server.harness import Running, code


def test_a_conflict_does_not_tell_what_others_subscribe_to():
    with Running(auth="scram") as running:
        running.client("ann", allow=["subscribe secret/#", "channel secret/#"])
        running.client("eve", allow=["subscribe home/#", "channel home/#"])
        ann, eve = running.peer("ann"), running.peer("eve")
        ann.subscribe(1, "secret/plan", kind="named", id="work")
        ann.ask(requests.SubscribeTo(filter="secret/plan", destination_host="127.0.0.1", destination_port=9, id="c"))
        asked: list[tuple[int, Any]] = [
            (409, requests.Subscribe(number=1, filter="home/x", kind="named", id="work", credit_messages=1)),
            (409, administration.CreateSubscription(id="work", filter="home/x")),
            (409, requests.SubscribeTo(filter="home/x", destination_host="127.0.0.1", destination_port=9, id="c")),
            (403, requests.Unsubscribe(id="work")),
            (403, requests.Unsubscribe(id="channel:c")),
            (403, requests.DeadLetters(id="work")),
            (403, administration.ShowSubscription(id="work")),
            (403, administration.DeleteSubscription(id="work")),
        ]
        for number, request in asked:
            with code(number) as _:
                try:
                    eve.ask(request)
                except headwater.HeadwaterError as error:
                    assert "secret" not in str(error), str(error)
                    raise
        with code(409, "secret/plan"):  # who may see it is told
            running.rules("eve", allow=["subscribe secret/#"])
            eve.ask(administration.CreateSubscription(id="work", filter="home/x"))
