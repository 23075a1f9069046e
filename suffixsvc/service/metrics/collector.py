"""Collector of the service's metrics: reads the engine and the service when it is scraped.

Nothing is counted for it on the path of a step but what the core counts for ``GetStats``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.errors import MissingExtraError
from suffixsvc.metric_definitions import Metric
from suffixsvc.service.calls.call_counts import BOUNDS, Durations
from suffixsvc.service.metrics import definitions as metrics
from suffixsvc.service.metrics.definitions import DEFAULT_NAMESPACES, PREFIX, Reading
from suffixsvc.service.metrics.namespace_series import NamespaceSeries, grouped_sums
from suffixsvc.v1 import suffix_cache_pb2 as pb

try:
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
    )
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise MissingExtraError("server", error.name or "prometheus_client") from None

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

    from suffixsvc.engine import NamespaceStats, SuffixCache
    from suffixsvc.index.output_use import Distribution
    from suffixsvc.service.handlers import Handlers
    from suffixsvc.transport.tls import ServerTls

#: connected followers with series of their own: those with the largest lag
MAX_FOLLOWERS: Final = 100
#: principals with series of their own: those that hold the most
MAX_PRINCIPALS: Final = 100

#: label values and the value of one sample
_Sample: TypeAlias = tuple[Sequence[str], float]


def service_registry(
    cache: SuffixCache,
    handlers: Handlers,
    namespaces: int = DEFAULT_NAMESPACES,
    tls: ServerTls | None = None,
) -> CollectorRegistry:
    """A registry with the metrics of a service and of its process (``process_...``, on Linux).

    Args:
        cache: the engine.
        handlers: of the service.
        namespaces: number of namespaces with series of their own, the busiest; the others are summed.
        tls: of the service; None: it has none.
    """
    registry = CollectorRegistry()
    registry.register(ServiceCollector(cache, handlers, namespaces, tls))
    ProcessCollector(registry=registry)
    return registry


class ServiceCollector(Collector):
    """See :func:`service_registry`. Thread-safe."""

    def __init__(
        self, cache: SuffixCache, handlers: Handlers, namespaces: int, tls: ServerTls | None
    ) -> None:
        self._cache = cache
        self._handlers = handlers
        self._tls = tls
        self._series = NamespaceSeries(namespaces)

    def describe(self) -> Iterable[Family]:
        """Nothing: the registry need not know the names before they are collected."""
        return ()

    def collect(self) -> Iterator[Family]:
        """The metrics at this moment."""
        for family in self._collect():
            yield family
            # Its samples have been formatted: threads that wait for the GIL, which serve steps, come first.
            time.sleep(0)

    def _collect(self) -> Iterator[Family]:
        namespaces = self._cache.namespace_stats()
        stats = self._handlers.get_stats(pb.GetStatsRequest(), OPERATOR_CALLER, namespaces)
        yield _info(metrics.BUILD, self._handlers.get_server_info(pb.GetServerInfoRequest(), OPERATOR_CALLER))
        yield from self._namespaces(namespaces)
        yield from _families(CounterMetricFamily, _read(metrics.SERVICE_COUNTERS, [((), stats)]))
        yield from _families(GaugeMetricFamily, _read(metrics.SERVICE_GAUGES, [((), stats)]))
        use = self._cache.output_use
        yield _histogram(metrics.REUSE_AGE, use.reuse_ages)
        yield _histogram(metrics.IDLE_BEFORE_EVICT, use.idle_seconds)
        connected = [each for each in stats.followers if each.connected]
        connected.sort(key=lambda each: each.lag, reverse=True)
        yield _family(GaugeMetricFamily, metrics.FOLLOWERS, [((), len(connected))])
        followers = [((each.follower_id, each.description), each) for each in connected[:MAX_FOLLOWERS]]
        yield from _families(GaugeMetricFamily, _read(metrics.FOLLOWER_GAUGES, followers))
        held = sorted(stats.principals, key=lambda each: each.held_bytes, reverse=True)[:MAX_PRINCIPALS]
        principals = [((each.principal,), each) for each in held]
        yield from _families(GaugeMetricFamily, _read(metrics.PRINCIPAL_GAUGES, principals))
        yield from _families(CounterMetricFamily, _read(metrics.PRINCIPAL_COUNTERS, principals))
        yield _family(CounterMetricFamily, metrics.PRINCIPAL_REFUSED, _refused(held, stats.refusals))
        probing = sorted(stats.probes, key=lambda each: each.excess, reverse=True)[:MAX_PRINCIPALS]
        probes = [((each.principal,), each) for each in probing]
        yield from _families(CounterMetricFamily, _read(metrics.PROBE_COUNTERS, probes))
        yield from _families(GaugeMetricFamily, _read(metrics.PROBE_GAUGES, probes))
        tasks = [((task.name,), task) for task in stats.background_tasks]
        yield from _families(CounterMetricFamily, _read(metrics.TASK_COUNTERS, tasks))
        yield from _families(GaugeMetricFamily, _read(metrics.TASK_GAUGES, tasks))
        expires_at = None if self._tls is None else self._tls.served.latest().expires_at
        if expires_at is not None:
            yield _family(GaugeMetricFamily, metrics.TLS_CERTIFICATE_EXPIRY, [((), expires_at)])
        yield _family(GaugeMetricFamily, metrics.THREADS, [((), threads_of_process())])
        yield _family(CounterMetricFamily, metrics.CALLS, sorted(self._handlers.calls.ended().items()))
        yield _durations(metrics.CALL_SECONDS, self._handlers.calls.durations())

    def _namespaces(self, stats: Mapping[str, NamespaceStats]) -> Iterator[Family]:
        yield _family(GaugeMetricFamily, metrics.NAMESPACES, [((), len(stats))])
        counters = {path: _values(metrics.NAMESPACE_COUNTERS, each) for path, each in stats.items()}
        series = self._series.update(counters, time.monotonic())
        yield from _by_namespace(CounterMetricFamily, metrics.NAMESPACE_COUNTERS, series)
        gauges = {path: _values(metrics.NAMESPACE_GAUGES, each) for path, each in stats.items()}
        yield from _by_namespace(GaugeMetricFamily, metrics.NAMESPACE_GAUGES, grouped_sums(gauges, series))
        publishing = {
            path: _values(metrics.PUBLISHED_GAUGES, each)
            for path, each in stats.items()
            if each.min_principals and path in series
        }
        yield from _by_namespace(GaugeMetricFamily, metrics.PUBLISHED_GAUGES, publishing)
        sealed = {path: (each.tokens - each.hot_tokens,) for path, each in stats.items()}
        reading = (Reading(metrics.SEGMENT_TOKENS, ""),)
        yield from _by_namespace(GaugeMetricFamily, reading, grouped_sums(sealed, series))


def threads_of_process() -> int:
    """Number of threads of this process; where the system does not tell it, of those that Python knows."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))
    except (OSError, StopIteration):
        return threading.active_count()


