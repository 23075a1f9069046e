"""``suffixsvc build``: caches from logs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from suffixsvc.errors import InvalidConfigError
from suffixsvc.verb_options import argument, option, with_options
from suffixsvc_caches.sizes import parse_size

if TYPE_CHECKING:
    from suffixsvc_caches.building.lookup_caches import LookupSpec

_output = partial(option, panel="Output")
_input = partial(option, panel="Input")
_selection = partial(option, panel="Selection of calls")
_pruning = partial(option, panel="Pruning of lookup caches")
_execution = partial(option, panel="Execution")


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Logs, and what is made of them."""

    logs: tuple[Path, ...] = argument(
        help="Logs, or folders of logs: JSON lines (.gz, .zst), JSON, Parquet, CSV, text, code."
    )
    tokenizer: Path | None = _output(
        None,
        help="Tokenizer for logs of texts: the model's GGUF (its vocabulary is read), the name of a "
        "downloaded model, or a tokenizer.json.",
    )
    bos: str | None = _output(None, help="Text of the BOS token, for a tokenizer.json.")
    eos: str | None = _output(None, help="Text of the EOS token, for a tokenizer.json.")
    lookup_static: Path | None = _output(
        None, help="Write a file of 2-grams for llama.cpp's --lookup-cache-static."
    )
    lookup_dynamic: Path | None = _output(
        None, help="Write a file of 1- to 4-grams for llama.cpp's --lookup-cache-dynamic."
    )
    data: Path | None = _output(
        None, help="Load the responses into a data folder of the service, as a pinned corpus."
    )
    server: str | None = _output(None, help="Load the responses into a running service.")
    namespace: str = _output("corpus", help="Namespace of the corpus.")
    add: bool = _output(False, "--add", help="Add the corpus to a namespace that has contents.")

    def __post_init__(self) -> None:
        if self.add and not (self.data or self.server):
            raise InvalidConfigError("--data or --server must be given with --add")


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Reading of the logs, and selection of calls: arguments of ``ReadOptions.parse``."""

    format: str = _input("auto", "--format", help="Format of the records; docs/logs.md.")
    response_field: str = _input("", help="Path of the response in a record: a.b.0.c")
    prompt_field: str = _input("", help="Path of the prompt.")
    agent_field: str = _input("", help="Path of the agent.")
    session_field: str = _input("", help="Path of the session.")
    model_field: str = _input("", help="Path of the model.")
    kind_field: str = _input("", help="Path of the kind of text.")
    time_field: str = _input("", help="Path of the time.")
    tokenizer_field: str = _input("", help="Path of the tokenizer fingerprint of its token ids.")
    batch_input: tuple[Path, ...] = _input(
        (), help="Input file of an OpenAI batch, for the prompts of its output. Repeatable."
    )
    tool_format: str = _input(
        "hermes",
        help="Format in which the model writes tool calls: hermes, llama3, mistral, mistral-tekken, "
        "mistral-v13, json, none.",
    )
    chat_template: str = _input(
        "chatml", help="Template that makes the text of a prompt from its messages: chatml, plain, none."
    )
    reasoning: bool = _input(
        True, "--reasoning/--no-reasoning", help="Insert separately recorded reasoning before the answer."
    )
    split: str = _input("field", help="Session boundaries: field, gap:30m, line or file.")
    include: tuple[str, ...] = _input((), help="Pattern of files to read in folders: *.py. Repeatable.")
    exclude: tuple[str, ...] = _input((), help="Pattern of files to skip in folders. Repeatable.")
    encoding: str = _input("utf-8", help="Encoding of text. Without byte order marks: utf-16-le, utf-16-be.")
    max_line_bytes: int = _input(
        "64M",
        parse=partial(parse_size, what="--max-line-bytes"),
        help="Maximum size of a line, record, row or text; larger ones are skipped.",
    )
    max_page_bytes: int = _input(
        "128M",
        parse=partial(parse_size, what="--max-page-bytes"),
        help="Maximum decompressed page of a Parquet file; row groups with larger ones are skipped.",
    )
    max_depth: int = _input(128, help="Maximum nesting of lists and objects; deeper records are skipped.")
    strict: bool = _input(False, "--strict", help="Stop at the first unreadable line.")
    agents: tuple[str, ...] = _selection((), "--agent", help="Use only calls of this agent. Repeatable.")
    models: tuple[str, ...] = _selection((), "--model", help="Use only calls of this model. Repeatable.")
    kinds: tuple[str, ...] = _selection((), "--kind", help="Use only this kind of text. Repeatable.")
    since: str | None = _selection(None, help="Earliest time: 2026-01-31 or seconds.")
    until: str | None = _selection(None, help="Time before which calls are used.")
    min_length: int = _selection(0, min=0, help="Minimum length of a response in characters or ids.")
    max_length: int | None = _selection(
        None, min=1, help="Maximum length of a response in characters or ids."
    )


@dataclass(frozen=True, slots=True)
class PruningOptions:
    """Pruning of lookup caches: arguments of ``LookupSpec``, also of ``suffixsvc export``."""

    budget_bytes: int | None = _pruning(
        None,
        "--budget",
        parse=partial(parse_size, what="--budget"),
        help="Maximum size of a lookup cache, e.g. 1M; n-grams with the most expected hits are kept.",
    )
    compact: bool = _pruning(False, "--compact", help="Remove records that change no draft.")
    min_count: int = _pruning(1, help="Minimum count of a follower.")
    top: int = _pruning(0, help="Maximum followers of an n-gram; 0 = all.")
    exact_counts: bool = _pruning(
        False,
        "--exact-counts",
        help="Write exact counts. By default counts are scaled so that llama.cpp's products do not overflow, "
        "and ties between best followers are broken.",
    )

    def lookup(self, path: Path | None) -> LookupSpec | None:
        """The lookup cache to write; None without a path."""
        from suffixsvc_caches.building.lookup_caches import LookupSpec

        return LookupSpec(path, **asdict(self)) if path else None


@dataclass(frozen=True, slots=True)
class CountingOptions:
    """Counting and its execution: arguments of ``BuildSpec``."""

    dedupe: bool = _selection(False, "--dedupe", help="Count identical responses once.")
    context_tokens: int = _selection(
        0,
        "--context",
        min=0,
        help="Number of prompt tokens in which n-grams may begin, if the log has the prompt as the model "
        "read it.",
    )
    memory_bytes: int = _execution(
        "2G",
        "--memory",
        parse=partial(parse_size, what="--memory"),
        help="Memory limit of the process in addition to one record; with ray, of each task.",
    )
    workers: int | None = _execution(None, min=1, help="Threads. Default: one per core.")
    engine: str = _execution("local", help="Execution engine: local, or ray (the cluster of RAY_ADDRESS).")
    work: Path | None = _execution(
        None, help="Folder of intermediate files. Default: beside the first output."
    )
    checkpoint_seconds: float = _execution(60.0, "--checkpoint", min=0.1, help="Seconds between checkpoints.")
    force: bool = _execution(False, "--force", help="Replace existing lookup caches.")
    as_json: bool = _execution(False, "--json", help="Print JSON.")


@with_options
def build(
    output: OutputOptions, reading: ReadingOptions, pruning: PruningOptions, counting: CountingOptions
) -> None:
    """Build caches from logs of model outputs, without running a model.

    Reads logs in many formats and writes lookup caches for llama.cpp, a data folder for the service, or both.
    Memory is bounded, all cores are used, and the same logs and options give the same bytes. An interrupted
    build continues when the same command is given again.

        suffixsvc build logs/ --tokenizer model.gguf --lookup-static s.bin --lookup-dynamic d.bin
    """
    from suffixsvc_caches.building.run import build as run
    from suffixsvc_caches.building.spec import BuildSpec, CorpusTarget
    from suffixsvc_caches.logs import ReadOptions
    from suffixsvc_caches.tokenizers.load import TokenizerSource
    from suffixsvc_cli.corpus.build_show import BuildBars, print_result, result_to_dict

    settings = asdict(counting) | {"workers": counting.workers or os.cpu_count() or 1}
    as_json = settings.pop("as_json")
    spec = BuildSpec(
        logs=output.logs,
        reading=ReadOptions.parse(**asdict(reading)),
        tokenizer=TokenizerSource(output.tokenizer, output.bos, output.eos) if output.tokenizer else None,
        static=pruning.lookup(output.lookup_static),
        dynamic=pruning.lookup(output.lookup_dynamic),
        corpus=CorpusTarget(output.namespace, output.data, output.server or "", output.add)
        if output.data or output.server
        else None,
        **settings,
    )
    bars = BuildBars()
    try:
        with bars.shown:
            result = run(spec, bars)
    except KeyboardInterrupt:
        if bars.work is not None and bars.work.is_dir():
            typer.echo(f"progress is stored in {bars.work}: the same command continues from there", err=True)
        raise
    if as_json:
        typer.echo(json.dumps(result_to_dict(spec, result), indent=2))
    else:
        print_result(spec, result)
