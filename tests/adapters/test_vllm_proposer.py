"""The proposer in vLLM's order of calls: rows that move, drafts in the buffer, steps that run past an end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import structlog

from suffixsvc import SuffixCache
from suffixsvc.errors import InvalidConfigError
from suffixsvc_adapters.vllm_proposer import SuffixProposer
from support.engine_parts import parts_of
from support.recorded_calls import Call
from support.serving import eventually, serving, socket_dir
from support.vllm_model_runner import END_OF_SEQUENCE, Rows, Sampling, as_recorded

LENGTH = 4096
VOCABULARY = 151_936


def config(drafted: int = 8, rows: int = 4, length: int = LENGTH, rank: int = 0, **own: Any) -> Any:
    """What of vLLM's configuration the proposer reads."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=drafted),
        model_config=SimpleNamespace(
            max_model_len=length,
            get_vocab_size=lambda: VOCABULARY,
            try_get_generation_config=lambda: {"eos_token_id": [END_OF_SEQUENCE, 151_643]},
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
        parallel_config=SimpleNamespace(rank=rank, tensor_parallel_size=2, prefill_context_parallel_size=2),
        additional_config={"suffixsvc": {"namespace": "vllm", **own}},
    )


def kept(folder: Path) -> list[tuple[int, ...]]:
    with SuffixCache(folder) as cache:
        cache.check()
        return sorted(
            tuple(stored.output.token_ids.tolist()) for stored in parts_of(cache).store.scan("vllm")
        )


@pytest.mark.parametrize("seed", range(3))
def test_every_output_is_kept_whole_however_the_rows_move(
    seed: int, recorded: list[Call], tmp_path: Path
) -> None:
    """Requests come and go, are read in chunks, swap rows and lose them. What is remembered at the end is
    exactly what vLLM returned, response by response: no token of a prompt, of a draft or of a neighbour, and
    none that a step sampled after the end of its response."""
    print("seed", seed)
    rng = random.Random(seed)
    calls = rng.sample(recorded, 24)
    proposer = SuffixProposer(config(data=str(tmp_path / "cache"), idle_seconds=3600.0))
    lengths: list[tuple[int, int]] = []

    def look(tokens: list[int], drafts: list[list[int]]) -> None:
        lengths.extend(zip(tokens, map(len, drafts), strict=True))

    rows = Rows(4, LENGTH, look)
    for call in calls:
        rows.add([call], prefill_steps=rng.randrange(1, 4))
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
    assert kept(tmp_path / "cache") == sorted(rows.texts)


def by_stop_token(call: Call) -> Sampling:
    """The response's last token is a stop token of the request."""
    return Sampling(eos_token_id=None, stop_token_ids=[7, call.response[-1]])


def by_max_tokens(call: Call) -> Sampling:
    """The end-of-sequence token is ignored."""
    return Sampling(eos_token_id=None, max_tokens=len(call.response))


@pytest.mark.parametrize("sampling", [as_recorded, by_stop_token, by_max_tokens])
def test_text_after_the_end_of_a_response_is_neither_kept_nor_drafted_nor_counted(
    sampling: Callable[[Call], Sampling], recorded: list[Call], tmp_path: Path
) -> None:
    """A step whose draft is accepted samples beyond the end, and vLLM's scheduler cuts afterwards. The
    proposer stored the surplus, drafted it for others and counted it as accepted: on vLLM 0.32.0, smollm2,
    82 of 100 outputs were longer than what was returned. Now an output is what was returned, and no draft
    goes beyond a token that ends the response."""
    calls = [call for call in recorded if call.response[-1] == END_OF_SEQUENCE][:8]
    if sampling is by_stop_token:
        calls = [call for call in calls if call.response[-1] not in call.response[:-1]]
    proposer = SuffixProposer(config(data=str(tmp_path / "cache")))
    drafts: list[list[int]] = []
    for _ in range(3):
        rows = Rows(4, LENGTH, lambda _, seen: drafts.extend(seen))
        rows.add(calls, sampling=sampling)
        while rows.step(proposer):
            pass
        assert sorted(rows.texts) == sorted(call.response for call in calls)
    proposer.close()
    assert kept(tmp_path / "cache") == sorted(3 * [call.response for call in calls])
    assert any(END_OF_SEQUENCE in draft for draft in drafts)
    if sampling is not by_max_tokens:
        assert not any(END_OF_SEQUENCE in draft[:-1] for draft in drafts)
    assert rows.rates.tokens == sum(len(call.response) for call in calls)


def test_accepted_tokens_are_tokens_that_were_returned(recorded: list[Call], tmp_path: Path) -> None:
    """On the real engine 320 tokens were counted as accepted where responses had 281. What the proposer
    counts is now what the engine accepted within the responses."""
    proposer = SuffixProposer(config(data=str(tmp_path / "cache")))
    accepted = 0
    for _ in range(2):
        rows = Rows(4, LENGTH)
        rows.write(recorded[:12], proposer)
        accepted += rows.rates.accepted
    proposer.close()
    assert proposer.stats.accepted == accepted


