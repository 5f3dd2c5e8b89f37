from __future__ import annotations

from pathlib import Path

import headwater
from cli.command import here, objects_here, one_sentence, run
from client.served import Served


def test_sessions_are_listed_shown_cut_and_ended_at_a_server(tmp_path: Path):
    with Served(tmp_path) as served, headwater.connect(served.url.replace("://", "://ann@")) as bus:
        consumer = bus.subscribe("home/#", id="mine")
        (session,) = [row.row.id for row in served.server.sessions.all()]
        (found,) = [one for one in objects_here("sessions", "list", "--url", served.url) if one["user"] == "ann"]
        assert found == objects_here("sessions", "show", session, "--url", served.url)[0]
        assert found["id"] == session
        assert found["address"] == "127.0.0.1"
        assert found["connected"] is not None
        assert found["subscriptions"] == [{"kind": "named", "filter": "home/#", "id": "mine"}]
        assert session in here("sessions", "list", "--url", served.url).stdout
        assert "home/#" in here("sessions", "show", session, "--url", served.url).stdout

        run("sessions", "disconnect", session, "--url", served.url)
        bus.publish("home/x", b"after it came back")  # waits for the client to be there again
        consumer.ack(consumer.batch(1, 10))
        assert session in {row.row.id for row in served.server.sessions.all()}

        assert objects_here("sessions", "end", session, "--url", served.url) == [{"id": session, "done": "ended"}]
        assert session not in {row.row.id for row in served.server.sessions.all()}
        assert one_sentence(here("sessions", "end", session, "--url", served.url, code=2).stderr)


def test_a_folder_has_the_sessions_that_are_stored_and_nobody_to_cut(tmp_path: Path):
    with Served(tmp_path) as served:
        bus = headwater.connect(served.url.replace("://", "://ann@"))
        mine = bus.subscribe("home/#", id="mine")
        (session,) = [row.row.id for row in served.server.sessions.all()]
        (beside,) = objects_here("sessions", "list", "--data", tmp_path)
        served.stop()
        (stored,) = objects_here("sessions", "list", "--data", tmp_path)
        bus._loop.call_soon_threadsafe(bus._client.link.close)
        bus.close()
    assert (mine.id, stored) == ("mine", beside)
    assert set(stored) == {"id", "user", "expire_after_s", "subscriptions"}
    assert (stored["id"], stored["user"], len(stored["subscriptions"])) == (session, "ann", 1)
    assert "ann" in here("sessions", "show", session, "--data", tmp_path).stdout
    for wrong in (("show", "none"), ("disconnect", session), ("end", session)):
        assert one_sentence(here("sessions", *wrong, "--data", tmp_path, code=2).stderr)
