"""``suffixsvc bench VERB``: the benchmarks, one file per verb; their dependencies load when they run."""

from __future__ import annotations

import typer

from suffixsvc_cli.bench.build import bench_build
from suffixsvc_cli.bench.decode import bench_decode
from suffixsvc_cli.bench.index import bench_index
from suffixsvc_cli.bench.preload import bench_preload
from suffixsvc_cli.bench.publish import bench_publish
from suffixsvc_cli.bench.record import bench_record
from suffixsvc_cli.bench.replay import bench_replay
from suffixsvc_cli.bench.rpc import rpc
from suffixsvc_cli.bench.segment import bench_segment
from suffixsvc_cli.bench.train import bench_train

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Benchmarks. Every result has the machine, the commit and the seed of its run.",
)
app.command("replay")(bench_replay)
app.command("record")(bench_record)
app.command("train")(bench_train)
app.command("index")(bench_index)
app.command("segment")(bench_segment)
app.command("preload")(bench_preload)
app.command("build")(bench_build)
app.command("rpc")(rpc)
app.command("decode")(bench_decode)
app.command("publish")(bench_publish)
