"""What the benchmark of building caches measures."""

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
        sections: of :data:`SECTIONS`.
        tokens: made up, to count.
        memory_tokens: made up, to count in ``memories``.
        memories: bytes, each a build.
        records: n-grams to export, about.
        text_bytes: of the text that is tokenised.
        text: the text; None: source code of Python's standard library.
        logs: to hold a part of out; token ids, or texts of the first of ``tokenizers``.
        tokenizers: tokenizer.json or GGUF files, to build from texts with.
        llama_bin: folder with llama-lookup-create; None leaves the comparison out.
        target: its model, a GGUF.
        rounds: of the comparison, each a turn of either program.
        seed: of the texts made up.
        folder: to work below; None: where temporary files go.
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
            raise InvalidInputError("no such section", expected=" | ".join(SECTIONS), got=unknown[0])
        if min(self.tokens, self.memory_tokens, self.records, self.text_bytes) < 1000 or self.rounds < 1:
            raise InvalidInputError("that is too little to measure", expected="1000 or more, 1 round or more")
        if (self.llama_bin is None) != (self.target is None):
            raise InvalidInputError(
                "the comparison with llama-lookup-create needs programs and a model",
                expected="--llama-bin DIR and --target GGUF, or neither",
            )
        for path in (*self.logs, *self.tokenizers, *filter(None, (self.text, self.target, self.program))):
            if not path.is_file():
                raise InvalidInputError(f"there is no file {path}")

    @property
    def program(self) -> Path | None:
        """What is compared with."""
        return self.llama_bin / "llama-lookup-create" if self.llama_bin else None
