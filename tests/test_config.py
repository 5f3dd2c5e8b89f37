"""Settings: each with a unit in its name and a line about its limit, and none that cannot be right."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headwater
from headwater import Config, Connecting, Malformed, Retention
from headwater import config as module

UNITS = (
    "_max _min _bytes _s _interval_s _messages _batches _topics _changes _window _kept _jitter compression "
    "retention retention_roots bytes lake states"
).split()


def fields(name: str) -> dict[str, str | None]:
    """The settings of a class, and the line below each."""
    tree = ast.parse(inspect.getsource(module))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    documented: dict[str, str | None] = {}
    for node, following in zip(found.body, [*found.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            documented[node.target.id] = str(following.value.value) if is_text else None  # type: ignore[union-attr]
    return documented


@pytest.mark.parametrize("name", ["Config", "Retention"])
def test_every_setting_says_what_happens_at_its_limit_and_ends_in_its_unit(name: str) -> None:
    documented = fields(name)
    assert len(documented) >= 4
    for setting, line in documented.items():
        assert line, f"{setting} has no line below it"
        assert setting.endswith(tuple(UNITS)), f"{setting} does not end in a unit"


def test_every_setting_is_used() -> None:
    package = Path(headwater.__file__).parent
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py")))
    assert [setting for setting in [*fields("Config"), *fields("Retention")] if f".{setting}" not in source] == []


def test_the_defaults_are_right() -> None:
    assert Config() == Config()
    assert Config().retention == Retention()


@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(Config) if field.type in (int, float)])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "5", None, True, [1]], ids=repr)
def test_a_number_that_cannot_be_is_refused(name: str, value: Any) -> None:
    with pytest.raises(Malformed, match=name):
        Config(**{name: value})


@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(Retention)])
@pytest.mark.parametrize("value", [-1, float("nan"), "5", None, True], ids=repr)
def test_a_retention_that_cannot_be_is_refused(name: str, value: Any) -> None:
    with pytest.raises(Malformed, match=name):
        Retention(**{name: value})


@pytest.mark.parametrize(
    "bad",
    [
        {"compression": "gzip"},
        {"compression": None},
        {"segment_bytes": 64 * 1024 - 1},
        {"batch_bytes_max": (1 << 30) + 1},
        {"group_bytes_max": 0},
        {"group_messages_max": 0},
        {"retention": None},
        {"retention": {"age_s": 5}},
        {"retention_roots": {"a": 5}},
        {"retention_roots": {5: Retention()}},
        {"retention_roots": [("a", Retention())]},
        {"retention_interval_s": 0},
        {"retry_jitter": 1.5},
    ],
    ids=str,
)
def test_a_setting_that_cannot_work_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        Config(**bad)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(TypeError):
        Config(segment_size=5)  # type: ignore[call-arg]


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Config().roots_max = 5  # type: ignore[misc]


def test_a_root_without_a_rule_of_its_own_has_the_default() -> None:
    rule, default = Retention(bytes=5), Retention(age_s=7)
    config = Config(retention=default, retention_roots={"home": rule})
    assert config.retention_of("home") is rule
    assert config.retention_of("hall") is default


def test_sizes_and_durations_may_be_written_as_in_the_file() -> None:
    written: Any = {"segment_bytes": "64MiB", "retry_delay_s_max": "1.5m", "delay_s_max": " 7d "}
    config = Config(**written)
    assert (config.segment_bytes, config.retry_delay_s_max, config.delay_s_max) == (64 * 2**20, 90, 7 * 86_400)
    assert type(config.segment_bytes) is int
    hour: Any = "1h"
    assert Retention(age_s=hour).age_s == 3600
    assert Connecting(request_timeout_s=hour).request_timeout_s == 3600
    assert config == Config(segment_bytes=64 * 2**20, retry_delay_s_max=90, delay_s_max=7 * 86_400)


@pytest.mark.parametrize("wrong", ["64", "64 parsecs", "7d", "", "-1MiB", "1.5B"])
def test_a_text_that_is_no_size_is_refused(wrong: Any) -> None:
    with pytest.raises(Malformed, match="segment_bytes"):
        Config(segment_bytes=wrong)
