"""The proposer in vLLM's order of calls: rows that move, drafts in the buffer, requests without an end."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog
from suffixsvc_driver.adapters.examples.recorded_calls import Call
from suffixsvc_driver.adapters.examples.vllm_rows import Rows
from suffixsvc_driver.adapters.vllm_proposer import SuffixProposer
from support.serving import serving, socket_dir

from suffixsvc import SuffixCache
from suffixsvc.errors import InvalidConfigError

LENGTH = 4096
VOCABULARY = 151_936


def config(drafted: int = 8, rows: int = 4, length: int = LENGTH, rank: int = 0, **own: Any) -> Any:
    """What of vLLM's configuration the proposer reads."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=drafted),
        model_config=SimpleNamespace(max_model_len=length, get_vocab_size=lambda: VOCABULARY),
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
        parallel_config=SimpleNamespace(rank=rank, tensor_parallel_size=2, prefill_context_parallel_size=2),
        additional_config={"suffixsvc": {"namespace": "vllm", **own}},
    )


def kept(folder: Path) -> list[tuple[int, ...]]:
    with SuffixCache(folder) as cache:
        cache.check()
        return sorted(tuple(stored.output.token_ids.tolist()) for stored in cache._store.scan("vllm"))


@pytest.mark.parametrize("seed", range(3))
def test_every_output_is_kept_whole_however_the_rows_move(
    seed: int, recorded: list[Call], tmp_path: Path
) -> None:
    """Requests come and go, are read in chunks, swap rows and lose them. What is remembered at the end is
    exactly what was written: no token of a prompt, of a draft or of a neighbour is among it."""
    print("seed", seed)
    rng = random.Random(seed)
    calls = rng.sample(recorded, 24)
    proposer = SuffixProposer(config(data=str(tmp_path / "cache"), idle_seconds=3600.0))
    lengths: list[tuple[int, int]] = []

    def look(tokens: list[int], drafts: list[list[int]]) -> None:
        lengths.extend(zip(tokens, map(len, drafts), strict=True))

    rows = Rows(4, LENGTH, look)
    for call in calls:
        rows.add([call], steps_to_read=rng.randrange(1, 4))
    going = True
    while going:
        going = rows.step(proposer)
        if len(rows) > 1 and rng.random() < 0.3:
            rows.swap(rng.randrange(len(rows)), rng.randrange(len(rows)))
        if len(rows) and rng.random() < 0.1:
            rows.preempt(rng.randrange(len(rows)))
    proposer.close()
    assert proposer.stats.failures == 0
    assert sorted(rows.texts) == sorted(call.response for call in calls)
    assert max(drafted for _, drafted in lengths) == 8
    assert rows.rates.accepted > rows.rates.tokens / 3
    # two of the log's calls are one conversation: their outputs may have gone into one session
    joined = sorted(token for output in kept(tmp_path / "cache") for token in output)
    assert joined == sorted(token for call in calls for token in call.response)


def test_a_draft_never_goes_beyond_the_models_length() -> None:
    text = tuple(range(1, 30))
    proposer = SuffixProposer(config(length=20))
    seen: list[tuple[int, int]] = []
    rows = Rows(1, LENGTH, lambda tokens, drafts: seen.extend(zip(tokens, map(len, drafts), strict=True)))
    rows.write([Call((90, 91), text), Call((92, 93), text)], proposer)
    assert any(drafted for _, drafted in seen)
    assert all(tokens + drafted < 20 for tokens, drafted in seen if drafted)
    proposer.close()


def test_only_the_first_rank_of_a_group_drafts() -> None:
    """The scheduler takes the drafts of that rank; the others would remember everything several times."""
    passive = SuffixProposer(config(rank=3))
    rows = Rows(2, LENGTH)
    rows.write([Call((1, 2), (5, 6, 5, 6, 5, 6, 5, 6))] * 2, passive)
    assert (rows.rates.drafted, passive.tracker) == (0, None)
    passive.close()
    assert SuffixProposer(config(rank=4)).tracker is not None


def test_whatever_vllm_hands_over_nothing_is_raised() -> None:
    proposer = SuffixProposer(config())
    tokens = np.array([[1, 2, 1, 2, 1, 0, 0, 0]] * 2, np.int32)
    fine: tuple[Any, Any, Any] = ([[1], [1]], np.array([5, 5], np.int32), tokens)
    assert [len(draft) > 0 for draft in proposer.propose(*fine)] == [True, True]
    for sampled, lengths, buffer, expected in (
        ([[1], [1]], None, tokens, [[], []]),
        ([[1], [1]], np.array([5], np.int32), tokens, [[], []]),
        ([[1], []], np.array([5, 5], np.int32), "buffer", [[], []]),
        ([[1]], np.array([5], np.int32), -tokens, [[]]),
        ([[1]], np.array([9999], np.int32), tokens[:, :0], [[]]),
        ([[], []], np.array([0, 0], np.int32), tokens, [[], []]),
        ([], np.array([], np.int32), tokens, []),
        (None, None, None, []),
    ):
        with structlog.testing.capture_logs():
            assert proposer.propose(sampled, lengths, buffer, slot_mappings=7) == expected  # type: ignore[arg-type]
    assert proposer.propose(*fine)[0]  # and it goes on
    assert proposer.load_model(object()) is None
    proposer.close()
    assert proposer.propose(*fine) == [[], []]


def test_tokens_of_another_vocabulary_are_not_proposed(tmp_path: Path) -> None:
    """An id beyond the embedding table would be read as garbage on the GPU, or end the engine."""
    with SuffixCache(tmp_path / "cache") as cache:
        cache.namespace("vllm").add_output([11, 12, 13, VOCABULARY + 7, 15], prompt_token_ids=[1])
    proposer = SuffixProposer(config(data=str(tmp_path / "cache")))
    tokens = np.array([[3, 11, 12, 0, 0]], np.int32)
    assert proposer.propose([[12]], np.array([3], np.int32), tokens) == [[13]]
    proposer.close()


def test_rows_are_stepped_in_one_message_through_a_service(recorded: list[Call]) -> None:
    with (
        socket_dir() as folder,
        SuffixCache() as cache,
        serving(cache, f"unix:{folder}/s.sock") as (_, address),
    ):
        proposer = SuffixProposer(config(target=address, step_timeout_s=20.0))
        rows = Rows(4, LENGTH)
        rows.write(recorded[:12], proposer)
        proposer.close()
        assert proposer.stats.failures == 0
        assert rows.rates.accepted > rows.rates.tokens / 3
        total = sum(len(call.response) for call in recorded[:12])
        assert cache.namespace("vllm").stats().tokens == total


def test_settings_that_make_no_sense_keep_vllm_from_starting() -> None:
    with pytest.raises(InvalidConfigError, match="there is no setting 'namspace'"):
        SuffixProposer(config(namspace="x"))
    wrong = config()
    wrong.additional_config = {"suffixsvc": "unix:/run/x"}
    with pytest.raises(InvalidConfigError, match="no mapping"):
        SuffixProposer(wrong)
    wrong.additional_config = object()  # a platform's own class: the environment rules
    SuffixProposer(wrong).close()
