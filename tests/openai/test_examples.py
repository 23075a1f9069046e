"""The examples, on a model with a script: the agents hand over, and the tool runs with the model's query."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import pytest

from suffixsvc_openai.app.run import OpenAIServer
from suffixsvc_openai.examples.running import Example, run_example
from suffixsvc_openai.examples.shop import Shop
from support.openai_serving import running, settings_of
from support.tiny_agent import Line, call_of, write_tiny_agent

PLAN = "Join both tables, filter by city, sort by the sum."
QUERY = (
    "SELECT name, SUM(euros) FROM customers JOIN orders ON customer_id = customers.id "
    "WHERE city = 'Lisbon' GROUP BY name ORDER BY 2 DESC LIMIT 1"
)
RESULT = '[["Ana", 85]]'
ANSWER = "Ana has spent the most: 85 euros."
IS_PLANNER = "'You are the planner' in text"
HAS_RESULT = "'[[' in last.content"
#: openai-agents and LangGraph
CHAT_SCRIPT = (
    call_of(f"{IS_PLANNER} and 'transfer_to_analyst' in text", "transfer_to_analyst", plan=PLAN),
    call_of(IS_PLANNER, "ask_analyst", plan=PLAN),
    Line(HAS_RESULT, ANSWER),
    call_of("true", "run_sql", query=QUERY),
)
#: smolagents, which sends results as messages of the user
SMOL_SCRIPT = (
    call_of(f"{IS_PLANNER} and 'Ana has' not in text", "analyst", task=PLAN),
    call_of(f"'Ana has' in text or {HAS_RESULT}", "final_answer", of=2, answer=ANSWER),
    call_of("true", "run_sql", query=QUERY),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAIServer]:
    path = write_tiny_agent(tmp_path_factory.mktemp("script") / "script.gguf", CHAT_SCRIPT)
    with running(settings_of(path, context=8192)) as server:
        yield server


@pytest.fixture(scope="module")
def smol_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAIServer]:
    path = write_tiny_agent(tmp_path_factory.mktemp("script") / "script.gguf", SMOL_SCRIPT)
    with running(settings_of(path, context=32768)) as server:
        yield server


def example_with(framework: str) -> Example:
    """The example; a framework takes seconds to import, which collection need not."""
    example: Example = importlib.import_module(f"suffixsvc_openai.examples.with_{framework}").answer
    return example


def check(server: OpenAIServer, framework: str) -> None:
    example = example_with(framework)
    shop = Shop()
    said = example(f"http://{server.address}/v1", "script", shop, "Who of Lisbon has spent the most?")
    assert shop.plans == [PLAN]
    assert shop.queries == [(QUERY, RESULT)]
    assert said == ANSWER
    shop.close()


@pytest.mark.parametrize("framework", ["openai_agents", "langgraph"])
def test_the_tool_runs(server: OpenAIServer, framework: str) -> None:
    check(server, framework)


def test_the_tool_of_a_managed_agent_runs(smol_server: OpenAIServer) -> None:
    check(smol_server, "smolagents")


def test_runs_are_compared(server: OpenAIServer, capsys: pytest.CaptureFixture[str]) -> None:
    run_example(example_with("langgraph"), ["--base-url", f"http://{server.address}/v1", "--again"])
    said = capsys.readouterr().out
    assert said.count(f"run_sql: {QUERY} -> {RESULT}") == 9
    # the same number of tokens, all of which are counted
    totals = re.findall(r"^\| (first run|second run|other questions) .* \| (\d+) \|$", said, re.MULTILINE)
    assert [name for name, _ in totals] == ["first run", "second run", "other questions"]
    assert len({tokens for _, tokens in totals}) == 1
