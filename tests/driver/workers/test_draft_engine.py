"""The draft engine, without gRPC, with a real (tiny) model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.errors import (
    AppendGap,
    InvalidInputError,
    InvalidTokensError,
    LimitExceededError,
    UnknownSessionError,
)
from suffixsvc.types import DraftSource
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_driver.workers.server.engine import DraftEngine, DraftRequest
from support.targets import talkative_prompt
from support.worker_parts import draft_alone

SETTINGS = ContextSettings(
    context_size=512, slots=2, threads=1, max_width=1, flash_attention=False, kv_type="f32"
)
PATIENT = 300.0


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[DraftEngine]:
    engine = DraftEngine(tiny_model, SETTINGS)
    yield engine
    engine.close()


def test_a_draft_is_what_the_model_would_write(engine: DraftEngine, tiny_target: LlamaTarget) -> None:
    prompt = talkative_prompt(tiny_target, 12)
    plain = generate(tiny_target, prompt, max_tokens=12).token_ids
    draft = draft_alone(engine, DraftRequest("s", 0, prompt, 12))
    assert tuple(draft.token_ids.tolist()) == plain[: len(draft)]
    assert len(draft) == 12
    assert set(draft.sources.tolist()) == {DraftSource.DRAFT_MODEL}
    assert ((draft.probs > 0) & (draft.probs <= 1)).all()
    # the target took three of them and wrote something else: only the difference travels
    again = draft_alone(engine, DraftRequest("s", len(prompt), [*plain[:3], 65], 5))
    with_context = generate(tiny_target, [*prompt, *plain[:3], 65], max_tokens=5).token_ids
    assert tuple(again.token_ids.tolist()) == with_context
    assert engine.length("s") == len(prompt) + 4


def test_p_min_cuts(engine: DraftEngine) -> None:
    whole = draft_alone(engine, DraftRequest("a", 0, [70, 71, 72], 20, p_min=0.0))
    least = float(np.sort(whole.probs)[len(whole) // 2])
    cut = draft_alone(engine, DraftRequest("b", 0, [70, 71, 72], 20, p_min=least))
    below = [i for i, p in enumerate(whole.probs.tolist()) if p < least]
    assert len(cut) == below[0]
    assert cut.token_ids.tolist() == whole.token_ids.tolist()[: len(cut)]


def test_bad_requests_change_nothing(engine: DraftEngine) -> None:
    draft_alone(engine, DraftRequest("s", 0, [1, 2, 3], 0))
    with pytest.raises(UnknownSessionError):
        draft_alone(engine, DraftRequest("other", 2, [1], 1))
    with pytest.raises(AppendGap):
        draft_alone(engine, DraftRequest("s", 4, [1], 1))
    with pytest.raises(InvalidTokensError):
        draft_alone(engine, DraftRequest("s", 3, [engine.model.vocab_size], 1))
    with pytest.raises(InvalidTokensError):
        draft_alone(engine, DraftRequest("s", 0, [], 1))
    with pytest.raises(InvalidInputError):
        draft_alone(engine, DraftRequest("s", 3, [1], 1, p_min=float("nan")))
    with pytest.raises(LimitExceededError):
        draft_alone(engine, DraftRequest("s", 3, [1] * 600, 1))
    assert engine.length("s") == 3
    engine.forget("s")
    engine.forget("s")
    assert engine.length("s") == 0


def computed(engine: DraftEngine, session: str, context: list[int], principal: str) -> int:
    """Tokens that a request of a new session has to compute before it drafts."""
    job = engine.begin(DraftRequest(session, 0, context, 1, principal=principal))
    assert job is not None
    tokens = job.to_prefill
    while not job.done:
        if job.to_prefill:
            engine.prefill(job)
        else:
            engine.step([job])
    return tokens


def test_kv_is_reused_within_one_principal_only(engine: DraftEngine) -> None:
    context = list(range(40, 80))
    assert computed(engine, "a1", context, "alice") == 39
    assert computed(engine, "b1", context, "bob") == 39
    assert computed(engine, "a2", [*context, 90], "alice") < 5
    engine.forget("a2")
    assert computed(engine, "a3", [*context, 91], "alice") < 5, "it stays for the principal"
    assert computed(engine, "n1", context, "") == 39
    engine.forget("n1")
    assert computed(engine, "n2", context, "") == 39, "it was freed"
