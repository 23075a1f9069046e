"""A draft model that looks at what memory suggests: the same drafts in fewer passes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from suffixsvc_driver.drafts.chain import common_prefix
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient
from suffixsvc_driver.workers.server.engine import DraftEngine, DraftRequest, Job
from suffixsvc_driver.workers.server.servicer import DraftWorkerServer, WorkerSettings
from support.tiny_kinds import write_tiny_lfm2, write_tiny_mamba
from support.worker_parts import draft_alone

SETTINGS = ContextSettings(
    context_size=512, slots=2, threads=1, max_width=17, flash_attention=False, kv_type="f32"
)
PATIENT = 300.0


@pytest.fixture
def checking(tiny_model: Path) -> Iterator[DraftEngine]:
    engine = DraftEngine(tiny_model, SETTINGS)
    yield engine
    engine.close()


class Passes:
    """Counts what a draft engine computes."""

    def __init__(self, engine: DraftEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("decode_part", "decode_each"):
            monkeypatch.setattr(engine.context, name, self._counted(getattr(engine.context, name)))

    def _counted(self, compute: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object) -> object:
            self.count += 1
            return compute(*args)

        return counted


def test_suggestions_change_nothing_but_the_passes(
    checking: DraftEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right, wrong, partly right and no suggestions; sessions continue after their drafts."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    passes = Passes(checking, monkeypatch)
    saved = 0
    for case in range(60):
        text = [rng.randrange(5, 200) for _ in range(rng.randrange(1, 30))]
        wanted, p_min = rng.randrange(0, 14), rng.choice([0.0, 0.0, 0.02])
        plain = draft_alone(checking, DraftRequest(f"plain{case}", 0, text, wanted, p_min))
        right = rng.randrange(0, len(plain) + 1)
        noise = [rng.randrange(-3, checking.model.vocab_size + 9) for _ in range(rng.randrange(0, 25))]
        suggested = [*plain.token_ids.tolist()[:right], *noise]
        draft_alone(checking, DraftRequest(f"s{case}", 0, text, 0))  # what is left is drafting
        before = passes.count
        draft = draft_alone(
            checking, DraftRequest(f"s{case}", len(text), [], wanted, p_min, suggested=suggested)
        )
        assert draft.token_ids.tolist() == plain.token_ids.tolist()
        assert draft.probs.tolist() == pytest.approx(plain.probs.tolist(), rel=1e-3)
        agreed = min(common_prefix(draft.token_ids.tolist(), suggested), checking.checks)
        stopped = 1 if p_min and len(draft) < wanted else 0
        assert passes.count - before <= max(1, len(draft) - agreed) + stopped
        saved += len(draft) - (passes.count - before)
        kept = rng.randrange(0, len(draft) + 1)
        more = [*draft.token_ids.tolist()[:kept], rng.randrange(5, 200)]
        after = draft_alone(checking, DraftRequest(f"s{case}", len(text), more, 5))
        fresh = draft_alone(checking, DraftRequest(f"fresh{case}", 0, [*text, *more], 5))
        assert after.token_ids.tolist() == fresh.token_ids.tolist()
    assert saved > 50


def test_several_sessions_hinted_draft_what_each_would_alone(tiny_model: Path) -> None:
    settings = replace(SETTINGS, slots=4)
    engine = DraftEngine(tiny_model, settings, batch_width=3)
    texts = [[70, 71, 72], [80, 81], [90, 91, 92, 93]]
    alone = [draft_alone(engine, DraftRequest(f"alone{i}", 0, text, 8)) for i, text in enumerate(texts)]
    jobs: list[Job] = []
    for i, text in enumerate(texts):
        suggested = [[], alone[1].token_ids.tolist()[:3], [7, 7, 7]][i]
        taken = [job.sequence.index for job in jobs]
        job = engine.begin(DraftRequest(f"with{i}", 0, text, 8, suggested=suggested), taken)
        assert job is not None
        jobs.append(job)
    for job in jobs:
        while job.to_prefill:
            engine.prefill(job)
    while any(not job.done for job in jobs):
        engine.step([job for job in jobs if not job.done])
    assert [job.draft.token_ids.tolist() for job in jobs] == [d.token_ids.tolist() for d in alone]
    engine.close()


@pytest.mark.parametrize("width", [1, 17])
def test_a_worker_says_whether_it_checks(
    tiny_model: Path, tiny_target: LlamaTarget, socket_path: str, width: int
) -> None:
    engine = DraftEngine(tiny_model, replace(SETTINGS, max_width=width))
    server = DraftWorkerServer(engine, f"unix:{socket_path}", WorkerSettings(busy_after_seconds=PATIENT))
    server.start()
    with DraftWorkerClient(server.address) as client:
        layer = DraftModelLayer(client, tiny_target.model.vocabulary)
        assert layer.spec.max_suggested == width - 1
        assert layer.spec.seconds_per_read_token == client.describe().seconds_per_read_token
    server.stop()
    engine.close()


def test_a_cut_that_fails_after_all_ends_the_draft(
    checking: DraftEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was drafted by then is right; the text is read again."""
    plain = draft_alone(checking, DraftRequest("a", 0, [70, 71, 72], 8)).token_ids.tolist()
    checking.forget("a")
    job = checking.begin(DraftRequest("b", 0, [70, 71, 72], 8, suggested=[*plain[:3], plain[3] + 1]))
    assert job is not None
    while job.to_prefill:
        checking.prefill(job)
    with monkeypatch.context() as broken:
        broken.setattr(checking.context, "try_cut", lambda slot, keep: keep == 0)
        checking.step([job])
    while job.to_prefill:
        checking.prefill(job)
    assert job.done
    assert job.draft.token_ids.tolist() == plain[:4]


