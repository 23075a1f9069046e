"""Runner of the index benchmark: fills one index per kind of text and measures it at each size."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from suffixsvc.types import TokenArray
from suffixsvc_bench.index.options import IndexBenchOptions
from suffixsvc_bench.index.parts import measure
from suffixsvc_bench.index.parts.holds import measure_holds
from suffixsvc_bench.index.parts.peer import ArcticTree
from suffixsvc_bench.index.parts.restart import measure_restarts
from suffixsvc_bench.index.texts import from_log, stream
from suffixsvc_bench.methods.arctic import find_python
from suffixsvc_bench.replay.inputs import encoder_of
from suffixsvc_bench.report.output import Report
from suffixsvc_bench.report.provenance import provenance
from suffixsvc_bench.report.statistics import percentiles

#: outputs added between two measurements; ours and the peer alternate in these blocks
_BLOCK: Final = 100
#: the peer's tree needs 120 to 240 bytes per token; larger sizes are measured without it
PEER_MAX_TOKENS: Final = 10_000_000


def run_index_bench(options: IndexBenchOptions, progress: Report = lambda *_: None) -> dict[str, Any]:
    """Measure every kind of text.

    Returns:
        JSON-able data: {"provenance", "options", "texts": {kind: {...}}, "restart"}. Each text has "sizes": a
        measurement per size; "growth": cumulative points of tokens, seconds and bytes; "removal": what
        remains of the smallest size while all of it is removed; "holds": longest hold times of the locks that
        steps wait for, at that size. Ours and the peer alternate in blocks of 100 outputs.
    """
    origin = provenance()
    python = find_python() if options.peer else None
    sources: dict[str, Callable[[], Iterator[TokenArray]]] = {
        kind: partial(stream, kind, options.output_tokens, options.seed) for kind in options.kinds
    }
    if options.log is not None:
        encode = encoder_of(options.tokenizer) if options.tokenizer else None
        sources[options.log.name] = partial(from_log, options.log, encode, options.seed)
        next(sources[options.log.name]())  # an empty log fails before the long run
    texts: dict[str, Any] = {}
    parts = len(sources) + options.restart
    for i, (name, source) in enumerate(sources.items()):

        def notify(what: str, share: float, i: int = i, name: str = name) -> None:
            progress(f"{name}: {what}", (i + share) / parts)

        texts[name] = _Text(options, source, python, notify).run()
    restart = None
    if options.restart:
        restart = measure_restarts(
            options.sizes,
            options.restart_kind,
            options.output_tokens,
            options.seed,
            options.folder,
            lambda what, share: progress(what, (len(sources) + share) / parts),
        )
    described: dict[str, Any] = json.loads(json.dumps(asdict(options), default=str))
    return {
        "provenance": origin.as_dict(),
        "options": described | {"restart": options.restart_kind, "folder": None, "report": None},
        "peer": "arctic suffix tree" if python else None,
        "texts": texts,
        "restart": restart,
    }


class _Text:
    """Measurements of one kind of text."""

    def __init__(
        self,
        options: IndexBenchOptions,
        source: Callable[[], Iterator[TokenArray]],
        python: str | None,
        notify: Report,
    ) -> None:
        self._options = options
        self._python = python
        self._notify = notify
        self._source = source
        self._outputs = source()
        self._first_outputs: list[TokenArray] = []  # removed and written again
        self._growth: list[dict[str, float]] = []

    def run(self) -> dict[str, Any]:
        options = self._options
        # the generator's tables are allocated before memory is measured
        self._outputs = itertools.chain([next(self._outputs)], self._outputs)
        ours = measure.MeasuredIndex()
        sizes = []
        with ExitStack() as stack:
            peer = stack.enter_context(ArcticTree(self._python, depth=24)) if self._python else None
            for size in options.sizes:
                with_peer = peer if size <= PEER_MAX_TOKENS else None
                sizes.append(self._fill(ours, with_peer, size) | self._at(ours, with_peer, size))
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
            "nodes_per_token": ours.namespace.index.stats().nodes / ours.tokens,
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
            steps = measure.steps(ours.namespace, outputs, options.max_draft_tokens)
            if peer is not None:
                answer = peer.steps(outputs, options.max_draft_tokens)
                steps |= {f"peer {k}_us": percentiles(v) for k, v in answer.items()}
            result["steps"][sort] = steps
        seconds = ours.remove(self._first_outputs) / len(self._first_outputs)
        ours.add(self._first_outputs)
        result["remove_ms_per_output"] = seconds * 1e3
        result["open_ms"] = measure.open_session(ours.namespace, prompt) * 1e3
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
        outputs, tokens, block = self._source(), 0, []
        while tokens < self._options.sizes[0]:
            block.append(next(outputs))
            tokens += len(block[-1])
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
