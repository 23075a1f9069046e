"""Definitions of metrics that the service and the OpenAI-compatible server share.

The names are those of vLLM where they mean the same. A server adds its prefix and its own labels:
``suffixsvc_`` and ``namespace`` in the service, ``suffixsvc:`` and vLLM's labels in the OpenAI-compatible
server, for which vLLM's dashboards work with this prefix.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Metric(NamedTuple):
    """A metric.

    Attributes:
        name: without the prefix of its server, and without the suffix ``_total`` of a counter.
        help: its meaning and unit.
        labels: names of its labels, without those that a server gives to all of its metrics.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()


NUM_DRAFTS: Final = Metric("spec_decode_num_drafts", "Steps with a draft.")
NUM_DRAFT_TOKENS: Final = Metric("spec_decode_num_draft_tokens", "Drafted tokens.")
NUM_ACCEPTED_TOKENS: Final = Metric("spec_decode_num_accepted_tokens", "Accepted drafted tokens.")
#: sources have the names of ``suffixsvc_driver.speculation.accounting.EVIDENCE``
DRAFTS_BY_SOURCE: Final = Metric(
    "spec_decode_num_drafts_by_source", "Steps with a drafted token of the source.", ("source",)
)
DRAFT_TOKENS_BY_SOURCE: Final = Metric(
    "spec_decode_num_draft_tokens_by_source", "Drafted tokens.", ("source",)
)
ACCEPTED_TOKENS_BY_SOURCE: Final = Metric(
    "spec_decode_num_accepted_tokens_by_source", "Accepted drafted tokens.", ("source",)
)
