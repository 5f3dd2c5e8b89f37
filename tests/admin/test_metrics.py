"""What Prometheus reads: every figure, in its format, with labels that stay bounded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headwater.admin.metrics import (
    CLUSTER,
    CLUSTER_COUNTERS,
    NODES,
    OTHERS,
    PREFIX,
    ROOTS,
    SESSIONS,
    SUBSCRIPTIONS,
    exposition,
)
from headwater.counts import BOUNDS_US, COUNTERS, GAUGES, HISTOGRAMS, Durations
from headwater.server.watch.figures import histogram
from headwater.wire.administration import Figures, RootFigures, SlowConsumer, SubscriptionFigures

REPO = Path(__file__).resolve().parents[2]
Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def some_figures() -> Figures:
    took = Durations()
    for took_us in (100, 101, 900, 99_000_000):
        took.add(took_us)
    return Figures(
        time_us=2_000_000,
        started_us=1_500_000,
        counters={name: place for place, name in enumerate(COUNTERS)},
        gauges={name: place + 0.5 for place, name in enumerate(GAUGES)},
        histograms={name: histogram(took) for name in HISTOGRAMS},
        roots=(RootFigures(root='ho"me\\\n', first=3, end=10, bytes=1234, segments=2, topics=7),),
        subscriptions=(
            SubscriptionFigures(id="thermostat", lag=5, in_flight=1, retrying=2, dead=3, consumers=4),
            SubscriptionFigures(id="x1:home/#", lag=10, in_flight=1, retrying=0, dead=0, consumers=1, is_named=False),
            SubscriptionFigures(id="x2:home/#", lag=20, in_flight=0, retrying=0, dead=1, consumers=1, is_named=False),
        ),
        slow=(SlowConsumer(session="s", user="ann", waiting_bytes=9, dropped=1),),
    )


def samples_of(text: bytes) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.documentation, family.name
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


@pytest.fixture(scope="module")
def samples() -> Samples:
    return samples_of(exposition(some_figures()))


def test_every_figure_is_exposed_under_its_name(samples: Samples) -> None:
    for place, name in enumerate(COUNTERS):
        assert samples[f"{PREFIX}{name}_total"] == {(): place}
    for place, name in enumerate(GAUGES):
        assert samples[PREFIX + name] == {(): place + 0.5}
    assert samples[f"{PREFIX}start_time_seconds"] == {(): 1.5}
    assert samples[f"{PREFIX}slow_consumers"] == {(): 1}
    assert {name for name in samples if re.fullmatch(r"headwater_[a-z][a-z_]*", name)} == set(samples)


def test_buckets_count_everything_up_to_their_bound(samples: Samples) -> None:
    buckets = samples[f"{PREFIX}commit_seconds_bucket"]
    assert buckets[("le", "0.0001"),] == 1
    assert buckets[("le", "0.00025"),] == 2
    assert buckets[("le", "0.001"),] == 3
    assert buckets[("le", "10.0"),] == 3
    assert buckets[("le", "+Inf"),] == 4 == samples[f"{PREFIX}commit_seconds_count"][()]
    assert len(buckets) == len(BOUNDS_US) + 1
    assert samples[f"{PREFIX}commit_seconds_sum"][()] == pytest.approx(99.001101)


def test_names_of_users_stay_labels(samples: Samples) -> None:
    assert samples[f"{PREFIX}root_bytes"] == {(("root", 'ho"me\\\n'),): 1234}
    assert samples[f"{PREFIX}root_end"] == {(("root", 'ho"me\\\n'),): 10}


def test_subscriptions_of_sessions_which_come_and_go_are_one_label(samples: Samples) -> None:
    assert samples[f"{PREFIX}subscription_lag"] == {
        (("subscription", "thermostat"),): 5,
        (("subscription", SESSIONS),): 30,
    }
    assert samples[f"{PREFIX}subscription_dead"][("subscription", SESSIONS),] == 1


def test_the_grafana_dashboard_names_only_what_is_exposed(samples: Samples) -> None:
    dashboard = json.loads((REPO / "deploy" / "grafana-headwater.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    named = {name for text in asked for name in re.findall(r"headwater_\w+", text)}
    assert named - set(samples) == set()
    assert {f"{PREFIX}{name}_total" for name in COUNTERS} - {
        f"{PREFIX}commits_total",
        f"{PREFIX}connections_opened_total",
    } <= named
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_documents_have_a_row_for_every_metric() -> None:
    text = (REPO / "docs" / "operate" / "operations.md").read_text()
    rows = dict(re.findall(r"^\| `(headwater_\w+)(?:\{\w+\})?` \| ([^|]+) \|", text, flags=re.MULTILINE))
    expected = {f"{PREFIX}{name}_total": said for name, said in COUNTERS.items()}
    expected |= {PREFIX + name: said for name, said in (GAUGES | OTHERS).items()}
    expected |= {f"{PREFIX}{name}_seconds": said for name, said in HISTOGRAMS.items()}
    expected |= {f"{PREFIX}root_{name}": said for name, said in ROOTS.items()}
    expected |= {f"{PREFIX}subscription_{name}": said for name, said in SUBSCRIPTIONS.items()}
    expected |= {f"{PREFIX}cluster_{name}": said for name, said in CLUSTER.items()}
    expected |= {f"{PREFIX}cluster_{name}_total": said for name, said in CLUSTER_COUNTERS.items()}
    expected |= {f"{PREFIX}cluster_node_{name}": said for name, said in NODES.items()}
    assert rows == {name: said.removesuffix(".") for name, said in expected.items()}


def test_the_last_day_is_told_as_intervals(http: httpx.Client) -> None:
    for _ in range(2):  # it is sampled every ten seconds, and a new server has not been yet
        found = http.get("/v1/history", params={"points": 100})
        assert found.status_code == 200
        assert found.json()["every_s"] == 870
    assert http.get("/v1/history?kind=root&name=nobody").status_code == 404
    assert http.get("/v1/history?kind=nothing").status_code == 422
