"""``suffixsvc draft-worker``: a draft model in a separate process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suffixsvc.verb_options import option, with_options
from suffixsvc_cli.base.configuration import ConfigFile
from suffixsvc_cli.base.options import SocketOptions
from suffixsvc_models.load_options import LoadOptions

#: tokens of another layer's draft that are checked in one pass
_SUGGESTED_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class WorkerOptions(LoadOptions, SocketOptions):
    """The command line."""

    model: str = option(help="A GGUF file, or the name of a downloaded model (suffixsvc models list).")
    listen: str = option(help="unix:PATH or HOST:PORT (port 0 takes a free one).")
    threads: int = option(
        1,
        min=1,
        help="Threads, at most one per physical core. A target that waits for its drafts can share the "
        "cores: the two do not compute at the same time.",
    )
    context: int = option(4096, min=256, help="Context size per sequence, in tokens.")
    slots: int = option(4, min=1, help="Sequences whose KV is kept between calls; preferably one per agent.")
    batch: int = option(
        0,
        min=0,
        help="Sessions in one batch. 0 measures the cost of batches and uses the largest that pays; on CPUs "
        "that is often one session.",
    )
    queue: int = option(8, min=1, help='Maximum waiting requests; further ones get "busy" at once.')
    busy_after_ms: float = option(
        0.0,
        min=0.0,
        help='Maximum wait of a request before its driver gets "busy" and continues without a draft, in '
        "milliseconds. 0 = the duration of two tokens of the model, at least 5 ms.",
    )
    drivers: int = option(
        64,
        min=1,
        max=4096,
        help="Maximum concurrent sessions; further ones are refused, and those beyond a principal's share.",
    )
    ready_file: Path | None = option(
        None,
        help="File that is written when the worker answers, with address and pid as JSON; removed at the "
        "end.",
    )


@with_options
def draft_worker(options: WorkerOptions, config: ConfigFile = None) -> None:
    """Run a draft model as a service for drivers.

    A driver queries it only if a draft is expected to pay for its time, and refuses a model whose vocabulary
    differs from the target's. A worker can serve several drivers, and a driver can use several workers
    (docs/draft-workers.md). SIGTERM or Ctrl-C ends it.
    """
    del config  # read before the other options
    # imported here so that --help is fast
    import suffixsvc_models as models
    from suffixsvc.service.listeners.listen import parse_address, prepare, require_unix_address
    from suffixsvc_driver.targets.llama.context_settings import ContextSettings
    from suffixsvc_driver.targets.llama.offload import Offload
    from suffixsvc_driver.workers.server.run import serve_until_signal
    from suffixsvc_driver.workers.server.servicer import WorkerEdge, WorkerSettings

    address = parse_address(options.listen)
    tls = options.tls()
    access = options.access()
    require_unix_address([address], access.socket_mode)
    secure = options.insecure_network or tls is not None
    prepare(address, insecure_network=secure, shared=access.shares_sockets)
    edge = WorkerEdge(access, tls)
    worker = WorkerSettings(
        queue=options.queue,
        busy_after_seconds=options.busy_after_ms / 1e3 or None,
        batch_width=options.batch,
        drivers=options.drivers,
    )
    settings = ContextSettings(
        context_size=options.context,
        slots=options.slots,
        threads=options.threads,
        max_width=1 + _SUGGESTED_TOKENS,
        kv_type=options.kv_type_or_default,
    )
    model = models.resolve(options.model)
    offload = Offload.of(options)
    serve_until_signal(model, str(address), settings, worker, options.ready_file, offload, edge)
