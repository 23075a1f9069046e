"""Before the demo starts: its models, its threads, and whether what it writes has a place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suffixsvc_driver import models

from suffixsvc.errors import InvalidConfigError, SuffixError

__all__ = ["Chosen", "check_output_file", "choose_models", "model_file"]

TARGET: Final = "qwen2.5-coder-1.5b"
DRAFT: Final = "qwen2.5-coder-0.5b"
SMALL: Final = "smollm2-135m"

#: gets a model of the registry: name -> file
Download = Callable[[str], Path]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The models of a run. ``small``: the tiny one, without a draft model."""

    name: str
    target: Path
    draft: Path | None
    small: bool


def choose_models(
    *, small: bool, target: str | None, draft: str | None, download: Download, say: Say
) -> Chosen:
    """Models by what was asked for and what can be had.

    Args:
        small: the tiny model only.
        target, draft: a GGUF or a registry name instead of the usual pair. Nothing takes the place of a
            named one; a target without a draft runs without a draft model.
        download: gets a registry model that is not here.
        say: told where the choice differs from what was asked for.

    Raises:
        InvalidConfigError: the tiny model and another one at once.
        SuffixError: a model that was named, or even the tiny one, cannot be had.
    """
    if small and (target is not None or draft is not None):
        raise InvalidConfigError(
            "--small names the models itself",
            got="--small with --target or --draft",
            remedy=f"Leave --small out, or name the tiny model: --target {SMALL}.",
        )
    if target is not None or draft is not None:
        # the named draft first: if it is wrong, nothing large was downloaded in vain
        drafter = None if draft is None else model_file(draft, download)
        file = model_file(TARGET if target is None else target, download)
        return Chosen(TARGET if target is None else file.stem, file, drafter, small=drafter is None)
    if not small:
        try:
            return Chosen(TARGET, model_file(TARGET, download), model_file(DRAFT, download), small=False)
        except SuffixError as error:
            say(f"The large models cannot be had: {error}")
            say(f"Going on with {SMALL}, without a draft model (as SMALL=1 does).")
    return Chosen(SMALL, model_file(SMALL, download), None, small=True)


def model_file(what: str, download: Download) -> Path:
    """The file of a model: a path to a GGUF, or a name of the registry, downloaded where it is not here.

    Raises:
        SuffixError: it cannot be had.
    """
    if "/" in what or what.endswith(".gguf"):
        return models.resolve(what)
    try:
        return models.path(what)
    except SuffixError:
        return download(what)


def check_output_file(path: Path, option: str) -> None:
    """Find out now, not after minutes of work, whether ``path`` can be written; writes nothing to it.

    Raises:
        InvalidConfigError: it is a folder, its folder is missing, or nothing may be written there.
    """
    remedy = f"Name a file in a folder that exists and can be written: {option} FILE."
    if path.is_dir():
        raise InvalidConfigError(
            f"{option} names a folder", expected="a file", got=repr(str(path)), remedy=remedy
        )
    # the name that the file has until it is complete
    draft = path.with_name(f".{path.name}.new")
    try:
        draft.open("ab").close()
        draft.unlink()
    except OSError as error:
        raise InvalidConfigError(
            f"{option} cannot be written ({error.strerror})", got=repr(str(path)), remedy=remedy
        ) from error
