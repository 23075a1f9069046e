"""Log probabilities of emitted tokens: the log-softmax of the model's logits of their position.

They are raw: bias, penalties, temperature, cut-offs and grammars change which token is emitted, not its log
probability. vLLM (``raw_logprobs``) and llama-server report the same values by default.
"""

from __future__ import annotations

import math

import numpy as np

from suffixsvc.types import FloatArray
from suffixsvc_driver.drafts.events import TokenLogprobs
from suffixsvc_driver.sampling.settings import largest


def token_logprobs(logits: FloatArray, token: int, count: int) -> TokenLogprobs:
    """Return the log probabilities at a position.

    Args:
        logits: float32[n_vocab], as the model computed them.
        token: the emitted token.
        count: number of most probable tokens; fewer if the vocabulary has fewer.
    """
    most = float(logits.max())
    total = most + math.log(float(np.exp(logits - np.float32(most)).sum(dtype=np.float64)))
    ids = largest(logits, min(count, len(logits))) if count else np.empty(0, np.int64)
    ids = ids[np.argsort(-logits[ids], kind="stable")]
    top = (logits[ids].astype(np.float64) - total).astype(np.float32)
    return TokenLogprobs(float(logits[token]) - total, ids, top)
