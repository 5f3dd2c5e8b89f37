"""A lake in every catalog that there is a server for here: PostgreSQL, a REST catalog, Glue; beside SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater import Config, Conflict, Malformed
from headwater.lake import files as lake_files
from headwater.lake.erasure import Carried, carry_out
from headwater.lake.lake import Lake, LostRace, append, archived_in, open_lake, table_name
from headwater.log.purges import Purge
from lake import catalogs, clouds
from lake.test_erasure import ANN, fill
from spark import lakes

KINDS = ("sqlite", "postgresql", "rest", "glue")


@pytest.fixture(params=KINDS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A lake whose files are in an object store."""
    with clouds.s3() as url, catalogs.catalog(request.param, tmp_path, clouds.of_s3(url)) as described:
        yield clouds.configure(request.param, described)


def test_a_lake_is_archived_read_erased_and_swept(where: str, tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", Config(segment_bytes=64 * 1024, lake=where)) as bus:
        for upto in (40, 80):
            fill(bus)
            lakes.archive(where, bus, "home", upto)
        bus.publish("Haus-1/a", b"")
        lakes.archive(where, bus, "Haus-1", 1)
        opened = open_lake(where)
        assert sorted(name[-1] for name in opened.catalog.list_tables("headwater")) == [table_name("Haus-1"), "home"]
        assert opened.marks() == {"Haus-1": 1, "home": 80}
        bus.erase(ANN)
        left = [message.offset for message in bus.replay("home/#")]
        purges = tuple(Purge(one.filter, one.upto, key=one.key) for one in bus.purges("home/#"))
        done = carry_out(opened.table("home"), "home", purges)
        assert done == Carried("home", 80 - len(left), 2, 2)
        assert sorted(opened.table("home").scan(selected_fields=("offset",)).to_arrow()["offset"].to_pylist()) == left
        assert lake_files.sweep(opened.table("home"), 0) > 0
        assert len(archived_in(opened.table("home"), "home").files) == 2
        with pytest.raises(Conflict, match="belongs to another bus"):
            open_lake(where).claim("another")


def test_of_two_commits_from_the_same_place_one_loses(where: str, tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, 9)
        opened = open_lake(where)
        opened.claim(bus.id)
        first, second = (opened.make_table("home") for _ in range(2))
        paths = []
        for n, table in enumerate((first, second)):
            paths.append(f"{lake_files.new_attempt(table, '1-9')}/day=1/{n}.parquet")
            lakes.write(paths[-1], list(bus.replay("home/#")))
        assert append(first, paths[:1], 0, 1, 9) == 9
        with pytest.raises(LostRace):
            append(second, paths[1:], 0, 1, 9)
        assert [file.path for file in opened.archived()["home"].files] == paths[:1]


@pytest.mark.parametrize("stated", [{}, {"owner": "data team"}])
def test_a_namespace_that_somebody_made_before_is_made_a_lake(where: str, stated: dict[str, str]) -> None:
    opened = open_lake(where)
    opened.catalog.create_namespace("headwater", stated)
    opened.claim("me")
    assert stated.items() <= opened.properties.items()
    open_lake(where).check("me")


def test_a_catalog_that_keeps_no_properties_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lake, "properties", {})
    with pytest.raises(Malformed, match="use another catalog"):
        open_lake(str(tmp_path)).claim("me")
