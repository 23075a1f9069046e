"""Options of ``suffixsvc bench index``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suffixsvc.errors import InvalidInputError
from suffixsvc.verb_options import option
from suffixsvc_bench.index.kinds import KINDS
from suffixsvc_bench.replay.options import LOG_TOKENIZER
from suffixsvc_bench.report.output import require_file_path, require_folder
from suffixsvc_caches.sizes import parse_count


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(parse_count(part, "--sizes") for part in text.split(","))


@dataclass(frozen=True, slots=True)
class IndexBenchOptions:
    """What to measure.

    Raises:
        InvalidInputError: an option is out of range, or a kind of text is unknown.
    """

    #: ascending
    sizes: tuple[int, ...] = option(
        "1M",
        parse=_sizes,
        help="Comma-separated index sizes in tokens at which it is measured, e.g. 1M,10M,100M; at least 100 "
        "outputs.",
    )
    kinds: tuple[str, ...] = option(
        tuple(KINDS),
        "--kind",
        help="Kind of text: random, realistic or repetitive. Repeatable. Default: all.",
    )
    log: Path | None = option(
        None, help="Also use a recorded log, repeated under permuted token ids up to each size."
    )
    tokenizer: Path | None = option(None, help=LOG_TOKENIZER)
    output_tokens: int = option(500, min=1, help="Tokens of an output.")
    max_draft_tokens: int = option(16, "--max-draft", min=1, help="Maximum drafted tokens per step.")
    seed: int = option(1, min=0, help="Seed of the texts.")
    peer: bool = option(
        True, "--peer/--no-peer", help="Also run Arctic Inference's tree if it is installed (make peers)."
    )
    restart: bool = option(
        True,
        "--restart/--no-restart",
        help="Also fill a data folder of each size and open it in a new process.",
    )
    folder: Path | None = option(
        None, help="Parent of these folders (up to 100 bytes per token, removed at the end)."
    )
    report: Path | None = option(None, metavar="FILE", help="Write a self-contained HTML page with plots.")
    #: outputs of each sort that are written token by token with a draft after each token
    step_outputs: int = 8
    #: outputs removed to time a removal
    removed_outputs: int = 100
    #: tokens of the prompt of the session that is opened
    prompt_tokens: int = 100_000

    def __post_init__(self) -> None:
        if not self.sizes or list(self.sizes) != sorted(set(self.sizes)):
            raise InvalidInputError("--sizes must be ascending", expected="e.g. 1M,10M", got=str(self.sizes))
        smallest = self.output_tokens * max(self.removed_outputs, 1)
        if self.sizes[0] < smallest:
            raise InvalidInputError(f"--sizes must be at least {smallest} tokens", got=str(self.sizes[0]))
        if unknown := [kind for kind in self.kinds if kind not in KINDS]:
            raise InvalidInputError("--kind must be known", expected=" | ".join(KINDS), got=unknown[0])
        require_file_path(self.report)
        require_folder(self.folder)

    @property
    def restart_kind(self) -> str:
        """Kind of text of the data folders of the restart measurement; "" without it."""
        if not self.restart:
            return ""
        return "realistic" if "realistic" in self.kinds or not self.kinds else self.kinds[0]