def _values(readings: Sequence[Reading], record: object) -> tuple[float, ...]:
    return tuple(getattr(record, reading.field) for reading in readings)


def _read(
    readings: Sequence[Reading], records: Sequence[tuple[Sequence[str], object]]
) -> Iterator[tuple[Metric, list[_Sample]]]:
    """The metrics of records, each with the label values of its record."""
    for reading in readings:
        yield reading.metric, [(labels, getattr(record, reading.field)) for labels, record in records]


def _by_namespace(
    kind: Any, readings: Sequence[Reading], series: Mapping[str, Sequence[float]]
) -> Iterator[Family]:
    """Families with the label ``namespace`` before their own."""
    samples: dict[Metric, list[_Sample]] = {}
    for place, reading in enumerate(readings):
        rows = samples.setdefault(reading.metric, [])
        rows += [((path, *reading.values), values[place]) for path, values in series.items()]
    for metric, rows in samples.items():
        yield _family(kind, metric._replace(labels=("namespace", *metric.labels)), rows)


def _families(kind: Any, readings: Iterable[tuple[Metric, list[_Sample]]]) -> Iterator[Family]:
    return (_family(kind, metric, samples) for metric, samples in readings)


def _family(kind: Any, metric: Metric, samples: Iterable[_Sample]) -> Family:
    family: Any = kind(PREFIX + metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, float(value))
    made: Family = family
    return made


def _refused(held: Sequence[pb.PrincipalStats], refusals: Sequence[pb.RefusalStats]) -> Iterator[_Sample]:
    """Refusals by principal and limit: by quotas, and by the limits of those that were refused the most."""
    for quota in held:
        yield (quota.principal, metrics.QUOTA), quota.refused
    most = sorted(refusals, key=lambda each: each.refused, reverse=True)[:MAX_PRINCIPALS]
    for each in most:
        yield (each.principal, each.limit), each.refused


def _histogram(metric: Metric, distribution: Distribution) -> Family:
    counts, total = distribution.read()
    return HistogramMetricFamily(
        PREFIX + metric.name, metric.help, buckets=_buckets(distribution.bounds, counts), sum_value=total
    )


def _durations(metric: Metric, durations: Mapping[str, Durations]) -> Family:
    family = HistogramMetricFamily(PREFIX + metric.name, metric.help, labels=metric.labels)
    for method, each in sorted(durations.items()):
        family.add_metric([method], _buckets(BOUNDS, each.up_to), each.seconds)
    return family


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """The number of values up to each bound, then that of all, as prometheus_client takes them."""
    return list(zip([*(f"{bound:g}" for bound in bounds), "+Inf"], counts, strict=True))


def _info(metric: Metric, info: pb.GetServerInfoReply) -> Family:
    values = {"version": info.version, "instance_id": info.instance_id}
    return InfoMetricFamily(PREFIX + metric.name, metric.help, value=values)
