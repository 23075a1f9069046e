"""``suffixsvc generate MODEL PROMPT``: the options of the verb."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["generate"]

_MEMORY = "Stored outputs"
_DRAFTING = "Drafting"
_SAMPLING = "Sampling"
_OUTPUT = "Output"


def generate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A GGUF file, or the name of a downloaded model.")
    ],
    words: Annotated[
        str, typer.Argument(metavar="[PROMPT]", help="The prompt; - reads it from stdin.", show_default=False)
    ] = "",
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="The prompt, as an option.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the prompt; - is stdin.")
    ] = None,
    system: Annotated[str, typer.Option(metavar="TEXT", help="System message.")] = "",
    chat: Annotated[
        bool, typer.Option("--chat", help="Chat: one line per turn, until the end of input. /quit, /stats.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Use the prompt without the model's chat template.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens per turn.")] = 512,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Stop text. Repeatable."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads.", show_default="one per physical core")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="TOKENS",
            help="Context size of prompts and answers together.",
            show_default="4096, or the model's training context if that is less",
        ),
    ] = None,
    experts: Annotated[
        int | None, typer.Option(min=1, help="Experts per token of a mixture-of-experts model.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Store outputs in a data folder, as `suffixsvc serve` does. Default: in memory only.",
            rich_help_panel=_MEMORY,
        ),
    ] = None,
    service: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Store outputs in a running service.", rich_help_panel=_MEMORY),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            help="Namespace to draft from and to store outputs in.",
            show_default="the model's name",
            rich_help_panel=_MEMORY,
        ),
    ] = None,
    preload: Annotated[
        str | None,
        typer.Option(
            help="Recipes to draft from in addition: sql,json,code, or folders.", rich_help_panel=_MEMORY
        ),
    ] = None,
    no_commit: Annotated[
        bool,
        typer.Option("--no-commit", help="Do not store the outputs.", rich_help_panel=_MEMORY),
    ] = False,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|ADDRESS",
            help="Draft model, started in a separate process, or address of a draft worker.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Layers that draft: prompt-lookup,suffix,draft-model; none is plain decoding.",
            show_default="all that are available",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policy: expected-gain or first-match.",
            rich_help_panel=_DRAFTING,
            show_default="expected-gain",
        ),
    ] = None,
    controller: Annotated[
        str | None,
        typer.Option(
            help="Controller of first-match: fixed-k, adaptive-k, content-k or class-k.",
            show_default="adaptive-k",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--k",
            min=1,
            help="Tokens to draft: initial K of first-match, maximum of expected-gain.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    settings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Settings of driver, target, layers and sampling; command-line options override them.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    no_measure: Annotated[
        bool,
        typer.Option(
            "--no-measure",
            help="Estimate the cost of steps if it was not measured before.",
            rich_help_panel=_DRAFTING,
        ),
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option(help="Sampling temperature; 0 is greedy.", show_default="0", rich_help_panel=_SAMPLING),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            help="Sample from the k most likely tokens; 0 is all.",
            show_default="0",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Sample from the most likely tokens with this total probability.",
            show_default="1",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            help="Minimum probability relative to the most likely token.",
            show_default="0",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    repeat_penalty: Annotated[
        float | None,
        typer.Option(
            help="Repetition penalty: factor on tokens of the last --penalty-last-n.",
            show_default="1",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    frequency_penalty: Annotated[
        float | None,
        typer.Option(
            help="Frequency penalty: subtracted per occurrence.", show_default="0", rich_help_panel=_SAMPLING
        ),
    ] = None,
    presence_penalty: Annotated[
        float | None,
        typer.Option(help="Presence penalty: subtracted once.", show_default="0", rich_help_panel=_SAMPLING),
    ] = None,
    penalty_last_n: Annotated[
        int | None,
        typer.Option(help="Number of tokens to which penalties apply.", rich_help_panel=_SAMPLING),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the random numbers.", show_default="0", rich_help_panel=_SAMPLING),
    ] = None,
    grammar: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.gbnf", help="GBNF grammar that constrains the output.", rich_help_panel=_SAMPLING
        ),
    ] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json", help="JSON schema that constrains the output.", rich_help_panel=_SAMPLING
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Print every decision of the driver.", rich_help_panel=_OUTPUT),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON per turn.", rich_help_panel=_OUTPUT)
    ] = False,
    colour: Annotated[
        bool | None,
        typer.Option(
            "--color/--no-color",
            "--colour/--no-colour",
            help="Colour tokens by the layer that drafted them.",
            show_default="on a terminal",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    marks: Annotated[
        bool, typer.Option("--marks", help="Mark drafted tokens with letters.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Generate text on a model with every drafting layer, and show the origin of each token.

    The text goes to stdout, everything else to stderr. Drafts come from the prompt and the text so far, from
    stored outputs (--data, --service, --preload), and from a draft model (--draft); the model verifies them
    all, so the text is unchanged. The cost of steps is measured on the first run with a model. Ctrl-C ends
    the text, with statistics.
    """
    # imported here so that --help is fast
    from suffixsvc_cli.generate.options import Options, grammar_text
    from suffixsvc_cli.generate.run import run

    run(
        Options(
            model=model,
            prompts=(words or None, prompt, None if prompt_file is None else str(prompt_file)),
            system=system,
            chat=chat,
            raw=raw,
            max_tokens=max_tokens,
            stop=tuple(stop or ()),
            target={"threads": threads, "context_size": context, "experts_used": experts},
            data=data,
            service=service,
            namespace=namespace,
            preload=preload,
            commit=not no_commit,
            draft=draft,
            layers=layers,
            policy=policy,
            controller=controller,
            k=k,
            settings_file=settings,
            measure=not no_measure,
            sampling={
                "temperature": temperature,
                "top_k": top_k,
                "top_p": top_p,
                "min_p": min_p,
                "repeat_penalty": repeat_penalty,
                "frequency_penalty": frequency_penalty,
                "presence_penalty": presence_penalty,
                "penalty_last_n": penalty_last_n,
                "seed": seed,
                "grammar": grammar_text(grammar, json_schema),
            },
            explain=explain,
            as_json=as_json,
            colour=colour,
            marks=marks,
        )
    )
