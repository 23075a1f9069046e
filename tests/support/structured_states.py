"""States of structured output in tests."""

from __future__ import annotations

import numpy as np

from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.sampling.structured import Structured
from suffixsvc_driver.targets.single import LlamaTarget


def ids(target: LlamaTarget, text: str) -> list[int]:
    return target.model.tokenize(text, parse_special=False)


def after(target: LlamaTarget, value: Structured, text: str = "") -> Sampler:
    sampler = target.sampler(Sampling(grammar=value), [1])
    for token in ids(target, text):
        sampler.accept(token)
    return sampler


def permitted(target: LlamaTarget, sampler: Sampler) -> set[bytes]:
    found = np.flatnonzero(sampler.permitted(np.arange(target.vocab_size)))
    return {target.model.token_bytes(int(token)) for token in found}
