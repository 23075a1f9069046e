"""Options of ``suffixsvc bench build``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc.verb_options import option
from suffixsvc_caches.sizes import parse_count, parse_size

SECTIONS: Final = ("tokens", "text", "memory", "export", "pruning", "llama", "cluster")
#: shares of an unpruned cache's bytes
BUDGETS: Final = (0.5, 0.2, 0.1, 0.05)


def _count(default: str, name: str, help_: str) -> Any:
    parse: Callable[[str], int] = partial(parse_count, name=name, least=1000)
    return option(default, name, parse=parse, help=help_)


@dataclass(frozen=True, slots=True)
class BuildBenchOptions:
    """What to measure.

    Raises:
        InvalidInputError: an option is out of range, or a file does not exist.
    """

    sections: tuple[str, ...] = option(
        SECTIONS,
        "--section",
        help="Section to run: tokens, text, memory, export, pruning, llama or cluster. Repeatable. "
        "Default: all.",
    )
    tokens: int = _count("10M", "--tokens", "Synthetic tokens to count.")
    memory_tokens: int = _count("100M", "--memory-tokens", "Synthetic tokens to count under each --memory.")
    memories: tuple[int, ...] = option(
        ("1G", "512M"),
        "--memory",
        parse=partial(parse_size, what="--memory"),
        help="Memory limit of a build. Repeatable. Default: 1G and 512M.",
    )
    records: int = _count("10M", "--records", "Approximate number of n-grams to export.")
    logs: tuple[Path, ...] = option(
        (),
        help="Log whose last fifth is held out to evaluate pruned caches. Repeatable. Default: the log in "
        "tests/data, if it exists.",
    )
    tokenizers: tuple[Path, ...] = option(
        (),
        "--tokenizer",
        help="tokenizer.json or GGUF for builds from text; the first is also used for --logs. Repeatable.",
    )
    text: Path | None = option(
        None, help="Text to tokenise. Default: the source of Python's standard library."
    )
    text_bytes: int = _count("10M", "--text-size", "Number of characters of --text to use.")
    llama_bin: Path | None = option(None, help="Folder with llama-lookup-create for a comparison.")
    target: Path | None = option(None, help="GGUF for the comparison.")
    rounds: int = option(3, min=1, help="Rounds of the comparison.")
    seed: int = option(1, min=0, help="Seed of the synthetic texts.")
    folder: Path | None = option(
        None, help="Parent of the scratch folder (about 80 bytes per token, removed at the end)."
    )

    def __post_init__(self) -> None:
        if unknown := [each for each in self.sections if each not in SECTIONS]:
            raise InvalidInputError("section must be known", expected=" | ".join(SECTIONS), got=unknown[0])
        if (self.llama_bin is None) != (self.target is None):
            raise InvalidInputError("--llama-bin and --target must be given together or not at all")
        for path in (*self.logs, *self.tokenizers, *filter(None, (self.text, self.target, self.program))):
            if not path.is_file():
                raise InvalidInputError("input must be a file", got=str(path))

    @property
    def program(self) -> Path | None:
        """Path of llama-lookup-create; None without ``llama_bin``."""
        return self.llama_bin / "llama-lookup-create" if self.llama_bin else None
