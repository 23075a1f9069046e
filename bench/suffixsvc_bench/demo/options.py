"""Options of ``suffixsvc demo``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suffixsvc.verb_options import option
from suffixsvc_models.load_options import LoadOptions


@dataclass(frozen=True, slots=True)
class DemoOptions(LoadOptions):
    """The options of the verb."""

    small: bool = option(
        False,
        "--small",
        help="Use the small model (98 MB to download) without a draft model; not with --target or --draft.",
    )
    quick: bool = option(False, "--quick", help="Run fewer questions, in less than 4 minutes.")
    record: Path | None = option(
        None, metavar="FILE", help="Write every call as a line of JSON to this file (.gz is compressed)."
    )
    report: Path = option(Path("report.html"), metavar="FILE", help="HTML report.")
    target: str | None = option(
        None, metavar="MODEL", help="Target model: a GGUF or a name of `models list`."
    )
    draft: str | None = option(None, metavar="MODEL", help="Draft model with the same vocabulary.")
    threads: int | None = option(None, min=1, help="Threads of the model. Default: one per physical core.")
    questions: int | None = option(
        None, min=1, max=6, help="Questions in each of the two passes. Default: 6, with --quick 2."
    )
    context: int = option(
        2048, min=1024, metavar="TOKENS", help="Context size of a prompt and its answer together."
    )

    @property
    def questions_per_pass(self) -> int:
        """Number of questions in each pass."""
        return self.questions or (2 if self.quick else 6)
