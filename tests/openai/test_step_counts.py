"""What the server reports of drafts against the driver's counts of the same steps, without a server."""

from __future__ import annotations

from suffixsvc.types import DraftSource
from suffixsvc_driver.decode.generation import Result, StepRecord
from suffixsvc_driver.drafts.events import FinishReason, Verify
from suffixsvc_driver.sampling.settings import GREEDY
from suffixsvc_driver.speculation.accounting import Stats
from suffixsvc_driver.targets import Prefilled
from suffixsvc_openai.live.numbers import Numbers
from suffixsvc_openai.protocol.usage import metrics_of

SUFFIX, PADDING = int(DraftSource.NAMESPACE), int(DraftSource.NONE)


def result_of(sent: Verify, emitted: tuple[int, ...], accepted: int) -> Result:
    """An answer of one step."""
    path = sent.path(emitted, accepted)
    sources = sent.origins(path, len(emitted))
    step = StepRecord(0, (1, *sent.token_ids), accepted, emitted, path, sources, 0.0, 0.0, sent)
    stats = Stats()
    stats.count_step(sent, accepted, path, sources)
    return Result(
        (1,), emitted, sources, FinishReason.LENGTH, stats, (step,), Prefilled(0, 1), GREEDY, 0, 0, 0
    )


def test_padding_after_a_branch_is_no_accepted_token() -> None:
    """Of a tree the batch ends with a branch, so that padding continues a path shorter than the draft."""
    tree = Verify(
        (5, 6, 7, 7),
        (SUFFIX, SUFFIX, SUFFIX, PADDING),
        (0.8, 0.7, 0.2, 0.0),
        "suffix",
        padding=1,
        parents=(-1, 0, -1, 2),
    )
    result = result_of(tree, (7, 7, 9), accepted=2)
    metrics = metrics_of([result])["speculative_decoding"]
    numbers = Numbers.of(result)
    assert (result.stats.drafted, result.stats.accepted) == (3, 1)
    assert (metrics["num_draft_tokens"], metrics["num_accepted_draft_tokens"]) == (3, 1)
    assert metrics["acceptance_histogram"] == [0, 1]
    assert (sum(numbers.drafted.values()), sum(numbers.accepted.values())) == (3, 1)
    assert metrics["tokens_by_source"]["suffix"] == 1
    assert metrics["tokens_by_source"]["target"] == 2
