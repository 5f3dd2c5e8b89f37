"""Metrics: figures of a broker in the text format of Prometheus.

Every figure is `headwater_` and its name in `counts.py`, counters with `_total`, durations with `_seconds`. Labels are
bounded: `root` and `subscription` have as many values as `figures_max` allows, and the subscriptions of sessions, which
come and go, are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headwater import __version__
from headwater.clock import SECOND_US
from headwater.counts import COUNTERS, GAUGES, HISTOGRAMS
from headwater.wire.administration import ClusterStatus, Figures, Histogram, SubscriptionFigures

__all__ = ["CLUSTER", "CLUSTER_COUNTERS", "CONTENT_TYPE_LATEST", "NODES", "OTHERS", "exposition"]

PREFIX = "headwater_"
SESSIONS = "(sessions)"
"""The label of all subscriptions of sessions together."""

ROOTS = {
    "first": "The oldest offset of a root that is kept.",
    "end": "One past the newest offset of a root.",
    "bytes": "Bytes of a root's stream.",
    "segments": "Files that a root's stream is in.",
    "topics": "Topics of a root.",
}
SUBSCRIPTIONS = {
    "lag": "Messages that a durable subscription has not acked.",
    "in_flight": "Messages of a subscription that are with consumers.",
    "retrying": "Messages of a subscription that failed and wait for their next attempt.",
    "dead": "Dead letters of a subscription.",
    "consumers": "Consumers of a subscription.",
}
OTHERS = {
    "info": "The version of the server, as a label.",
    "start_time_seconds": "When the server was started, in seconds since 1970.",
    "slow_consumers": "Sessions that do not take what is for them as fast as it comes.",
}
CLUSTER = {
    "leading": "Whether this node of a cluster leads: 1, or 0.",
    "epoch": "How often a node of the cluster began to lead.",
    "record": "The last record that this node has applied.",
    "suspended": "Whether nothing can be written, as the engine does not answer: 1, or 0.",
}
CLUSTER_COUNTERS = {
    "failovers": "How often another node came to lead, since this one was started.",
    "records": "Records that this node has written.",
    "record_bytes": "Bytes of records that this node has written.",
}
NODES = {
    "lag_records": "Records that a node has yet to apply.",
    "lag_seconds": "How long the first of them has been waiting.",
}


def exposition(figures: Figures, cluster: ClusterStatus | None = None) -> bytes:
    """Figures as Prometheus reads them, of the type CONTENT_TYPE_LATEST; with those of the cluster, if there is one."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(figures))
    if cluster is not None:
        registry.register(_Cluster(cluster))
    return generate_latest(registry)


class _Figures(Collector):
    """Figures that were collected already."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        figures = self._figures
        for name, said in COUNTERS.items():
            yield CounterMetricFamily(PREFIX + name, said, value=figures.counters[name])
        for name, said in GAUGES.items():
            yield GaugeMetricFamily(PREFIX + name, said, value=figures.gauges[name])
        for name, said in HISTOGRAMS.items():
            yield _histogram(f"{PREFIX}{name}_seconds", said, figures.histograms[name])
        yield from self._others()
        roots = {one.root: one for one in figures.roots}
        yield from _labelled("root", ROOTS, roots)
        yield from _labelled("subscription", SUBSCRIPTIONS, _by_label(figures.subscriptions))

    def _others(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(f"{PREFIX}info", OTHERS["info"], labels=("version",))
        info.add_metric((__version__,), 1)
        yield info
        started_s = self._figures.started_us / SECOND_US
        yield GaugeMetricFamily(f"{PREFIX}start_time_seconds", OTHERS["start_time_seconds"], value=started_s)
        yield GaugeMetricFamily(f"{PREFIX}slow_consumers", OTHERS["slow_consumers"], value=len(self._figures.slow))


class _Cluster(Collector):
    """How a cluster is, as its leader sees it."""

    def __init__(self, status: ClusterStatus) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        status = self._status
        values = {"leading": status.role == "leading", "epoch": status.epoch, "record": status.record}
        values["suspended"] = bool(status.suspended)
        for name, said in CLUSTER.items():
            yield GaugeMetricFamily(f"{PREFIX}cluster_{name}", said, value=float(values[name]))
        for name, said in CLUSTER_COUNTERS.items():
            yield CounterMetricFamily(f"{PREFIX}cluster_{name}", said, value=getattr(status, name))
        for name, said in NODES.items():
            family = GaugeMetricFamily(f"{PREFIX}cluster_node_{name}", said, labels=("node",))
            for node in status.nodes:
                family.add_metric((node.name,), node.lag_records if name == "lag_records" else node.lag_s)
            yield family


def _histogram(name: str, said: str, found: Histogram) -> Metric:
    """Prometheus counts what is up to a bound, and not what is between two."""
    buckets, total = [], 0
    for bound, count in zip((*map(str, found.bounds_s), "+Inf"), found.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return HistogramMetricFamily(name, said, buckets=buckets, sum_value=found.sum_s)


def _labelled(label: str, fields: dict[str, str], found: Mapping[str, object]) -> Iterator[Metric]:
    for field, said in fields.items():
        family = GaugeMetricFamily(f"{PREFIX}{label}_{field}", said, labels=(label,))
        for name, one in found.items():
            family.add_metric((name,), getattr(one, field))
        yield family


def _by_label(found: Sequence[SubscriptionFigures]) -> dict[str, SubscriptionFigures]:
    named = {one.id: one for one in found if one.is_named}
    of_sessions = [one for one in found if not one.is_named]
    if of_sessions:
        sums = {field: sum(getattr(one, field) for one in of_sessions) for field in SUBSCRIPTIONS}
        named[SESSIONS] = SubscriptionFigures(id=SESSIONS, is_named=False, **sums)
    return named
