"""``suffixsvc replay``: what it counts, and what it says of logs it cannot use."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixsvc.errors import InvalidInputError
from suffixsvc.types import Draft, DraftSource
from suffixsvc_bench.methods.base import Settings
from suffixsvc_bench.methods.ours import Ours
from suffixsvc_bench.replay import logs
from suffixsvc_bench.replay.logs import Call, read_calls
from suffixsvc_bench.replay.run import accepted_path, replay, replay_method
from support.command_line import run_verb

ROOT = Path(__file__).resolve().parents[2]
ANSWER = list(range(500, 560))


def call(prompt: list[int], response: list[int]) -> Call:
    return Call("agent", "s", np.array(prompt, np.int32), np.array(response, np.int32))


def write_log(path: Path, records: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(r) + "\n" for r in records)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def test_repeated_answers_are_suffix_tokens_and_copied_prompts_are_prompt_tokens() -> None:
    again = replay([call([i], ANSWER) for i in range(6)], 0.02)
    assert again["tokens"] == 6 * len(ANSWER)
    assert again["layers"]["suffix"]["tokens_accepted"] > 0.5
    assert again["layers"]["prompt"]["num_accepted"] == 0
    assert again["mean_accepted_tokens"] > 2

    rng = np.random.default_rng(1)
    copies = [[int(x) for x in rng.integers(0, 90_000, 60)] for _ in range(6)]
    copied = replay([call(c, c) for c in copies], 0.02)
    assert copied["layers"]["prompt"]["tokens_accepted"] > 0.5
    assert copied["layers"]["suffix"]["num_accepted"] == 0


def test_the_counts_add_up() -> None:
    rng = np.random.default_rng(2)
    calls = [call([1], [int(x) for x in rng.integers(0, 4, 50)]) for _ in range(20)]
    rates = replay(calls, 0.1)
    method = Ours(Settings(64, 0.1))
    result = replay_method(method, calls)
    method.close()
    assert result.tokens == 20 * 50
    assert result.accepted == sum(layer.num_accepted for layer in result.layers.values())
    assert result.drafted == sum(layer.num_drafted for layer in result.layers.values())
    cost = result.steps + 0.1 * result.drafted
    assert rates["priced_speedup"] == pytest.approx(result.tokens / cost)
    # Each step yields its accepted tokens and one more, except where the answer ended inside a draft.
    assert result.accepted + result.steps - 20 <= result.tokens <= result.accepted + result.steps
    assert replay(calls, 0.1)["steps"] == rates["steps"] == result.steps


def test_accepted_path_follows_the_tree() -> None:
    draft = Draft(
        np.array([1, 2, 3, 4, 5], np.int32),
        np.array([-1, -1, 1, 1, 3], np.int32),
        np.ones(5, np.float32),
        np.full(5, int(DraftSource.NAMESPACE), np.uint8),
        np.ones(5, np.int32),
    )
    assert accepted_path(draft, np.array([2, 4, 5, 6], np.int32)) == [1, 3, 4]
    assert accepted_path(draft, np.array([2, 4], np.int32)) == [1, 3]
    assert accepted_path(draft, np.array([9], np.int32)) == []


def test_logs_with_token_ids_and_with_texts_are_read(tmp_path: Path) -> None:
    ids = write_log(
        tmp_path / "a.jsonl.gz",
        [{"prompt_token_ids": [1], "response_token_ids": [2, 3], "agent": "x"}, {"response_token_ids": []}],
    )
    (only,) = read_calls(ids, None)
    assert (only.agent, only.prompt.tolist(), only.response.tolist()) == ("x", [1], [2, 3])
    texts = write_log(tmp_path / "b.jsonl", [{"prompt": "ab", "response": "cd"}])
    (only,) = read_calls(texts, lambda text: np.frombuffer(text.encode(), np.uint8).astype(np.int32))
    assert only.response.tolist() == [99, 100]
    with pytest.raises(InvalidInputError, match=r"line 1.*--tokenizer"):
        list(read_calls(texts, None))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"not json\n", "line 1"),
        (b"[1, 2]\n", "JSON object"),
        (b'{"prompt_token_ids": [1]}\n', "must have a field response_token_ids"),
        (b'{"response_token_ids": [-4]}\n', "-4"),
        (b'{"response_token_ids": "abc"}\n', "response_token_ids"),
        (b"\xff\xfe\n", "UTF-8"),
        (b"[" * 100_000, "must be JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    log = tmp_path / "bad.jsonl"
    log.write_bytes(content)
    with pytest.raises(InvalidInputError) as caught:
        list(read_calls(log, None))
    assert says in str(caught.value)
    assert str(log) in str(caught.value)


def test_the_projects_own_recording_has_hits_in_every_layer() -> None:
    """Recorded by the demo from a real pair of models: later calls are drafted from earlier ones."""
    calls = list(read_calls(ROOT / "tests/data/recorded_demo.jsonl.gz", None))
    assert len(calls) >= 40
    assert {call.agent for call in calls} == {"planner", "sql-writer", "reporter", "python-writer"}
    rates = replay(calls, 0.05)
    assert rates["tokens"] == sum(len(call.response) for call in calls)
    assert rates["layers"]["suffix"]["tokens_accepted"] > 0.1
    assert rates["layers"]["prompt"]["tokens_accepted"] > 0.1
    assert rates["priced_speedup"] > 1.5


def test_an_endless_line_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kilobytes of gzip were read as one line of any length."""
    monkeypatch.setattr(logs, "_MAX_LINE_CHARACTERS", 1000)
    path = tmp_path / "long.jsonl.gz"
    call = '{"response_token_ids": [1]}\n'
    with gzip.open(path, "wt") as file:
        file.write(call + '{"response": "' + "x" * 1_000_000)
    calls = read_calls(path, None)
    assert next(calls).response.tolist() == [1]
    with pytest.raises(InvalidInputError, match=r"long\.jsonl\.gz, line 2: the line must have at most 1,000"):
        next(calls)