def test_no_draft_is_longer_than_what_max_tokens_leaves(recorded: list[Call]) -> None:
    """The step that verifies a draft writes one token more; beyond ``max_tokens`` it is computed in vain."""
    call = max(recorded, key=lambda call: len(call.response))
    proposer = SuffixProposer(config())
    seen: list[tuple[int, int]] = []
    for _ in range(2):
        rows = Rows(1, LENGTH, lambda tokens, drafts: seen.extend(zip(tokens, map(len, drafts), strict=True)))
        rows.add([call], sampling=by_max_tokens)
        while rows.step(proposer):
            pass
    proposer.close()
    end = len(call.prompt) + len(call.response)
    assert max(drafted for _, drafted in seen) == 8
    assert all(tokens + drafted < end for tokens, drafted in seen if drafted)


@pytest.mark.parametrize("lacks", ["requests", "sampling_params"])
def test_where_only_rows_are_known_the_models_ends_of_text_end_a_response(
    lacks: str, recorded: list[Call], tmp_path: Path
) -> None:
    """A vLLM whose runner has another layout: the generation config's end-of-sequence tokens are cut at, what
    ``max_tokens`` leaves is kept, and it is said once."""
    calls = [call for call in recorded if call.response[-1] == END_OF_SEQUENCE][:6]
    proposer = SuffixProposer(config(data=str(tmp_path / "cache")))
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            rows = Rows(2, LENGTH)
            rows.add(calls)
            if lacks == "requests":
                rows.requests = None
            else:
                for request in rows.waiting:
                    del request.sampling_params
            while rows.step(proposer):
                pass
    proposer.close()
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert "requests were not found" in logs[0]["event"]
    assert kept(tmp_path / "cache") == sorted(2 * [call.response for call in calls])


class OddCalls:
    """Calls the proposer with rows that no caller owns, in the steps that ``odd`` says, but for those in
    which a response ends: no later step could take in its last tokens."""

    def __init__(self, proposer: SuffixProposer, rows: Rows, odd: Callable[[int], bool]) -> None:
        self.proposer = proposer
        self.rows = rows
        self.odd = odd
        self.steps = self.odd_steps = 0

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        self.steps += 1
        ends = any(len(row.output_token_ids) >= len(row.call.response) for row in self.rows.rows)
        if self.odd(self.steps) and not ends:
            self.odd_steps += 1
            token_ids_cpu = token_ids_cpu.copy()
        return self.proposer.propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings)


