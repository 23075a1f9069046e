"""What ``suffixsvc generate`` was told, checked before anything large is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from suffixsvc_driver.config import Controller, DriverConfig, LayerKind, Policy
from suffixsvc_driver.settings_file import Settings, read_settings

from suffixsvc.errors import InvalidConfigError, ListenError

__all__ = ["Options", "checked_address", "checked_text", "grammar_text", "is_address"]

#: how the ways to give a prompt are called
_GIVE_ONE: Final = "PROMPT, --prompt TEXT, --prompt-file FILE, or text on stdin"
_WAYS: Final = ("PROMPT", "--prompt", "--prompt-file")
_FIELD_OF: Final = {
    LayerKind.PROMPT_LOOKUP: "prompt_lookup",
    LayerKind.SUFFIX: "suffix",
    LayerKind.DRAFT_MODEL: "draft_model",
}


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. ``prompts``: as PROMPT, --prompt and the name of --prompt-file; ``target`` and
    ``sampling``: fields of the settings file's tables, None where nothing was told.

    Raises:
        InvalidConfigError: options that contradict each other.
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
        given = [way for way, text in zip(_WAYS, self.prompts, strict=True) if text is not None]
        if len(given) > 1:
            raise InvalidConfigError("more than one prompt", expected="one of them", got=" and ".join(given))
        _never_both("--chat", self.chat, "--raw", self.raw, "a chat goes by the model's template")
        _never_both("--system", bool(self.system), "--raw", self.raw, "a raw prompt says everything itself")
        _never_both("--data", self.data is not None, "--service", self.service is not None,
                    "outputs are remembered in one place")  # fmt: skip
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
            raise InvalidConfigError("--stop makes no sense", expected="at least one character", got="''")

    def first_prompt(self) -> str | None:
        """What was given as the prompt, without a line feed at its end; None: a chat that begins with a turn
        from the terminal.

        Raises:
            InvalidConfigError: there is none, it is empty, or it cannot be read.
        """
        words = self._given_prompt()
        if words is not None and not words.strip() and not self.raw:
            raise InvalidConfigError(
                "the prompt is empty",
                expected="some text",
                got=repr(words),
                remedy=f"Give it as {_GIVE_ONE}.",
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
                raise InvalidConfigError("a chat reads its turns from stdin", expected="no prompt -", got="-")
            return None
        if words is None and sys.stdin.isatty():
            raise InvalidConfigError(
                "there is no prompt", expected=_GIVE_ONE, remedy="Or talk to the model: --chat."
            )
        return _read("-")

    def settings(self) -> Settings:
        """The settings file's, with what was told here in their place. The class of the model is not known
        yet: see :meth:`driver`.

        Raises:
            InvalidConfigError: the file, or a value that makes no sense.
        """
        settings = Settings() if self.settings_file is None else read_settings(self.settings_file)
        settings = replace(
            settings,
            target=replace(settings.target, **_told(self.target)),
            sampling=replace(settings.sampling, **_told(self.sampling)),
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
            InvalidConfigError: a value that makes no sense, or that the policy never looks at.
        """
        told = _told({"policy": self.policy, "controller": self.controller})
        if told.get("controller", base.controller) == Controller.CLASS and base.model_class is None:
            told["model_class"] = model_class
        config = replace(base, **told)
        first_match = config.policy is Policy.FIRST_MATCH
        if self.controller is not None and not first_match:
            raise InvalidConfigError(
                "a controller says how many tokens first-match drafts",
                expected="--policy first-match",
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
    """Whether this is where a server listens, rather than a model."""
    host, _, port = text.rpartition(":")
    return text.startswith(("unix:", "http://", "https://")) or (
        bool(host) and port.isascii() and port.isdigit() and "/" not in text
    )


def checked_address(text: str) -> str:
    """``unix:PATH`` or ``HOST:PORT`` as clients connect to it.

    Raises:
        InvalidConfigError: anything else.
    """
    from suffixsvc.service.listen import parse_address

    try:
        return str(parse_address(text))
    except ListenError as error:
        raise InvalidConfigError(
            "not an address to connect to", expected=error.expected, got=error.got
        ) from None


def checked_text(text: str, what: str) -> str:
    """The text, if it has bytes: arguments and lines of input may hold some that are no characters.

    Raises:
        InvalidConfigError: they are.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidConfigError(
            f"{what} is no text", expected="UTF-8", got=f"something else at character {error.start}"
        ) from None
    return text


def grammar_text(grammar: Path | None, json_schema: Path | None) -> str | None:
    """The grammar of a file, or one made of a JSON schema.

    Raises:
        InvalidConfigError: both, a file that cannot be read, or a schema that cannot be a grammar.
    """
    both = grammar is not None and json_schema is not None
    _never_both("--grammar", both, "--json-schema", both, "a schema is made into a grammar")
    if grammar is not None:
        return _read(str(grammar), "grammar")
    if json_schema is None:
        return None
    from suffixsvc_driver.targets.json_schema import grammar_of_schema

    return grammar_of_schema(_read(str(json_schema), "schema"))


def _never_both(one: str, has_one: bool, other: str, has_other: bool, why: str) -> None:
    if has_one and has_other:
        raise InvalidConfigError(f"{one} and {other} at the same time", expected="one of them", got=why)


def _layer_names(text: str) -> set[str]:
    names = {name.strip() for name in text.split(",") if name.strip()}
    if names == {"none"}:
        return set()
    unknown = sorted(names - set(LayerKind))
    if unknown or not names:
        raise InvalidConfigError(
            "no such layer", expected=", ".join(LayerKind) + ", or none", got=", ".join(unknown) or "nothing"
        )
    return names


def _told(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _read(file: str, kind: str = "prompt") -> str:
    what = "stdin" if file == "-" else file
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return raw.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise InvalidConfigError(
            f"the {kind} cannot be read", expected="a text file", got=f"{what}: {error.strerror}"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidConfigError(
            f"the {kind} is no text", expected="UTF-8", got=f"{what}, byte {error.start}"
        ) from None
