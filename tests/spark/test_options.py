"""Options of the source: what they mean, and what a wrong one is told."""

from __future__ import annotations

import pytest

from headwater.errors import Malformed
from headwater.spark.options import Location, check_batch, check_streaming, read_options, resolve


def options(**given: str):
    return read_options({"data": "/data", **given})


def test_a_read_needs_no_more_than_a_folder():
    found = options()
    assert (found.data, str(found.topics), found.table) == ("/data", "#", "messages")
    assert (found.start, found.end) == (Location("earliest"), Location("latest"))
    assert found.fail_on_data_loss


def test_names_are_understood_in_any_case_as_spark_does():
    assert options(STARTINGOFFSETS="latest", failondataloss="FALSE").start == Location("latest")


def test_a_relative_folder_is_meant_where_the_query_was_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_options({"data": "var/data"}).data == str(tmp_path / "var/data")


def test_places_are_words_offsets_or_times():
    assert options(startingOffsets='{"home": 7, "office": "latest"}').start.roots == {"home": 7, "office": "latest"}
    assert options(startingOffsets="2026-01-31T08:00:00Z").start.time_us == 1_769_846_400_000_000
    assert options(startingOffsets="2026-01-31T09:00:00+01:00").start.time_us == 1_769_846_400_000_000


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"path": "x"}, 'did you mean "data"'),
        ({"topic": "x"}, 'did you mean "topics"'),
        ({"maxMesagesPerTrigger": "1"}, 'did you mean "maxMessagesPerTrigger"'),
        ({"xyz": "1"}, "there are data, url"),
        ({"url": "headwater://127.0.0.1"}, "not both"),
        ({"lake": ""}, "name the folder"),
        ({"topics": "home/*"}, "use +"),
        ({"topics": ""}, "topics"),
        ({"startingOffsets": "yesterday"}, "use earliest, latest"),
        ({"startingOffsets": "2026-01-31T08:00:00"}, "no time zone"),
        ({"startingOffsets": "{home: 1}"}, "no JSON"),
        ({"startingOffsets": '{"home": 0}'}, "count from 1"),
        ({"startingOffsets": '{"home": true}'}, "count from 1"),
        ({"startingOffsets": '{"home": "soon"}'}, "count from 1"),
        ({"startingOffsets": '{"office": 1}', "topics": "home/#"}, 'root "office"'),
        ({"maxMessagesPerTrigger": "0"}, "from 1 on"),
        ({"messagesPerPartition": "1.5"}, "from 1 on"),
        ({"minPartitions": "0"}, "from 1 on"),
        ({"minMessagesPerTrigger": "many"}, "from 1 on"),
        ({"minMessagesPerTrigger": "9", "maxMessagesPerTrigger": "8"}, "make the one less"),
        ({"minMessagesPerTrigger": "9", "maxTriggerDelay": "soon"}, "such as 30s"),
        ({"minMessagesPerTrigger": "9", "maxTriggerDelay": "25h"}, "at most a day"),
        ({"maxTriggerDelay": "5m"}, 'without option "minMessagesPerTrigger"'),
        ({"maxOffsetsPerTrigger": "9", "maxMessagesPerTrigger": "8"}, "another name"),
        ({"pushFilters": "yes"}, "true or false"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"subscription": ""}, "has 0 bytes"),
        ({"subscription": "channel:x"}, "belong to channels"),
        ({"subscription": "s", "subscriptionExpireAfterS": "0"}, "seconds above 0"),
        ({"subscription": "s", "subscriptionExpireAfterS": "soon"}, "seconds above 0"),
        ({"subscriptionExpireAfterS": "60"}, 'without option "subscription"'),
        ({"table": "letters"}, "dead_letters"),
        ({"table": "dead_letters", "topics": "home/#"}, "says nothing about"),
    ],
)
def test_a_wrong_option_is_told_what_to_write(given, told):
    with pytest.raises(Malformed) as caught:
        options(**given)
    assert told in str(caught.value)


def test_a_source_needs_a_place_to_read_from():
    with pytest.raises(Malformed, match="say where the messages are"):
        read_options({})
    with pytest.raises(Malformed, match="is empty"):
        read_options({"data": ""})


def test_what_only_streams_or_batches_have_is_refused_elsewhere():
    with pytest.raises(Malformed, match="is for streams"):
        check_batch(options(maxMessagesPerTrigger="5"))
    with pytest.raises(Malformed, match="a batch read has what there is"):
        check_batch(options(minMessagesPerTrigger="5"))
    with pytest.raises(Malformed, match="has no rows"):
        check_batch(options(startingOffsets="latest"))
    with pytest.raises(Malformed, match="is for batch reads"):
        check_streaming(options(endingOffsets='{"home": 5}'))
    with pytest.raises(Malformed, match="is for batch reads"):
        check_streaming(options(pushFilters="true"))
    with pytest.raises(Malformed, match="is no stream"):
        check_streaming(options(table="subscriptions"))
    check_streaming(options(maxMessagesPerTrigger="5", startingOffsets="latest"))


def test_names_of_kafkas_source_are_understood():
    found = options(
        maxOffsetsPerTrigger="9", minOffsetsPerTrigger="5", maxTriggerDelay="30s", maxRecordsPerPartition="4"
    )
    assert (found.messages_per_trigger_max, found.messages_per_trigger_min) == (9, 5)
    assert (found.messages_per_partition, found.trigger_delay_s) == (4, 30.0)


def test_a_place_is_resolved_against_what_a_root_has():
    def at(place):
        return resolve(place, "home", 10, 21, lambda time_us: time_us)

    assert at(Location("earliest")) == 10
    assert at(Location("latest")) == 21
    assert at(Location("earliest", time_us=15)) == 15
    assert at(Location("earliest", roots={"home": 3})) == 3
    assert at(Location("latest", roots={"home": "earliest"})) == 10
    assert at(Location("latest", roots={"other": 3})) == 21


def test_the_secret_of_a_url_does_not_show() -> None:
    assert "pencil" not in repr(read_options({"url": "headwater://ann:pencil@127.0.0.1:7411", "topics": "home/#"}))