def test_a_missing_or_torn_log_is_named(tmp_path: Path) -> None:
    # the message was "(line 0)" and "[Errno 2]"
    with pytest.raises(InvalidInputError, match=r"gone\.jsonl must exist; .*; got no such file$"):
        list(read_calls(tmp_path / "gone.jsonl", None))
    whole = write_log(tmp_path / "whole.jsonl.gz", [{"response_token_ids": list(range(500))}]).read_bytes()
    torn = tmp_path / "torn.jsonl.gz"
    torn.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInputError, match="torn"):
        list(read_calls(torn, None))
    damaged = tmp_path / "damaged.jsonl.gz"
    damaged.write_bytes(whole[:20] + b"\xff" * 40 + whole[60:])
    with pytest.raises(InvalidInputError, match="damaged"):
        list(read_calls(damaged, None))


def test_the_verb_prints_rates_for_people_and_machines(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", [{"response_token_ids": ANSWER, "agent": "sql"}] * 5)
    people = run_verb("replay", str(log))
    assert people.returncode == 0, people.stderr
    for word in ("prompt", "suffix", "MAT", "priced speedup", "suffixsvc 0."):
        assert word in people.stdout
    machine = run_verb("replay", str(log), "--json", "--cost", "0.01", "--tree")
    report = json.loads(machine.stdout)
    assert report["provenance"]["cores"] >= 1
    assert report["logs"][str(log)]["tokens"] == 5 * len(ANSWER)
    unknown = run_verb("replay", str(log), "--agent", "absent")
    assert unknown.returncode == 2
    assert "sql (5 calls)" in unknown.stderr
    curve = tmp_path / "curve.json"
    curve.write_text("[0, 1, NaN]")
    assert run_verb("replay", str(log), "--cost-curve", str(curve)).returncode == 2
    curve.write_text('{"something": [1]}')
    assert run_verb("replay", str(log), "--cost-curve", str(curve)).returncode == 2
    curve.write_text('{"curve": {"costs": [0, 1, 1.1, 1.2]}}')
    assert run_verb("replay", str(log), "--cost-curve", str(curve)).returncode == 0
    curve.write_text("[0, 1, 1.1, 1.2]")
    assert run_verb("replay", str(log), "--cost-curve", str(curve)).returncode == 0
