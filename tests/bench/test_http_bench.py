"""`bench http`: comparison of answers, figures, and whole runs on a tiny model. Times are not asserted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from suffixsvc.errors import InvalidInputError, ServiceUnavailableError
from suffixsvc_bench.decode.figures import Ratio
from suffixsvc_bench.decode.workload.jobs import Job, Workload
from suffixsvc_bench.page.publish import publish
from suffixsvc_bench.serving.figures import best_mode, generation, overhead, whole
from suffixsvc_bench.serving.options import PARTS, HttpOptions, check_options
from suffixsvc_bench.serving.phases.agreement import Verdict, compare
from suffixsvc_bench.serving.phases.conversation import Conversation, Turn
from suffixsvc_bench.serving.phases.json_schema import schema_tasks
from suffixsvc_bench.serving.phases.one_client import WARMUP, run_one_client
from suffixsvc_bench.serving.phases.several_clients import after_all_began, groups_of
from suffixsvc_bench.serving.requirements import requirements_of
from suffixsvc_bench.serving.servers.client import HttpClient, Reply
from suffixsvc_bench.serving.servers.direct import DirectDriver
from suffixsvc_bench.serving.servers.idle import IdleWatch
from suffixsvc_bench.serving.tables import http_parts, idle_sentences
from suffixsvc_cli.bench import app
from suffixsvc_driver.decode.exactness import MAX_GAP
from suffixsvc_driver.targets.llama.context_settings import ContextSettings
from suffixsvc_driver.targets.single import LlamaTarget
from support.tiny_gguf import chain_of, write_tiny_chain, write_tiny_llama

TOKENS = 12


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectDriver]:
    """The driver on a model whose answers are noise; every byte is a token."""
    path = write_tiny_llama(tmp_path_factory.mktemp("noise") / "noise.gguf", seed=3, sharpness=0.3)
    settings = ContextSettings(context_size=256, slots=2, threads=1, kv_type="f32", flash_attention=False)
    with LlamaTarget(path, settings) as target:
        yield DirectDriver(target)


def reply(text: str, tokens: int = TOKENS, seconds: float = 1.0, **more: Any) -> Reply:
    chunks = more.pop("chunks", ((seconds / 2, 1), (seconds, len(text) - 1)))
    return Reply(text, tokens, 10, 0, seconds, chunks, first_text=text[:1], **more)


# -- comparison of answers


def test_answers_are_compared_with_the_drivers_tokens(noise: DirectDriver) -> None:
    """Any other token that is nearly as likely is a near-tie, any other one is a different answer."""
    job = Job("j", "a", tuple(b"Some prompt. "), TOKENS)
    own = noise.answer(job)
    assert own.tokens == len(own.token_ids) == TOKENS
    assert compare(noise, job, own.token_ids, own) is Verdict.SAME
    seen = set()
    for at in range(TOKENS):
        before = list(own.token_ids[:at])
        logits = noise.logits([*job.prompt_ids, *before])
        assert int(logits.argmax()) == own.token_ids[at]
        for other in range(ord("A"), ord("Z")):
            if other == own.token_ids[at]:
                continue
            text = (noise.bytes_of(before) + bytes([other]) + b"~").decode("utf-8", "replace")
            if "\ufffd" in text:  # bytes are tokens here, and noise is not always UTF-8
                continue
            verdict = compare(noise, job, own.token_ids, reply(text, at + 2))
            near = float(logits.max() - logits[other]) <= MAX_GAP
            seen.add(near)
            assert verdict is (Verdict.NEAR_TIE if near else Verdict.DIFFERENT)
    assert seen == {True, False}


def test_a_restarted_driver_has_no_prompt(noise: DirectDriver) -> None:
    """In none of its slots, as a new process of a server."""
    jobs = [Job(text, "a", tuple(f"{text}, some prompt. ".encode()), 2) for text in ("one", "two")]
    for job in jobs:
        noise.answer(job)
    assert all(noise.answer(job).cached_tokens for job in jobs)
    noise.restart()
    assert not any(noise.answer(job).cached_tokens for job in jobs)


def test_an_answer_that_ends_early_is_compared_by_the_end_token(noise: DirectDriver) -> None:
    job = Job("j", "a", tuple(b"Some prompt. "), TOKENS)
    own = noise.answer(job)
    text = own.text.rstrip("\ufffd")
    assert text
    # at the limit of tokens, another tokenization may have written less
    assert compare(noise, job, own.token_ids, reply(text[:1], TOKENS)) is Verdict.SAME
    logits = noise.logits([*job.prompt_ids, own.token_ids[0]])
    ends = max(float(logits[end]) for end in noise.end_ids)
    expected = Verdict.NEAR_TIE if float(logits.max()) - ends <= MAX_GAP else Verdict.DIFFERENT
    assert compare(noise, job, own.token_ids, reply(noise.text(own.token_ids[:1]), 2)) is expected


# -- figures


def test_generation_begins_after_the_first_text() -> None:
    found = reply("abcdef", 6, 4.0, chunks=((1.0, 2), (4.0, 4)))
    assert whole(found).speed == pytest.approx(6 / 4)
    assert generation(replace(found, first_text="ab"), len).speed == pytest.approx(4 / 3)


def test_the_best_mode_is_that_of_the_most_tokens_per_second() -> None:
    workload = Workload("chat", (Job("a", "", (1,), 8), Job("b", "", (1,), 8)))
    fast, slow = [reply("x" * 8, 8, 1.0)] * 2, [reply("x" * 8, 8, 4.0)] * 2
    found = best_mode(
        workload,
        {
            "suffixsvc": [reply("x" * 8, 8, 0.5)] * 2,
            "llama-server plain": slow,
            "llama-server ngram-mod": fast,
        },
        len,
    )
    assert found is not None
    assert (found.mode, found.whole.value) == ("llama-server ngram-mod", pytest.approx(2.0))
    assert best_mode(workload, {"suffixsvc": fast}, len) is None


def test_the_overhead_is_of_the_seconds_per_token() -> None:
    ours, driver = reply("x" * 9, 9, 2.2), reply("x" * 9, 9, 2.0)
    found = overhead([{"suffixsvc, no drafts": [ours] * 3, "driver": [driver] * 3}], len)
    assert found is not None
    assert found.value == pytest.approx(1.1)
    assert found.pairs == 3


def test_a_warm_up_serves_the_workloads_that_share_it(noise: DirectDriver) -> None:
    """Only the first of them restarts a server, once a round; each answers its own jobs."""
    begun: list[str] = []

    def on_answer(subject: str, what: str) -> None:
        begun.append(what)

    def run(key: str, rounds: int, *, started: bool) -> int:
        workload = Workload(key, [Job(key, "a", tuple(b"Some prompt. "), 2)])
        found = run_one_client(
            workload, [noise], rounds, IdleWatch(), on_answer, lambda *failure: None, started=started
        )
        return len(found[noise.name])

    assert run("first", 2, started=False) == 2
    assert run("second", 2, started=True) == 2
    assert begun == [WARMUP, "first", WARMUP, "first", "second", WARMUP, "second"]


def test_several_clients_are_timed_after_all_have_begun() -> None:
    """The first client's text before that is not counted, nor is the time."""
    first = Reply("abcd", 4, 5, 0, 3.0, ((1.0, 1), (2.0, 1), (3.0, 2)), "a", began=10.0)
    second = Reply("abcd", 4, 5, 0, 4.0, ((1.5, 1), (4.0, 3)), "a", began=10.5)
    found = after_all_began([first, second])
    assert found.seconds == pytest.approx(2.5)  # 12.0 .. 14.5
    assert found.tokens == 2 + 3


