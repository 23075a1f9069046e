"""Preparation of the demo: choice of models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import suffixsvc_models as models
from suffixsvc.errors import InvalidConfigError, SuffixError

TARGET: Final = "qwen2.5-coder-1.5b"
DRAFT: Final = "qwen2.5-coder-0.5b"
SMALL: Final = "smollm2-135m"

#: downloads a model of the registry: name -> file
Download = Callable[[str], Path]
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ModelSelection:
    """Models of a run; None: no draft model."""

    name: str
    target: Path
    draft: Path | None


def choose_models(
    *, small: bool, target: str | None, draft: str | None, download: Download, notify: Notify
) -> ModelSelection:
    """Choose models by the options and by what can be downloaded.

    Args:
        small: the small model only.
        target, draft: a GGUF file or a registry name instead of the default pair. A named model is never
            substituted; a target without a draft runs without a draft model.
        download: downloads a registry model that is not stored.
        notify: called where the choice differs from the options.

    Raises:
        InvalidConfigError: ``small`` together with a named model.
        SuffixError: a named model, or even the small one, is unavailable.
    """
    if small and (target is not None or draft is not None):
        raise InvalidConfigError(
            "--small must not be given with --target or --draft",
            got="--small with --target or --draft",
            remedy=f"Leave --small out, or name the tiny model: --target {SMALL}.",
        )
    if target is not None or draft is not None:
        # the draft first: an invalid name fails before the large download
        draft_file = None if draft is None else model_file(draft, download)
        file = model_file(TARGET if target is None else target, download)
        return ModelSelection(TARGET if target is None else file.stem, file, draft_file)
    if not small:
        try:
            return ModelSelection(TARGET, model_file(TARGET, download), model_file(DRAFT, download))
        except SuffixError as error:
            notify(f"The large models are unavailable: {error}")
            notify(f"Using {SMALL} without a draft model instead (as SMALL=1 does).")
    return ModelSelection(SMALL, model_file(SMALL, download), None)


def model_file(what: str, download: Download) -> Path:
    """Path of a model: a GGUF file, or a registry name, downloaded if it is not stored.

    Raises:
        SuffixError: the model is unavailable.
    """
    if "/" in what or what.endswith(".gguf"):
        return models.resolve(what)
    try:
        return models.path(what)
    except SuffixError:
        return download(what)
