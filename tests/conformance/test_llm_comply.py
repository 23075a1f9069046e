"""llm-comply: requests, and answers checked against the published schemas."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.conformance import MODEL, Endpoint
from support.llm_comply_runs import CHAT, IMAGES, RESPONSES, cases, check


@pytest.mark.conformance("llm-comply 0.5.0, chat")
@pytest.mark.parametrize("case", cases(CHAT))
def test_chat(endpoint: Endpoint, refused: Callable[[], None], case: str) -> None:
    check(CHAT, case, endpoint.address, MODEL)
    if case == IMAGES[CHAT]:
        refused()


@pytest.mark.conformance("llm-comply 0.5.0, responses")
@pytest.mark.parametrize("case", cases(RESPONSES))
def test_responses(endpoint: Endpoint, refused: Callable[[], None], case: str) -> None:
    check(RESPONSES, case, endpoint.address, MODEL)
    if case == IMAGES[RESPONSES]:
        refused()
