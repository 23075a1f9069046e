"""Runner of the index benchmark: fills one index per kind of text and measures it at each size."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc.types import TokenArray
from suffixsvc_bench.index import measure
from suffixsvc_bench.index.holds import measure_holds
from suffixsvc_bench.index.peer import ArcticTree
from suffixsvc_bench.index.restart import measure_restarts
from suffixsvc_bench.index.texts import KINDS, from_log, stream
from suffixsvc_bench.methods.arctic import find_python
from suffixsvc_bench.replay.logs import Encode
from suffixsvc_bench.report.provenance import provenance

__all__ = ["IndexBenchOptions", "run_index_bench"]

#: outputs added between two measurements; ours and the peer alternate in these blocks
_BLOCK: Final = 100
#: the peer's tree needs 120 to 240 bytes per token; larger sizes are measured without it
PEER_MAX_TOKENS: Final = 10_000_000

#: called with (current task, completed fraction of the run, 0..1)
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class IndexBenchOptions:
    """What to measure.

    Raises:
        InvalidInputError: an option is out of range, or a kind of text is unknown.
    """

    #: index sizes in tokens at which it is measured, ascending
    sizes: tuple[int, ...] = (1_000_000,)
    #: see :mod:`suffixsvc_bench.index.texts`; ``log`` adds its name
    kinds: tuple[str, ...] = tuple(KINDS)
    #: a recorded log, repeated under permuted token ids
    log: Path | None = None
    encode: Encode | None = None
    output_tokens: int = 500
    max_draft_tokens: int = 16
    #: outputs of each sort that are written token by token with a draft after each token
    step_outputs: int = 8
    #: outputs removed to time a removal
    removed_outputs: int = 100
    #: tokens of the prompt of the session that is opened
    prompt_tokens: int = 100_000
    seed: int = 1
    #: run the peer if it is installed
    peer: bool = True
    #: kind of text of the data folders of the restart measurement; "" = no restart measurement
    restart: str = ""
    #: parent of these folders; None: the default for temporary files
    folder: Path | None = None

    def __post_init__(self) -> None:
        if not self.sizes or list(self.sizes) != sorted(set(self.sizes)):
            raise InvalidInputError("--sizes must be ascending", expected="e.g. 1M,10M", got=str(self.sizes))
        smallest = self.output_tokens * max(self.removed_outputs, 1)
        if self.sizes[0] < smallest:
            raise InvalidInputError(f"--sizes must be at least {smallest} tokens", got=str(self.sizes[0]))
        if unknown := [k for k in (*self.kinds, self.restart or "random") if k not in KINDS]:
            raise InvalidInputError("--kind must be known", expected=" | ".join(KINDS), got=unknown[0])


def run_index_bench(options: IndexBenchOptions, progress: Progress | None = None) -> dict[str, Any]:
    """Measure every kind of text.

    Returns:
        JSON-able data: {"provenance", "options", "texts": {kind: {...}}, "restart"}. Each text has "sizes": a
        measurement per size; "growth": cumulative points of tokens, seconds and bytes; "removal": what
        remains of the smallest size while all of it is removed; "holds": longest hold times of the locks that
        steps wait for, at that size. Ours and the peer alternate in blocks of 100 outputs.
    """
    origin = provenance()
    python = find_python() if options.peer else None
    sources: dict[str, Callable[[int], Iterator[TokenArray]]] = {
        kind: lambda seed, kind=kind: stream(kind, options.output_tokens, seed)  # type: ignore[misc]  # a bound default
        for kind in options.kinds
    }
    if options.log is not None:
        log = options.log
        sources[log.name] = lambda seed: from_log(log, options.encode, seed)
        next(sources[log.name](options.seed))  # an empty log fails before the long run
    texts: dict[str, Any] = {}
    parts = len(sources) + bool(options.restart)
    for i, (name, source) in enumerate(sources.items()):

        def notify(what: str, share: float, i: int = i, name: str = name) -> None:
            if progress is not None:
                progress(f"{name}: {what}", (i + share) / parts)

        texts[name] = _Text(options, source, python, notify).run()
    restart = None
    if options.restart:
        restart = measure_restarts(
            options.sizes,
            options.restart,
            options.output_tokens,
            options.seed,
            options.folder,
            lambda what, share: progress(what, (len(sources) + share) / parts) if progress else None,
        )
    described = asdict(options) | {
        "sizes": list(options.sizes),
        "kinds": list(options.kinds),
        "log": str(options.log) if options.log else None,
        "encode": None,
        "folder": None,
    }
    return {
        "provenance": origin.as_dict(),
        "options": described,
        "peer": "arctic suffix tree" if python else None,
        "texts": texts,
        "restart": restart,
    }


class _Text:
    """Measurements of one kind of text."""

    def __init__(
        self,
        options: IndexBenchOptions,
        source: Callable[[int], Iterator[TokenArray]],
        python: str | None,
        notify: Progress,
    ) -> None:
        self._options = options
        self._python = python
        self._notify = notify
        self._source = source
        self._outputs = source(options.seed)
        self._first_outputs: list[TokenArray] = []  # removed and written again
        self._growth: list[dict[str, float]] = []

    def run(self) -> dict[str, Any]:
        options = self._options
        # the generator's tables are allocated before memory is measured
        self._outputs = itertools.chain([next(self._outputs)], self._outputs)
        ours = measure.MeasuredIndex()
        peer: ArcticTree | None = None
        try:
            if self._python is not None:
                peer = ArcticTree(self._python, depth=24)
            sizes = []
            for size in options.sizes:
                with_peer = peer if size <= PEER_MAX_TOKENS else None
                sizes.append(self._fill(ours, with_peer, size) | self._at(ours, with_peer, size))
        finally:
            if peer is not None:
                peer.close()
        bytes_empty = measure.MeasuredIndex().bytes
        ours.close()
        self._notify("removing all outputs", 0.97)
        removal = self._remove_all(bytes_empty)
        self._notify("hold times of locks", 0.99)
        holds = measure_holds(self._outputs, options.sizes[0], options.folder)
        return {"sizes": sizes, "growth": self._growth, "removal": removal, "holds": holds}

    def _fill(self, ours: measure.MeasuredIndex, peer: ArcticTree | None, size: int) -> dict[str, Any]:
        """Add outputs until the index has ``size`` tokens; return the costs of this part."""
        before, seconds, peer_seconds, peer_bytes = ours.tokens, 0.0, 0.0, 0
        while ours.tokens < size:
            block = self._block(size - ours.tokens)
            self._first_outputs += block[: max(0, self._options.removed_outputs - len(self._first_outputs))]
            seconds += ours.add(block)
            if peer is not None:
                answer = peer.extend(block)
                peer_seconds += answer["seconds"]
                peer_bytes += answer["bytes"]
            apart = len(self._growth) < 1 or ours.tokens >= self._growth[-1]["tokens"] * 1.2
            if apart or ours.tokens >= size:
                self._growth.append({"tokens": ours.tokens, "seconds": ours.seconds, "bytes": ours.bytes})
            self._notify(f"{ours.tokens / 1e6:.1f}M tokens", ours.tokens / self._options.sizes[-1] * 0.95)
        added = ours.tokens - before
        result: dict[str, Any] = {
            "tokens": ours.tokens,
            "ingest_us_per_token": seconds / added * 1e6,
            "bytes_per_token": ours.bytes / ours.tokens,
            "resident_bytes_per_token": ours.resident / ours.tokens,
            "nodes_per_token": ours.nodes / ours.tokens,
        }
        if peer is not None:
            result["peer_ingest_us_per_token"] = peer_seconds / added * 1e6
            result["peer_resident_bytes_per_token"] = peer_bytes / added
            result["ingest_speedup"] = peer_seconds / seconds
        return result

    def _block(self, most_tokens: int) -> list[TokenArray]:
        """The next outputs, at most 100, until they have ``most_tokens`` tokens."""
        block: list[TokenArray] = []
        while len(block) < _BLOCK and most_tokens > 0:
            block.append(next(self._outputs))
            most_tokens -= len(block[-1])
        return block

    def _at(self, ours: measure.MeasuredIndex, peer: ArcticTree | None, size: int) -> dict[str, Any]:
        options = self._options
        self._notify(f"steps at {size / 1e6:g}M", size / options.sizes[-1] * 0.95)
        new = list(itertools.islice(self._outputs, options.step_outputs))
        known = self._first_outputs[: options.step_outputs]
        prompt = measure.concatenated(self._outputs, options.prompt_tokens)
        result: dict[str, Any] = {"steps": {}}
        for sort, outputs in (("new text", new), ("known text", known)):
            steps = measure.steps(ours.index, outputs, options.max_draft_tokens)
            if peer is not None:
                answer = peer.steps(outputs, options.max_draft_tokens)
                steps |= {f"peer {k}": measure.percentiles(v) for k, v in answer.items()}
            result["steps"][sort] = steps
        result["remove_ms_per_output"] = ours.remove_and_add(self._first_outputs) * 1e3
        result["open_ms"] = measure.open_session(ours.index, prompt) * 1e3
        if peer is not None:
            removed = peer.remove(len(self._first_outputs))
            result["peer_remove_ms_per_output"] = removed["seconds"] / len(self._first_outputs) * 1e3
            peer.extend(self._first_outputs)  # now the newest ones; the next size removes the oldest
            assert self._python is not None
            with ArcticTree(self._python, depth=64) as tree:
                result["peer_open_ms"] = tree.extend([prompt])["seconds"] * 1e3
        return result

    def _remove_all(self, bytes_empty: int) -> list[dict[str, float]]:
        """Bytes while the outputs of the smallest size are removed, the oldest first."""
        outputs = self._source(self._options.seed)
        size, tokens, block = self._options.sizes[0], 0, []
        for output in outputs:
            block.append(output)
            tokens += len(output)
            if tokens >= size:
                break
        index = measure.MeasuredIndex()
        index.add(block)
        points = []
        for tenth in range(11):
            if tenth:
                first, last = (len(block) * t // 10 for t in (tenth - 1, tenth))
                index.remove(block[first:last])
            points.append(
                {
                    "tokens": index.tokens,
                    "bytes": index.bytes,
                    "resident_bytes": index.resident,
                    "of_empty": index.bytes / bytes_empty,
                }
            )
        index.close()
        return points
