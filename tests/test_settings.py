"""Settings from the file, the environment and flags: which one wins, and what is said of those that cannot be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater.config import Clustering, Config, Retention, Serving
from headwater.errors import HeadwaterError, Malformed, NotFound
from headwater.settings import DEFAULT, Loaded, Process, Source, flag, known, load


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def from_file(text: str) -> Loaded:
    Path("headwater.toml").write_text(text)
    return load()


def from_environment(**variables: str) -> Loaded:
    return load(environment={f"HEADWATER_{name}": value for name, value in variables.items()})


def from_flags(*texts: str) -> Loaded:
    return load(dict(flag(text) for text in texts))


def refusal(call: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(HeadwaterError) as caught:
        call(*arguments, **named)
    return str(caught.value)


def test_with_nothing_said_everything_is_at_its_default():
    loaded = load()
    assert (loaded.config, loaded.serving, loaded.process) == (Config(), Serving(), Process())
    assert set(loaded.sources.values()) == {DEFAULT}
    assert {name for name, *_ in loaded.rows()} == set(known())


def test_flags_win_over_the_environment_which_wins_over_the_file():
    Path("headwater.toml").write_text('port = 1\nhost = "::1"\nroots_max = 7\ndata = "d"')
    environment = {"HEADWATER_PORT": "2", "HEADWATER_HOST": "127.0.0.2"}
    loaded = load({"port": ("--port", 3)}, environment)
    assert (loaded.serving.port, loaded.serving.host, loaded.config.roots_max, loaded.data) == (3, "127.0.0.2", 7, "d")
    assert loaded.sources["port"] == Source("flag", "--port")
    assert loaded.sources["host"] == Source("environment", "HEADWATER_HOST")
    assert loaded.sources["roots_max"] == Source("file", "headwater.toml")
    assert loaded.sources["keepalive_s"] == DEFAULT


def test_the_file_is_what_config_says_else_the_variable_else_the_one_in_the_folder():
    for number, name in enumerate(("headwater.toml", "variable.toml", "flag.toml"), 1):
        Path(name).write_text(f"port = {number}")
    assert load().serving.port == 1
    assert load(environment={"HEADWATER_CONFIG": "variable.toml"}).serving.port == 2
    assert load(environment={"HEADWATER_CONFIG": "variable.toml"}, path="flag.toml").serving.port == 3


def test_what_commands_read_from_the_environment_is_no_setting_and_no_mistake():
    loaded = load(environment={"HEADWATER_URL": "headwater://h", "HEADWATER_DATA": "d", "PATH": "/bin"})
    assert loaded.data == "d"
    assert loaded.sources["data"] == Source("environment", "HEADWATER_DATA")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("segment_bytes", "64MiB", 64 << 20),
        ("segment_bytes", "1.5 GiB", 3 << 29),
        ("segment_bytes", "1MB", 10**6),
        ("segment_bytes", "65536b", 65536),
        ("segment_bytes", "1_000_000", 10**6),
        ("keepalive_s", "500ms", 0.5),
        ("keepalive_s", "30s", 30.0),
        ("keepalive_s", "5m", 300.0),
        ("keepalive_s", "45", 45.0),
        ("keepalive_s", "1e1", 10.0),
        ("session_expire_after_s_max", "7d", 7 * 86_400.0),
        ("log_json", "yes", True),
        ("log_json", "OFF", False),
        ("gatekeepers", "gate-1, gate-2", ("gate-1", "gate-2")),
        ("gatekeepers", "", ()),
        ("auth", "scram", "scram"),
        ("auth", "scram,gatekeeper", "scram,gatekeeper"),
        ("jwt_audience", "headwater, others", ("headwater", "others")),
        ("host", "123", "123"),
        (
            "cluster",
            "tls://h1:4222,me:secret@h2,[::1]:4222",
            ("tls://h1:4222", "tls://me:secret@h2", "tls://[::1]:4222"),
        ),
        ("advertise", "[::1]:65535", "[::1]:65535"),
        ("retention.age_s", "7d", 7 * 86_400.0),
    ],
)
def test_text_is_read_as_its_setting_wants_it(name: str, text: str, value: object):
    by_flag = {row[0]: row[1] for row in from_flags(f"{name}={text}").rows()}
    by_variable = {row[0]: row[1] for row in from_environment(**{name.replace(".", "__").upper(): text}).rows()}
    assert by_flag[name] == by_variable[name] == value
    assert type(by_flag[name]) is type(value)


def test_a_file_has_numbers_and_may_have_sizes_durations_and_lists():
    loaded = from_file('segment_bytes = "1MiB"\nkeepalive_s = 5\ndrain_s = "2s"\nlog_json = true\ngatekeepers = ["a"]')
    assert loaded.config.segment_bytes == 1 << 20
    assert (loaded.serving.keepalive_s, loaded.serving.drain_s, loaded.serving.gatekeepers) == (5.0, 2.0, ("a",))
    assert loaded.process.log_json is True


def test_auth_is_a_text_or_a_list():
    assert from_file('auth = "scram"').serving.methods == ("scram",)
    assert from_file('auth = ["gatekeeper", "scram"]').serving.methods == ("scram", "gatekeeper")
    assert from_environment(AUTH="gatekeeper, scram").serving.methods == ("scram", "gatekeeper")


def test_retention_has_tables_and_dotted_names():
    text = '[retention]\nage_s = "1d"\n[retention_roots.home]\nbytes = "1GiB"\n[retention_roots."a.b"]\nhard_age_s = 5'
    loaded = from_file(text)
    assert loaded.config.retention == Retention(age_s=86_400.0)
    assert loaded.config.retention_roots == {"home": Retention(bytes=1 << 30), "a.b": Retention(hard_age_s=5.0)}
    assert loaded.sources["retention_roots.a.b.hard_age_s"] == Source("file", "headwater.toml")
    assert ("retention_roots.home.bytes", 1 << 30, 0, Source("file", "headwater.toml")) in list(loaded.rows())
    more = load({**dict([flag("retention_roots.a.b.bytes=5")])}, {"HEADWATER_RETENTION_ROOTS__Home__AGE_S": "5"})
    assert more.config.retention_roots["a.b"] == Retention(hard_age_s=5.0, bytes=5)
    assert more.config.retention_roots["Home"] == Retention(age_s=5.0)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("segment_byte = 5", ["segment_byte", "headwater.toml", "did you mean segment_bytes?"]),
        ("[retention]\nage = 5", ["retention.age", "did you mean retention.age_s?"]),
        ("[retention_roots.home]\nbyte = 5", ["did you mean retention_roots.home.bytes?"]),
        ("[server]\nport = 5", ["server", "headwater.toml"]),
        ("zzzzqqqq = 5", ["zzzzqqqq", "--print-config"]),
        ("retention = 5", ["retention", "[retention]"]),
        ("retention_roots = 5", ["retention_roots", "table"]),
        ("[retention_roots]\nhome = 5", ["[retention_roots.home]"]),
        ('port = "5"', ["port of headwater.toml", "'5'", "a whole number"]),
        ("port = true", ["port", "a whole number"]),
        ("port = 5.5", ["port", "a whole number"]),
        ("host = 5", ["host", "a text"]),
        ('auth = "scrum"', ["auth", '"scram"', '"gatekeeper"']),
        ('auth = ["scram", "scrum"]', ["auth", '"scram"', "auth is from headwater.toml"]),
        ('auth = ["none", "scram"]', ["auth", "leave it out"]),
        ("auth = 5", ["auth of headwater.toml", "a list of texts"]),
        ('auth = "jwt"', ["give jwt_issuer", "auth is from headwater.toml"]),
        ('segment_bytes = "64 apples"', ["segment_bytes", "64MiB"]),
        ('segment_bytes = "30s"', ["segment_bytes", "64MiB"]),
        ('keepalive_s = "64MiB"', ["keepalive_s", "30s"]),
        ('roots_max = "5KiB"', ["roots_max", "a whole number"]),
        ('log_json = "yes"', ["log_json", "true or false"]),
        ('gatekeepers = "a,b"', ["gatekeepers", "a list"]),
        ("gatekeepers = [1]", ["gatekeepers", "a list"]),
        ("drain_s = 2020-01-01", ["drain_s", "seconds"]),
        ("drain_s = nan", ["drain_s", "headwater.toml"]),
        ("port = 70000", ["port", "65535", "headwater.toml"]),
        ("segment_bytes = 5", ["segment_bytes", "65536", "headwater.toml"]),
        ("port = \nhost = 1", ["headwater.toml", "TOML", "line 1"]),
        ('tls_key = "k"', ["tls_certificate", "headwater.toml"]),
    ],
)
def test_what_cannot_be_right_in_the_file_is_named_with_what_is_expected(text: str, parts: list[str]):
    said = refusal(from_file, text)
    assert said.startswith("Malformed(422)")
    assert "\n" not in said
    for part in parts:
        assert part in said


@pytest.mark.parametrize(
    ("variable", "value", "parts"),
    [
        ("PROT", "5", ["HEADWATER_PROT", "did you mean HEADWATER_PORT?"]),
        ("PORT", "five", ["HEADWATER_PORT", "'five'", "a whole number"]),
        ("PORT", "tcp://10.0.0.1:7411", ["HEADWATER_PORT", "enableServiceLinks"]),
        ("SEGMENT_BYTES", "5", ["HEADWATER_SEGMENT_BYTES", "65536"]),
        ("RETENTION__AGE", "5", ["did you mean HEADWATER_RETENTION__AGE_S?"]),
        ("RETENTION", "5", ["HEADWATER_RETENTION"]),
        ("LOG_JSON", "maybe", ["HEADWATER_LOG_JSON", "true or false"]),
        ("", "5", ["HEADWATER_"]),
    ],
)
def test_what_cannot_be_right_in_the_environment_is_named_by_its_variable(variable: str, value: str, parts: list[str]):
    said = refusal(from_environment, **{variable: value})
    for part in parts:
        assert part in said


@pytest.mark.parametrize(
    "text",
    [
        *("port", "prot=5", "=5", "port=x", "retention=5", "retention_roots.home=5", "retention_roots..x=5"),
        *("advertise=h", "advertise=h:0", "advertise=h:65536", "advertise=::1:7411"),
        *("cluster=http://h", "cluster=nats://h:0", "cluster=nats://h1:4222,h2:65536", "cluster=nats://h:port"),
    ],
)
def test_a_flag_that_cannot_be_right_is_refused(text: str):
    assert refusal(from_flags, text).startswith("Malformed(422)")


def test_a_file_that_is_asked_for_must_be_there_and_be_text():
    with pytest.raises(NotFound, match="--config"):
        load(path="none.toml")
    with pytest.raises(NotFound, match="HEADWATER_CONFIG"):
        load(environment={"HEADWATER_CONFIG": "none.toml"})
    Path("bytes.toml").write_bytes(b"\xff")
    with pytest.raises(Malformed, match=r"bytes\.toml"):
        load(path="bytes.toml")
    with pytest.raises(Malformed, match="cannot be read"):
        load(path=".")


def test_no_two_settings_have_the_same_name():
    names = [
        field.name for struct in (Process, Serving, Clustering, Config) for field in msgspec.structs.fields(struct)
    ]
    assert len(names) == len(set(names))


def test_pipelines_are_a_table_of_commands(tmp_path: Path):
    path = tmp_path / "headwater.toml"
    path.write_text('[pipelines]\narchive = "archive --every 30s"\n')
    loaded = load(environment={"HEADWATER_PIPELINES__NIGHTLY": "rollup --every 1h"}, path=str(path))
    assert loaded.serving.pipelines == {"archive": "archive --every 30s", "nightly": "rollup --every 1h"}
    rows = {name: (value, str(source)) for name, value, _, source in loaded.rows() if name.startswith("pipelines.")}
    assert rows == {
        "pipelines.archive": ("archive --every 30s", str(path)),
        "pipelines.nightly": ("rollup --every 1h", "HEADWATER_PIPELINES__NIGHTLY"),
    }
    for text in ('[pipelines]\n"a b" = "archive"\n', "[pipelines]\narchive = 30\n", 'pipelines = "archive"\n'):
        path.write_text(text)
        with pytest.raises(Malformed, match="pipelines"):
            load(path=str(path))
