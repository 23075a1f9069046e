"""Double of SGLang's NGRAM worker, as far as a corpus sees it.

It makes the calls of ``NGRAMWorker.forward_batch_generation``: it collects the last tokens of each request,
gets trees from the corpus, verifies them (the parent of a node is the last ancestor in its mask), puts the
same tokens back, and names the requests that have left the batch. Prefill emits the first response token.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from suffixsvc_adapters.sglang_ngram import before_prepare_draft_tokens
from suffixsvc_adapters.tracking.tree_mask import PADDING
from support.recorded_calls import Call, HitRates

__all__ = ["NgramWorker"]

#: speculative_ngram_max_trie_depth: last tokens of a request that the corpus gets
_TRIE_DEPTH: Final = 18


class _Request:
    def __init__(self, rid: str, call: Call) -> None:
        self.rid = rid
        self.call = call
        self.origin_input_ids_unpadded = array("q", call.prompt)
        self.output_ids = array("q", call.response[:1])

    @property
    def finished(self) -> bool:
        return len(self.output_ids) == len(self.call.response)


class NgramWorker:
    """A worker that emits recorded responses. The plugin's hook sets ``ngram_corpus``.

    Args:
        width: ``speculative_num_draft_tokens``.
        topk: ``speculative_ngram_max_bfs_breadth``; 1 = chains.
        batch: largest number of requests in a batch.
    """

    def __init__(self, width: int = 12, topk: int = 10, batch: int = 4, vocab_size: int = 151_936) -> None:
        self.draft_token_num = width
        self.topk = topk
        self.max_trie_depth = _TRIE_DEPTH
        self.server_args = SimpleNamespace(tp_size=1, pp_size=1, max_running_requests=batch)
        self.model_runner = SimpleNamespace(model_config=SimpleNamespace(vocab_size=vocab_size))
        self.ngram_corpus: Any = None
        self.rates = HitRates()
        self.texts: list[tuple[int, ...]] = []
        self._batch = batch
        self._running: list[_Request] = []
        self._waiting: deque[_Request] = deque()
        self._previous: set[str] = set()
        self._count = 0

    def write(self, calls: Iterable[Call]) -> None:
        """Emit the responses of all calls."""
        for call in calls:
            self._count += 1
            self._waiting.append(_Request(f"r{self._count}", call))
        while self._waiting or self._running:
            self.step()

    def step(self) -> None:
        """Run one step of the batch."""
        while self._waiting and len(self._running) < self._batch:
            self._running.append(self._waiting.popleft())
        before_prepare_draft_tokens(self, SimpleNamespace(reqs=self._running))
        tails = [self._tail(request) for request in self._running]
        totals = [len(r.origin_input_ids_unpadded) + len(r.output_ids) for r in self._running]
        names = [request.rid for request in self._running]
        self.ngram_corpus.synchronize()
        tokens, mask = self.ngram_corpus.batch_get(names, tails, totals)
        width = self.draft_token_num
        if len(tokens) != len(names) * width:
            raise AssertionError("SGLang asserts that every tree is of full width")
        trees = zip(tokens.reshape(-1, width), mask.reshape(-1, width, width), strict=True)
        for request, (tree, ancestors) in zip(self._running, trees, strict=True):
            self._verify(request, tree, ancestors)
        self.ngram_corpus.batch_put(tails)
        departed = self._previous - set(names)
        if departed:
            self.ngram_corpus.erase_match_state(list(departed))
        self._previous = set(names)
        self.texts += [tuple(r.output_ids) for r in self._running if r.finished]
        self._running = [request for request in self._running if not request.finished]

    def _tail(self, request: _Request) -> list[int]:
        n = self.max_trie_depth
        return [*request.origin_input_ids_unpadded[-n:], *request.output_ids[-n:]][-n:]

    def _verify(self, request: _Request, tree: Any, ancestors: Any) -> None:
        order = np.arange(len(tree))
        parents = ((ancestors * (order < order[:, None])) * order).argmax(axis=1)  # of the root too: 0
        node, accepted = 0, 0
        response = request.call.response
        while len(request.output_ids) < len(response) - 1:
            token = response[len(request.output_ids)]
            children = [i for i in range(node + 1, len(tree)) if parents[i] == node and tree[i] == token]
            if not children:
                break
            node, accepted = children[0], accepted + 1
            request.output_ids.append(token)
        if not request.finished:
            request.output_ids.append(response[len(request.output_ids)])
            padding = np.count_nonzero((tree == PADDING) & (parents == 0))
            self.rates.count(len(tree) - 1 - int(padding), accepted)
