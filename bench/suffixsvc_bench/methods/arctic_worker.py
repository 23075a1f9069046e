"""Worker process that runs Arctic Inference's suffix decoding for :mod:`suffixsvc_bench.methods.arctic`.

Executed as a file by the Python of another environment: only that package, numpy and the standard library can
be imported. One JSON object per line in each direction:

    stdin                         stdout
    {"open": {"depth": .., "k": .., "factor": .., "tree": ..}}
                                  {"version": ..}
    {"begin": [prompt token ids]}
    {"draft": true}               {"token_ids": [..], "parents": [..], "probs": [..], "seconds": s}
    {"accept": [token ids]}
    {"end": true}
    {"memory": true}              {"bytes": n}

"seconds" is the time of the draft and of the preceding append inside the package. Each call is a request, as
in vLLM's proposer; the output of a request stays in the global tree. The process ends with its stdin.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import metadata
from typing import Any

import numpy as np


class Requests:
    """Requests to a suffix decoding cache as vLLM's proposer makes them, with the time inside the cache.

    Args:
        cache: Arctic's class, or one with its interface.
        depth: tokens of the context that are passed to it.
        width: most drafted tokens.
        options: further arguments of ``speculate``.
    """

    def __init__(self, cache: Any, depth: int, width: int, **options: Any) -> None:
        self._cache, self._depth = cache, depth
        self._options = {"max_spec_tokens": width, **options}
        self._number = -1
        self._context = np.empty(0, np.int32)
        self._seconds = 0.0

    def begin(self, prompt: Any) -> None:
        """Start a request."""
        self._number += 1
        self._cache.start_request(self._number, prompt)
        self._context = np.ascontiguousarray(prompt[-self._depth :])
        self._seconds = 0.0

    def draft(self) -> dict[str, Any]:
        """Draft: token ids, parents, path probabilities, seconds of the draft and the preceding append."""
        started = time.perf_counter()
        draft = self._cache.speculate(self._number, self._context, **self._options)
        seconds = self._seconds + time.perf_counter() - started
        self._seconds = 0.0
        tokens = {"token_ids": draft.token_ids, "parents": draft.parents, "probs": draft.probs}
        return tokens | {"seconds": seconds}

    def accept(self, new: Any) -> None:
        """Append tokens to the answer."""
        started = time.perf_counter()
        self._cache.add_active_response(self._number, new)
        self._seconds += time.perf_counter() - started
        self._context = np.ascontiguousarray(np.concatenate([self._context, new])[-self._depth :])

    def end(self) -> None:
        """End the request; its output stays in the cache."""
        self._cache.stop_request(self._number)


def main() -> None:
    """Answer requests until standard input ends."""
    from arctic_inference.suffix_decoding import SuffixDecodingCache  # noqa: PLC0415 - of another environment

    def reply(message: object) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    setup = json.loads(sys.stdin.readline())["open"]
    options = {"max_spec_factor": float(setup["factor"]), "use_tree_spec": bool(setup["tree"])}
    cache = SuffixDecodingCache(max_tree_depth=setup["depth"])
    requests = Requests(cache, setup["depth"], setup["k"], **options)
    try:
        reply({"version": metadata.version("arctic-inference")})
    except metadata.PackageNotFoundError:
        reply({"version": ""})
    for line in sys.stdin:
        message = json.loads(line)
        if "draft" in message:
            reply(requests.draft())
        elif "accept" in message:
            requests.accept(np.array(message["accept"], np.int32))
        elif "begin" in message:
            requests.begin(np.array(message["begin"], np.int32))
        elif "end" in message:
            requests.end()
        else:
            reply({"bytes": cache._global_tree.estimate_memory()})


if __name__ == "__main__":
    main()
