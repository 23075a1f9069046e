"""Validated options of ``suffixsvc generate``, and the settings they make."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidConfigError, ListenError
from suffixsvc_driver.profile.settings_file import Settings, read_settings
from suffixsvc_driver.settings.driver_config import Controller, DriverConfig, LayerKind, Policy

__all__ = ["Options", "checked_address", "checked_text", "grammar_text", "is_address"]

#: ways of giving a prompt, for messages
_PROMPT_SOURCES: Final = "PROMPT, --prompt TEXT, --prompt-file FILE, or text on stdin"
_PROMPT_OPTIONS: Final = ("PROMPT", "--prompt", "--prompt-file")
_FIELD_OF: Final = {
    LayerKind.PROMPT_LOOKUP: "prompt_lookup",
    LayerKind.SUFFIX: "suffix",
    LayerKind.DRAFT_MODEL: "draft_model",
}


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, validated before anything large is loaded.

    ``prompts``: PROMPT, --prompt and the name of --prompt-file; ``target`` and ``sampling``: fields of the
    settings file's tables, None if not given.

    Raises:
        InvalidConfigError: contradicting options, or an invalid value.
    """

    model: str
    prompts: tuple[str | None, str | None, str | None]
    system: str
    chat: bool
    raw: bool
    max_tokens: int
    stop: tuple[str, ...]
    target: Mapping[str, Any]
    data: Path | None
    service: str | None
    namespace: str | None
    preload: str | None
    commit: bool
    draft: str | None
    layers: str | None
    policy: str | None
    controller: str | None
    k: int | None
    settings_file: Path | None
    measure: bool
    sampling: Mapping[str, Any]
    explain: bool
    as_json: bool
    colour: bool | None
    marks: bool

    def __post_init__(self) -> None:
        given = [way for way, text in zip(_PROMPT_OPTIONS, self.prompts, strict=True) if text is not None]
        if len(given) > 1:
            raise InvalidConfigError("only one prompt must be given", got=" and ".join(given))
        _never_both("--chat", self.chat, "--raw", self.raw, "a chat uses the model's template")
        _never_both("--system", bool(self.system), "--raw", self.raw, "a raw prompt has no system message")
        _never_both("--data", self.data is not None, "--service", self.service is not None,
                    "outputs are stored in one place")  # fmt: skip
        _never_both("--preload", self.preload is not None, "--service", self.service is not None,
                    "a service preloads at its own start: suffixsvc serve --preload")  # fmt: skip
        if self.service is not None:
            checked_address(self.service)
        words, prompt, _ = self.prompts
        for what, text in (("the prompt", words), ("the prompt", prompt), ("--system", self.system)):
            checked_text(text or "", what)
        for text in self.stop:
            checked_text(text, "--stop")
        if any(not text for text in self.stop):
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
        words, prompt, file = self.prompts
        if file is not None:
            return _read(file)
        if prompt is not None:
            return prompt
        if words is not None and words != "-":
            return words
        if self.chat:
            if words == "-":
                raise InvalidConfigError("PROMPT must not be - with --chat, which reads its turns from stdin")
            return None
        if words is None and sys.stdin.isatty():
            raise InvalidConfigError(
                "a prompt must be given", expected=_PROMPT_SOURCES, remedy="Or start a chat: --chat."
            )
        return _read("-")

    def settings(self) -> Settings:
        """The settings file's settings, overridden by the options.

        The class of the model is not known yet, see :meth:`driver`.

        Raises:
            InvalidConfigError: the file or a value is invalid.
        """
        settings = Settings() if self.settings_file is None else read_settings(self.settings_file)
        settings = replace(
            settings,
            target=replace(settings.target, **_given(self.target)),
            sampling=replace(settings.sampling, **_given(self.sampling)),
        )
        if self.layers is None:
            return settings
        wanted = _layer_names(self.layers)
        chosen = {
            field: replace(getattr(settings, field), enabled=kind in wanted)
            for kind, field in _FIELD_OF.items()
        }
        return replace(settings, **chosen)

    def driver(self, base: DriverConfig, model_class: str) -> DriverConfig:
        """The driver's settings for a model of this class.

        Raises:
            InvalidConfigError: a value is invalid, or not used by the policy.
        """
        given = _given({"policy": self.policy, "controller": self.controller})
        if given.get("controller", base.controller) == Controller.CLASS and base.model_class is None:
            given["model_class"] = model_class
        config = replace(base, **given)
        first_match = config.policy is Policy.FIRST_MATCH
        if self.controller is not None and not first_match:
            raise InvalidConfigError(
                "--policy must be first-match with --controller",
                got=str(config.policy),
            )
        if self.k is None:
            return config
        if not first_match:
            return replace(config, max_draft_tokens=self.k)
        widest = max(config.max_draft_tokens, self.k)
        least, most = min(config.k_min, self.k), max(config.k_max, self.k)
        return replace(config, k_start=self.k, k_min=least, k_max=most, max_draft_tokens=widest)


def is_address(text: str) -> bool:
    """True for an address of a server, False for a model."""
    host, _, port = text.rpartition(":")
    return text.startswith(("unix:", "http://", "https://")) or (
        bool(host) and port.isascii() and port.isdigit() and "/" not in text
    )


def checked_address(text: str) -> str:
    """``unix:PATH`` or ``HOST:PORT`` as clients connect to it.

    Raises:
        InvalidConfigError: the text is not an address.
    """
    from suffixsvc.service.listeners.listen import parse_address

    try:
        return str(parse_address(text))
    except ListenError as error:
        raise InvalidConfigError(
            "--service must be an address", expected=error.expected, got=error.got
        ) from None


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


def grammar_text(grammar: Path | None, json_schema: Path | None) -> str | None:
    """The grammar of a file, or one made from a JSON schema; None without either.

    Raises:
        InvalidConfigError: both are given, a file cannot be read, or the schema cannot be a grammar.
    """
    both = grammar is not None and json_schema is not None
    _never_both("--grammar", both, "--json-schema", both, "a schema is converted to a grammar")
    if grammar is not None:
        return _read(str(grammar), "grammar")
    if json_schema is None:
        return None
    from suffixsvc_driver.sampling.json_schema import grammar_of_schema

    return grammar_of_schema(_read(str(json_schema), "schema"))


def _never_both(one: str, has_one: bool, other: str, has_other: bool, why: str) -> None:
    if has_one and has_other:
        raise InvalidConfigError(f"{one} and {other} must not be given together: {why}")


def _layer_names(text: str) -> set[str]:
    names = {name.strip() for name in text.split(",") if name.strip()}
    if names == {"none"}:
        return set()
    unknown = sorted(names - set(LayerKind))
    if unknown or not names:
        raise InvalidConfigError(
            "--layers must be known",
            expected=", ".join(LayerKind) + ", or none",
            got=", ".join(unknown),
        )
    return names


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
