"""Metrics against what clients received, and the names that vLLM's dashboards ask for, over a real server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import openai
from suffixsvc.errors import (
    LimitExceededError,
    ServiceTimeoutError,
    ServiceUnavailableError,
    StoreFullError,
    SuffixError,
)
from suffixsvc.index.session import Session
from suffixsvc_openai.app.run import OpenAIServer
from support.openai_serving import ENDLESS, LANES, NO_DRAFTS, client_of, idle, running, send, settings_of
from support.serving import PATIENCE_S, eventually

#: what vLLM's example dashboards (its own, performance, queries, speculative decoding) read, without prefix
BOARD = (
    *(
        f"{name}_{part}"
        for name in (
            "e2e_request_latency_seconds",
            "inter_token_latency_seconds",
            "time_to_first_token_seconds",
        )
        for part in ("bucket", "sum", "count")
    ),
    "generation_tokens_total",
    "kv_cache_usage_perc",
    "num_requests_running",
    "num_requests_waiting",
    "prompt_tokens_total",
    "request_decode_time_seconds_sum",
    "request_generation_tokens_bucket",
    "request_max_num_generation_tokens_sum",
    "request_prefill_time_seconds_sum",
    "request_prompt_tokens_bucket",
    "request_queue_time_seconds_sum",
    "request_success_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_drafts_total",
)
#: and its overview
OVERVIEW = (
    "prefix_cache_hits_total",
    "prefix_cache_queries_total",
    "request_time_per_output_token_seconds_bucket",
    "request_time_per_output_token_seconds_count",
)


class Scrape:
    """The samples of a server."""

    def __init__(self, server: OpenAIServer) -> None:
        text = httpx.get(f"http://{server.address}/metrics", timeout=PATIENCE_S).text
        families = text_string_to_metric_families(text)
        self.samples = [sample for family in families for sample in family.samples]

    def __getitem__(self, name: str) -> float:
        """The sum of a metric, over all labels."""
        return sum(sample.value for sample in self.samples if sample.name == f"suffixsvc:{name}")

    def by(self, name: str, label: str) -> dict[str, float]:
        """The values of a metric that are not zero, by a label."""
        return {
            each.labels[label]: each.value
            for each in self.samples
            if each.name == f"suffixsvc:{name}" and each.value
        }


@pytest.fixture
def fresh(cycle: Path) -> Iterator[OpenAIServer]:
    """A server that has answered nothing."""
    with running(settings_of(cycle)) as server:
        yield server


def complete(server: OpenAIServer, **fields: Any) -> dict[str, Any]:
    body = {"model": "cycle", "prompt": "ab", "max_tokens": 30, "temperature": 0, **fields}
    answer = httpx.post(f"http://{server.address}/v1/completions", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_it_has_what_vllms_dashboards_ask_for(fresh: OpenAIServer) -> None:
    for _ in range(2):
        complete(fresh)
    idle(fresh)
    found = Scrape(fresh)
    names = {sample.name for sample in found.samples}
    assert {f"suffixsvc:{name}" for name in (*BOARD, *OVERVIEW)} - names == set()
    for sample in found.samples:
        assert sample.name.startswith("suffixsvc:"), "all have the prefix, so that it can be swapped"
        assert (sample.labels["model_name"], sample.labels["engine"]) == ("cycle", "0")


def test_a_new_server_has_zeros(fresh: OpenAIServer) -> None:
    """A rate needs a first value from before the first request."""
    found = Scrape(fresh)
    names = {sample.name for sample in found.samples}
    for name in ("generation_tokens_total", "e2e_request_latency_seconds_count", "request_failure_total"):
        assert f"suffixsvc:{name}" in names
        assert found[name] == 0


def test_lengths_are_those_of_the_answers(fresh: OpenAIServer) -> None:
    answers = [complete(fresh, prompt="abc", n=2), complete(fresh, max_tokens=12)]
    idle(fresh)
    found = Scrape(fresh)
    written = sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert written == 30 + 30 + 12
    assert found["generation_tokens_total"] == found["request_generation_tokens_sum"] == written
    assert found["prompt_tokens_total"] == found["request_prompt_tokens_sum"]
    assert found["request_prompt_tokens_count"] == found["request_success_total"] == 3
    assert found.by("request_success_total", "finished_reason") == {"length": 3}
    assert found["request_params_max_tokens_sum"] == 30 + 30 + 12
    # of a request, not of an answer
    assert found["request_max_num_generation_tokens_sum"] == 30 + 12
    assert found["request_max_num_generation_tokens_count"] == 2


def test_times_are_parts_of_each_other(fresh: OpenAIServer) -> None:
    before = time.monotonic()
    for _ in range(3):
        complete(fresh, **NO_DRAFTS)
    seconds = time.monotonic() - before
    idle(fresh)
    found = Scrape(fresh)
    whole, queue, lane = (
        found[f"{name}_sum"]
        for name in (
            "e2e_request_latency_seconds",
            "request_queue_time_seconds",
            "request_inference_time_seconds",
        )
    )
    assert 0 < whole < seconds
    assert queue + lane == pytest.approx(whole)
    assert 0 < found["request_prefill_time_seconds_sum"] + found["request_decode_time_seconds_sum"] < lane
    first, between = found["time_to_first_token_seconds_sum"], found["inter_token_latency_seconds_sum"]
    assert queue < first
    assert first + between < whole
    assert found["time_to_first_token_seconds_count"] == 3
    assert found["inter_token_latency_seconds_count"] == 3 * 29  # without drafts, a token a step
    assert found["request_time_per_output_token_seconds_sum"] * 29 == pytest.approx(between)


def test_the_time_in_the_queue_is_counted(fresh: OpenAIServer) -> None:
    occupying = [send(fresh, {**ENDLESS, **NO_DRAFTS}) for _ in range(LANES)]
    eventually(lambda: fresh.service.engine.load.running == LANES, "all lanes are in use")
    waiting = send(fresh, {**ENDLESS, "max_tokens": 3})
    eventually(lambda: fresh.service.engine.load.waiting == 1, "one waits")
    found = Scrape(fresh)
    assert (found["num_requests_running"], found["num_requests_waiting"]) == (LANES, 1)
    before = time.monotonic()
    eventually(lambda: Scrape(fresh)["kv_cache_usage_perc"] > 0, "tokens are in the KV")
    waited = time.monotonic() - before
    for each in occupying:
        each.close()
    assert waiting.recv(1)
    waiting.close()
    idle(fresh)
    found = Scrape(fresh)
    assert found["request_queue_time_seconds_sum"] > waited
    assert 0 < found["kv_cache_usage_perc"] <= 1
    assert found.by("request_success_total", "finished_reason") == {"cancelled": LANES, "length": 1}


def test_drafts_are_counted_by_source(fresh: OpenAIServer) -> None:
    predicted = {"prediction": {"type": "content", "content": "c\nabcdefgh\nabcd"}}
    with client_of(fresh) as client:
        answers: list[Any] = [
            client.chat.completions.create(
                model="cycle",
                messages=[{"role": "user", "content": "ab"}],
                max_tokens=40,
                temperature=0,
                extra_body=extra,
            )
            for extra in (predicted, {}, {})
        ]
    idle(fresh)
    found = Scrape(fresh)
    reported = [answer.model_extra["metrics"]["speculative_decoding"] for answer in answers]
    drafted = found.by("spec_decode_num_draft_tokens_by_source_total", "source")
    accepted = found.by("spec_decode_num_accepted_tokens_by_source_total", "source")
    drafts = found.by("spec_decode_num_drafts_by_source_total", "source")
    assert sum(drafted.values()) == sum(each["num_draft_tokens"] for each in reported) > 0
    assert sum(accepted.values()) == sum(each["num_accepted_draft_tokens"] for each in reported) > 0
    assert found["spec_decode_num_drafts_total"] == sum(each["num_spec_steps"] for each in reported)
    assert len(drafted) > 1, "drafts have several sources"
    for source, tokens in drafted.items():
        assert accepted.get(source, 0) <= tokens
        assert drafts[source] <= tokens
    emitted = found.by("spec_decode_tokens_by_source_total", "source")
    assert emitted == {
        source: total
        for source in reported[0]["tokens_by_source"]
        if (total := sum(each["tokens_by_source"][source] for each in reported))
    }
    for source, tokens in emitted.items():
        if source != "target":  # an end cuts what was accepted
            assert tokens <= accepted[source]


def test_every_ended_answer_is_stored_or_has_a_reason(fresh: OpenAIServer) -> None:
    """Outputs that were not stored were lines of the log only."""
    new = Scrape(fresh)
    reasons = {s.labels["reason"] for s in new.samples if s.name == "suffixsvc:outputs_not_stored_total"}
    assert reasons == {"no_store", "no_output", "repeated", "limit", "service", "error"}
    assert new["outputs_stored_total"] == new["outputs_not_stored_total"] == 0

    complete(fresh, n=2)
    complete(fresh, suffixsvc={"no_store": True})
    complete(fresh, max_tokens=0, echo=True, logprobs=1)
    headers = {"X-Stainless-Retry-Count": "1"}
    complete(fresh, prompt="abc")
    body = {"model": "cycle", "prompt": "abc", "max_tokens": 30, "temperature": 0}
    url = f"http://{fresh.address}/v1/completions"
    assert httpx.post(url, json=body, headers=headers, timeout=PATIENCE_S).status_code == 200
    idle(fresh)
    found = Scrape(fresh)
    assert found["outputs_stored_total"] == 3
    assert found.by("outputs_not_stored_total", "reason") == {"no_store": 1, "no_output": 1, "repeated": 1}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LimitExceededError("too many namespaces"), "limit"),
        (ServiceUnavailableError("it is gone"), "service"),
        (ServiceTimeoutError("it does not answer"), "service"),
        (StoreFullError("the disk is full"), "error"),
    ],
)
def test_outputs_that_cannot_be_stored_are_counted_by_reason(
    fresh: OpenAIServer, monkeypatch: pytest.MonkeyPatch, error: SuffixError, reason: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    memory = fresh.service.engine._memory
    with monkeypatch.context() as patch:
        patch.setattr(memory._backend, "namespace", fail)
        complete(fresh)  # no session
        complete(fresh, suffixsvc={"no_store": True})
    with monkeypatch.context() as patch:
        patch.setattr(Session, "close", fail)
        complete(fresh)
        idle(fresh)
    found = Scrape(fresh)
    assert found.by("outputs_not_stored_total", "reason") == {reason: 2, "no_store": 1}
    assert found["outputs_stored_total"] == 0


def test_errors_are_counted_by_status_and_code(
    fresh: OpenAIServer, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://{fresh.address}/v1/completions"
    body = {"model": "cycle", "prompt": "ab"}
    monkeypatch.setattr("suffixsvc_openai.app.http.bodies.MAX_BODY_BYTES", 1000)
    for content, status in (({**body, "model": "none"}, 404), ({**body, "stop": "a" * 1000}, 413)):
        assert httpx.post(url, json=content, timeout=PATIENCE_S).status_code == status
    assert httpx.post(url, json={**body, "temperature": 5}, timeout=PATIENCE_S).status_code == 400
    monkeypatch.setattr(fresh.service, "draining", True)
    assert httpx.post(url, json=body, timeout=PATIENCE_S).status_code == 503
    found = Scrape(fresh)
    assert found.by("error_responses_total", "status") == {"404": 1, "413": 1, "400": 1, "503": 1}
    assert found.by("error_responses_total", "code") == {
        "model_not_found": 1,
        "request_too_large": 1,
        "": 1,
        "server_stopping": 1,
    }
    assert found["request_success_total"] == found["e2e_request_latency_seconds_count"] == 0


def test_errors_of_urls_are_counted(fresh: OpenAIServer) -> None:
    for method, path in (("GET", "/v1/nothing"), ("POST", "/v1/responses/compact"), ("PUT", "/v1/models")):
        httpx.request(method, f"http://{fresh.address}{path}", timeout=PATIENCE_S)
    assert Scrape(fresh).by("error_responses_total", "status") == {"404": 2, "405": 1}
