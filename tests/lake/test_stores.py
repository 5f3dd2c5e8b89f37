"""What opens a store is said once, and told to Arrow and to Hadoop's connectors by their own names."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper  # type: ignore[import-untyped]  # it has no types

import headwater
from headwater import Config
from headwater.lake import stores
from headwater.lake.columns import Store
from headwater.lake.lake import open_lake
from headwater.lake.stores import for_hadoop, hadoop_of, know, know_all, located, store_of
from lake import clouds
from spark import lakes

S3 = {"s3.endpoint": "http://127.0.0.1:9000", "s3.access-key-id": "k", "s3.secret-access-key": "hush", "s3.region": "x"}


def test_what_a_catalog_says_about_its_store_is_told_to_hadoop() -> None:
    store = store_of({**S3, "uri": "postgresql://user:secret@db", "warehouse": "s3://lakes"})
    assert store.properties == S3
    assert hadoop_of(store) == {
        "fs.s3a.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.access.key": "k",
        "fs.s3a.secret.key": "hush",
        "fs.s3a.endpoint.region": "x",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
    }
    azure = store_of({"adls.account-name": "lake", "adls.account-key": "hush"})
    assert hadoop_of(azure) == {"fs.azure.account.key.lake.dfs.core.windows.net": "hush"}
    assert "hush" not in repr(store)


@pytest.mark.parametrize(
    ("location", "wanted"),
    [
        ("s3://lakes/a", "s3a://lakes/a"),
        ("s3n://lakes/a", "s3a://lakes/a"),
        ("gs://lakes/a", "gs://lakes/a"),
        ("abfss://box@lake.dfs.core.windows.net/a", "abfss://box@lake.dfs.core.windows.net/a"),
        ("file:///var/lake", "file:///var/lake"),
    ],
)
def test_locations_are_spelled_as_hadoop_has_them(location: str, wanted: str) -> None:
    assert for_hadoop(location) == wanted


def test_the_longest_place_that_is_known_says_how_it_is_opened() -> None:
    know("s3://lakes", Store({"s3.region": "one"}))
    know("s3://lakes/inner", Store({"s3.region": "two"}))
    assert located("s3://lakes/x")[0].region == "one"
    found, path = located("s3://lakes/inner/x")
    assert (found.region, path) == ("two", "lakes/inner/x")


def test_however_many_files_a_task_reads_each_is_opened_as_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "STORES_MAX", 5)
    files = [f"s3://many/data/day={number % 30}/{number}.parquet" for number in range(3000)]
    know_all(files, Store({"s3.region": "three"}))
    assert {located(file)[0].region for file in (files[0], files[-1])} == {"three"}
    know_all(["s3://one/x/1.parquet", "s3://other/1.parquet"], Store({"s3.region": "four"}))
    assert {located(file)[0].region for file in ("s3://one/x/1.parquet", "s3://other/1.parquet")} == {"four"}
    know_all([], Store({"s3.region": "five"}))
    know_all(["/here/1.parquet"], Store({"s3.region": "five"}))
    assert located(files[0])[0].region == "three"


def test_where_very_many_are_known_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, Store] = {}
    monkeypatch.setattr(stores, "_known", known)
    monkeypatch.setattr(stores, "STORES_MAX", 3)
    for number in (1, 2, 3, 2, 4):
        know(f"s3://lakes/{number}", Store({"s3.region": str(number)}))
    know("s3://lakes/2", Store({"s3.region": "changed"}))
    assert list(known) == ["s3://lakes/2", "s3://lakes/3", "s3://lakes/4"]
    assert located("s3://lakes/2/x")[0].region == "changed"


def test_a_bus_replays_from_a_lake_in_s3(tmp_path: Path) -> None:
    """And other engines read it: by Iceberg through pyiceberg, and DuckDB by way of it."""
    with clouds.s3() as url:
        catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.sqlite", **clouds.of_s3(url)}
        where = clouds.configure("replayed", catalog)
        config = Config(segment_bytes=64 * 1024, lake=where, retention=headwater.Retention(bytes=1))
        with headwater.open(tmp_path / "data", config) as bus:
            bus.mark_archived("lake", {"home": 0})
            for n in range(60):
                bus.publish("home/a", b"%d" % n + bytes(4000))
            lakes.archive(where, bus, "home", 60)
            bus.mark_archived("lake", {"home": 60})
            root = bus.core.roots.get("home")
            assert root is not None
            bus.core.upkeep.retain(root)
            assert root.stream.first_offset > 1
            assert [message.offset for message in bus.replay("home/#")] == list(range(1, 61))
        table = open_lake(where).table("home")
        duck = table.scan().to_duckdb("home")
        assert duck.execute('select count(*), max("offset") from home').fetchone() == (60, 60)
        # DuckDB itself, off the store, through a file system: its own extension for S3 is not on PyPI.
        store, _ = located(table.location())
        duck = duckdb.connect(config={"autoinstall_known_extensions": "false"})
        duck.register_filesystem(type("S3", (ArrowFSWrapper,), {"protocol": "s3"})(store))
        asked = "select \"offset\" from read_parquet(?, union_by_name = true) where topic = 'home/a' order by all"
        files = [file.path for file in open_lake(where).archived()["home"].files]
        assert [one for (one,) in duck.execute(asked, [files]).fetchall()] == list(range(1, 61))