def test_a_hybrid_model_drafts_for_the_text_it_is_sent(tmp_path: Path) -> None:
    """Its state cannot go back before the last batch: what it wrote itself and was not taken is read anew."""
    path = write_tiny_lfm2(tmp_path / "lfm2.gguf")
    engine, fresh = (DraftEngine(path, SETTINGS) for _ in range(2))
    rng = random.Random(7)
    for case in range(40):
        text = [rng.randrange(5, 200) for _ in range(rng.randrange(1, 6))]
        draft = draft_alone(engine, DraftRequest(f"{case}", 0, text, rng.randrange(0, 5))).token_ids.tolist()
        keep = rng.randrange(0, len(draft) + 1)
        more = [*draft[:keep], *(rng.randrange(5, 200) for _ in range(rng.randrange(1, 3)))]
        got = draft_alone(engine, DraftRequest(f"{case}", len(text), more, 3))
        expected = draft_alone(fresh, DraftRequest(f"{case}", 0, [*text, *more], 3))
        assert got.token_ids.tolist() == expected.token_ids.tolist()
        fresh.forget(f"{case}")
    engine.close()
    fresh.close()


def test_a_state_that_cannot_be_cut_is_not_suggested_to(tmp_path: Path) -> None:
    engine = DraftEngine(write_tiny_mamba(tmp_path / "mamba.gguf"), SETTINGS)
    assert engine.checks == 0
    plain = draft_alone(engine, DraftRequest("a", 0, [70, 71], 4))
    hinted = draft_alone(engine, DraftRequest("b", 0, [70, 71], 4, suggested=[1, 2, 3]))
    assert hinted.token_ids.tolist() == plain.token_ids.tolist()
    engine.close()


def test_suggestions_over_the_wire(
    checking: DraftEngine, socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = DraftWorkerServer(checking, f"unix:{socket_path}", WorkerSettings(busy_after_seconds=PATIENT))
    server.start()
    passes = Passes(checking, monkeypatch)
    with DraftWorkerClient(server.address) as client:
        plain, hinted = client.open_session(p_min=0.0), client.open_session(p_min=0.0)
        plain.set_text([70, 71, 72])
        hinted.set_text([70, 71, 72])
        first = plain.draft(8, PATIENT)
        continued = plain.draft(4, PATIENT, first.token_ids.tolist())
        before = passes.count
        again = hinted.draft(8, PATIENT, (), first.token_ids.tolist())
        assert passes.count - before <= 2, "the text, where no other session had it, and one pass"
        assert again.token_ids.tolist() == first.token_ids.tolist()
        more = hinted.draft(4, PATIENT, first.token_ids.tolist(), [*continued.token_ids.tolist()[:2], 9999])
        assert more.token_ids.tolist() == continued.token_ids.tolist()
        assert hinted.failures == 0
    server.stop()