def test_groups_are_of_all_workloads_in_turn() -> None:
    jobs = {name: [Job(f"{name}{i}", "", (1,), 8) for i in range(3)] for name in "ab"}
    workloads = [Workload(name, its) for name, its in jobs.items()]
    keys = [[job.key for job in group] for group in groups_of(workloads, 4, 9)]
    assert keys == [["a0", "b0", "a1", "b1"]]  # the last two jobs are no group of four
    assert [[job.key for job in group] for group in groups_of(workloads[:1], 4, 9)] == [["a0", "a1", "a2"]]
    assert len(groups_of(workloads, 2, 2)) == 2


def test_a_conversation_computes_only_what_is_new() -> None:
    turns = (Turn(30, 0, 10, 0.1), Turn(52, 39, 8, 0.1), Turn(70, 60, 5, 0.1))
    found = Conversation(turns)
    assert found.new == 30 + 12 + 10
    assert found.computed == 30 + 13 + 10
    assert found.ratio == pytest.approx(53 / 52)


def test_requirements_are_met_or_not() -> None:
    def checked(**given: Any) -> dict[str, bool]:
        nothing: dict[str, Any] = {
            "reference": "", "rows": (), "best": (), "clients": {}, "parallel": 4, "overhead": None,
            "conversation": None, "schema": {},
        }  # fmt: skip
        return {each.figure: each.met for each in requirements_of(**nothing | given)}

    def ratio(value: float, low: float, high: float) -> Ratio:
        return Ratio(value, low, high, value, 9)

    assert checked() == {}
    assert list(checked(overhead=ratio(1.02, 0.99, 1.2)).values()) == [True]
    assert list(checked(overhead=ratio(1.04, 1.0, 1.2)).values()) == [False]
    clients = {
        "llama-server plain": ratio(1, 1, 1), "suffixsvc": ratio(1.05, 1, 1.2),
        "suffixsvc, no drafts": ratio(0.96, 0.9, 1),
    }  # fmt: skip
    assert list(checked(clients=clients).values()) == [True, False]
    turns = (Turn(100, 0, 10, 0.1), Turn(150, 90, 10, 0.1))
    assert list(checked(conversation=Conversation(turns)).values()) == [False]
    assert list(checked(schema={"whole": ratio(0.9, 0.8, 0.99)}).values()) == [False]


