"""``suffixsvc bench VERB``: the instruments, one file a verb. Their heavy parts load when they run."""

from __future__ import annotations

import typer

from suffixsvc.cli.bench_build import bench_build
from suffixsvc.cli.bench_decode import bench_decode
from suffixsvc.cli.bench_index import bench_index
from suffixsvc.cli.bench_preload import bench_preload
from suffixsvc.cli.bench_publish import bench_publish
from suffixsvc.cli.bench_record import bench_record
from suffixsvc.cli.bench_replay import bench_replay
from suffixsvc.cli.bench_rpc import rpc
from suffixsvc.cli.bench_segment import bench_segment
from suffixsvc.cli.bench_train import bench_train

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Measure: every result names the machine, the commit and the seed it was made with.",
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
