"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Servers that tests start serve no HTTP and no MQTT, unless the test is about that: it would be a process, and ports,
# for each.
os.environ.setdefault("HEADWATER_HTTP", "false")
os.environ.setdefault("HEADWATER_MQTT", "false")

# Examples are the same in every run, and may take as long as a slow machine needs: a test that fails was made to fail
# by what was changed. The soak tries others each time.
settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Groups of tests (`xdist_group`) that share what takes long to start go to one process, and so do those that share
    a fixture of their module.

    pytest-xdist 3.8 tells of a test's group in its name, by a field that pytest 9.2 no longer reads: without this, each
    process starts a Spark and a browser of its own."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None and shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    yield
    for item in items:
        named = getattr(item, "_nodeid", item.nodeid)
        if named != item.nodeid:
            item._id = type(item._id).parse(named)


def shares_a_fixture(item: pytest.Item) -> bool:
    """Whether something was made for a test that others of its module use, too."""
    if not isinstance(item, pytest.Function):
        return False
    return any(defs[-1].scope == "module" for defs in item._fixtureinfo.name2fixturedefs.values())


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is collected, as tests take their settings from the profile when they are read."""
    if config.option.markexpr == "soak":
        settings.load_profile("soak")
