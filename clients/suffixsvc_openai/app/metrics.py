"""Metrics of the server for Prometheus. Names end as vLLM's do: its dashboards work with this prefix.

Of an answer everything is counted at its end, by the thread that stores it: lanes do not wait for it.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from suffixsvc.metric_definitions import (
    ACCEPTED_TOKENS_BY_SOURCE,
    DRAFT_TOKENS_BY_SOURCE,
    DRAFTS_BY_SOURCE,
    NUM_ACCEPTED_TOKENS,
    NUM_DRAFT_TOKENS,
    NUM_DRAFTS,
    Metric,
)
from suffixsvc_driver.decode.generation import Result
from suffixsvc_driver.decode.requests import Outcome
from suffixsvc_driver.speculation.accounting import EVIDENCE
from suffixsvc_openai.engine.call import Call, Job
from suffixsvc_openai.engine.engine import Engine
from suffixsvc_openai.engine.memory import NotStored
from suffixsvc_openai.protocol.errors import ApiError

_PREFIX: Final = "suffixsvc"
#: labels of every metric; vLLM's dashboards filter on both, and here there is one engine
_LABELS: Final = ("model_name", "engine")
_ENGINE: Final = "0"
# buckets have vLLM's bounds, among which its dashboards choose, and smaller ones for short answers
_FIRST_TOKEN: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_STEP: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
_ANSWER: Final = (
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8,
    1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
_TOKENS: Final = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))


class Metrics:
    """Counters, histograms and gauges of one server. Thread-safe.

    Args:
        model: label ``model_name`` of every metric.
    """

    def __init__(self, model: str) -> None:
        self._labels = (model, _ENGINE)
        self._registry = CollectorRegistry()
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts.")
        self._generated = self._counter("generation_tokens", "Generated tokens.")
        self._queries = self._counter("prefix_cache_queries", "Tokens of prompts looked up in the KV cache.")
        self._hits = self._counter("prefix_cache_hits", "Tokens of prompts found in the KV cache.")
        self._success = self._counters("request_success", "Ended answers, by reason.", "finished_reason")
        self._failure = self._counter("request_failure", "Answers that ended with an error.")
        self._refused = self._counters("error_responses", "Errors sent instead of a body.", "status", "code")
        self._ignored = self._counter("ignored_fields", "Fields of requests that are unknown and ignored.")

        self._stored = self._counter("outputs_stored", "Outputs of ended answers that were stored.")
        self._not_stored = self._counters(
            "outputs_not_stored", "Ended answers without a stored output, by reason.", "reason"
        )
        for reason in NotStored:  # a rate needs a first value
            self._not_stored(str(reason))

        self._drafts = self._shared(NUM_DRAFTS)()
        self._drafted = self._shared(NUM_DRAFT_TOKENS)()
        self._accepted = self._shared(NUM_ACCEPTED_TOKENS)()
        self._by_position = self._counters(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by position in the draft.", "position"
        )
        self._by_source = self._counters("spec_decode_tokens_by_source", "Generated tokens.", "source")
        self._drafts_by_source = self._shared(DRAFTS_BY_SOURCE)
        self._drafted_by_source = self._shared(DRAFT_TOKENS_BY_SOURCE)
        self._accepted_by_source = self._shared(ACCEPTED_TOKENS_BY_SOURCE)

        self._whole = self._histogram("e2e_request_latency_seconds", "From the request to its end.", _ANSWER)
        self._queue = self._histogram("request_queue_time_seconds", "From the request to a lane.", _ANSWER)
        self._inference = self._histogram("request_inference_time_seconds", "Time on a lane.", _ANSWER)
        self._prefill = self._histogram("request_prefill_time_seconds", "Time to compute a prompt.", _ANSWER)
        self._decode = self._histogram("request_decode_time_seconds", "Time to generate an answer.", _ANSWER)
        self._first = self._histogram(
            "time_to_first_token_seconds", "From the request to its first tokens.", _FIRST_TOKEN
        )
        self._between = self._histogram(
            "inter_token_latency_seconds", "Between two steps, of which each writes a token or more.", _STEP
        )
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean time of a token after the first ones.", _STEP
        )
        self._prompt_length = self._histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._length = self._histogram("request_generation_tokens", "Tokens of an answer.", _TOKENS)
        self._longest = self._histogram(
            "request_max_num_generation_tokens", "Tokens of the longest answer of a request.", _TOKENS
        )
        self._max_tokens = self._histogram(
            "request_params_max_tokens", "Largest number of tokens that a request allows.", _TOKENS
        )

    def _counter(self, name: str, text: str) -> Counter:
        return self._counters(name, text)()

    def _counters(self, name: str, text: str, *labels: str) -> Callable[..., Counter]:
        """Return a function of the values of ``labels``."""
        made = Counter(f"{_PREFIX}:{name}", text, (*_LABELS, *labels), registry=self._registry)
        return partial(made.labels, *self._labels)

    def _shared(self, metric: Metric) -> Callable[..., Counter]:
        """A counter that the service has, too."""
        return self._counters(metric.name, metric.help, *metric.labels)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(f"{_PREFIX}:{name}", text, _LABELS, registry=self._registry, buckets=buckets)
        return made.labels(*self._labels)

    def watch(self, engine: Engine) -> None:
        """Add the gauges of an engine."""

        def kv_use() -> float:
            used, size = engine.kv_use
            return used / size

        gauges: list[tuple[str, str, Callable[[], float]]] = [
            ("num_requests_running", "Answers on lanes.", lambda: engine.load.running),
            ("num_requests_waiting", "Answers that wait for a lane.", lambda: engine.load.waiting),
            (
                "kv_cache_usage_perc",
                "Part of the KV cache in use, 0 to 1; free lanes keep their text.",
                kv_use,
            ),
        ]
        models = engine.drafting.models
        if models is not None:
            up = "Whether the draft worker runs, or one of several: 1 or 0."
            gauges.append(("draft_model_up", up, lambda: models.up))
        for name, text, value in gauges:
            gauge = Gauge(f"{_PREFIX}:{name}", text, _LABELS, registry=self._registry)
            gauge.labels(*self._labels).set_function(value)

    def ignored(self, fields: int) -> None:
        """Count unknown fields of a request."""
        self._ignored.inc(fields)

    def refused(self, error: ApiError) -> None:
        """Count an error that a client receives instead of a body."""
        self._refused(str(error.status.value), error.code or "").inc()

    def ended(self, call: Call, job: Job, outcome: Outcome) -> None:
        """Count an answer of a call that has ended."""
        (self._stored if job.not_stored is None else self._not_stored(str(job.not_stored))).inc()
        if not isinstance(outcome, Result):
            self._failure.inc()
            return
        self._success(str(outcome.finish)).inc()
        self._prompt.inc(len(outcome.prompt_ids))
        self._generated.inc(len(outcome.token_ids))
        self._queries.inc(len(outcome.prompt_ids))
        self._hits.inc(outcome.prefill.reused)
        self._count_drafts(outcome)
        self._observe_lengths(call, job, outcome)
        self._observe_times(call, job, outcome)

    def _count_drafts(self, result: Result) -> None:
        for source, count in Counts(EVIDENCE[source] for source in result.sources).items():
            self._by_source(source).inc(count)
        for source, counts in result.stats.evidence.items():
            if counts.drafted:
                self._drafts_by_source(source).inc(counts.steps_with_draft)
                self._drafted_by_source(source).inc(counts.drafted)
                self._accepted_by_source(source).inc(counts.accepted)
        steps = [step for step in result.steps if step.decision.drafted]
        accepted = [step.agreed for step in steps]
        self._drafts.inc(len(steps))
        self._drafted.inc(sum(step.decision.drafted for step in steps))
        self._accepted.inc(sum(accepted))
        for position, count in Counts(at for length in accepted for at in range(length)).items():
            self._by_position(str(position)).inc(count)

    def _observe_lengths(self, call: Call, job: Job, result: Result) -> None:
        self._prompt_length.observe(len(result.prompt_ids))
        self._length.observe(len(result.token_ids))
        if job.plan.max_tokens is not None:
            self._max_tokens.observe(job.plan.max_tokens)
        if call.ended == len(call.jobs):
            longest = max(len(each.progress.token_ids) for each in call.jobs)
            self._longest.observe(longest)

    def _observe_times(self, call: Call, job: Job, result: Result) -> None:
        times = job.progress.times
        self._whole.observe(job.ended - call.arrived)
        if job.started is not None:
            self._queue.observe(job.started - call.arrived)
            self._inference.observe(job.ended - job.started)
        self._prefill.observe(result.prefill_seconds)
        self._decode.observe(result.decode_seconds)
        if not times:  # no token was asked for, or the answer was cancelled
            return
        self._first.observe(times[0] - call.arrived)
        if len(result.token_ids) > 1:
            self._per_token.observe((times[-1] - times[0]) / (len(result.token_ids) - 1))
        for before, after in pairwise(times):
            self._between.observe(after - before)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
