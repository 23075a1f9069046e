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

_OUTPUT = "Output"
_INPUT = "Input"
_SELECTION = "Selection of calls"
_PRUNING = "Pruning of lookup caches"
_EXECUTION = "Execution"


def build(
    logs: Annotated[
        list[Path],
        typer.Argument(
            help="Logs, or folders of logs: JSON lines (.gz, .zst), JSON, Parquet, CSV, text, code."
        ),
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="Tokenizer for logs of texts: the model's GGUF (its vocabulary is read), the name of a "
            "downloaded model, or a tokenizer.json.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    bos: Annotated[
        str | None,
        typer.Option(help="Text of the BOS token, for a tokenizer.json.", rich_help_panel=_OUTPUT),
    ] = None,
    eos: Annotated[
        str | None,
        typer.Option(help="Text of the EOS token, for a tokenizer.json.", rich_help_panel=_OUTPUT),
    ] = None,
    lookup_static: Annotated[
        Path | None,
        typer.Option(
            help="Write a file of 2-grams for llama.cpp's --lookup-cache-static.", rich_help_panel=_OUTPUT
        ),
    ] = None,
    lookup_dynamic: Annotated[
        Path | None,
        typer.Option(
            help="Write a file of 1- to 4-grams for llama.cpp's --lookup-cache-dynamic.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Load the responses into a data folder of the service, as a pinned corpus.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="Load the responses into a running service.", rich_help_panel=_OUTPUT)
    ] = None,
    namespace: Annotated[
        str, typer.Option(help="Namespace of the corpus.", rich_help_panel=_OUTPUT)
    ] = "corpus",
    add: Annotated[
        bool,
        typer.Option(
            "--add", help="Add the corpus to a namespace that has contents.", rich_help_panel=_OUTPUT
        ),
    ] = False,
    log_format: Annotated[
        str, typer.Option("--format", help="Format of the records; docs/logs.md.", rich_help_panel=_INPUT)
    ] = "auto",
    response_field: Annotated[
        str, typer.Option(help="Path of the response in a record: a.b.0.c", rich_help_panel=_INPUT)
    ] = "",
    prompt_field: Annotated[str, typer.Option(help="Path of the prompt.", rich_help_panel=_INPUT)] = "",
    agent_field: Annotated[str, typer.Option(help="Path of the agent.", rich_help_panel=_INPUT)] = "",
    session_field: Annotated[str, typer.Option(help="Path of the session.", rich_help_panel=_INPUT)] = "",
    model_field: Annotated[str, typer.Option(help="Path of the model.", rich_help_panel=_INPUT)] = "",
    kind_field: Annotated[str, typer.Option(help="Path of the kind of text.", rich_help_panel=_INPUT)] = "",
    time_field: Annotated[str, typer.Option(help="Path of the time.", rich_help_panel=_INPUT)] = "",
    tokenizer_field: Annotated[
        str, typer.Option(help="Path of the tokenizer fingerprint of its token ids.", rich_help_panel=_INPUT)
    ] = "",
    batch_input: Annotated[
        list[Path] | None,
        typer.Option(
            help="Input file of an OpenAI batch, for the prompts of its output. Repeatable.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    tool_format: Annotated[
        str,
        typer.Option(
            help="Format in which the model writes tool calls: hermes, llama3, mistral, mistral-tekken, "
            "mistral-v13, json, none.",
            rich_help_panel=_INPUT,
        ),
    ] = "hermes",
    chat_template: Annotated[
        str,
        typer.Option(
            help="Template that makes the text of a prompt from its messages: chatml, plain, none.",
            rich_help_panel=_INPUT,
        ),
    ] = "chatml",
    reasoning: Annotated[
        bool,
        typer.Option(
            "--reasoning/--no-reasoning",
            help="Insert separately recorded reasoning before the answer.",
            rich_help_panel=_INPUT,
        ),
    ] = True,
    split: Annotated[
        str,
        typer.Option(help="Session boundaries: field, gap:30m, line or file.", rich_help_panel=_INPUT),
    ] = "field",
    include: Annotated[
        list[str] | None,
        typer.Option(help="Pattern of files to read in folders: *.py. Repeatable.", rich_help_panel=_INPUT),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Pattern of files to skip in folders. Repeatable.", rich_help_panel=_INPUT),
    ] = None,
    encoding: Annotated[
        str,
        typer.Option(
            help="Encoding of text. Without byte order marks: utf-16-le, utf-16-be.", rich_help_panel=_INPUT
        ),
    ] = "utf-8",
    max_line_bytes: Annotated[
        str,
        typer.Option(
            help="Maximum size of a line, record, row or text; larger ones are skipped.",
            rich_help_panel=_INPUT,
        ),
    ] = "64M",
    max_page_bytes: Annotated[
        str,
        typer.Option(
            help="Maximum decompressed page of a Parquet file; row groups with larger ones are skipped.",
            rich_help_panel=_INPUT,
        ),
    ] = "128M",
    max_depth: Annotated[
        int,
        typer.Option(
            help="Maximum nesting of lists and objects; deeper records are skipped.", rich_help_panel=_INPUT
        ),
    ] = 128,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Stop at the first unreadable line.", rich_help_panel=_INPUT),
    ] = False,
    agent: Annotated[
        list[str] | None,
        typer.Option(help="Use only calls of this agent. Repeatable.", rich_help_panel=_SELECTION),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Use only calls of this model. Repeatable.", rich_help_panel=_SELECTION),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Use only this kind of text. Repeatable.", rich_help_panel=_SELECTION),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Earliest time: 2026-01-31 or seconds.", rich_help_panel=_SELECTION)
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Time before which calls are used.", rich_help_panel=_SELECTION)
    ] = None,
    min_length: Annotated[
        int,
        typer.Option(
            min=0, help="Minimum length of a response in characters or ids.", rich_help_panel=_SELECTION
        ),
    ] = 0,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum length of a response in characters or ids.",
            show_default=False,
            rich_help_panel=_SELECTION,
        ),
    ] = None,
    dedupe: Annotated[
        bool, typer.Option("--dedupe", help="Count identical responses once.", rich_help_panel=_SELECTION)
    ] = False,
    context: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of prompt tokens in which n-grams may begin, if the log has the prompt as the "
            "model read it.",
            rich_help_panel=_SELECTION,
        ),
    ] = 0,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Maximum size of a lookup cache, e.g. 1M; n-grams with the most expected hits are kept.",
            rich_help_panel=_PRUNING,
        ),
    ] = None,
    compact: Annotated[
        bool,
        typer.Option("--compact", help="Remove records that change no draft.", rich_help_panel=_PRUNING),
    ] = False,
    min_count: Annotated[
        int, typer.Option(help="Minimum count of a follower.", rich_help_panel=_PRUNING)
    ] = 1,
    top: Annotated[
        int, typer.Option(help="Maximum followers of an n-gram; 0 = all.", rich_help_panel=_PRUNING)
    ] = 0,
    exact_counts: Annotated[
        bool,
        typer.Option(
            "--exact-counts",
            help="Write exact counts. By default counts are scaled so that llama.cpp's products do not "
            "overflow, and ties between best followers are broken.",
            rich_help_panel=_PRUNING,
        ),
    ] = False,
    memory: Annotated[
        str,
        typer.Option(
            help="Memory limit of the process in addition to one record; with ray, of each task.",
            rich_help_panel=_EXECUTION,
        ),
    ] = "2G",
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Threads. Default: one per core.", show_default=False, rich_help_panel=_EXECUTION
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="Execution engine: local, or ray (the cluster of RAY_ADDRESS).", rich_help_panel=_EXECUTION
        ),
    ] = "local",
    work: Annotated[
        Path | None,
        typer.Option(
            help="Folder of intermediate files. Default: beside the first output.",
            show_default=False,
            rich_help_panel=_EXECUTION,
        ),
    ] = None,
    checkpoint: Annotated[
        float, typer.Option(min=0.1, help="Seconds between checkpoints.", rich_help_panel=_EXECUTION)
    ] = 60.0,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace existing lookup caches.",
            rich_help_panel=_EXECUTION,
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=_EXECUTION)] = False,
) -> None:
    """Build caches from logs of model outputs, without running a model.

    Reads logs in many formats and writes lookup caches for llama.cpp, a data folder for the service, or both.
    Memory is bounded, all cores are used, and the same logs and options give the same bytes. An interrupted
    build continues when the same command is given again.

        suffixsvc build logs/ --tokenizer model.gguf --lookup-static s.bin --lookup-dynamic d.bin
    """
    from suffixsvc.errors import InvalidConfigError
    from suffixsvc_caches.building import BuildSpec, CorpusTarget, LookupSpec
    from suffixsvc_caches.building import build as run
    from suffixsvc_caches.logs import ReadOptions
    from suffixsvc_caches.sizes import parse_size
    from suffixsvc_caches.tokenizers import TokenizerSource
    from suffixsvc_cli.corpus.build_show import BuildBars, print_result, result_to_dict

    if add and not (data or server):
        raise InvalidConfigError("--data or --server must be given with --add")
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
            typer.echo(f"progress is stored in {bars.work}: the same command continues from there", err=True)
        raise
    if as_json:
        typer.echo(json.dumps(result_to_dict(spec, result), indent=2))
    else:
        print_result(spec, result)
