from __future__ import annotations

import time
from pathlib import Path

import pytest

import headwater
from cli.command import here, objects, one_sentence, run, start


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def stored(data: Path, filter: str = "#") -> list[headwater.Message]:
    with headwater.open(data, read_only=True) as bus:
        return list(bus.replay(filter))


def test_a_message_with_everything_is_stored_as_it_was_given(data: Path):
    (receipt,) = objects(
        *("pub", "home/kitchen/temp", "21.5", "--retain", "--key", "k", "--header", "a=1", "--header", "b=x=y"),
        data=data,
    )
    assert (receipt["topic"], receipt["offset"], receipt["duplicate"]) == ("home/kitchen/temp", 1, False)
    (message,) = stored(data)
    assert (message.payload, message.key, message.header_pairs) == (b"21.5", b"k", (("a", "1"), ("b", "x=y")))
    with headwater.open(data, read_only=True) as bus:
        assert [kept.payload for kept in bus.retained("#").values()] == [b"21.5"]


def test_a_repeat_of_a_producer_is_stored_once(data: Path):
    call = ("pub", "jobs/x", "a", "--producer", "importer", "--sequence", 7)
    (first,) = objects(*call, data=data)
    (second,) = objects(*call, data=data)
    assert (first["duplicate"], second["duplicate"], second["offset"]) == (False, True, first["offset"])
    assert len(stored(data)) == 1


def test_each_line_of_stdin_is_a_message_and_has_a_sequence_of_its_own(data: Path):
    (summary,) = objects("pub", "home/log", "--stdin", data=data, stdin=b"one\ntwo\r\n\nthree")
    assert (summary["messages"], summary["first_offset"], summary["last_offset"]) == (4, 1, 4)
    assert [message.payload for message in stored(data)] == [b"one", b"two", b"", b"three"]
    for _ in range(2):
        run("pub", "jobs/x", "--stdin", "--producer", "p", "--sequence", 10, data=data, stdin=b"a\nb\n")
    assert [message.payload for message in stored(data, "jobs/#")] == [b"a", b"b"]


def test_lines_of_a_slow_writer_are_published_as_they_come(data: Path):
    with start("pub", "home/log", "--stdin", data=data) as slow:
        assert slow.stdin is not None
        for number in (1, 2):
            slow.stdin.write(b"line\n")
            slow.stdin.flush()
            until = time.monotonic() + 60
            while not (data / "watermarks").exists() or len(stored(data)) < number:
                assert time.monotonic() < until
                time.sleep(0.05)
        slow.stdin.close()
        assert slow.wait(60) == 0


def test_a_file_is_one_message_or_a_message_a_line(data: Path, tmp_path: Path):
    file = tmp_path / "lines.bin"
    file.write_bytes(b"\x00\xff\nsecond\n")
    run("pub", "home/whole", "--file", file, data=data)
    run("pub", "home/lines", "--file", file, "--lines", data=data)
    assert [message.payload for message in stored(data)] == [b"\x00\xff\nsecond\n", b"\x00\xff", b"second"]


def test_load_has_the_asked_for_count_and_size(data: Path):
    (summary,) = objects("pub", "home/load", "--count", 2500, "--size", 10, data=data)
    assert (summary["messages"], summary["bytes"], summary["last_offset"]) == (2500, 25_000, 2500)
    run("pub", "home/same", "again", "--count", 3, "--key", "k", data=data)
    assert [message.payload for message in stored(data, "home/same")] == [b"again"] * 3


def test_a_delayed_message_waits(data: Path):
    (receipt,) = objects("pub", "home/later", "x", "--deliver-at", "1h", data=data)
    assert receipt["offset"] == 0
    assert not stored(data, "home/later")


@pytest.mark.parametrize(
    "wrong",
    [
        ("home/#", "x"),
        ("home/a",),
        ("home/a", "x", "--stdin"),
        ("home/a", "x", "--lines"),
        ("home/a", "x", "--size", "5"),
        ("home/a", "x", "--header", "novalue"),
        ("home/a", "x", "--deliver-at", "tomorrow"),
        ("home/a", "x", "--ttl-s", "-1"),
        ("home/a", "x", "--producer", "p"),
    ],
)
def test_wrong_input_is_refused_in_one_sentence_and_nothing_is_stored(data: Path, wrong: tuple[str, ...]):
    with headwater.open(data):
        pass
    result = here("pub", *wrong, "--data", data, code=2)
    assert one_sentence(result.stderr)
    assert not stored(data)


def test_a_folder_that_is_owned_is_refused_in_one_sentence(data: Path):
    with headwater.open(data):
        result = run("pub", "home/a", "x", data=data, code=2)
    assert one_sentence(result.stderr)
    assert result.stderr.startswith("Owned(409)")
