"""``suffixsvc build``: caches from logs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from suffixsvc_caches.building import LookupSpec

__all__ = ["build"]

_MAKE = "What to make"
_READ = "How logs are read"
_KEEP = "Which calls"
_CUT = "What a lookup cache keeps"
_RUN = "How the work is done"


def build(
    logs: Annotated[
        list[Path],
        typer.Argument(
            help="Logs, or folders of them: JSON lines (.gz, .zst), JSON, Parquet, CSV, text, code."
        ),
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="The model's GGUF (its vocabulary is read), the name of a downloaded model, or a "
            "tokenizer.json, for logs that hold texts.",
            rich_help_panel=_MAKE,
        ),
    ] = None,
    bos: Annotated[
        str | None,
        typer.Option(help="Of a tokenizer.json: the text of the model's first token.", rich_help_panel=_MAKE),
    ] = None,
    eos: Annotated[
        str | None,
        typer.Option(help="Of a tokenizer.json: the text of the model's last token.", rich_help_panel=_MAKE),
    ] = None,
    lookup_static: Annotated[
        Path | None,
        typer.Option(
            help="Write a file for llama.cpp's --lookup-cache-static: 2-grams.", rich_help_panel=_MAKE
        ),
    ] = None,
    lookup_dynamic: Annotated[
        Path | None,
        typer.Option(
            help="Write a file for llama.cpp's --lookup-cache-dynamic: 1- to 4-grams.", rich_help_panel=_MAKE
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Load the responses into a data folder of the service, as a pinned corpus.",
            rich_help_panel=_MAKE,
        ),
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="The same into a running service.", rich_help_panel=_MAKE)
    ] = None,
    namespace: Annotated[
        str, typer.Option(help="The namespace that the corpus goes to.", rich_help_panel=_MAKE)
    ] = "corpus",
    add: Annotated[
        bool,
        typer.Option(
            "--add", help="Put the corpus beside what the namespace holds already.", rich_help_panel=_MAKE
        ),
    ] = False,
    log_format: Annotated[
        str, typer.Option("--format", help="What the records look like; docs/logs.md.", rich_help_panel=_READ)
    ] = "auto",
    response_field: Annotated[
        str, typer.Option(help="Where a record has the response: a.b.0.c", rich_help_panel=_READ)
    ] = "",
    prompt_field: Annotated[str, typer.Option(help="Where it has the prompt.", rich_help_panel=_READ)] = "",
    agent_field: Annotated[str, typer.Option(help="... the agent.", rich_help_panel=_READ)] = "",
    session_field: Annotated[str, typer.Option(help="... the session.", rich_help_panel=_READ)] = "",
    model_field: Annotated[str, typer.Option(help="... the model.", rich_help_panel=_READ)] = "",
    kind_field: Annotated[str, typer.Option(help="... the class of text.", rich_help_panel=_READ)] = "",
    time_field: Annotated[str, typer.Option(help="... the time.", rich_help_panel=_READ)] = "",
    tokenizer_field: Annotated[
        str, typer.Option(help="... the fingerprint that its token ids belong to.", rich_help_panel=_READ)
    ] = "",
    batch_input: Annotated[
        list[Path] | None,
        typer.Option(
            help="The input file of a batch of OpenAI's API, for the prompts of its output. Repeatable.",
            rich_help_panel=_READ,
        ),
    ] = None,
    tool_format: Annotated[
        str,
        typer.Option(
            help="How the model writes tool calls: hermes, llama3, mistral, mistral-tekken, mistral-v13, "
            "json, none.",
            rich_help_panel=_READ,
        ),
    ] = "hermes",
    chat_template: Annotated[
        str,
        typer.Option(
            help="How the messages of a prompt become its text: chatml, plain, none.", rich_help_panel=_READ
        ),
    ] = "chatml",
    reasoning: Annotated[
        bool,
        typer.Option(
            "--reasoning/--no-reasoning",
            help="Put reasoning that stands apart back before the answer.",
            rich_help_panel=_READ,
        ),
    ] = True,
    split: Annotated[
        str,
        typer.Option(help="What makes a session: field, gap:30m, line or file.", rich_help_panel=_READ),
    ] = "field",
    include: Annotated[
        list[str] | None,
        typer.Option(help="Of folders, files that match: *.py. Repeatable.", rich_help_panel=_READ),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Of folders, not those. Repeatable.", rich_help_panel=_READ)
    ] = None,
    encoding: Annotated[
        str,
        typer.Option(help="Of text. Without byte order marks: utf-16-le, utf-16-be.", rich_help_panel=_READ),
    ] = "utf-8",
    max_line_bytes: Annotated[
        str, typer.Option(help="Longer lines, records, rows and texts are skipped.", rich_help_panel=_READ)
    ] = "64M",
    max_page_bytes: Annotated[
        str,
        typer.Option(
            help="Row groups of Parquet files with larger pages (decompressed) are skipped.",
            rich_help_panel=_READ,
        ),
    ] = "128M",
    max_depth: Annotated[
        int,
        typer.Option(
            help="Records with more levels of lists and objects are skipped.", rich_help_panel=_READ
        ),
    ] = 128,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Stop at the first line that cannot be read.", rich_help_panel=_READ),
    ] = False,
    agent: Annotated[
        list[str] | None, typer.Option(help="Only this agent's. Repeatable.", rich_help_panel=_KEEP)
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Only this model's. Repeatable.", rich_help_panel=_KEEP)
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only this class of text. Repeatable.", rich_help_panel=_KEEP)
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Not before: 2026-01-31 or seconds.", rich_help_panel=_KEEP)
    ] = None,
    until: Annotated[str | None, typer.Option(help="Before then.", rich_help_panel=_KEEP)] = None,
    min_length: Annotated[
        int, typer.Option(min=0, help="Of responses: characters, or ids.", rich_help_panel=_KEEP)
    ] = 0,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="The same.", show_default=False, rich_help_panel=_KEEP)
    ] = None,
    dedupe: Annotated[
        bool, typer.Option("--dedupe", help="Count equal responses once.", rich_help_panel=_KEEP)
    ] = False,
    context: Annotated[
        int,
        typer.Option(
            min=0,
            help="Let n-grams begin in so many tokens of a call's prompt, where the log has it as the model "
            "read it.",
            rich_help_panel=_KEEP,
        ),
    ] = 0,
    budget: Annotated[
        str | None,
        typer.Option(
            help="The most a lookup cache may take: 1M. It holds what is expected to be right most often.",
            rich_help_panel=_CUT,
        ),
    ] = None,
    compact: Annotated[
        bool,
        typer.Option("--compact", help="Leave out what changes no draft of the file.", rich_help_panel=_CUT),
    ] = False,
    min_count: Annotated[
        int, typer.Option(help="Leave out what followed less often.", rich_help_panel=_CUT)
    ] = 1,
    top: Annotated[
        int, typer.Option(help="Followers of an n-gram at most; 0 = all.", rich_help_panel=_CUT)
    ] = 0,
    exact_counts: Annotated[
        bool,
        typer.Option(
            "--exact-counts",
            help="Counts as counted. Otherwise scaled to what llama.cpp multiplies without overflow, "
            "and of two best followers one gets one more.",
            rich_help_panel=_CUT,
        ),
    ] = False,
    memory: Annotated[
        str,
        typer.Option(
            help="What the process may take beside one record; with ray, each task.", rich_help_panel=_RUN
        ),
    ] = "2G",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Threads. Default: one a core.", show_default=False, rich_help_panel=_RUN),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local, or ray: the cluster of RAY_ADDRESS.", rich_help_panel=_RUN)
    ] = "local",
    work: Annotated[
        Path | None,
        typer.Option(
            help="Folder for what is not finished. Default: beside the first output.",
            show_default=False,
            rich_help_panel=_RUN,
        ),
    ] = None,
    checkpoint: Annotated[
        float, typer.Option(min=0.1, help="Seconds of work that a crash may cost.", rich_help_panel=_RUN)
    ] = 60.0,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace lookup caches that exist.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for machines.", rich_help_panel=_RUN)
    ] = False,
) -> None:
    """Build caches from logs of what models wrote, without running a model.

    Reads logs in whatever form they are, and makes of the responses: lookup caches that llama.cpp loads, a
    data folder that the service opens, or both. Memory is bounded, all cores work, the same logs and options
    give the same bytes. A build that was stopped goes on where it was when the same command is given again.

        suffixsvc build logs/ --tokenizer model.gguf --lookup-static s.bin --lookup-dynamic d.bin
    """
    from suffixsvc_caches.building import BuildSpec, CorpusTarget, LookupSpec
    from suffixsvc_caches.building import build as run
    from suffixsvc_caches.logs import ReadOptions
    from suffixsvc_caches.sizes import parse_size
    from suffixsvc_caches.tokenizers import TokenizerSource

    from suffixsvc.cli.build_show import BuildBars, as_plain, print_result
    from suffixsvc.errors import InvalidConfigError

    if add and not (data or server):
        raise InvalidConfigError(
            "there is no namespace to add to", expected="--data or --server beside --add", got="neither"
        )
    reading = ReadOptions.parse(
        format=log_format,
        tool_format=tool_format,
        chat_template=chat_template,
        reasoning=reasoning,
        split=split,
        agents=agent or (),
        models=model or (),
        kinds=kind or (),
        since=since,
        until=until,
        min_length=min_length,
        max_length=max_length,
        response_field=response_field,
        prompt_field=prompt_field,
        agent_field=agent_field,
        session_field=session_field,
        model_field=model_field,
        kind_field=kind_field,
        time_field=time_field,
        tokenizer_field=tokenizer_field,
        batch_input=batch_input or (),
        include=include or (),
        exclude=exclude or (),
        encoding=encoding,
        max_line_bytes=parse_size(max_line_bytes, "--max-line-bytes"),
        max_page_bytes=parse_size(max_page_bytes, "--max-page-bytes"),
        max_depth=max_depth,
        strict=strict,
    )

    def lookup(path: Path | None) -> LookupSpec | None:
        limit = None if budget is None else parse_size(budget, "--budget")
        return LookupSpec(path, limit, compact, min_count, top, exact_counts) if path else None

    spec = BuildSpec(
        logs=logs,
        work=work,
        reading=reading,
        tokenizer=TokenizerSource(tokenizer, bos, eos) if tokenizer else None,
        static=lookup(lookup_static),
        dynamic=lookup(lookup_dynamic),
        corpus=CorpusTarget(namespace, data, server or "", add) if data or server else None,
        context_tokens=context,
        dedupe=dedupe,
        workers=workers or os.cpu_count() or 1,
        memory_bytes=parse_size(memory, "--memory"),
        checkpoint_seconds=checkpoint,
        force=force,
        engine=engine,
    )
    bars = BuildBars()
    try:
        with bars:
            result = run(spec, bars)
    except KeyboardInterrupt:
        if bars.work is not None and bars.work.is_dir():
            typer.echo(
                f"what was counted is kept in {bars.work}: the same command goes on from there", err=True
            )
        raise
    if as_json:
        typer.echo(json.dumps(as_plain(spec, result), indent=2))
    else:
        print_result(spec, result)
