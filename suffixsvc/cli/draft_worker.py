"""``suffixsvc draft-worker``: a small model that drafts, in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from suffixsvc.cli.options import InsecureNetwork

__all__ = ["draft_worker"]

#: of another layer's draft, looked at in one pass
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
                "Threads to compute on, at most as many as there are physical cores. A target that waits for "
                "its drafts can have the same cores: the two never compute at the same time."
            ),
            min=1,
        ),
    ] = 1,
    context: Annotated[int, typer.Option(help="Tokens of context per sequence.", min=256)] = 4096,
    slots: Annotated[
        int, typer.Option(help="Sequences whose KV is kept between calls; one per agent is best.", min=1)
    ] = 4,
    batch: Annotated[
        int,
        typer.Option(
            help=(
                "Sessions to draft for in one batch. 0 measures what batches cost here and takes as many as "
                "pay: on CPU cores that is often one, one session after another."
            ),
            min=0,
        ),
    ] = 0,
    queue: Annotated[
        int,
        typer.Option(help='Requests that may wait for the model; one more is told "busy" at once.', min=1),
    ] = 8,
    busy_after_ms: Annotated[
        float,
        typer.Option(
            help=(
                'How long a request may wait for its start before its driver is told "busy" and goes on '
                "without. 0 = as long as two tokens take the model, and 5 ms at least."
            ),
            min=0.0,
        ),
    ] = 0.0,
    drivers: Annotated[
        int, typer.Option(help="Sessions to serve at a time; further ones are refused.", min=1, max=4096)
    ] = 64,
    insecure_network: InsecureNetwork = False,
    ready_file: Annotated[
        Path | None,
        typer.Option(help="Write address and pid there, as JSON, once it answers; removed at the end."),
    ] = None,
) -> None:
    """Run a small model that drafts when memory cannot.

    The driver asks it only where a draft can pay for the time it takes, and refuses a model whose
    vocabulary is not the target's. It can serve several drivers, and a driver several workers
    (docs/draft-workers.md). SIGTERM or Ctrl-C ends it.
    """
    # heavy parts load only when the verb runs, so that --help answers at once
    from suffixsvc_driver import models
    from suffixsvc_driver.targets.llama_context import ContextSettings
    from suffixsvc_driver.workers.run import WorkerSettings, serve_until_signal

    from suffixsvc.service.listen import parse_address, prepare

    address = parse_address(listen)
    prepare(address, insecure_network=insecure_network)
    worker = WorkerSettings(
        queue=queue, busy_after_seconds=busy_after_ms / 1e3 or None, batch_width=batch, drivers=drivers
    )
    settings = ContextSettings(
        context_size=context, slots=slots, threads=threads, max_width=1 + _SUGGESTED_TOKENS
    )
    serve_until_signal(models.resolve(model), str(address), settings, worker, ready_file)
