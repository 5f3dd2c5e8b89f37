"""Every setting is shown with where it came from, and the example in deploy/ is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from cli.command import objects, run
from headwater.cli.print_config import described, example, limits, written
from headwater.config import Config, Serving
from headwater.settings import Process, known, load

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ACCESS = DEPLOY.with_name("docs") / "operate" / "access.md"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """So that no headwater.toml of whoever runs the tests is met."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_setting_has_a_line_that_describes_it():
    assert {name: line for name, line in described().items() if not line.text} == {}
    assert set(known()) <= set(described())


def test_print_config_shows_every_setting_and_where_it_came_from(elsewhere: Path):
    (elsewhere / "headwater.toml").write_text('keepalive_s = "5s"\n[retention_roots.home]\nbytes = "1GiB"\n')
    flags = ("--port", "5", "--lake", "the lake")
    rows = {row["setting"]: row for row in objects("serve", "--print-config", *flags, data=elsewhere / "d")}
    assert set(rows) == {*known(), "retention_roots.home.bytes"}
    assert rows["port"] == {
        "setting": "port",
        "value": 5,
        "default": 7411,
        "source": "flag",
        "from": "--port",
        "description": "0: one that is free.",
    }
    assert (rows["lake"]["value"], rows["lake"]["from"]) == ("the lake", "--lake")
    assert (rows["keepalive_s"]["source"], rows["keepalive_s"]["from"]) == ("file", "headwater.toml")
    assert (rows["data"]["source"], rows["data"]["from"]) == ("environment", "HEADWATER_DATA")
    assert (rows["host"]["source"], rows["host"]["value"]) == ("default", "127.0.0.1")
    assert rows["retention_roots.home.bytes"]["value"] == 1 << 30
    assert not (elsewhere / "d").exists()


def test_print_config_is_a_table_for_people():
    shown = run("serve", "--print-config", "--set", "segment_bytes=64MiB").stdout
    (line,) = (line for line in shown.splitlines() if line.startswith("segment_bytes"))
    assert re.search(r'"64MiB"\s+"128MiB"\s+--set segment_bytes\s+A segment rolls', line)


def test_the_example_in_deploy_is_what_the_code_says():
    regenerate = "python -c 'from headwater.cli.print_config import example; print(example(), end=\"\")'"
    assert (DEPLOY / "headwater.toml").read_text(encoding="utf-8") == example(), f"{regenerate} > deploy/headwater.toml"


def test_the_limits_in_the_docs_are_what_the_code_says():
    regenerate = "python -c 'from headwater.cli.print_config import limits; print(limits())'"
    assert limits() in ACCESS.read_text(encoding="utf-8"), f"{regenerate}: put it into docs/operate/access.md"
    for name in [field.name for field in msgspec.structs.fields(Serving) if "_per_address_" in field.name]:
        assert f"| an address | `{name}` |" in limits()


PACES = {"retry_delay_s_max", "http_restart_s_max", "pipelines_restart_s_max", "channel_retry_s_max", "loop_lag_s_max"}
"""How long the broker itself waits, at most: nobody can fill them."""


def test_every_limit_says_of_whom_it_is_and_is_in_the_table():
    names = {
        field.name
        for struct in (Config, Serving)
        for field in msgspec.structs.fields(struct)
        if field.name.endswith("_max") and field.name not in PACES
    }
    listed = re.findall(r"(?m)^\| [a-z ]+ \| `(\w+)` \|", limits())
    assert sorted(names - set(listed)) == [], "say of whom they are in config.py: Annotated[int, PER_CLIENT]"
    assert len(listed) == len(set(listed))
    for name in names:
        if "_per_client_" in name:
            assert f"| a client | `{name}` |" in limits()


def test_every_share_of_a_client_is_explained_in_the_docs():
    shares = ACCESS.read_text(encoding="utf-8").partition("\n### Shares\n")[2].partition("\n## ")[0]
    for struct in (Config, Serving):
        for field in msgspec.structs.fields(struct):
            if "_per_client_max" in field.name:
                assert f"`{field.name}`" in shares, field.name


def test_the_example_changes_nothing_and_uncommented_says_every_default(elsewhere: Path):
    (elsewhere / "headwater.toml").write_text(example())
    assert load() == msgspec.structs.replace(load(), config=Config(), serving=Serving(), process=Process())
    (elsewhere / "headwater.toml").write_text(re.sub(r"(?m)^#(?=[\w\[])", "", example()))
    loaded = load()
    assert {name for name in known() if loaded.sources[name].kind == "default"} == set()
    assert msgspec.structs.replace(loaded.config, retention_roots={}) == Config()
    assert msgspec.structs.replace(loaded.serving, pipelines={}) == Serving()
    assert loaded.process == Process()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("segment_bytes", 64 << 20, '"64MiB"'),
        ("segment_bytes", 1000, "1000"),
        ("retention.bytes", 0, "0"),
        ("roots_max", 4096, "4096"),
        ("gatekeepers", ("a", 'b"'), '["a", "b\\""]'),
        ("log_json", True, "true"),
    ],
)
def test_values_are_written_as_the_file_has_them(name: str, value: object, text: str):
    assert written(name, value) == text


def test_the_files_in_deploy_name_commands_and_settings_that_there_are():
    service, container = ((DEPLOY / name).read_text() for name in ("headwater.service", "Containerfile"))
    for variable in re.findall(r"HEADWATER_(\w+)=", service + container):
        assert variable.lower() in known()
    assert "headwater serve" in service
