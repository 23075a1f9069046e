"""Options of ``suffixsvc generate``, and the settings they make."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from suffixsvc.config import validate_mode
from suffixsvc.errors import InvalidConfigError, ListenError
from suffixsvc.verb_options import argument, option
from suffixsvc_models.load_options import LoadOptions

if TYPE_CHECKING:
    from suffixsvc_driver.profile.settings_file import Settings
    from suffixsvc_driver.settings.driver_config import DriverConfig

#: ways of giving a prompt, for messages
_PROMPT_SOURCES: Final = "PROMPT, --prompt TEXT, --prompt-file FILE, or text on stdin"

_memory = partial(option, panel="Stored outputs")
_drafting = partial(option, panel="Drafting")
_sampling = partial(option, panel="Sampling")
_output = partial(option, panel="Output")


@dataclass(frozen=True, slots=True)
class Options(LoadOptions):
    """The command line, validated before anything large is loaded.

    Raises:
        InvalidConfigError: contradicting options, or an invalid value.
    """

    model: str = argument(metavar="MODEL", help="A GGUF file, or the name of a downloaded model.")
    words: str = argument(
        "", metavar="[PROMPT]", help="The prompt; - reads it from stdin.", show_default=False
    )
    prompt: str | None = option(None, metavar="TEXT", help="The prompt, as an option.")
    prompt_file: Path | None = option(None, metavar="FILE", help="File with the prompt; - is stdin.")
    system: str = option("", metavar="TEXT", help="System message.")
    chat: bool = option(
        False, "--chat", help="Chat: one line per turn, until the end of input. /quit, /stats."
    )
    raw: bool = option(False, "--raw", help="Use the prompt without the model's chat template.")
    max_tokens: int = option(512, min=1, help="Maximum tokens per turn.")
    stop: tuple[str, ...] = option((), metavar="TEXT", help="Stop text. Repeatable.")
    threads: int | None = option(None, min=1, help="Threads.", show_default="one per physical core")
    context: int | None = option(
        None,
        min=1,
        metavar="TOKENS",
        help="Context size of prompts and answers together.",
        show_default="4096, or the model's training context if that is less",
    )
    experts: int | None = option(None, min=1, help="Experts per token of a mixture-of-experts model.")
    data: Path | None = _memory(
        None,
        metavar="FOLDER",
        help="Store outputs in a data folder, as `suffixsvc serve` does. Default: in memory only.",
    )
    service: str | None = _memory(None, metavar="ADDRESS", help="Store outputs in a running service.")
    mode: str | None = _memory(
        None,
        metavar="auto|follow|remote",
        help="Who drafts from a service's outputs: this process, from a copy of the namespace (follow), or "
        "the service, by a call per step (remote).",
        show_default="auto: this process where the service allows that",
    )
    namespace: str | None = _memory(
        None, help="Namespace to draft from and to store outputs in.", show_default="the model's name"
    )
    preload: str | None = _memory(None, help="Recipes to draft from in addition: sql,json,code, or folders.")
    no_commit: bool = _memory(
        False, "--no-commit", help="Do not store the outputs, nor show them to others as they are written."
    )
    draft: str | None = _drafting(
        None,
        metavar="MODEL|ADDRESS",
        help="Draft model, started in a separate process, or address of a draft worker.",
    )
    layers: str | None = _drafting(
        None,
        metavar="NAMES",
        help="Layers that draft: prompt-lookup,suffix,draft-model; none is plain decoding.",
        show_default="all that are available",
    )
    policy: str | None = _drafting(
        None, help="Policy: expected-gain or first-match.", show_default="expected-gain"
    )
    controller: str | None = _drafting(
        None,
        help="Controller of first-match: fixed-k, adaptive-k, content-k or class-k.",
        show_default="adaptive-k",
    )
    k: int | None = _drafting(
        None,
        "--k",
        min=1,
        help="Maximum number of tokens to draft; under first-match the initial K.",
    )
    settings_file: Path | None = _drafting(
        None,
        "--settings",
        metavar="FILE.toml",
        help="Settings of driver, target, layers and sampling; command-line options override them.",
    )
    no_measure: bool = _drafting(
        False, "--no-measure", help="Estimate the cost of steps if it was not measured before."
    )
    temperature: float | None = _sampling(None, help="Sampling temperature; 0 is greedy.", show_default="0")
    top_k: int | None = _sampling(
        None, help="Sample from the k most likely tokens; 0 is all.", show_default="0"
    )
    top_p: float | None = _sampling(
        None, help="Sample from the most likely tokens with this total probability.", show_default="1"
    )
    min_p: float | None = _sampling(
        None, help="Minimum probability relative to the most likely token.", show_default="0"
    )
    repeat_penalty: float | None = _sampling(
        None, help="Repetition penalty: factor on tokens of the last --penalty-last-n.", show_default="1"
    )
    frequency_penalty: float | None = _sampling(
        None, help="Frequency penalty: subtracted per occurrence.", show_default="0"
    )
    presence_penalty: float | None = _sampling(
        None, help="Presence penalty: subtracted once.", show_default="0"
    )
    penalty_last_n: int | None = _sampling(None, help="Number of tokens to which penalties apply.")
    seed: int | None = _sampling(None, help="Seed of the random numbers.", show_default="0")
    grammar: Path | None = _sampling(
        None, metavar="FILE.gbnf", help="GBNF grammar that constrains the output."
    )
    json_schema: Path | None = _sampling(
        None, metavar="FILE.json", help="JSON schema that constrains the output."
    )
    explain: bool = _output(False, "--explain", help="Print every decision of the driver.")
    as_json: bool = _output(False, "--json", help="Print one line of JSON per turn.")
    colour: bool | None = _output(
        None,
        "--color/--no-color",
        "--colour/--no-colour",
        help="Colour tokens by the layer that drafted them.",
        show_default="on a terminal",
    )
    marks: bool = _output(False, "--marks", help="Mark drafted tokens with letters.")

    def __post_init__(self) -> None:
        prompts = {"PROMPT": self.words or None, "--prompt": self.prompt, "--prompt-file": self.prompt_file}
        given = [name for name, prompt in prompts.items() if prompt is not None]
        if len(given) > 1:
            raise InvalidConfigError("only one prompt must be given", got=" and ".join(given))
        for one, other, why in (
            ("chat", "raw", "a chat uses the model's template"),
            ("system", "raw", "a raw prompt has no system message"),
            ("data", "service", "outputs are stored in one place"),
            ("preload", "service", "a service preloads at its own start: suffixsvc serve --preload"),
            ("grammar", "json_schema", "a schema is converted to a grammar"),
        ):
            if getattr(self, one) and getattr(self, other):
                names = f"--{one} and --{other.replace('_', '-')}"
                raise InvalidConfigError(f"{names} must not be given together: {why}")
        if self.mode is not None:
            if self.service is None:
                raise InvalidConfigError("--mode must only be given with --service", got=self.mode)
            validate_mode(self.mode)
        if self.service is not None:
            from suffixsvc.service.listeners.listen import parse_address

            try:
                parse_address(self.service)
            except ListenError as error:
                raise InvalidConfigError(
                    "--service must be an address", expected=error.expected, got=error.got
                ) from None
        prompt = [("the prompt", self.words), ("the prompt", self.prompt or ""), ("--system", self.system)]
        for name, text in [*prompt, *(("--stop", text) for text in self.stop)]:
            checked_text(text, name)
        if "" in self.stop:
            raise InvalidConfigError("--stop must have at least one character")

    def first_prompt(self) -> str | None:
        """The prompt without a line feed at its end; None: a chat that begins with a turn from the terminal.

        Raises:
            InvalidConfigError: the prompt is missing, empty or unreadable.
        """
        words = self._given_prompt()
        if words is not None and not words.strip() and not self.raw:
            raise InvalidConfigError(
                "the prompt must not be empty",
                got=repr(words),
                remedy=f"Give it as {_PROMPT_SOURCES}.",
            )
        return words

    def _given_prompt(self) -> str | None:
        if self.prompt_file is not None:
            return _read(str(self.prompt_file))
        if self.prompt is not None:
            return self.prompt
        if self.words not in ("", "-"):
            return self.words
        if self.chat:
            if self.words == "-":
                raise InvalidConfigError("PROMPT must not be - with --chat, which reads its turns from stdin")
            return None
        if not self.words and sys.stdin.isatty():
            raise InvalidConfigError(
                "a prompt must be given", expected=_PROMPT_SOURCES, remedy="Or start a chat: --chat."
            )
        return _read("-")

    def settings(self) -> Settings:
        """The settings file's settings, overridden by the options.

        The class of the model is not known yet, see :meth:`driver`.

        Raises:
            InvalidConfigError: a file or a value is invalid.
        """
        from suffixsvc_driver.profile.settings_file import Settings, read_settings
        from suffixsvc_driver.sampling.settings import Sampling
        from suffixsvc_driver.settings.driver_config import LayerKind

        settings = Settings() if self.settings_file is None else read_settings(self.settings_file)
        target = {"threads": self.threads, "context_size": self.context, "experts_used": self.experts}
        target |= {each.name: getattr(self, each.name) for each in fields(LoadOptions)}
        sampling = {each.name: getattr(self, each.name, None) for each in fields(Sampling)}
        settings = replace(
            settings,
            target=replace(settings.target, **_given(target)),
            sampling=replace(settings.sampling, **_given(sampling | {"grammar": self._grammar()})),
        )
        if self.layers is None:
            return settings
        wanted = {name.strip() for name in self.layers.split(",") if name.strip()}
        kinds = [kind for kind in LayerKind if not kind.of_request]
        unknown = wanted - set(kinds) - ({"none"} if wanted == {"none"} else set())
        if unknown or not wanted:
            raise InvalidConfigError(
                "--layers must be known",
                expected=", ".join(kinds) + ", or none",
                got=", ".join(sorted(unknown)),
            )
        layers = {kind.replace("-", "_"): kind in wanted for kind in kinds}
        enabled = {name: replace(getattr(settings, name), enabled=on) for name, on in layers.items()}
        return replace(settings, **enabled)

    def _grammar(self) -> str | None:
        if self.grammar is not None:
            return _read(str(self.grammar), "grammar")
        if self.json_schema is None:
            return None
        from suffixsvc_driver.sampling.json_schema import grammar_of_schema

        return grammar_of_schema(_read(str(self.json_schema), "schema"))

    def driver(self, base: DriverConfig, model_class: str) -> DriverConfig:
        """The driver's settings for a model of this class.

        Raises:
            InvalidConfigError: a value is invalid, or not used by the policy.
        """
        from suffixsvc_driver.settings.driver_config import Controller, Policy

        given = _given({"policy": self.policy, "controller": self.controller})
        if given.get("controller", base.controller) == Controller.CLASS and base.model_class is None:
            given["model_class"] = model_class
        config = replace(base, **given)
        first_match = config.policy is Policy.FIRST_MATCH
        if self.controller is not None and not first_match:
            raise InvalidConfigError("--policy must be first-match with --controller", got=str(config.policy))
        if self.k is None:
            return config
        if not first_match:
            return replace(config, max_draft_tokens=self.k)
        widest = max(config.max_draft_tokens, self.k)
        least, most = min(config.k_min, self.k), max(config.k_max, self.k)
        return replace(config, k_start=self.k, k_min=least, k_max=most, max_draft_tokens=widest)


def checked_text(text: str, name: str) -> str:
    """The text, if it can be encoded: arguments and input lines can have surrogates of invalid bytes.

    Raises:
        InvalidConfigError: it cannot be encoded.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidConfigError(
            f"{name} must be UTF-8", got=f"an invalid byte at character {error.start}"
        ) from None
    return text


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _read(file: str, kind: str = "prompt") -> str:
    what = "stdin" if file == "-" else file
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return raw.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise InvalidConfigError(
            f"the {kind} must be a readable file", got=f"{what}: {error.strerror}"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidConfigError(f"the {kind} must be UTF-8", got=f"{what}, byte {error.start}") from None
