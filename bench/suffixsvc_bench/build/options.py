"""Options of the benchmark of building caches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidInputError

__all__ = ["BUDGETS", "SECTIONS", "BuildBenchOptions"]

SECTIONS: Final = ("tokens", "text", "memory", "export", "pruning", "llama", "cluster")
#: shares of an unpruned cache's bytes
BUDGETS: Final = (0.5, 0.2, 0.1, 0.05)


@dataclass(frozen=True, slots=True)
class BuildBenchOptions:
    """What to measure.

    Attributes:
        sections: names from :data:`SECTIONS`.
        tokens: synthetic tokens to count.
        memory_tokens: synthetic tokens to count under each memory limit of ``memories``.
        memories: memory limits in bytes; one build each.
        records: approximate number of n-grams to export.
        text_bytes: size of the text to tokenise.
        text: the text; None: source code of Python's standard library.
        logs: logs of which a part is held out; token ids, or texts for the first of ``tokenizers``.
        tokenizers: tokenizer.json or GGUF files, for builds from text.
        llama_bin: folder with llama-lookup-create; None skips the comparison.
        target: GGUF model for llama-lookup-create.
        rounds: rounds of the comparison; each runs both programs once.
        seed: of the synthetic texts.
        folder: scratch folder; None: the default for temporary files.

    Raises:
        InvalidInputError: an option is out of range, or a file does not exist.
    """

    sections: tuple[str, ...] = SECTIONS
    tokens: int = 10_000_000
    memory_tokens: int = 100_000_000
    memories: tuple[int, ...] = (1 << 30, 512 << 20)
    records: int = 10_000_000
    text_bytes: int = 10_000_000
    text: Path | None = None
    logs: tuple[Path, ...] = ()
    tokenizers: tuple[Path, ...] = ()
    llama_bin: Path | None = None
    target: Path | None = None
    rounds: int = 3
    seed: int = 1
    folder: Path | None = None

    def __post_init__(self) -> None:
        if unknown := [each for each in self.sections if each not in SECTIONS]:
            raise InvalidInputError("section must be known", expected=" | ".join(SECTIONS), got=unknown[0])
        if min(self.tokens, self.memory_tokens, self.records, self.text_bytes) < 1000 or self.rounds < 1:
            raise InvalidInputError("sizes must be at least 1000, rounds at least 1")
        if (self.llama_bin is None) != (self.target is None):
            raise InvalidInputError("--llama-bin and --target must be given together or not at all")
        for path in (*self.logs, *self.tokenizers, *filter(None, (self.text, self.target, self.program))):
            if not path.is_file():
                raise InvalidInputError("input must be a file", got=str(path))

    @property
    def program(self) -> Path | None:
        """Path of llama-lookup-create; None without ``llama_bin``."""
        return self.llama_bin / "llama-lookup-create" if self.llama_bin else None
