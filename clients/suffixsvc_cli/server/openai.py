"""``suffixsvc openai MODEL``: an OpenAI-compatible server."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from suffixsvc.verb_options import argument, option, with_options
from suffixsvc_cli.base.configuration import ConfigFile
from suffixsvc_cli.base.options import LOG_FORMAT, OPEN_TO_ALL, AccessOptions, LogStyle, access_option
from suffixsvc_models.load_options import LoadOptions

if TYPE_CHECKING:
    from suffixsvc_openai.engine.engine import EngineSettings

_CONTEXT: Final = 4096
_WIDTH: Final = 32
#: tokens of a step per lane, where there are many
_WIDTH_PER_LANE: Final = 4
#: sessions on the draft worker per lane: those of ended answers are closed a moment later
_STREAMS_PER_LANE: Final = 8
#: times in a row that a draft worker is started again; each try takes cores from the answers
_RESTARTS: Final = 5


@dataclass(frozen=True, slots=True)
class OpenAIOptions(LoadOptions, AccessOptions):
    """The command line."""

    model: str = argument(metavar="MODEL", help="A GGUF file, or the name of a downloaded model.")
    listen: str = option("127.0.0.1:8000", metavar="HOST:PORT", help="Address; port 0 takes a free one.")
    # of other servers; a text, so that any value meets the error that names --listen
    host: str | None = option(None, hidden=True)
    port: str | None = option(None, hidden=True)
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
    prefix_tokens: int | None = option(
        None,
        min=0,
        metavar="TOKENS",
        help="Tokens of ended answers and their prompts whose KV is stored in main memory for later prompts.",
        show_default="--parallel times --context; 0 with KV on GPUs",
    )
    threads: int | None = option(None, min=1, help="Threads.", show_default="one per physical core")
    flash_attention: bool | None = option(
        None,
        "--flash-attention/--no-flash-attention",
        help="Use flash attention.",
        show_default="on a CPU; on GPUs by a trial",
    )
    draft: str | None = option(
        None,
        metavar="MODEL|ADDRESS",
        help="Draft model, started in a separate process, or address of a draft worker.",
    )
    settings_file: Path | None = option(
        None,
        "--settings",
        metavar="FILE.toml",
        help="Settings of driver, target and layers (docs/generate.md); command-line options override them.",
    )
    data: Path | None = option(
        None, metavar="FOLDER", help="Store outputs in a data folder. Default: in memory only."
    )
    open_to_all: bool = access_option(False, "--open-to-all", help=OPEN_TO_ALL)
    cache: str | None = option(
        None, metavar="ADDRESS", help="Store outputs in a running service: unix:PATH or HOST:PORT."
    )
    mode: str | None = option(
        None,
        metavar="auto|follow|remote",
        help="Who drafts from a service's outputs: this process, from copies of the namespaces in use "
        "(follow), or the service, by a call per step (remote).",
        show_default="auto: this process where the service allows that",
    )
    api_keys: str | None = option(None, hidden=True)  # of earlier versions
    grace_seconds: float = option(
        30.0, min=0.0, help="Seconds that running answers have to end after SIGTERM."
    )
    log_format: LogStyle = option(LogStyle.auto, help=LOG_FORMAT)
    ready_file: Path | None = option(
        None,
        help="File that is written when the server answers, with address and pid as JSON; removed at the "
        "end.",
    )


@with_options
def openai(options: OpenAIOptions, config: ConfigFile = None) -> None:
    """Serve a model over an OpenAI-compatible HTTP API, many requests at once.

    Every answer is drafted from its own prompt and from the answers that were stored in its namespace; the
    model verifies all drafts, so answers are unchanged. Each request writes one line to stderr at its end,
    without texts and tokens. SIGTERM or Ctrl-C ends the server after running answers have ended.
    """
    del config  # read before the other options
    # imported here so that --help is fast
    from suffixsvc.access.served_log import require_one_choice
    from suffixsvc.config import validate_mode
    from suffixsvc.errors import InvalidConfigError
    from suffixsvc.service.listeners.listen import TcpAddress, parse_address
    from suffixsvc.service.logs import configure_logs
    from suffixsvc_openai.app.run import ServerSettings, serve_until_signal

    for name, given, remedy in (
        ("--host", options.host, "Use --listen HOST:PORT."),
        ("--port", options.port, "Use --listen HOST:PORT."),
        ("--api-keys", options.api_keys, "Use --tokens FILE; `suffixsvc token create` makes tokens."),
    ):
        if given is not None:
            raise InvalidConfigError(f"{name} must not be given", got=given, remedy=remedy)
    address = parse_address(options.listen)
    if not isinstance(address, TcpAddress):
        raise InvalidConfigError("--listen must be HOST:PORT", got=options.listen)
    if options.data is not None and options.cache is not None:
        raise InvalidConfigError(
            "--data and --cache must not be given together: outputs are stored in one place"
        )
    if options.open_to_all and options.data is None:
        raise InvalidConfigError("--open-to-all must only be given with --data")
    if options.mode is not None:
        if options.cache is None:
            raise InvalidConfigError("--mode must only be given with --cache", got=options.mode)
        validate_mode(options.mode)
    access, tls = options.access(), options.tls()
    require_one_choice(access, open_to_all=options.open_to_all)
    configure_logs(options.log_format.value)
    engine = engine_settings(options)
    serve_until_signal(
        ServerSettings(
            engine,
            options.model_name or engine.model.stem,
            address.host,
            address.port,
            access,
            options.grace_seconds,
            options.ready_file,
            tls,
            options.open_to_all,
        )
    )


def engine_settings(options: OpenAIOptions) -> EngineSettings:
    """Return what the options load; cheap checks only.

    Raises:
        InvalidConfigError: an option or the settings file is invalid.
        ModelError: a model is missing or malformed.
    """
    import suffixsvc_models as models
    from suffixsvc.config import validate_mode
    from suffixsvc.errors import InvalidConfigError
    from suffixsvc_driver.layers.draft_models import DraftProcess, check_draft
    from suffixsvc_driver.profile.settings_file import Settings, read_settings
    from suffixsvc_driver.sampling.settings import GREEDY
    from suffixsvc_driver.targets.llama.machine import usable_cores
    from suffixsvc_models.gguf_header import check_gguf
    from suffixsvc_openai.engine.drafting import DraftingSettings
    from suffixsvc_openai.engine.engine import EngineSettings

    settings = Settings() if options.settings_file is None else read_settings(options.settings_file)
    if settings.sampling != GREEDY:
        raise InvalidConfigError(
            "the settings file must not have a table sampling: every request has its own settings",
            got=str(options.settings_file),
        )
    given = {each.name: getattr(options, each.name) for each in fields(LoadOptions)}
    given |= {"threads": options.threads, "context_size": options.context}
    given |= {"flash_attention": options.flash_attention}
    target = replace(settings.target, **{name: value for name, value in given.items() if value is not None})
    path = models.resolve(options.model)
    if options.draft is not None:
        check_draft(options.draft)
    header = check_gguf(path)
    trained = header.values.get(f"{header.architecture}.context_length")
    known = min(_CONTEXT, trained) if isinstance(trained, int) and trained > 0 else _CONTEXT
    context = target.context_settings(threads=usable_cores(), context_size=known, slots=options.parallel)
    width = _WIDTH if options.settings_file is None else target.max_width
    offload = target.offload()
    # a GPU copies scattered cells one by one, and computes them again in little more time
    on_gpu = offload.gpu_layers != 0 and offload.kv_offload
    prefix_tokens = 0 if on_gpu else options.parallel * context.context_size
    context = replace(
        context,
        max_width=max(width, _WIDTH_PER_LANE * options.parallel),
        prefix_tokens=prefix_tokens if options.prefix_tokens is None else options.prefix_tokens,
    )
    process = DraftProcess(
        context.threads,
        context.context_size,
        options.parallel,
        _STREAMS_PER_LANE * options.parallel,
        1,  # the lanes query it one after another
        options.kv_type,
        offload,
        restarts=_RESTARTS,
    )
    return EngineSettings(
        path,
        context,
        options.queue,
        options.data,
        options.cache,
        validate_mode(options.mode or "auto"),
        settings.driver,
        DraftingSettings(
            settings.prompt_lookup, settings.suffix, settings.draft_model, options.draft, process
        ),
        offload,
        target.experts_used,
    )
