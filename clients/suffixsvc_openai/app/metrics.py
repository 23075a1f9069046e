"""Metrics of the server for Prometheus. Names end as vLLM's do: its dashboards work with this prefix."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from suffixsvc_driver.decode.generation import Result
from suffixsvc_driver.decode.requests import Outcome
from suffixsvc_driver.decode.scheduler import Load
from suffixsvc_driver.speculation.accounting import EVIDENCE
from suffixsvc_openai.engine.plans import Plan
from suffixsvc_openai.protocol.usage import drafted_tokens

_PREFIX: Final = "suffixsvc"
_SECONDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


class Metrics:
    """Counters and gauges of one server. Thread-safe.

    Args:
        model: label ``model_name`` of every metric.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._registry = CollectorRegistry()
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts.")
        self._generated = self._counter("generation_tokens", "Generated tokens.")
        self._queries = self._counter("prefix_cache_queries", "Tokens of prompts looked up in the KV cache.")
        self._hits = self._counter("prefix_cache_hits", "Tokens of prompts found in the KV cache.")
        self._success = self._counter("request_success", "Ended answers, by reason.", "finished_reason")
        self._failure = self._counter("request_failure", "Answers that ended with an error.")
        self._ignored = self._counter("ignored_fields", "Fields of requests that are unknown and ignored.")
        self._drafts = self._counter("spec_decode_num_drafts", "Steps with a draft.")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Drafted tokens.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Accepted drafted tokens.")
        self._by_position = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by position in the draft.", "position"
        )
        self._by_source = self._counter("spec_decode_tokens_by_source", "Generated tokens.", "source")
        self._prefill = self._histogram("request_prefill_time_seconds", "Time to compute a prompt.")
        self._decode = self._histogram("request_decode_time_seconds", "Time to generate an answer.")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{_PREFIX}:{name}", text, ("model_name", *labels), registry=self._registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            f"{_PREFIX}:{name}", text, ("model_name",), registry=self._registry, buckets=_SECONDS
        )

    def watch(self, load: Callable[[], Load]) -> None:
        """Add the gauges of a scheduler's load."""
        for name, text, value in (
            ("num_requests_running", "Answers on lanes.", lambda: load().running),
            ("num_requests_waiting", "Answers that wait for a lane.", lambda: load().waiting),
        ):
            gauge = Gauge(f"{_PREFIX}:{name}", text, ("model_name",), registry=self._registry)
            gauge.labels(self._model).set_function(value)

    def ignored(self, fields: int) -> None:
        """Count unknown fields of a request."""
        self._ignored.labels(self._model).inc(fields)

    def ended(self, _plan: Plan, outcome: Outcome) -> None:
        """Count an answer that has ended."""
        model = self._model
        if not isinstance(outcome, Result):
            self._failure.labels(model).inc()
            return
        self._success.labels(model, str(outcome.finish)).inc()
        self._prompt.labels(model).inc(len(outcome.prompt_ids))
        self._generated.labels(model).inc(len(outcome.token_ids))
        self._queries.labels(model).inc(len(outcome.prompt_ids))
        self._hits.labels(model).inc(outcome.prefill.reused)
        self._prefill.labels(model).observe(outcome.prefill_seconds)
        self._decode.labels(model).observe(outcome.decode_seconds)
        for source, count in Counts(outcome.sources).items():
            self._by_source.labels(model, EVIDENCE[source]).inc(count)
        steps = [(step.accepted, tokens) for step in outcome.steps if (tokens := drafted_tokens(step))]
        accepted = [min(taken, tokens) for taken, tokens in steps]
        self._drafts.labels(model).inc(len(steps))
        self._drafted.labels(model).inc(sum(tokens for _, tokens in steps))
        self._accepted.labels(model).inc(sum(accepted))
        for position, count in Counts(at for length in accepted for at in range(length)).items():
            self._by_position.labels(model, str(position)).inc(count)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
