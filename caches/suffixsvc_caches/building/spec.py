"""Specification of a build: logs, outputs and options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from suffixsvc.config import validate_namespace
from suffixsvc.errors import InvalidConfigError
from suffixsvc_caches.building.lookup_caches import LookupCaches, LookupSpec
from suffixsvc_caches.logs import ReadOptions
from suffixsvc_caches.tokenizers.load import TokenizerSource


@dataclass(frozen=True, slots=True)
class CorpusTarget:
    """Destination of a corpus.

    Attributes:
        namespace: path of the namespace.
        data: a data folder, created if it does not exist; or None.
        server: address of a running service; or "".
        add: allow a namespace that has outputs.
    """

    namespace: str
    data: Path | None = None
    server: str = ""
    add: bool = False

    def __post_init__(self) -> None:
        validate_namespace(self.namespace)
        if (self.data is None) == (not self.server):
            raise InvalidConfigError(
                "a corpus must have either a data folder or a server", got="both or neither"
            )

    @property
    def place(self) -> str:
        """The data folder or the address, for messages."""
        return str(self.data or self.server)


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """Specification of a build.

    Attributes:
        logs: files and folders.
        reading: how to read them.
        tokenizer: for texts; None for logs of token ids.
        static, dynamic, corpus: outputs; at least one.
        context_tokens: prompt tokens, from the end, in which n-grams may begin.
        dedupe: count equal responses once.
        workers, memory_bytes, checkpoint_seconds: see ``CountOptions``.
        work: folder for intermediate files, removed at the end; None = beside the first output.
        force: replace existing files.
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
    def caches(self) -> LookupCaches:
        """The lookup caches to be written."""
        return LookupCaches(self.static, self.dynamic)

    def __post_init__(self) -> None:
        if not (self.static or self.dynamic or self.corpus):
            raise InvalidConfigError(
                "a build must have a static cache, a dynamic cache or a corpus",
                remedy="Give --lookup-static, --lookup-dynamic, --data or --server.",
            )
        _ = self.caches  # validates the paths
        if not self.logs:
            raise InvalidConfigError("logs must have at least one file or folder")
        if self.engine not in ("local", "ray"):
            raise InvalidConfigError("engine must be local or ray", got=self.engine)
