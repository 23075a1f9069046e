"""``suffixsvc bench VERB``: the benchmarks, one file per verb; their dependencies load when they run."""

from __future__ import annotations

from suffixsvc_cli.base.groups import verb_group
from suffixsvc_cli.bench.build import bench_build
from suffixsvc_cli.bench.decode import bench_decode
from suffixsvc_cli.bench.driver import bench_driver
from suffixsvc_cli.bench.http import bench_http
from suffixsvc_cli.bench.index import bench_index
from suffixsvc_cli.bench.preload import bench_preload
from suffixsvc_cli.bench.publish import bench_publish
from suffixsvc_cli.bench.record import bench_record
from suffixsvc_cli.bench.replay import bench_replay
from suffixsvc_cli.bench.rpc import rpc
from suffixsvc_cli.bench.segment import bench_segment
from suffixsvc_cli.bench.train import bench_train

__all__ = ["app"]

app = verb_group(
    "Benchmarks. Every result has the machine, the commit and the seed of its run.",
    bench_replay,
    bench_record,
    bench_train,
    bench_index,
    bench_segment,
    bench_preload,
    bench_build,
    rpc,
    bench_decode,
    bench_driver,
    bench_http,
    bench_publish,
)
