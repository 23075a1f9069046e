"""The examples on a model that calls tools: the planner hands over, and the tool runs."""

from __future__ import annotations

import pytest

from suffixsvc_openai.examples import with_langgraph, with_openai_agents, with_smolagents
from suffixsvc_openai.examples.running import Example
from suffixsvc_openai.examples.shop import QUESTIONS, Shop
from support.conformance import MODEL, Endpoint


@pytest.mark.conformance("examples, the tool runs")
@pytest.mark.parametrize(
    "example", [with_openai_agents.answer, with_langgraph.answer, with_smolagents.answer]
)
def test_the_tool_runs(endpoint: Endpoint, example: Example) -> None:
    shop = Shop()
    assert example(endpoint.base_url, MODEL, shop, QUESTIONS[1])
    assert shop.plans
    assert shop.queries
    shop.close()
