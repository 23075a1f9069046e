"""Preparation of the demo: its options, choice of models, and check that its output files can be written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import suffixsvc_models as models
from suffixsvc.errors import InvalidConfigError, SuffixError

__all__ = ["DemoOptions", "ModelSelection", "check_output_file", "choose_models", "model_file"]

TARGET: Final = "qwen2.5-coder-1.5b"
DRAFT: Final = "qwen2.5-coder-0.5b"
SMALL: Final = "smollm2-135m"

#: downloads a model of the registry: name -> file
Download = Callable[[str], Path]
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of the command line.

    Attributes:
        small: the small model, no draft model.
        quick: fewer questions and comparisons.
        record: file for a line of JSON per call; None: none.
        report: file of the HTML report.
        target, draft: models instead of the default ones.
        threads: of the target; None = one per physical core.
        context: tokens of an agent's prompt and answer together.
        questions: questions in each of the two passes; None = 6, or 2 if quick.
    """

    small: bool = False
    quick: bool = False
    record: Path | None = None
    report: Path = Path("report.html")
    target: str | None = None
    draft: str | None = None
    threads: int | None = None
    questions: int | None = None
    context: int = 2048

    @property
    def questions_per_pass(self) -> int:
        """Number of questions in each pass."""
        return self.questions or (2 if self.quick else 6)


@dataclass(frozen=True, slots=True)
class ModelSelection:
    """Models of a run. ``small``: the small model without a draft model."""

    name: str
    target: Path
    draft: Path | None
    small: bool


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
        return ModelSelection(
            TARGET if target is None else file.stem, file, draft_file, small=draft_file is None
        )
    if not small:
        try:
            return ModelSelection(
                TARGET, model_file(TARGET, download), model_file(DRAFT, download), small=False
            )
        except SuffixError as error:
            notify(f"The large models are unavailable: {error}")
            notify(f"Using {SMALL} without a draft model instead (as SMALL=1 does).")
    return ModelSelection(SMALL, model_file(SMALL, download), None, small=True)


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


def check_output_file(path: Path, option: str) -> None:
    """Check before the run that ``path`` can be written; the file itself is not changed.

    Raises:
        InvalidConfigError: it is a folder, its folder is missing, or it is not writable.
    """
    remedy = f"Name a file in a folder that exists and can be written: {option} FILE."
    if path.is_dir():
        raise InvalidConfigError(f"{option} must be a file", got=repr(str(path)), remedy=remedy)
    # the name of the file until it is complete
    draft = path.with_name(f".{path.name}.new")
    try:
        draft.open("ab").close()
        draft.unlink()
    except OSError as error:
        raise InvalidConfigError(
            f"{option} must be writable ({error.strerror})", got=repr(str(path)), remedy=remedy
        ) from error