def test_busy_servers_are_named() -> None:
    assert "ngram 40%" in idle_sentences({"idle": {"ngram": 0.4, "plain": 0.0}})[0]
    assert idle_sentences({"idle": {"plain": 0.01}}) == ["Idle servers used at most 1.0% of a core."]
    watch = IdleWatch()
    with watch.during({}):
        pass
    assert watch.shares() == {}


def test_schemas_are_strict() -> None:
    """OpenAI's strict form: all properties required, no others, at every level."""

    def check(schema: dict[str, Any]) -> None:
        if schema["type"] == "object":
            assert schema["additionalProperties"] is False
            assert schema["required"] == list(schema["properties"])
            for each in schema["properties"].values():
                check(each)
        if schema["type"] == "array":
            check(schema["items"])

    tasks = schema_tasks(99)
    assert len({task.key for task in tasks}) == len(tasks) >= 6
    for task in tasks:
        assert task.response_format["json_schema"]["strict"] is True
        check(task.response_format["json_schema"]["schema"])


def test_a_server_that_is_gone_is_an_error() -> None:
    client = HttpClient("the server", "127.0.0.1:1")
    assert not client.healthy()
    with pytest.raises(ServiceUnavailableError, match="the server must answer /v1/completions"):
        client.stream("/v1/completions", {})


# -- the command


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"parts": ("two-clients",)}, "--part must be known"),
        ({"workloads": ("nosuch",)}, "--workload must be known"),
        ({"workloads": ("log",)}, "--log must be a file"),
        ({"llama_bin": Path("/")}, "no llama-server"),
        ({"llama_bin": Path("/"), "llama_modes": ("turbo",)}, "--llama-mode must be a mode"),
    ],
)
def test_invalid_options_are_refused(change: dict[str, Any], match: str) -> None:
    check_options(HttpOptions(Path("m.gguf"), workloads=("chat",), parts=PARTS))
    with pytest.raises(InvalidInputError, match=match):
        check_options(HttpOptions(Path("m.gguf"), **change))


def test_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts without llama-server: the answers of both servers are those of the driver."""
    monkeypatch.delenv("LLAMA_CPP_BIN", raising=False)
    model = write_tiny_chain(tmp_path / "cycle.gguf", chain_of("abcdefgh\n"), context=1 << 14)
    report = tmp_path / "report.json"
    sizes = ["--calls", "3", "--turns", "3", "--parallel", "2", "--threads", "1", "--context", "2048"]
    sizes += ["--max-tokens", "24", "--workload", "chat"]
    result = CliRunner().invoke(
        app,
        ["http", "--target", str(model), "--draft", str(model), *sizes, "--report", str(report), "--json"],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert json.loads(report.read_text(encoding="utf-8")) == found
    assert found["provenance"]["suffixsvc"]
    assert found["failed"] == {}
    names = ["driver", "suffixsvc, no drafts", "suffixsvc", "suffixsvc, draft model"]
    assert [row["subject"] for row in found["rows"]] == names
    for row in found["rows"]:
        assert row["agreement"] == {"same": 3, "flips": 0, "different": []}
        assert row["whole"]["pairs"] == 3
        assert row["generation_tokens_per_second"] > 0
        assert all(answer["tokens"] == 24 for answer in found["answers"]["chat"][row["subject"]])
    drafted = {row["subject"]: row["drafted"] for row in found["rows"]}
    assert drafted["suffixsvc, no drafts"] == drafted["driver"] == 0  # of the others, time decides
    assert found["best"] == []
    assert list(found["clients"]) == names[1:3]
    assert [len(groups) for groups in found["client_groups"].values()] == [1, 1]
    conversation = found["conversations"]["suffixsvc"]
    assert len(conversation["turns"]) == 3
    assert 0 < conversation["new"] <= conversation["computed"]
    schema = found["schemas"]["suffixsvc"]
    assert [pair["task"] for pair in schema["pairs"]] == ["appointment", "order", "ticket"]
    assert len(found["figures"]) == 3  # those that need no llama-server
    tables = http_parts(found)
    assert sum(not isinstance(part, str) for part in tables) == 5
    (tmp_path / "http.json").write_text(result.stdout, encoding="utf-8")
    publish(tmp_path, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "## The server beside llama-server\n" in page
    assert "| chat, suffixsvc, no drafts |" in page
