"""``suffixsvc openai MODEL``: an OpenAI-compatible server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suffixsvc.verb_options import argument, option, with_options

_CONTEXT: Final = 4096
_WIDTH: Final = 32
#: tokens of a step per lane, where there are many
_WIDTH_PER_LANE: Final = 4


@dataclass(frozen=True, slots=True)
class OpenAIOptions:
    """The command line."""

    model: str = argument(metavar="MODEL", help="A GGUF file, or the name of a downloaded model.")
    listen: str = option("127.0.0.1:8000", metavar="HOST:PORT", help="Address; port 0 takes a free one.")
    model_name: str | None = option(
        None, metavar="NAME", help="Name of the model in the API.", show_default="MODEL without .gguf"
    )
    parallel: int = option(4, min=1, max=64, help="Answers that are generated at the same time.")
    queue: int = option(256, min=1, help="Answers that may wait for a lane; further ones get status 429.")
    context: int | None = option(
        None,
        min=1,
        metavar="TOKENS",
        help="Context size of a prompt and its answer together.",
        show_default="4096, or the model's training context if that is less",
    )
    threads: int | None = option(None, min=1, help="Threads.", show_default="one per physical core")
    data: Path | None = option(
        None, metavar="FOLDER", help="Store outputs in a data folder. Default: in memory only."
    )
    cache: str | None = option(
        None, metavar="ADDRESS", help="Store outputs in a running service: unix:PATH or HOST:PORT."
    )
    api_keys: Path | None = option(
        None,
        metavar="FILE.toml",
        help="API keys and the principals that they stand for (docs/openai.md). Without it the server "
        "listens on loopback addresses only and accepts any key.",
    )
    grace_seconds: float = option(
        30.0, min=0.0, help="Seconds that running answers have to end after SIGTERM."
    )
    ready_file: Path | None = option(
        None,
        help="File that is written when the server answers, with address and pid as JSON; removed at the "
        "end.",
    )


@with_options
def openai(options: OpenAIOptions) -> None:
    """Serve a model over an OpenAI-compatible HTTP API, many requests at once.

    Every answer is drafted from its own prompt and from the answers that were stored in its namespace; the
    model verifies all drafts, so answers are unchanged. SIGTERM or Ctrl-C ends the server after running
    answers have ended.
    """
    # imported here so that --help is fast
    import suffixsvc_models as models
    from suffixsvc.errors import InvalidConfigError
    from suffixsvc.service.listeners.listen import TcpAddress, parse_address
    from suffixsvc_driver.targets.llama.context_settings import ContextSettings
    from suffixsvc_driver.targets.llama.machine import usable_cores
    from suffixsvc_models.gguf_header import check_gguf
    from suffixsvc_openai.app.keys import read_keys
    from suffixsvc_openai.app.run import ServerSettings, serve_until_signal
    from suffixsvc_openai.engine.engine import EngineSettings

    address = parse_address(options.listen)
    if not isinstance(address, TcpAddress):
        raise InvalidConfigError("--listen must be HOST:PORT", got=options.listen)
    if options.data is not None and options.cache is not None:
        raise InvalidConfigError(
            "--data and --cache must not be given together: outputs are stored in one place"
        )
    keys = read_keys(options.api_keys)
    path = models.resolve(options.model)
    header = check_gguf(path)
    trained = header.values.get(f"{header.architecture}.context_length")
    known = min(_CONTEXT, trained) if isinstance(trained, int) and trained > 0 else _CONTEXT
    context = ContextSettings(
        context_size=options.context or known,
        slots=options.parallel,
        threads=options.threads or usable_cores(),
        max_width=max(_WIDTH, _WIDTH_PER_LANE * options.parallel),
    )
    serve_until_signal(
        ServerSettings(
            EngineSettings(path, context, options.queue, options.data, options.cache),
            options.model_name or path.stem,
            address.host,
            address.port,
            keys,
            options.grace_seconds,
            options.ready_file,
        )
    )