def test_one_odd_call_does_not_make_the_requests_unknown_for_ever(
    recorded: list[Call], tmp_path: Path
) -> None:
    """After one call whose rows no caller owned, or in which a request was missing, the requests were never
    looked for again: for the life of the process ``max_tokens`` and stop tokens no longer ended an output.
    Now such a step has no drafts, and the next one takes in what it missed."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    calls = [
        Call(call.prompt, call.response[: rng.randrange(10, len(call.response))])
        for call in rng.sample(recorded, 24)
    ]
    proposer = SuffixProposer(config(data=str(tmp_path / "cache"), idle_seconds=3600.0))
    rows = Rows(4, LENGTH)
    odd = OddCalls(proposer, rows, lambda step: step == 2 or (step > 2 and rng.random() < 0.2))
    rows.add(calls, sampling=by_max_tokens)
    with structlog.testing.capture_logs() as logs:
        while rows.step(odd):
            pass
    proposer.close()
    assert odd.odd_steps > 3
    assert rows.rates.accepted > rows.rates.tokens / 5
    assert proposer.stats.failures == 0
    assert kept(tmp_path / "cache") == sorted(call.response for call in calls)
    assert [entry["event"] for entry in logs if "were not found" in entry["event"]] == [
        "vLLM's requests were not found: no drafts in this step"
    ]


def test_requests_that_are_found_later_go_on_where_their_rows_were(
    recorded: list[Call], tmp_path: Path
) -> None:
    """The rows of running responses alone, then their requests: each response is one output."""
    calls = [call for call in recorded if call.response[-1] == END_OF_SEQUENCE][:8]
    proposer = SuffixProposer(config(data=str(tmp_path / "cache"), idle_seconds=3600.0))
    rows = Rows(2, LENGTH)
    odd = OddCalls(proposer, rows, lambda step: step <= 5)
    rows.add(calls)
    with structlog.testing.capture_logs() as logs:
        while rows.step(odd):
            pass
        assert len(logs) == 1
        assert "only end-of-sequence tokens end outputs" in logs[0]["event"]
        sequences = proposer.tracker.stats.opened if proposer.tracker is not None else 0
        proposer.close()
    assert odd.odd_steps == 5
    assert sequences == len(calls)
    assert kept(tmp_path / "cache") == sorted(call.response for call in calls)


def test_an_output_is_kept_when_its_response_ends_not_when_the_process_does(recorded: list[Call]) -> None:
    """SIGTERM to vLLM's API server kills the engine's process at once. Outputs were kept after 60 s without a
    step, or at an end in order: 0 of 6 in an embedded folder. Now each is committed when its response ends,
    though nothing more is asked, and what runs is not touched."""
    proposer = SuffixProposer(config(idle_seconds=3600.0))
    assert proposer.tracker is not None
    rows = Rows(4, LENGTH)
    rows.add(recorded[:7])
    going = True
    while going:
        going = rows.step(proposer)
        proposer.tracker.flush()
        assert proposer.stats.closed == len(rows.texts)
    assert (proposer.stats.closed, proposer.stats.live) == (7, 0)
    proposer.close()


def test_a_request_that_is_aborted_is_kept_and_one_that_is_preempted_is_spared(
    recorded: list[Call], tmp_path: Path
) -> None:
    """Both leave the batch. The aborted one is over when vLLM lets go of it, though there are no more steps;
    the preempted one comes back and its output stays whole, however long that takes."""
    calls = sorted(recorded, key=lambda call: len(call.response))[-3:]
    proposer = SuffixProposer(config(data=str(tmp_path / "cache"), idle_seconds=0.05))
    rows = Rows(3, LENGTH)
    rows.add(calls)
    for _ in range(3):
        rows.step(proposer)
    rows.preempt(1)
    held = rows.waiting.popleft()
    rows.abort(0)
    (aborted,) = rows.texts
    assert 0 < len(aborted) < len(calls[0].response)
    while rows.step(proposer):  # the third one, to its end
        pass
    eventually(
        lambda: proposer.stats.closed == 2, "the thread keeps the aborted one: there are no more steps"
    )
    time.sleep(0.2)  # idle_seconds, several times
    assert (proposer.stats.closed, proposer.stats.live) == (2, 1)
    rows.waiting.append(held)
    while rows.step(proposer):
        pass
    proposer.close()
    assert proposer.stats.failures == 0
    assert kept(tmp_path / "cache") == sorted([aborted, calls[1].response, calls[2].response])


def test_preempted_requests_make_no_room_for_new_ones(recorded: list[Call], tmp_path: Path) -> None:
    """More requests than sequences are remembered, most of them preempted: the least recently used sequence
    was closed for a new request though vLLM goes on with it, and its output was kept in two parts."""
    calls = sorted(recorded, key=lambda call: len(call.response))[-8:]
    proposer = SuffixProposer(config(rows=1, data=str(tmp_path / "cache"), idle_seconds=3600.0))
    rows = Rows(1, LENGTH)
    held = []
    for call in calls:
        rows.add([call])
        for _ in range(3):
            rows.step(proposer)
        rows.preempt(0)
        held.append(rows.waiting.popleft())
    assert (proposer.stats.live, proposer.stats.closed) == (8, 0)
    for request in held:
        rows.waiting.append(request)
        while rows.step(proposer):
            pass
    proposer.close()
    assert kept(tmp_path / "cache") == sorted(call.response for call in calls)


def test_a_draft_exceeds_neither_the_models_length_nor_num_speculative_tokens() -> None:
    """vLLM does not cut drafts: its statistics would fail with more accepted tokens than the latter."""
    proposer = SuffixProposer(config(drafted=4, length=20, max_draft_tokens=16))
    seen: list[tuple[int, int]] = []
    rows = Rows(1, LENGTH, lambda tokens, drafts: seen.extend(zip(tokens, map(len, drafts), strict=True)))
    rows.write([Call((prompt,), tuple(range(1, 30))) for prompt in (90, 91)], proposer)
    proposer.close()
    assert max(drafted for _, drafted in seen) == 4
    assert max(tokens + drafted for tokens, drafted in seen if drafted) == 19


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
    assert proposer.propose(*fine)[0]  # later calls work
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
        assert cache.namespace("vllm").stats().tokens == sum(len(call.response) for call in recorded[:12])


def test_invalid_settings_keep_vllm_from_starting() -> None:
    with pytest.raises(InvalidConfigError, match="settings must be valid at namspace"):
        SuffixProposer(config(namspace="x"))
    wrong = config()
    wrong.additional_config = {"suffixsvc": "unix:/run/x"}
    with pytest.raises(InvalidConfigError, match="must be a mapping"):
        SuffixProposer(wrong)
    wrong.additional_config = object()  # a platform's own class: the environment rules
    SuffixProposer(wrong).close()
