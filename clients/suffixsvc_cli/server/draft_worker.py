"""``suffixsvc draft-worker``: a draft model in a separate process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from suffixsvc_cli.base.options import InsecureNetwork

__all__ = ["draft_worker"]

#: tokens of another layer's draft that are checked in one pass
_SUGGESTED_TOKENS: Final = 16


def draft_worker(
    model: Annotated[
        str, typer.Option(help="A GGUF file, or the name of a downloaded model (suffixsvc models list).")
    ],
    listen: Annotated[str, typer.Option(help="unix:PATH or HOST:PORT (port 0 takes a free one).")],
    threads: Annotated[
        int,
        typer.Option(
            help=(
                "Threads, at most one per physical core. A target that waits for its drafts can share the "
                "cores: the two do not compute at the same time."
            ),
            min=1,
        ),
    ] = 1,
    context: Annotated[int, typer.Option(help="Context size per sequence, in tokens.", min=256)] = 4096,
    slots: Annotated[
        int, typer.Option(help="Sequences whose KV is kept between calls; preferably one per agent.", min=1)
    ] = 4,
    batch: Annotated[
        int,
        typer.Option(
            help=(
                "Sessions in one batch. 0 measures the cost of batches and uses the largest that pays; on "
                "CPUs that is often one session."
            ),
            min=0,
        ),
    ] = 0,
    queue: Annotated[
        int,
        typer.Option(help='Maximum waiting requests; further ones get "busy" at once.', min=1),
    ] = 8,
    busy_after_ms: Annotated[
        float,
        typer.Option(
            help=(
                'Maximum wait of a request before its driver gets "busy" and continues without a draft, in '
                "milliseconds. 0 = the duration of two tokens of the model, at least 5 ms."
            ),
            min=0.0,
        ),
    ] = 0.0,
    drivers: Annotated[
        int, typer.Option(help="Maximum concurrent sessions; further ones are refused.", min=1, max=4096)
    ] = 64,
    insecure_network: InsecureNetwork = False,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            help="File that is written when the worker answers, with address and pid as JSON; removed at "
            "the end."
        ),
    ] = None,
) -> None:
    """Run a draft model as a service for drivers.

    A driver queries it only if a draft is expected to pay for its time, and refuses a model whose vocabulary
    differs from the target's. A worker can serve several drivers, and a driver can use several workers
    (docs/draft-workers.md). SIGTERM or Ctrl-C ends it.
    """
    # imported here so that --help is fast
    import suffixsvc_models as models
    from suffixsvc.service.listeners.listen import parse_address, prepare
    from suffixsvc_driver.targets.llama.context import ContextSettings
    from suffixsvc_driver.workers.server.run import WorkerSettings, serve_until_signal

    address = parse_address(listen)
    prepare(address, insecure_network=insecure_network)
    worker = WorkerSettings(
        queue=queue, busy_after_seconds=busy_after_ms / 1e3 or None, batch_width=batch, drivers=drivers
    )
    settings = ContextSettings(
        context_size=context, slots=slots, threads=threads, max_width=1 + _SUGGESTED_TOKENS
    )
    serve_until_signal(models.resolve(model), str(address), settings, worker, ready_file)
