"""What a build makes of which logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from suffixsvc.config import validate_namespace
from suffixsvc.errors import InvalidConfigError
from suffixsvc_caches.building.lookup_caches import LookupSpec, output_paths
from suffixsvc_caches.logs import ReadOptions
from suffixsvc_caches.tokenizers import TokenizerSource

__all__ = ["BuildSpec", "CorpusTarget"]


@dataclass(frozen=True, slots=True)
class CorpusTarget:
    """Where a corpus goes.

    Attributes:
        namespace: path of the namespace.
        data: a data folder, created where there is none; or None.
        server: address of a running service; or "".
        add: put it beside what the namespace already holds.
    """

    namespace: str
    data: Path | None = None
    server: str = ""
    add: bool = False

    def __post_init__(self) -> None:
        validate_namespace(self.namespace)
        if (self.data is None) == (not self.server):
            raise InvalidConfigError(
                "a corpus goes to one place", expected="a data folder or a server", got="both or none"
            )

    @property
    def place(self) -> str:
        """In words."""
        return str(self.data or self.server)


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """A build.

    Attributes:
        logs: files and folders.
        reading: how to read them.
        tokenizer: for texts; None for logs of token ids.
        static, dynamic, corpus: what to make; one at least.
        context_tokens: tokens of a call's prompt that n-grams may begin in.
        dedupe: equal responses count once.
        workers, memory_bytes, checkpoint_seconds: see ``CountOptions``.
        work: folder for what is not finished, removed at the end; None: beside the first output.
        force: replace files that exist.
        engine: "local", or "ray" for a cluster.
    """

    logs: Sequence[Path]
    reading: ReadOptions = field(default_factory=ReadOptions)
    tokenizer: TokenizerSource | None = None
    static: LookupSpec | None = None
    dynamic: LookupSpec | None = None
    corpus: CorpusTarget | None = None
    context_tokens: int = 0
    dedupe: bool = False
    workers: int = 1
    memory_bytes: int = 2 << 30
    checkpoint_seconds: float = 60.0
    work: Path | None = None
    force: bool = False
    engine: str = "local"

    @property
    def cache_paths(self) -> list[Path]:
        """The lookup caches to be written."""
        return [each.path for each in (self.static, self.dynamic) if each is not None]

    def __post_init__(self) -> None:
        if not (self.static or self.dynamic or self.corpus):
            raise InvalidConfigError(
                "there is nothing to build",
                expected="a static cache, a dynamic cache or a corpus",
                remedy="Give --lookup-static, --lookup-dynamic, --data or --server.",
            )
        output_paths((self.static, self.dynamic))
        if not self.logs:
            raise InvalidConfigError("there is no log to build from", expected="files or folders")
        if self.engine not in ("local", "ray"):
            raise InvalidConfigError("no such engine", expected="local or ray", got=self.engine)
