"""``suffixsvc generate MODEL PROMPT``: write on a model with everything on, and show where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["generate"]

_MEMORY = "What is remembered"
_DRAFTING = "Drafting"
_CHOOSING = "Choosing tokens"
_OUTPUT = "What is shown"


def generate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A GGUF file, or the name of a downloaded model.")
    ],
    words: Annotated[
        str, typer.Argument(metavar="[PROMPT]", help="The prompt; - reads it from stdin.", show_default=False)
    ] = "",
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="The prompt, as an option.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file that holds the prompt; - is stdin.")
    ] = None,
    system: Annotated[str, typer.Option(metavar="TEXT", help="What the model is told before.")] = "",
    chat: Annotated[
        bool, typer.Option("--chat", help="Go on: a line a turn, until the end of input. /quit, /stats.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Take the prompt as it is, without the model's chat template.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Write at most so many tokens a turn.")] = 512,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End where the model writes this text; may be repeated."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="To compute on.", show_default="one a physical core")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="TOKENS",
            help="What prompts and answers may take together.",
            show_default="4096, or what the model was trained with if that is less",
        ),
    ] = None,
    experts: Annotated[
        int | None, typer.Option(min=1, help="Of a mixture of experts: how many each token goes through.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Remember in a data folder, as `suffixsvc serve` does; without it, in memory only.",
            rich_help_panel=_MEMORY,
        ),
    ] = None,
    service: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Remember in a running service.", rich_help_panel=_MEMORY),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            help="Whose outputs to draft from.", show_default="the model's name", rich_help_panel=_MEMORY
        ),
    ] = None,
    preload: Annotated[
        str | None,
        typer.Option(
            help="Recipes to draft from as well: sql,json,code, or folders.", rich_help_panel=_MEMORY
        ),
    ] = None,
    no_commit: Annotated[
        bool,
        typer.Option("--no-commit", help="Do not remember what is written here.", rich_help_panel=_MEMORY),
    ] = False,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|ADDRESS",
            help="A draft model, which is started in a process of its own, or the address of a draft worker.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Which layers draft: prompt-lookup,suffix,draft-model; none is plain decoding.",
            show_default="all there are",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="expected-gain or first-match.", rich_help_panel=_DRAFTING, show_default="expected-gain"
        ),
    ] = None,
    controller: Annotated[
        str | None,
        typer.Option(
            help="first-match: fixed-k, adaptive-k, content-k or class-k.",
            show_default="adaptive-k",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--k",
            min=1,
            help="Tokens to draft: first-match begins with so many, expected-gain never drafts more.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    settings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Settings of driver, target, layers and sampling; options here go before.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    no_measure: Annotated[
        bool,
        typer.Option(
            "--no-measure",
            help="Guess what steps cost where it was not measured before.",
            rich_help_panel=_DRAFTING,
        ),
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option(help="0 always takes the likeliest token.", show_default="0", rich_help_panel=_CHOOSING),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(help="Choose among so many; 0 is all.", show_default="0", rich_help_panel=_CHOOSING),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Choose among the likeliest that make up this share.",
            show_default="1",
            rich_help_panel=_CHOOSING,
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            help="Leave out what is less likely than this share of the likeliest.",
            show_default="0",
            rich_help_panel=_CHOOSING,
        ),
    ] = None,
    repeat_penalty: Annotated[
        float | None,
        typer.Option(
            help="Make tokens of the last --penalty-last-n less likely, by a factor.",
            show_default="1",
            rich_help_panel=_CHOOSING,
        ),
    ] = None,
    frequency_penalty: Annotated[
        float | None,
        typer.Option(help="... by so much each time.", show_default="0", rich_help_panel=_CHOOSING),
    ] = None,
    presence_penalty: Annotated[
        float | None,
        typer.Option(help="... by so much once.", show_default="0", rich_help_panel=_CHOOSING),
    ] = None,
    penalty_last_n: Annotated[
        int | None,
        typer.Option(help="How far penalties look back.", rich_help_panel=_CHOOSING),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the random numbers.", show_default="0", rich_help_panel=_CHOOSING)
    ] = None,
    grammar: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.gbnf", help="Write only what this grammar permits.", rich_help_panel=_CHOOSING
        ),
    ] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json", help="Write JSON that fits this schema.", rich_help_panel=_CHOOSING
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Print every decision of the driver.", rich_help_panel=_OUTPUT),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="For machines: a line of JSON a turn.", rich_help_panel=_OUTPUT)
    ] = False,
    colour: Annotated[
        bool | None,
        typer.Option(
            "--color/--no-color",
            "--colour/--no-colour",
            help="Colour tokens by who drafted them.",
            show_default="on a terminal",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    marks: Annotated[
        bool, typer.Option("--marks", help="Mark drafted tokens with letters.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Write text on a model, drafting with everything there is, and show where each token came from.

    The text goes to stdout, everything else to stderr. Drafts come from the prompt and what was written so
    far, from what was remembered (--data, --service, --preload), and from a draft model (--draft); the
    model checks them all, so the text is its own. The first time on a model it is measured what steps cost
    here. Ctrl-C ends the text, with statistics.
    """
    # heavy parts load only when the verb runs, so that --help answers at once
    from suffixsvc.cli.generate_options import Options, grammar_text
    from suffixsvc.cli.generate_run import run

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
