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

import json
import sys
import time
from importlib import metadata

import numpy as np
from arctic_inference.suffix_decoding import SuffixDecodingCache


def version() -> str:
    """Version of the package; "" if unknown."""
    try:
        return metadata.version("arctic-inference")
    except metadata.PackageNotFoundError:
        return ""


def main() -> None:
    """Answer requests until standard input ends."""

    def reply(message: object) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    setup = json.loads(sys.stdin.readline())["open"]
    depth, width = int(setup["depth"]), int(setup["k"])
    options = {"max_spec_factor": float(setup["factor"]), "use_tree_spec": bool(setup["tree"])}
    cache = SuffixDecodingCache(max_tree_depth=depth)
    reply({"version": version()})
    request = -1
    context = np.empty(0, np.int32)
    seconds = 0.0
    for line in sys.stdin:
        message = json.loads(line)
        if "draft" in message:
            started = time.perf_counter()
            draft = cache.speculate(request, context, max_spec_tokens=width, **options)
            seconds += time.perf_counter() - started
            tokens = {"token_ids": draft.token_ids, "parents": draft.parents, "probs": draft.probs}
            reply(tokens | {"seconds": seconds})
            seconds = 0.0
        elif "accept" in message:
            new = np.array(message["accept"], np.int32)
            started = time.perf_counter()
            cache.add_active_response(request, new)
            seconds += time.perf_counter() - started
            context = np.ascontiguousarray(np.concatenate([context, new])[-depth:])
        elif "begin" in message:
            request += 1
            prompt = np.array(message["begin"], np.int32)
            cache.start_request(request, prompt)
            context = np.ascontiguousarray(prompt[-depth:])
            seconds = 0.0
        elif "end" in message:
            cache.stop_request(request)
        else:
            reply({"bytes": cache._global_tree.estimate_memory()})


if __name__ == "__main__":
    main()
