"""Expected compute time of requests and jobs, from the measured costs of batches."""

from __future__ import annotations

from collections.abc import Sequence

from suffixsvc_driver.workers.server.engine import DraftEngine, DraftRequest, Job

__all__ = ["batch_seconds", "job_seconds", "request_seconds"]


def request_seconds(engine: DraftEngine, request: DraftRequest) -> float:
    """Return the expected time of a request that was not started."""
    costs = engine.costs
    wanted = min(request.max_draft_tokens, engine.context_size)
    verified = min(len(request.suggested), engine.max_verified(wanted))
    return costs.prefill_seconds(len(request.new_token_ids) + verified) + costs.step_seconds(1) * wanted


def job_seconds(engine: DraftEngine, job: Job | None) -> float:
    """Return the expected time of the rest of a job."""
    if job is None:
        return 0.0
    costs = engine.costs
    return costs.prefill_seconds(job.to_prefill + len(job.suggested)) + costs.step_seconds(1) * job.left


def batch_seconds(engine: DraftEngine, jobs: Sequence[Job], chunk_tokens: int) -> float:
    """Return the expected time until the next batch of these jobs, and a chunk of prefill, are computed."""
    costs = engine.costs
    prefill = sum(job.to_prefill + len(job.suggested) for job in jobs)
    step = costs.step_seconds(costs.width_for(len(jobs))) if jobs else 0.0
    return step + costs.prefill_seconds(prefill + chunk_tokens)
