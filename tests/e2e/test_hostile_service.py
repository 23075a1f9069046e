"""Thousands of hostile answers over a real socket never change what a model writes, bit for bit (form (c)).

10,000 of them in the long form, ``make reliability FULL=1``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.single import LlamaTarget
from support.hostile_service import hostile_service
from support.long_form import rounds
from support.targets import WIDTH_INDEPENDENT
from support.tiny_kinds import KINDS

ANSWERS = rounds(3_000, full=10_000)
#: almost free drafts, so that as many as possible are sent
CARELESS = CostCurve.linear(0.001, 32)
SAMPLINGS = [GREEDY, Sampling(temperature=1.0, top_k=40, seed=2)]


@pytest.mark.parametrize("kind", list(KINDS))
def test_no_answer_changes_the_output(tmp_path: Path, kind: str) -> None:
    seed = sum(map(ord, kind))
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    # the breaker stays closed: every answer must be checked
    config = ClientConfig(step_timeout_s=0.25, breaker_failures=1_000_000)
    accepted = generations = 0
    with (
        LlamaTarget(KINDS[kind](tmp_path / "tiny.gguf", seed=1), WIDTH_INDEPENDENT) as target,
        hostile_service(seed, target.vocab_size) as (service, address),
        SuffixClient(address, config=config) as client,
    ):
        while service.answers < ANSWERS / len(KINDS):
            prompt = rng.integers(0, 256, int(rng.integers(1, 60))).tolist()
            sampling = SAMPLINGS[generations % 2]
            plain = generate(target, prompt, max_tokens=150, sampling=sampling)
            service.truth = [*prompt, *plain.token_ids]
            for policy in ("expected-gain", "first-match") * 2:
                session = client.namespace("tests/tiny").open_session(prompt)
                drafted = generate(
                    target,
                    prompt,
                    DriverConfig(policy=policy),
                    [SuffixLayer(session)],
                    150,
                    sampling=sampling,
                    curve=CARELESS,
                    calibrator=Calibrator(),
                )
                session.close(commit=False)
                assert drafted.token_ids == plain.token_ids
                assert drafted.finish == plain.finish
                accepted += drafted.stats.accepted
            generations += 1
    assert accepted > service.answers / 10, "too few drafts were checked"
